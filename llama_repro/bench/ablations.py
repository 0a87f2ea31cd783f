"""Each idea of the scheduler taken out in turn: what is it worth?

Switches are the scheduler's own numbers and questions, set for one row. One that is no longer there is an error.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from unittest import mock

from llama_repro.bench.rows import ours
from llama_repro.harness.judge import Judge, Row
from overlap_sched.options import Options
from overlap_sched.problem import Problem
from overlap_sched.scheduler import policies
from overlap_sched.scheduler.policies import Policy


@dataclass(frozen=True)
class Ablation:
    """One idea.

    Attributes:
        name: For the table, behind ``without``: second runs (one run only); beam search (of small graphs); shifting
            (waits later, launches sooner); lead (collectives at their latest start); slack (the critical path at its
            latest start); window (compute is looked for to the end of the graph); critical path first (reference order,
            whatever is late); short standstills (while nothing can run, all that memory admits is launched); letting
            urgent launches go first (a launch never makes way); moving what prepares launches (casts stay); filling
            the tail (compute that would hide the last collectives stays where it is).
        switches: What is set, by its full name.
        policy: What becomes of every policy.
        effort: How much is tried; ``None``: as asked.
    """

    name: str
    switches: tuple[tuple[str, object], ...] = ()
    policy: Callable[[Policy], Policy] | None = None
    effort: int | None = None


ABLATIONS = (
    Ablation("second runs", effort=1),
    Ablation("beam search", (("overlap_sched.scheduler.beam_search.LOOKS", 0),)),
    Ablation(
        "shifting",
        (("overlap_sched.scheduler.shift.shifted", lambda live_ranges, order, limit, pairs, farthest: order),),
    ),
    Ablation("lead", policy=lambda policy: replace(policy, lead=0.0)),
    Ablation("slack", policy=lambda policy: replace(policy, slack=0.0)),
    Ablation("window", policy=lambda policy: replace(policy, window=math.inf)),
    Ablation(
        "critical path first",
        (("overlap_sched.scheduler.list_scheduler.Rules._becomes_late", lambda rules, compute, end_us: None),),
    ),
    Ablation(
        "letting urgent launches go first",
        (("overlap_sched.scheduler.streams.Streams.delays_more_urgent", lambda *arguments: False),),
    ),
    Ablation(
        "short standstills", (("overlap_sched.scheduler.list_scheduler.Rules._stall_us", lambda rules: math.inf),)
    ),
    Ablation("moving what prepares launches", (("overlap_sched.scheduler.priority.CHEAP", 0.0),)),
    Ablation("filling the tail", (("overlap_sched.scheduler.fill_tail._MOST_JOBS", 0),)),
)


def ablated(problem: Problem, network: str, effort: int) -> Iterator[Row]:
    """A row for each ablation, at headroom 0."""
    judge = Judge(problem, network)
    for ablation in ABLATIONS:
        options = Options(effort=ablation.effort or effort, memory_model=problem.memory_model)
        with without(ablation):
            yield ours(judge, f"without {ablation.name}", options)


@contextmanager
def without(ablation: Ablation) -> Iterator[None]:
    """The scheduler without an idea, as long as the ``with`` block lasts."""
    with ExitStack() as stack:
        for name, value in ablation.switches:
            stack.enter_context(mock.patch(name, value))
        if ablation.policy is not None:
            for name, value in vars(policies).copy().items():
                if isinstance(value, Policy):
                    stack.enter_context(mock.patch.object(policies, name, ablation.policy(value)))
                elif isinstance(value, tuple) and value and all(isinstance(item, Policy) for item in value):
                    stack.enter_context(mock.patch.object(policies, name, tuple(map(ablation.policy, value))))
        yield
