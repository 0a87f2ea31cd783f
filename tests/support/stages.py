"""Stages of the scheduler, put together otherwise than its driver does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from overlap_sched.scheduler.driver import ALL
from overlap_sched.scheduler.runs import first_run, more_runs, of_chains
from overlap_sched.scheduler.task import NO_WORK, Candidate, Reference, Stages, Task


def with_stage(name: str, run: Callable[..., Any], stages: Stages = ALL) -> Stages:
    """All stages, with something else done in the place of one; ``run`` is given what the stage would be, and it."""
    assert name in stages.names

    def changed(stage: Any) -> Any:
        real = stage.run
        return replace(stage, run=lambda *given: run(real, *given)) if stage.name == name else stage

    return stages.each(changed)


def best_of_runs(task: Task, reference: Reference, best: Candidate) -> Candidate:
    """What all runs make of an order, not polished."""
    best = replace(best, work=NO_WORK)
    for run in (first_run, of_chains, more_runs):
        best = run(task, reference, best)
    return best
