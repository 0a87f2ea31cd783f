"""Each stage of the scheduler left out in turn, over seeds of what is tried at random: runs, one JSON line each.

A stage that leaves every candidate as it was, in the run of all stages, cannot matter: that run says so, and without it
is not run. A run that draws no random number is that of every seed.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.needs import NOTHING
from overlap_sched.scheduler.pipeline import Unfitted, schedule
from overlap_sched.scheduler.polish import FILL_TAIL, SHIFT
from overlap_sched.scheduler.pool import Pool
from overlap_sched.scheduler.stage import Stage, Stages
from overlap_sched.scheduler.stages import ALL

RANDOM = ("random walk", "fill links")
"""Stages that draw random numbers, unless they end at once: what takes less than this many seconds has drawn none."""
AT_ONCE_S = 0.01
LIVE = tuple(stage.name for stage in ALL.live)
"""Left out where live bytes alone count: beside an allocator the order they make is the same one each time."""
LAST = tuple(stage.name for stage in ALL.last)
FITTING = tuple(name for name in ALL.names if name not in LIVE)


@dataclass(frozen=True)
class Row:
    """A graph on a network, beside an allocator (``Options.allocator``)."""

    graph: str
    network: str
    allocator: str
    problem: Problem = field(compare=False, repr=False)

    @property
    def name(self) -> str:
        """As in the record."""
        return f"{self.graph} {self.network}, {self.allocator}"

    @property
    def stages(self) -> tuple[str, ...]:
        """What may be left out of it, each by its own."""
        return (*LIVE, *LAST) if self.allocator == "none" else FITTING


@dataclass(frozen=True)
class Run:
    """One of them.

    Attributes:
        row, without, seed: What was run; ``without``: stages joined by ``+``, ``""``: all were there.
        step_us: Of the order. lacks_bytes, retries, runs: what it breaks of what the allocator has, and whether it
            ran where the original order does; fits: it breaks nothing, or is the original order.
        cpu_s: Processor time of the pass; beside an allocator, of what comes behind the best order by live bytes.
        by_stage_s: Of each stage, others inside of it included.
        idle: Stages that left every candidate as it was. drew: was a random number drawn?
    """

    row: str
    without: str
    seed: int
    step_us: float
    fits: bool
    runs: bool
    lacks_bytes: int
    retries: int
    cpu_s: float
    by_stage_s: dict[str, float]
    idle: tuple[str, ...]
    drew: bool

    def is_idle(self, stage: str) -> bool:
        """Can it not have mattered? What polishes is done inside of relink, too."""
        inside = stage in (SHIFT, FILL_TAIL) and not self.is_idle("relink")
        return not inside and (stage in self.idle or stage not in self.by_stage_s)

    @classmethod
    def read(cls, line: str) -> Self:
        """Of a line of the record."""
        data = json.loads(line)
        return cls(**{**data, "idle": tuple(data["idle"])})


class Record:
    """Runs in a file, one a line; what was cut short goes on where it was."""

    def __init__(self, path: Path) -> None:
        """Of the runs in a file, if there is one; a last line that is cut short is none."""
        self._path, self.runs = path, dict[tuple[str, str, int], Run]()
        for line in path.read_text().splitlines() if path.exists() else ():
            if line.endswith("}"):
                self._note(Run.read(line))

    @property
    def stages(self) -> tuple[str, ...]:
        """All that were there, and what was left out together."""
        alone = (name for run in self.runs.values() if not run.without for name in run.by_stage_s)
        return tuple(dict.fromkeys((*alone, *(run.without for run in self.runs.values() if run.without))))

    def add(self, run: Run) -> None:
        """Write one more behind the others."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(run)) + "\n")
        self._note(run)

    def known(self, row: str, without: str, seed: int) -> Run | None:
        """What there is of it: its own run, that of another seed if it drew nothing, that of all if it was idle."""
        found = self.runs.get((row, without, seed))
        if found is None and (first := self.runs.get((row, without, 0))) is not None and not first.drew:
            found = replace(first, seed=seed)
        if found is None and without and (whole := self.known(row, "", seed)) is not None:
            found = replace(whole, without=without) if all(map(whole.is_idle, without.split("+"))) else None
        return found

    def _note(self, run: Run) -> None:
        self.runs[run.row, run.without, run.seed] = run


class _Watched:
    """All stages, watched: seconds of each, and what each has changed."""

    def __init__(self, stages: Stages) -> None:
        self.seconds, self.changed = dict[str, float](), dict[str, bool]()
        self.stages = stages.each(lambda stage: (replace(stage, run=self._watched(stage)),))

    def _watched(self, stage: Stage[Any]) -> Callable[..., Any]:
        def run(context: Any, found: Any) -> Any:
            began = time.process_time()
            after = stage.run(context, found)
            self.seconds[stage.name] = self.seconds.get(stage.name, 0.0) + time.process_time() - began
            self.changed[stage.name] = self.changed.get(stage.name, False) or _orders(found) != _orders(after)
            return after

        return run

    @property
    def drew(self) -> bool:
        return any(self.seconds.get(name, 0.0) > AT_ONCE_S for name in RANDOM)


def _orders(found: Candidate | Pool) -> object:
    if isinstance(found, Candidate):
        return found.order, found.unshifted, bool(found.reasons)
    return [one.order for _, one in (*found.tried, found.taken)]


class Graph:
    """A row being run; what all its runs share is made once."""

    def __init__(self, row: Row) -> None:
        """Nothing has run."""
        self._row = row
        self._options = Options(allocator=row.allocator, memory_model=row.problem.memory_model)
        self._unfitted = None if row.allocator == "none" else Unfitted(row.problem, self._options)

    def run(self, without: str, seed: int) -> Run:
        """Schedule without some stages."""
        stages = ALL.without(*without.split("+")) if without else ALL
        watched, row, began = _Watched(stages), self._row, time.process_time()
        if self._unfitted is None:
            made = schedule(row.problem, self._options, stages=watched.stages, seed=seed)
        else:
            made = self._unfitted.fitted_by(watched.stages, seed)
        cpu_s, reserve = time.process_time() - began, None if self._unfitted is None else self._unfitted.reserve
        broken = NOTHING if reserve is None else reserve.overdraft(made.order)
        return Run(
            row=row.name,
            without=without,
            seed=seed,
            step_us=made.scheduled.step_us,
            fits=broken == NOTHING or made.order == row.problem.original_order,
            runs=reserve is None or reserve.runs(broken),
            lacks_bytes=broken.over_bytes,
            retries=broken.retries,
            cpu_s=round(cpu_s, 3),
            by_stage_s={name: round(seconds, 4) for name, seconds in watched.seconds.items()},
            idle=tuple(name for name, changed in watched.changed.items() if not changed),
            drew=watched.drew,
        )


def ablated(row: Row, record: Record, without: Sequence[str], seeds: Sequence[int]) -> Iterator[Run]:
    """What is not in the record yet: all stages first, then without some of them."""
    graph: Graph | None = None
    asked = [name for name in without if set(name.split("+")) <= set(row.stages)]
    for name in ["", *asked]:
        for seed in seeds:
            if record.known(row.name, name, seed) is None:
                graph = graph or Graph(row)
                run = graph.run(name, seed)
                record.add(run)
                yield run
