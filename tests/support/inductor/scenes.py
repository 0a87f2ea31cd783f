"""What each of several gloo ranks does: ``python -m tests.support.inductor.scenes FOLDER [SCENE...]``.

Scenes of training steps that are compiled and run, each with a store of its own, in which the last rank is the odd one.
Writes ``FOLDER/rank<r>.pt``: per scene the results, the reports, and what the same step gives without us.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import overlap_sched
from overlap_sched import Options
from overlap_sched.fx.apply import Report
from overlap_sched.problem import Kind
from tests.support.inductor.models import Experts, Pair, Uneven, own_store, step

WIDTH = 16
DIES = "dies"
"""The last scene, as no rank can go on then."""
ROOMY = Options(headroom="50%")


class Other(Pair):
    """Another graph with the same collectives."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.sin())


class Stage:
    """Where scenes take place."""

    def __init__(self) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.odd = self.rank == self.ranks - 1
        self.known: dict[tuple[Any, ...], list[torch.Tensor]] = {}

    @contextmanager
    def scene(self, name: str) -> Iterator[None]:
        """A store of its own; warnings are not errors."""
        overlap_sched.clear_reports()
        with own_store(name), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield

    def model(self, kind: type[Pair] = Pair) -> Pair:
        """With the same parameters each time."""
        return kind(WIDTH, self.ranks)

    def plain(self, model: nn.Module, backend: str = "aot_eager", width: int = WIDTH) -> list[torch.Tensor]:
        """Results without us; compiled once where all ranks have had the models of this scene before."""
        models: list[Any] = [None] * self.ranks
        dist.all_gather_object(models, (type(model).__name__, getattr(model, "group", "")))
        what = (*models, backend, width)
        if what not in self.known:
            torch._dynamo.reset()
            self.known[what] = step(model, torch.compile(model, backend=backend, fullgraph=True), width)
        return self.known[what]

    def step(
        self, model: nn.Module, options: Options = ROOMY, *, backend: Any = None, width: int = WIDTH, **how: Any
    ) -> dict[str, Any]:
        """One step, compiled anew with us, next to one without us."""
        backend = backend or overlap_sched.backend
        expected = self.plain(model, backend if isinstance(backend, str) else "aot_eager", width)
        torch._dynamo.reset()
        with overlap_sched.enabled(options, **how):
            results = step(model, torch.compile(model, backend=backend, fullgraph=True), width)
        return self.found(results, expected)

    def found(self, results: list[torch.Tensor], expected: list[torch.Tensor]) -> dict[str, Any]:
        """For the file."""
        reports = [one.report for one in overlap_sched.reports()]
        return {
            "equal": len(results) == len(expected) and all(map(torch.equal, results, expected)),
            "changed": [report.changed for report in reports],
            "reasons": [report.reason for report in reports],
            "kept": [report.kept for report in reports],
            "exposed": [report.exposed_us for report in reports],
            "moved": [_launches(report, moved=True) != _launches(report, moved=False) for report in reports],
            "launches": [_launches(report, moved=True) for report in reports],
        }


def _launches(report: Report, moved: bool) -> list[str]:
    """The operators of a graph's launches, in the order in which they run, or as it was, with their position there."""
    plan = report.schedule
    if plan is None:
        return []
    order = plan.order if moved and report.changed else plan.problem.original_order
    launched = [v for v in order if plan.problem.nodes[v].kind is Kind.COLLECTIVE]
    return [f"{sorted(launched).index(v)} {plan.problem.nodes[v].op}" for v in launched]


def stages_of_a_pipeline(stage: Stage) -> dict[str, Any]:
    """Two halves of the ranks, each with a graph and a process group of its own, ask only among themselves."""
    size = stage.ranks // 2
    halves = [list(range(size)), list(range(size, stage.ranks))]
    groups = [dist.new_group(half) for half in halves]
    mine = stage.rank // size
    kind = (Pair, Other)[mine]
    return stage.step(kind(WIDTH, size, groups[mine].group_name), ranks=halves[mine])


def a_rank_dies(stage: Stage) -> dict[str, Any]:
    """The others compile; what they run then ends with an error of gloo, which is not ours to prevent."""
    torch._dynamo.reset()
    model = stage.model()
    error = ""
    with overlap_sched.enabled(ROOMY, timeout_s=2.0), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            step(model, torch.compile(model, backend=overlap_sched.backend, fullgraph=True), WIDTH)
        except RuntimeError as error_of_gloo:
            error = str(error_of_gloo)
    said = [str(warning.message) for warning in heard]
    return {**stage.found([], [torch.ones(1)]), "error": error, "said": said}


def run_scenes(stage: Stage, only: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Each scene with its name; ``only``: those, or all."""
    scenes: dict[str, Callable[[], Any]] = {
        "equal": lambda: stage.step(stage.model()),
        "pipeline": lambda: stages_of_a_pipeline(stage),
        "uneven": lambda: stage.step(Uneven(WIDTH, stage.ranks)),
        "experts": lambda: stage.step(Experts(WIDTH, stage.ranks)),
        "experts, in generated code": lambda: stage.step(Experts(WIDTH, stage.ranks), backend="inductor"),
    }
    for name, scene in scenes.items():
        if only and name not in only:
            continue
        with stage.scene(name):
            dist.barrier()
            yield name, scene()


def main() -> None:
    """See the module."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch._inductor.config.fx_graph_cache = False  # every scene compiles
    torch._functorch.config.enable_autograd_cache = False  # ranks on one CPU: it serves another rank's uneven shards
    stage = Stage()
    found = dict(run_scenes(stage, sys.argv[2:]))
    dist.barrier()
    if sys.argv[2:] and DIES not in sys.argv[2:]:
        torch.save(found, folder / f"rank{stage.rank}.pt")
        dist.barrier()
        os._exit(0)
    if stage.odd:
        torch.save(found, folder / f"rank{stage.rank}.pt")
        os._exit(0)
    with stage.scene(DIES):
        found[DIES] = a_rank_dies(stage)
    torch.save(found, folder / f"rank{stage.rank}.pt")
    if stage.rank == 0:  # serves the store: goes last
        while len(list(folder.glob("rank*.pt"))) < stage.ranks:
            time.sleep(0.01)
    os._exit(0)


if __name__ == "__main__":
    main()
