"""Why the original order was kept, in one line.

The records of an order that was kept say what blocks each collective in it, but not what memory would have refused:
nobody moved anything. So the graph is scheduled once more without a limit. What is hidden then is exposed because of
memory; what is not has the cause that it has there.
"""

from dataclasses import replace

from overlap_sched.problem import MAX_TOTAL_BYTES
from overlap_sched.report.causes import TAIL, Cause, causes
from overlap_sched.report.units import count, duration
from overlap_sched.scheduler.driver import Schedule, schedule

_BECAUSE = {
    TAIL: "no compute is left at the end of the step to run meanwhile",
    "dependency": "what is sent was ready too late for an earlier launch",
    "stream": "another collective was still on the stream",
    "memory": "an earlier launch would not have fitted into the memory budget",
    "memory_limit": "no order with earlier launches was found that runs in memory_limit",
    "start": "what is launched at the start of the graph is waited for too soon",
    "choice": "an earlier launch would not have made the step shorter",
    "nothing": "of rounding",
}
_SHOWN = 2
"""So many causes are named."""


def why_no_better(kept: Schedule) -> str:
    """Why a schedule has the original order: what exposes it, the two most expensive causes."""
    if kept.fell_back is not None:
        return kept.fell_back
    if kept.options.effort == 0:
        return "no other order was looked for (effort=0)"
    if not kept.problem.collectives and kept.options.base != "original":
        return "no order with a clearly lower peak was found"
    found = [cause for cause in _causes(kept) if cause.collectives]
    if not found:
        return "no better order was found: nothing is exposed"
    parts = []
    for name, us, collectives in found[:_SHOWN]:
        share = f"{duration(us)} " if len(found) > 1 else ""
        parts.append(f"{share}because {_BECAUSE[name]} ({count(collectives, 'collective')})")
    comma = "," if len(found) > 1 else ""
    return f"no better order was found: {duration(kept.scheduled.exposed_us)} stay exposed{comma} {', '.join(parts)}"


def _causes(kept: Schedule) -> tuple[Cause, ...]:
    """List what exposes an order, with what memory refuses as a cause of its own; the most expensive first."""
    if not kept.scheduled.exposed_us:
        return ()
    free = schedule(
        kept.problem,
        replace(kept.options, headroom=MAX_TOTAL_BYTES, memory_limit=None, base="original", effort=1, strict=False),
    )
    name = "memory" if free.scheduled.peak_bytes > kept.budget_bytes else "memory_limit"
    limited = name == "memory" or kept.memory_limit_bytes is not None
    hidden_us = kept.scheduled.exposed_us - free.scheduled.exposed_us
    if not limited or hidden_us <= 0 or free.scheduled.step_us >= kept.scheduled.step_us:
        return causes(kept)
    exposed_us = {d.collective: d.exposed_us for d in free.decisions}
    hidden = sum(d.exposed_us > exposed_us[d.collective] for d in kept.decisions)
    found = (Cause(name, hidden_us, hidden), *causes(free))
    return tuple(sorted(found, key=lambda cause: (-cause.exposed_us, cause.name)))
