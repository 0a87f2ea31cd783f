"""``python -m scripts.studies.fidelity``: all cases, each on ranks of its own; one table of predictions beside measurements.

Exit status: 0 where every figure is within its aim, 1 where one is not or a case failed, 2 for wrong usage.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llama_repro import ROOT
from llama_repro.harness.console import guarded, verdict, wide_console
from llama_repro.harness.record import provenance, write_record
from llama_repro.training.link import LATENCY_US, check_slow_network
from overlap_sched.errors import OptionsError
from overlap_sched.report.files import check_writable
from overlap_sched.report.progress import progress
from scripts.studies.fidelity.cores import ALONE
from scripts.studies.fidelity.table import STEP_AIM, Row, failures, fidelity_table, rows_of


class Case(NamedTuple):
    """A job: how many ranks, what each runs, and its arguments."""

    ranks: int
    module: str
    arguments: tuple[str, ...]


_ERROR = re.compile(r"^\[rank\d+\]: .*?((?:[A-Za-z_.]+)(?:Error|Exception): .*)$")
"""A line with which a rank ends its traceback."""
_TRAIN, _TITAN = "scripts.studies.fidelity.rank", "scripts.studies.fidelity.titan"
_FP32 = ("--batch", "4", "--dtype", "fp32")
_SHORT = ("--model", "short", *_FP32)
CASES: Mapping[str, Case] = {
    "fsdp": Case(2, _TRAIN, _SHORT),
    "tp": Case(2, _TRAIN, (*_SHORT, "--sharding", "2d")),
    "2d": Case(4, _TRAIN, ("--model", "tiny", *_FP32, "--sharding", "2d")),
    "titan": Case(2, _TITAN, ()),
}
"""The ways of sharding of ``scripts/train.py``: over all ranks, over those of tensor parallelism alone, over both; and
torchtitan's debug Llama under GraphTrainer (needs torch 2.15 and torchtitan). The model has three layers instead of the
eight of ``small``; on four ranks, which share two cores, two narrow ones. In fp32: a CPU without instructions for bf16
takes ten to fifty times as long for products in bf16."""


def main(given: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    return guarded("fidelity", lambda: _run(_parser().parse_args(given)))


def _run(options: argparse.Namespace) -> int:
    check_cases(options.cases)
    check_slow_network(options.slow_network, options.slow_latency)
    if options.gpu:
        return _gpu()
    if options.record is not None:
        check_writable(options.record)
    console = wide_console()
    rows: list[Row] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder, progress() as tell:
        for name in options.cases or [name for name in CASES if name != "titan"]:
            tell(f"{name}: {CASES[name].ranks} ranks")
            found = _ranks(CASES[name], Path(folder) / f"{name}.json", options)
            if isinstance(found, str):
                failed.append(f"{name}: {found}")
            else:
                rows += rows_of(name, found)
                failed += [] if found.get("same_losses", True) else [f"{name}: losses differ between the two orders"]
    console.print(fidelity_table(rows))
    if options.record is not None:
        write_record(options.record, {**provenance(_command(options)), "rows": [row._asdict() for row in rows]})
    return verdict(console, (), [*failed, *failures(rows)])


def _command(options: argparse.Namespace) -> str:
    return " ".join(
        ["python -m scripts.studies.fidelity", *options.cases, *(["--alone"] if options.alone else []), *_link(options)]
    )


def _link(options: argparse.Namespace) -> list[str]:
    """As it is passed on."""
    latency = [] if options.slow_latency == LATENCY_US else ["--slow-latency", f"{options.slow_latency:g}"]
    return [] if options.slow_network is None else ["--slow-network", f"{options.slow_network:g}", *latency]


def _gpu() -> int:
    """A Llama layer on this machine's GPU; says so where there is none."""
    import torch  # the other cases leave it to their ranks

    from llama_repro.capture.configs import find_config
    from scripts.studies.fidelity.gpu import layer_lines, layer_rows, misses

    console = wide_console()
    if not torch.cuda.is_available():
        console.print("no GPU: nothing measured")
        return 0
    with progress() as tell:
        rows, failed = layer_rows(find_config("llama3-8b"), torch.device("cuda", 0), tell)
    lines = [*layer_lines(rows), *(f"not timed: {what}" for what in failed)]
    return verdict(console, lines, misses(rows, STEP_AIM))


def _ranks(case: Case, out: Path, options: argparse.Namespace) -> Any:
    """What rank 0 wrote; the end of what was said, as text, where the job failed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}"]
    threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    alone = {ALONE: "1"} if options.alone else {}
    link = _link(options)
    try:
        done = subprocess.run(
            [*command, "-m", case.module, str(out), *case.arguments, *link],
            env={**os.environ, **threads, **alone},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=options.limit,
        )
    except subprocess.TimeoutExpired:
        return f"has not ended within {options.limit} s"
    return json.loads(out.read_text()) if done.returncode == 0 else reason(done.stdout + done.stderr)


def reason(said: str) -> str:
    """Why a job ended, of what its ranks have said: the last error that one of them names, else the end of the text.

    What torchrun says last is only that a rank has failed.
    """
    errors = [found for line in said.splitlines() if (found := _ERROR.search(line))]
    return errors[-1].group(1) if errors else said[-2000:]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("fidelity.py", description="Predictions beside measurements, on CPU ranks.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)} (default: all but titan)")
    parser.add_argument("--gpu", action="store_true", help="instead: a layer of Llama-3-8B on one GPU, step and memory")
    parser.add_argument(
        "--alone", action="store_true", help="raise the ranks' priority, on a machine that others use (needs root)"
    )
    parser.add_argument(
        "--slow-network",
        type=float,
        metavar="GB/S",
        help="over an emulated link, which no other process disturbs",
    )
    parser.add_argument(
        "--slow-latency",
        type=float,
        default=LATENCY_US,
        metavar="US",
        help=f"its latency (default: {LATENCY_US:g}); more where ranks share cores: gloo must be faster than the link",
    )
    parser.add_argument("--record", type=Path, metavar="OUT.json", help="write the figures, when and on what")
    parser.add_argument("--limit", type=int, default=1800, metavar="S", help="seconds a case may take (default: 1800)")
    return parser


def check_cases(cases: Sequence[str]) -> None:
    """Raise the error for a case that is none."""
    for name in cases:
        if name not in CASES:
            raise OptionsError(f"no case is named {name!r}; there are {', '.join(CASES)}.")
