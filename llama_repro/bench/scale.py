"""How time, counted work and memory grow with the graph: each size in a process of its own.

``python -m llama_repro.bench.scale PROBLEM`` is that process: it prints one JSON object.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from llama_repro import ROOT
from llama_repro.bench.cases import generated_problem
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.options import Options
from overlap_sched.problem.file import read_problem, write_problem
from overlap_sched.scheduler.driver import schedule

SIZES = (("70b", "fsdp=64", 10_000), ("70b", "fsdp=64", 36_000), ("70b", "fsdp=64", 100_000))
LARGEST = ("405b", "fsdp=64,tp=8", 1_000_000)
"""Model, mesh, nodes at least; the largest, at effort 1, with ``--full``."""


@dataclass(frozen=True)
class Size:
    """What one graph took.

    Attributes:
        read_s, schedule_s, bound_s: Wall-clock seconds of reading the file, of :func:`overlap_sched.schedule` and of
            the lower bound. cpu_s: of scheduling, in seconds of processor time.
        work: Of scheduling, counted.
        resident_mib: Most memory that the process had after scheduling, reading included.
    """

    graph: str
    network: str
    nodes: int
    collectives: int
    effort: int
    read_s: float
    schedule_s: float
    cpu_s: float
    bound_s: float
    work: Mapping[str, int]
    resident_mib: float
    original_us: float
    step_us: float
    gap_percent: float
    peak_percent: float
    fell_back: str | None


def measure_file(path: Path, effort: int, comm_scale: float) -> Size:
    """Read, schedule, bound; in this process."""
    began = time.perf_counter()
    problem = read_problem(path).with_comm_scale(comm_scale)
    read = time.perf_counter()
    cpu = time.process_time()
    result = schedule(problem, Options(effort=effort))
    cpu_s, scheduled = time.process_time() - cpu, time.perf_counter()
    resident = _resident_mib()
    bound_us = lower_bound_us(problem)
    bounded = time.perf_counter()
    rise = 100 * (result.scheduled.peak_bytes / result.original.peak_bytes - 1)
    return Size(
        graph=problem.name,
        network=f"x{comm_scale:g}",
        nodes=len(problem.nodes),
        collectives=len(problem.collectives),
        effort=effort,
        read_s=read - began,
        schedule_s=scheduled - read,
        cpu_s=cpu_s,
        bound_s=bounded - scheduled,
        work=result.work._asdict(),
        resident_mib=resident,
        original_us=result.original.step_us,
        step_us=result.scheduled.step_us,
        gap_percent=100 * (result.scheduled.step_us / bound_us - 1),
        peak_percent=rise,
        fell_back=result.fell_back,
    )


def _resident_mib() -> float:
    """The most memory that this process has had; where the system says so, without what its parent had."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sizes(full: bool, effort: int, scales: Sequence[float], tell: Callable[[str], None]) -> Iterator[Size]:
    """All sizes on all networks, smallest first."""
    with tempfile.TemporaryDirectory() as folder:
        for model, mesh, nodes in (*SIZES, LARGEST) if full else SIZES:
            tell(f"generating {nodes:,} nodes")
            path = Path(folder) / f"{nodes}.json"
            write_problem(generated_problem(model, mesh, nodes, tell), path)
            large = nodes >= LARGEST[2]
            for scale in scales[:1] if large else scales:
                tell(f"scheduling {nodes:,} nodes, x{scale:g}")
                yield _in_a_process(path, 1 if large else effort, scale)
            path.unlink()


def _in_a_process(path: Path, effort: int, scale: float) -> Size:
    command = [sys.executable, "-m", "llama_repro.bench.scale", str(path), f"--effort={effort}", f"--scale={scale}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return Size(**json.loads(done.stdout))


def growth(measured: Sequence[Size]) -> dict[str, float]:
    """Exponents of growth between the smallest and the largest graph measured alike: 1 is linear, 2 quadratic."""
    alike = sorted((size for size in measured if size.effort == measured[0].effort), key=lambda size: size.nodes)
    small, large = alike[0], alike[-1]
    if small.nodes == large.nodes:
        return {}
    ratio = math.log(large.nodes / small.nodes)
    result = {"cpu_s": math.log(large.cpu_s / small.cpu_s) / ratio}
    result["cpu_s of a run"] = math.log(_of_a_run(large, large.cpu_s) / _of_a_run(small, small.cpu_s)) / ratio
    for name, count in large.work.items():
        if count and small.work.get(name) and name != "runs":
            result[f"{name} of a run"] = math.log(_of_a_run(large, count) / _of_a_run(small, small.work[name])) / ratio
    return result


def _of_a_run(size: Size, amount: float) -> float:
    return amount / max(size.work.get("runs", 1), 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure one file and print what it took as JSON."""
    parser = argparse.ArgumentParser("python -m llama_repro.bench.scale")
    parser.add_argument("problem", type=Path)
    parser.add_argument("--effort", type=int, default=Options().effort)
    parser.add_argument("--scale", type=float, default=1.0)
    options = parser.parse_args(arguments)
    print(json.dumps(asdict(measure_file(options.problem, options.effort, options.scale))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
