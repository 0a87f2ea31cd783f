"""A row per model: its peak in each mode, run in a process of its own, and why the ratio is what it is."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from overlap_sched.errors import OverlapSchedError
from overlap_sched.report.units import size
from scripts.studies.footprint.events import KINDS, Peak

PLAIN = ("eager", "default", "dynamic", "max-autotune")
"""``dynamic``: ``dynamic=True``. ``max-autotune``: without CUDA graphs, which need a GPU."""
OURS = ("ours", "memory")
"""Our pass with its defaults, and with ``base="memory"``; where torch runs eagerly, as ``backend="overlap_sched"``."""
GRAPHS = {"reduce-overhead": "default", "dynamic, CUDA graphs": "dynamic", "max-autotune": "max-autotune"}
"""Modes with CUDA graphs: from the allocations of which mode that runs here their pool is predicted."""
STEPS = ("partitioned", "not donated")
"""On the way from eager to default: the partitioned graph, operator by operator; Inductor without donated buffers."""


def by(mode: str, ours: str) -> str:
    """The name of a mode with our pass."""
    return f"{mode}+{ours}"


MEASURED = (*PLAIN, *STEPS, *(by(mode, ours) for ours in reversed(OURS) for mode in PLAIN))
"""All that runs here."""
_LEAST = 0.02
"""Of eager's peak: smaller differences are not explained."""


class FootprintError(OverlapSchedError, RuntimeError):
    """A model did not run in a mode of ``torch.compile``."""


@dataclass(frozen=True)
class Row:
    """One model.

    Attributes:
        model, kind: What it is.
        peaks: By mode of :data:`MEASURED`.
        failed: By mode, why it gave nothing.
    """

    model: str
    kind: str
    peaks: dict[str, Peak]
    failed: dict[str, str]

    def ratio(self, mode: str) -> float | None:
        """Compression, as the dashboard of PyTorch has it: eager's peak by the mode's; ``None``: one is missing."""
        if mode not in self.peaks or "eager" not in self.peaks:
            return None
        return self.peaks["eager"].bytes / self.peaks[mode].bytes

    def pool_bytes(self, mode: str) -> int | None:
        """With CUDA graphs, predicted: their pool, and what lies outside of it (parameters, the batch)."""
        peak = self.peaks.get(mode)
        return None if peak is None else peak.pool_bytes + peak.kinds[KINDS[0]]


def measure_peak(model: str, mode: str, timeout_s: float, cache: str) -> Peak:
    """What the child found.

    Args:
        model: Of the list.
        mode: Of :data:`MEASURED`.
        timeout_s: When it is given up.
        cache: A folder for Inductor's kernels: modes share most of them.

    Raises:
        FootprintError: It failed, or took too long.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "peak.json")
        command = [sys.executable, "-m", "scripts.studies.footprint.child", model, mode, str(out)]
        where = str(Path(__file__).resolve().parents[3])
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([where, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": cache,
        }
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise FootprintError(f"{model}, {mode}: not done after {timeout_s:g} s") from None
        if done.returncode or not out.exists():
            said = done.stderr.strip().splitlines() or ["no output"]
            raise FootprintError(f"{model}, {mode}: exit status {done.returncode}: {said[-1]}")
        found = json.loads(out.read_text())
        return Peak(found["bytes"], found["backward"], found["kinds"], found["pool_bytes"])


def explanation(row: Row, mode: str = "default", beside: str = "eager") -> str:
    """Why a mode's peak differs from another's: what is live at the two, the largest differences first."""
    if beside not in row.peaks or mode not in row.peaks:
        return row.failed.get(mode, "not measured")
    before, other = row.peaks[beside], row.peaks[mode]
    where = {False: "forward", True: "backward"}
    moved = ""
    if before.backward != other.backward:
        moved = f"the peak moves from {where[before.backward]} to {where[other.backward]}; "
    changes = sorted(
        ((other.kinds[kind] - before.kinds[kind], kind) for kind in KINDS), key=lambda one: (-abs(one[0]), one[1])
    )
    told = [
        f"{size(abs(more))} {'more' if more > 0 else 'less'} {kind}{_why(kind, more) if beside == 'eager' else ''}"
        for more, kind in changes
        if abs(more) > _LEAST * before.bytes
    ]
    return moved + ("; ".join(told) or "the same is live at both peaks")


def unlike_default(row: Row) -> list[str]:
    """The modes whose peak is another than the default's: dynamic shapes, more tuning, an order for the peak."""
    if "default" not in row.peaks:
        return []
    default = row.peaks["default"].bytes
    others = (*PLAIN[2:], by("default", "memory"))
    return [mode for mode in others if mode in row.peaks and abs(row.peaks[mode].bytes - default) > _LEAST * default]


def steps(row: Row) -> list[int] | None:
    """Bytes by which each step on the way from eager to default changes the peak; ``None``: one was not measured."""
    way = ("eager", *STEPS, "default")
    if any(mode not in row.peaks for mode in way):
        return None
    return [row.peaks[b].bytes - row.peaks[a].bytes for a, b in pairwise(way)]


def _why(kind: str, by: int) -> str:
    """What compilation does to that kind."""
    if kind == KINDS[1]:
        return (
            " (the partitioner recomputes pointwise operators instead)"
            if by < 0
            else " (saved in another type or twice)"
        )
    if kind in KINDS[3:]:
        return (
            " (fused into one kernel, or written into a buffer that dies)" if by < 0 else " (a whole graph frees later)"
        )
    if kind == KINDS[2]:
        return " (fewer are there by then)" if by < 0 else " (more are there by then)"
    return ""
