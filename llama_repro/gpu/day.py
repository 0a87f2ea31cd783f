"""All that one GPU can say in nine minutes: ``scripts/gpu_day.sh``, one JSON and one page of text.

    python -m llama_repro.gpu.day --out gpu_day.json                 on the GPU of this process
    python -m llama_repro.gpu.day --out day.json --device cpu        a dry run of every part: nothing is timed

Each part stands by itself: one that fails, or for which no time is left, says so, and the others go on. The record is
written after each. No network is needed, and no other package than those of ``overlap_sched`` and torch.
"""

import argparse
import io
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console

from llama_repro.capture.configs import LlamaConfig, find_config
from llama_repro.capture.trace import captured
from llama_repro.gpu.check import ORDERS, check
from llama_repro.gpu.history import MOST_EVENTS, replayed
from llama_repro.gpu.measure import counted_run, node_times_us
from llama_repro.gpu.plugin import check_plugin
from llama_repro.gpu.program import Program
from llama_repro.gpu.streams import CudaStreams, EmulatedStreams, calibrated, has_streams
from llama_repro.gpu.table import hardware_of, table_of
from llama_repro.gpu.values import random_inputs
from llama_repro.harness.console import guarded
from llama_repro.harness.record import provenance, write_record
from overlap_sched.fx import Lifted, lift
from overlap_sched.problem import Kind
from overlap_sched.report.files import write_file

LIMIT_S = 310.0
"""No part begins after so many seconds: the last may take the rest of nine minutes."""
LAYERS = 2
SIZES, RANKS = {"cuda": "4KiB..64MiB", "cpu": "4KiB..4KiB"}, {"cuda": 1, "cpu": 2}
"""Of the collectives that are calibrated, and how many processes do that."""
CALIBRATING_S = 240.0
"""The longest that may take."""


@dataclass(frozen=True)
class Said:
    """What came of a part.

    Attributes:
        figures: For the record. text: for people.
    """

    figures: Any
    text: str


Part = Callable[[torch.device, LlamaConfig], Said]


def orders(device: torch.device, config: LlamaConfig) -> Said:
    """The backward graph in several orders, with emulated collectives: steps and bytes, beside those predicted."""
    checked = check(config, ORDERS, device, repeat=5)
    page = Console(file=io.StringIO(), width=180)
    page.print(table_of(checked, hardware_of(device)), *checked.remarks)
    return Said([asdict(row) for row in checked.rows], _text(page))


def plug_in(device: torch.device, config: LlamaConfig) -> Said:
    """The plug-in of ``torch.compile`` in a process group of one rank."""
    found = check_plugin(device)
    same = "bitwise equal" if found.same_results else "NOT equal"
    return Said(asdict(found), f"{found.backend}: results are {same}, {found.changed} graphs reordered")


def allocator(device: torch.device, config: LlamaConfig) -> Said:
    """Torch's caching allocator beside its replay, on what the graph asks for."""
    lifted = _lifted(config)
    program = Program(lifted, lifted.problem.original_order)
    found = replayed(_history(program, lifted, device, config))
    if not found.requests:
        return Said(asdict(found), "nothing was recorded: there is no GPU")
    same = "as much" if found.same else "NOT as much"
    return Said(
        asdict(found),
        f"{found.requests:,} requests: the replay reserves {same}: {found.our_bytes:,} bytes in {found.our_segments} "
        f"segments, torch {found.torch_bytes:,} in {found.torch_segments}",
    )


def _history(
    program: Program, lifted: Lifted, device: torch.device, config: LlamaConfig
) -> Sequence[Mapping[str, Any]]:
    """Return what torch recorded of one run from an empty cache; on the CPU, nothing."""
    inputs = _inputs(lifted, device, config)
    if not has_streams(device):
        counted_run(program, lambda: inputs, EmulatedStreams())
        return ()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=MOST_EVENTS)
    try:
        counted_run(program, lambda: inputs, CudaStreams(device, calibrated(), None))
        torch.cuda.synchronize()
        traces: Sequence[Sequence[Mapping[str, Any]]] = torch.cuda.memory._snapshot()["device_traces"]
        return traces[device.index or 0]
    finally:
        torch.cuda.memory._record_memory_history(None)


def prices(device: torch.device, config: LlamaConfig) -> Said:
    """Measured times of operators beside those predicted for an H100, summed by operator."""
    lifted = _lifted(config)
    problem = lifted.problem
    measured: Mapping[Any, float] = {}
    if has_streams(device):
        program, cycles = Program(lifted, problem.original_order), calibrated()
        measured = node_times_us(
            program, lambda: _inputs(lifted, device, config), 3, lambda log: CudaStreams(device, cycles, None, log)
        )
    sums = defaultdict[str, list[float]](lambda: [0, 0.0, 0.0])
    for v, node in enumerate(problem.nodes):
        if node.kind is Kind.COMPUTE and node.time_us:
            row = sums[node.op]
            row[0], row[1], row[2] = row[0] + 1, row[1] + node.time_us, row[2] + measured.get(lifted.nodes[v], 0.0)
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    lines = [
        f"{op:40} {count:5.0f}  {predicted:10.1f} us predicted  {actual:10.1f} us measured"
        for op, (count, predicted, actual) in ordered
    ]
    return Said(dict(ordered), "\n".join(lines))


def kernels(device: torch.device, config: LlamaConfig) -> Said:
    """What ``overlap-sched calibrate`` measures on one device: a cluster file."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "cluster.toml"
        run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS[device.type])]
        asked = ["--out", str(out), "--device", device.type, "--bytes", SIZES[device.type]]
        done = subprocess.run(
            [*run, "-m", "overlap_sched", "calibrate", *asked], capture_output=True, text=True, timeout=CALIBRATING_S
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-500:])
        return Said({"cluster": out.read_text()}, done.stdout.strip())


PARTS: Mapping[str, Part] = {
    "orders": orders,
    "allocator": allocator,
    "prices": prices,
    "plug-in": plug_in,
    "kernels": kernels,
}
"""What is worth most comes first."""


def day(
    device: torch.device, config: LlamaConfig, parts: Mapping[str, Part] = PARTS, limit_s: float = LIMIT_S
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run all parts; yields the name of each, and its ``seconds`` with ``figures`` and ``text``, or ``failed``."""
    began = time.monotonic()
    for name, part in parts.items():
        start = time.monotonic()
        said: dict[str, Any]
        if start - began > limit_s:
            said = {"failed": f"not begun: {limit_s:g} s are over"}
        else:
            try:
                said = asdict(part(device, config))
            except Exception as error:  # the others still have something to say
                said = {"failed": f"{type(error).__name__}: {error}"}
        yield name, {"seconds": round(time.monotonic() - start, 1), **said}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 1 where a part failed."""
    parser = argparse.ArgumentParser("gpu_day.sh", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_day.json"), help="the record; beside it .txt, for people")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    options = parser.parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: nothing measured (--device cpu is a dry run without one)")
        return 0
    return guarded("gpu_day", lambda: _run(options.device, options.out))


def _run(name: str, out: Path) -> int:
    device = torch.device("cuda", 0) if name == "cuda" else torch.device("cpu")
    config = replace(find_config("llama3-8b" if name == "cuda" else "tiny"), layers=LAYERS if name == "cuda" else 1)
    record: dict[str, Any] = {**provenance("scripts/gpu_day.sh"), "hardware": hardware_of(device), "parts": {}}
    where = f"{record['date']}, {record['hardware']}, torch {torch.__version__}"
    text = f"{where}, {config.name} of {config.layers} layers\n"
    for part, said in day(device, config):
        record["parts"][part] = said
        told = said.get("text") or f"FAILED: {said.get('failed')}"
        text += f"\n## {part} ({said['seconds']} s)\n\n{told}\n"
        print(f"{part}: {said['seconds']} s{', failed' if 'failed' in said else ''}", file=sys.stderr)
        write_record(out, record)
        write_file(out.with_suffix(".txt"), text.encode())
    print(text, end="")
    return int(any("failed" in said for said in record["parts"].values()))


@cache
def _lifted(config: LlamaConfig) -> Lifted:
    with captured(config) as graphs:
        return lift(graphs.backward, name=f"{config.name}_bwd")


def _inputs(lifted: Lifted, device: torch.device, config: LlamaConfig) -> list[Any]:
    return random_inputs([node for node in lifted.nodes if node.op == "placeholder"], device, config.vocabulary)


def _text(page: Console) -> str:
    file = page.file
    assert isinstance(file, io.StringIO)
    return file.getvalue().rstrip()


if __name__ == "__main__":
    sys.exit(main())
