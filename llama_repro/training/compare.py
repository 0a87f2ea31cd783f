"""``scripts/compare_training.sh``: three runs that differ in their scheduler alone, in one table.

Each run is a torchrun of its own with empty compile caches. Exit status: 0; 1 where a run failed, or losses or weights
under overlap_sched are not bitwise those without; 2 for wrong usage.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from llama_repro import ROOT
from llama_repro.harness.console import wide_console
from llama_repro.training.outcome import total_us
from llama_repro.training.schedulers import SCHEDULERS, Scheduler
from overlap_sched.report.terminal import progress

_TRAIN = ROOT / "scripts" / "train.py"
_EACH = {
    "none": ("--predict",),
    "overlap_sched": (),
    "torch": (),
}
Run = Mapping[str, Any]


def main(given: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    arguments = list(sys.argv[1:] if given is None else given)
    ranks = arguments.pop(0) if arguments and not arguments[0].startswith("-") else "2"
    console = wide_console()
    if not ranks.isdigit() or int(ranks) < 1:
        console.print(
            f"compare: {ranks!r} is no number of ranks. Usage: compare_training.sh [RANKS] [--model SIZE ...]"
        )
        return 2
    runs: dict[Scheduler, Run] = {}
    with tempfile.TemporaryDirectory() as folder, progress() as step:
        for scheduler in SCHEDULERS:
            step(f"training on {ranks} ranks, scheduler {scheduler}")
            failed = _train(scheduler, int(ranks), arguments, Path(folder))
            if failed:
                console.print(f"compare: scheduler {scheduler} failed:\n{failed}", markup=False)
                return 1
            runs[scheduler] = json.loads((Path(folder) / f"{scheduler}.json").read_text())
    console.print(table_of(runs))
    first = runs["none"]
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, torch {first['torch']}, {first['backend']}", markup=False
    )
    return 0 if same(runs["overlap_sched"], first) else 1


def _train(scheduler: str, ranks: int, arguments: list[str], folder: Path) -> str:
    """Run it; returns the end of its output where it failed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(_TRAIN)]
    mine = ["--scheduler", scheduler, "--measure", *_EACH[scheduler], "--json", str(folder / f"{scheduler}.json")]
    quiet = {"KINETO_LOG_LEVEL": "5", "TORCHINDUCTOR_CACHE_DIR": str(folder / f"cache-{scheduler}")}
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *arguments, *mine], env={**os.environ, **quiet, **threads}, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else done.stdout[-1000:] + done.stderr[-3000:]


def same(run: Run, other: Run) -> bool:
    """Losses of each step and final weights of each rank, bit by bit."""
    return bool(run["losses"] == other["losses"] and run["weights"] == other["weights"])


def table_of(runs: Mapping[Scheduler, Run]) -> Table:
    """One column per scheduler; what is predicted stands over what was measured."""
    first = runs["none"]
    title = (
        f"{first['model']}, {first['sharding']}, {first['ranks']} ranks, {first['dtype']}, {len(first['losses'])} steps"
    )
    table = Table(title=title)
    table.add_column("rank 0, per step", no_wrap=True)
    for scheduler in runs:
        table.add_column(scheduler, justify="right")
    for name, cell in _ROWS:
        table.add_row(name, *(cell(run, first) for run in runs.values()))
    return table


def _equal_steps(run: Run, first: Run) -> str:
    equal = sum(a == b for a, b in zip(run["losses"], first["losses"], strict=True))
    weights = "equal" if run["weights"] == first["weights"] else "differ"
    return f"{equal} of {len(first['losses'])}, weights {weights}"


def _predicted_growth(run: Run) -> str:
    known = [graph["used"]["growth_bytes"] for graph in run["graphs"] if "used" in graph]
    return ", ".join(f"{value / _MIB:.2f}" for value in known) or "-"


def _exposed(run: Run, how: str) -> float | None:
    """Microseconds per step; measured: with a slow network that of its link, else all waits of a profiled step."""
    if how == "predicted":
        total = total_us(run["graphs"], "used", "exposed_us")
        return None if total is None else total * run["accumulate"]
    exposed: float = run["network_us"][1] if run["network_us"] else run["measured"]["exposed_us"]
    return exposed


def _hidden(run: Run, first: Run, how: str) -> float | None:
    """What is exposed without a scheduler and not with this one, in microseconds."""
    before, after = _exposed(first, how), _exposed(run, how)
    return None if run is first or before is None or after is None else before - after


def _share(run: Run, first: Run) -> str:
    predicted, measured = (_hidden(run, first, how) for how in ("predicted", "measured"))
    return f"{measured / predicted:.0%}" if predicted and measured is not None else "-"


def _ms(us: float | None) -> str:
    return "-" if us is None else f"{us / 1e3:.2f}"


def _measured(run: Run, figure: str, scale: float = 1.0) -> str:
    seen = run["measured"]["graphs"]
    kinds = [max((g[figure] for g in seen if g["kind"] == kind), default=0) for kind in ("forward", "backward")]
    return ", ".join(f"{value / scale:.2f}" if scale != 1.0 else str(value) for value in kinds)


def _seconds(value: float | None, scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:.1f}"


def _planned_matmuls(run: Run) -> str:
    return ", ".join(str(g["used"]["matmuls_in_between"]) for g in run["graphs"] if "used" in g) or "-"


_MIB = 2.0**20
_ROWS: tuple[tuple[str, Callable[[Run, Run], str]], ...] = (
    ("last loss", lambda run, first: f"{float.fromhex(run['losses'][-1]):.6f}"),
    ("bitwise as none", _equal_steps),
    ("step time, median (ms)", lambda run, first: _seconds(run["typical_step_s"], 1e3)),
    ("first step more: compiling (s)", lambda run, first: _seconds(run["compile_s"])),
    ("scheduling, of that (s)", lambda run, first: _seconds(sum(g.get("schedule_s", 0.0) for g in run["graphs"]))),
    ("fused kernels generated", lambda run, first: str(run["kernels"])),
    ("link busy (ms)", lambda run, first: _ms(run["network_us"] and run["network_us"][0])),
    ("exposed, predicted (ms)", lambda run, first: _ms(_exposed(run, "predicted"))),
    ("exposed, measured (ms)", lambda run, first: _ms(_exposed(run, "measured"))),
    ("waits, gloo and late ranks included (ms)", lambda run, first: _ms(run["network_us"] and run["network_us"][2])),
    ("hidden, predicted (ms)", lambda run, first: _ms(_hidden(run, first, "predicted"))),
    ("hidden, measured (ms)", lambda run, first: _ms(_hidden(run, first, "measured"))),
    ("measured / predicted", lambda run, first: _share(run, first)),
    ("matmuls from launch to wait, planned (fwd, bwd)", lambda run, first: _planned_matmuls(run)),
    ("matmuls from launch to wait, executed", lambda run, first: _measured(run, "matmuls_in_between")),
    ("peak above graph entry, predicted (MiB; fwd, bwd)", lambda run, first: _predicted_growth(run)),
    ("peak above graph entry, measured", lambda run, first: _measured(run, "growth_bytes", _MIB)),
    ("the same with copies of the process group", lambda run, first: _measured(run, "with_copies_bytes", _MIB)),
    ("peak of the step, measured (MiB)", lambda run, first: f"{run['peak_bytes'] / _MIB:.2f}"),
)


if __name__ == "__main__":
    sys.exit(main())
