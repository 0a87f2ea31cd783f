"""``overlap-sched calibrate``: its options, and what it does. Measuring needs torch and processes by torchrun."""

from collections.abc import Callable
from datetime import date
from itertools import product, starmap
from typing import TYPE_CHECKING

from overlap_sched.cli.arguments import CalibrateCommand, Input
from overlap_sched.cli.input import Printed, is_dump, load
from overlap_sched.cost.cluster import cluster_from_tables, cluster_text
from overlap_sched.cost.table import KINDS
from overlap_sched.errors import DumpGroupError
from overlap_sched.report.files import write_file
from overlap_sched.report.words.graph import calibration_text

if TYPE_CHECKING:
    from overlap_sched.distributed.calibration import KernelCall, Machine, WantedCollective
    from overlap_sched.fx import Lifted
    from overlap_sched.problem import Problem

_LARGEST = {"cpu": 2**26, "cuda": 2**30}
"""Bytes of the largest collective that is timed where none is asked for."""


def run_calibrate(command: CalibrateCommand, tell: Callable[[str], object]) -> Printed:
    """Measure; what to print, on rank 0: the others print nothing (``""``)."""
    import torch

    from overlap_sched.distributed.calibration import join_ranks, measure

    with join_ranks(command.device) as here:
        tables, failed = measure(here, *requests_of(command, here, tell), tell)
        if here.rank:
            return "", 0
        source = f"calibrate, {date.today()}, torch {torch.__version__}, {here.size} ranks"
        name = torch.cuda.get_device_name(here.device) if here.device.type == "cuda" else "cpu"
        cluster = cluster_from_tables(name, here.ranks_per_node, tables, source)
        write_file(command.out, cluster_text(cluster).encode())
        return (calibration_text(tables, failed, command.out),), 0


def requests_of(
    command: CalibrateCommand, here: "Machine", tell: Callable[[str], object]
) -> "tuple[list[WantedCollective], list[KernelCall]]":
    """Return the collectives and kernels to measure; the same on every rank."""
    import torch

    from overlap_sched.distributed import calibration

    divisions = [calibration.Division(*group) for group in command.group]
    divisions = divisions or calibration.default_divisions(here.size, here.ranks_per_node)
    for division in divisions:
        division.groups(here.size)  # where it does not fit, now and not after minutes
    calls: list[calibration.KernelCall] = []
    more: list[calibration.WantedCollective] = []
    for path in command.graph:
        tell(f"reading {path}")
        problem, lifted = _graph(path)
        calls += [] if lifted is None else calibration.calls_in(lifted)
        more += calibration.collectives_of(problem, divisions)
    grid = calibration.GPU_GRID if here.device.type == "cuda" else calibration.CPU_GRID
    if command.graph:
        grid = grid._replace(matmuls=(), attentions=())
    calls += calibration.calls_in_grid(grid, getattr(torch, command.dtype), here.device)
    smallest, largest = command.bytes or (2**12, _LARGEST[here.device.type])
    sizes = calibration.sizes_between(smallest, largest)
    grid_of = starmap(calibration.WantedCollective, product(KINDS, divisions, sizes))
    return [*grid_of, *more], calls


def _graph(path: str) -> "tuple[Problem, Lifted | None]":
    """Return the problem of a dump or a problem file; of a dump its graph too: a problem file has no shapes."""
    from overlap_sched.dump import load_dump
    from overlap_sched.fx import lift

    if not is_dump(path):
        return load(Input(problem=path), lambda text: None).problem, None
    try:
        lifted = lift(load_dump(path).gm)
    except DumpGroupError as error:
        fault, problem = str(error).partition(" Give ")[0], "--group NAME=SIZE --save-problem OUT.json"
        hint = f"Give a problem file (overlap-sched plan {path} {problem}), for its collectives."
        raise DumpGroupError(f"{fault} Here --group divides the ranks that measure. {hint}") from None
    return lifted.problem, lifted
