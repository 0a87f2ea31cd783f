"""Train with torchtitan's GraphTrainer on CPU ranks, with our pass and without; one table (``scripts/titan.sh``).

scripts/titan.sh                                      losses, predicted figures, orders
scripts/titan.sh --pipelines                          the same of GraphPP, per kind of graph
scripts/titan.sh --slow-network 0.1 [--record FILE]   measured steps over an emulated link of that many GB/s
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_repro.harness.console import guarded
from llama_repro.harness.record import provenance, write_record
from llama_repro.training.link import check_slow_network
from overlap_sched.report.files import check_writable
from tests.support.ranks import run_ranks
from tests.support.titan.jobs import DEEPSEEK, DUAL_PIPE, EP, LLAMA, OURS, TP, ZERO_BUBBLE, Job, train

MODELS = {
    "Llama-3 debug, FSDP 2": (2, LLAMA),
    "DeepSeek-v3 debug, FSDP 2, EP 2": (2, DEEPSEEK + EP),
    "Llama-3 debug, FSDP 2 x TP 2": (4, LLAMA + TP),
}
PIPELINES = {"DualPipeV": DUAL_PIPE, "ZBVZeroBubble": ZERO_BUBBLE}
KINDS = ("multiplex", "fw", "full_bw", "bw_di", "bw_dw", "unshard", "reduce_grad")
"""As torchtitan calls its graphs."""
DIFFER = "DIFFER"
Ranks = list[dict[str, Any]]


def main() -> None:
    """Print a table; an error where a loss differs."""
    parser = argparse.ArgumentParser("titan.sh", description="torchtitan's debug models on CPU ranks.")
    parser.add_argument("--slow-network", type=float, metavar="GB/S", help="time steps over an emulated link")
    parser.add_argument("--pipelines", action="store_true", help="DeepSeek-v3's debug model in a pipeline of GraphPP")
    parser.add_argument("--record", type=Path, metavar="OUT.json", help="of times: write them, when and on what")
    options = parser.parse_args()
    if options.pipelines:
        sys.exit(_pipelined())
    if options.slow_network is None:
        sys.exit(_compared())
    sys.exit(guarded("titan", lambda: _timed(options.slow_network, options.record)))


def _head(*columns: str) -> None:
    print(f"| {' | '.join(columns)} |\n{'| --- ' * len(columns)}|")


def _both(arguments: tuple[str, ...], ranks: int) -> tuple[str, Ranks, Ranks]:
    """Whether losses are equal, what ranks saw without us, and with us."""
    with tempfile.TemporaryDirectory() as folder:
        found = train(Path(folder), [Job("plain", arguments), Job("ours", arguments + OURS)], ranks)
    plain, ours = found["plain"], found["ours"]
    same = all(a["losses"] == b["losses"] for a, b in zip(plain, ours, strict=True))
    return "equal to the last bit" if same else DIFFER, plain, ours


def _compared() -> bool:
    _head("model", "losses of 3 steps", "exposed, predicted", "peak, predicted", "kernels between launch and wait")
    losses = [""]
    for model, (ranks, arguments) in MODELS.items():
        same, plain, ours = _both(arguments, ranks)
        losses.append(same)
        (report,) = ours[0]["reports"]
        before, after = report["original"], report["scheduled"]
        exposed = f"{before['exposed_us'] / 1e3:.3f} -> {after['exposed_us'] / 1e3:.3f} ms"
        peak = f"{before['peak_bytes'] / 2**20:.1f} -> {after['peak_bytes'] / 2**20:.1f} MiB"
        print(f"| {model} | {same} | {exposed} | {peak} | {plain[0]['between']} -> {ours[0]['between']} |", flush=True)
    return DIFFER in losses


def _pipelined() -> bool:
    """Figures are sums over the graphs of a kind: those that ran and communicate, of all four stages."""
    _head("schedule", "graphs", "losses of 3 steps", "step, predicted", "exposed, predicted", "turns")
    losses = [""]
    for schedule, pipeline in PIPELINES.items():
        same, *both = _both(DEEPSEEK + EP + pipeline, 4)
        losses.append(same)
        plain, ours = ({**job[0]["stages"], **job[2]["stages"]} for job in both)
        for kind in KINDS:
            names = [name for name in ours if name.split()[0] == kind]
            if any(plain[name]["exposed_us"] for name in names):
                told = " | ".join(_from_to(names, plain, ours, what) for what in ("step_us", "exposed_us", "turns"))
                print(f"| {schedule} | {len(names)} x {kind} | {same} | {told} |", flush=True)
    return DIFFER in losses


def _from_to(names: list[str], plain: dict[str, Any], ours: dict[str, Any], what: str) -> str:
    before, after = (sum(stages[name][what] for name in names) for stages in (plain, ours))
    return f"{before} -> {after}" if what == "turns" else f"{before / 1e3:.3f} -> {after / 1e3:.3f} ms"


def _timed(gb_per_s: float, record: Path | None) -> int:
    check_slow_network(gb_per_s)
    if record is not None:
        check_writable(record)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        run_ranks("tests.support.titan.slow", out, gb_per_s, ranks=2, limit_s=1200, PYTHONHASHSEED="0")
        found: Mapping[str, dict[str, Any]] = json.loads(out.read_text())
    _head("job", "step", "spread", "waits for the link", "collectives", "peak, predicted")
    for name, job in found.items():
        times = " | ".join(f"{job[what] / 1e3:.1f} ms" for what in ("step_us", "spread_us", "exposed_us"))
        peak = f"{job['peak_bytes'] / 2**20:.1f} MiB" if "peak_bytes" in job else ""
        print(f"| {name} | {times} | {job['collectives']} | {peak} |")
    losses = [one for job in found.values() for one in job.pop("losses")]
    same = all(one == losses[0] for one in losses)
    print(f"losses of {len(losses)} trainings: {'equal to the last bit' if same else DIFFER}")
    if record is not None:
        rows = [{"case": name, **job} for name, job in found.items()]
        command = f"scripts/titan.sh --slow-network {gb_per_s:g}"
        packages = ("torch", "torchtitan", "numpy", "sortedcontainers")
        write_record(record, {**provenance(command, packages), "same_losses": same, "rows": rows})
    return int(not same)


if __name__ == "__main__":
    main()
