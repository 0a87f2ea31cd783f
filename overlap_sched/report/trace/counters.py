"""Memory over time, as counters of a trace: live, live by kind, and what the caching allocator reserves for it.

Many steps share an instant (views, waits that do not stall): of them the one with the most live counts, so that no peak
is lost, then the last. A counter is written where it changes, and at the end of the step.
"""

from collections.abc import Iterator, Sequence

from overlap_sched.judge.replay import Replay
from overlap_sched.peak_memory.allocator.reserved import reserved_profile
from overlap_sched.problem import Problem
from overlap_sched.report.memory_kinds import memory_by_kind
from overlap_sched.report.trace.events import Event, counter, mark, rounded_us
from overlap_sched.report.units import size
from overlap_sched.report.words.reserved import settings_shown

LIVE, BY_KIND = "memory: live", "memory: live, by kind"


def reserved_name(settings: str) -> str:
    """Of the counter of an allocator (:func:`overlap_sched.report.words.reserved.settings_shown`)."""
    return f"memory: reserved, {settings}"


def memory_events(problem: Problem, pid: int, tid: int, order: Sequence[int], run: Replay) -> Iterator[Event]:
    """All counters of an order, and a mark at its peak (``tid``: the row that the mark names)."""
    kinds = memory_by_kind(problem, order)
    live = [sum(steps) for steps in zip(*kinds.values(), strict=True)]
    shown: dict[str, dict[str, list[int]]] = {
        LIVE: {"bytes": live},
        BY_KIND: {kind: steps for kind, steps in kinds.items() if any(steps)},
    }
    if problem.memory_model == "runtime":  # the tracker's frees what a collective in flight still holds
        for name, settings in settings_shown().items():
            shown[reserved_name(name)] = {"bytes": reserved_profile(problem, order, settings)}
    samples = _samples([rounded_us(run.at_us[v]) for v in order], live)
    for name, series in shown.items():
        before: dict[str, int] = {}
        for ts, step in samples:
            values = {key: steps[step] for key, steps in series.items()}
            if values != before:
                yield counter(pid, name, ts, values)
            before = values
        if before:
            yield counter(pid, name, max(run.step_us, samples[-1][0]), before)
    top = max(range(len(live)), key=live.__getitem__)
    yield mark(pid, tid, f"peak memory {size(live[top])}", run.at_us[order[top]])


def _samples(times: Sequence[float], live: Sequence[int]) -> list[tuple[float, int]]:
    """(when, step), in running order: per instant the step with the most live, then the last."""
    most: dict[float, int] = {}
    last: dict[float, int] = {}
    for step, ts in enumerate(times):
        if ts not in most or live[step] > live[most[ts]]:
            most[ts] = step
        last[ts] = step
    return [(ts, step) for ts in most for step in dict.fromkeys((most[ts], last[ts]))]
