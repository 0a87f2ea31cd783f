"""How long an order takes: one compute stream, one communication stream per process group.

In the order given, a compute node advances the clock by its time; a collective starts when the clock has
reached its launch and its group's stream is free, and holds that stream; a wait moves the clock to the finish
of its collective (a collective launched before this graph has finished)::

    compute |   mm 50    | wgrad 30 | dgrad 30 |..10|    the wait for `scatter` stands still for 10 us: exposed
    fsdp    |gather 40 |            |  scatter 40   |

A launch costs the compute stream nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.problem import Kind, Problem


@dataclass(frozen=True)
class Replay:
    """The timeline of one order; the tuples are indexed by node id.

    Attributes:
        step_us: When the compute stream and every communication stream are done.
        exposed_us: Time that the compute stream stands still at waits.
        at_us: The compute stream's clock when it reached the node.
        start_us, finish_us: When the node ran (a collective: on its stream; a wait: reached, and left).
        stall_us: Standstill at the node; 0 for all but waits.
    """

    step_us: float
    exposed_us: float
    at_us: tuple[float, ...]
    start_us: tuple[float, ...]
    finish_us: tuple[float, ...]
    stall_us: tuple[float, ...]


def replay(problem: Problem, order: Sequence[int]) -> Replay:
    """Run the order in simulated time. The order must be valid (:func:`overlap_sched.validate.violation`)."""
    n = len(problem.nodes)
    at, start, finish, stall = [0.0] * n, [0.0] * n, [0.0] * n, [0.0] * n
    stream_free: dict[str | None, float] = {}
    clock = exposed = 0.0
    for v in order:
        node = problem.nodes[v]
        at[v] = start[v] = clock
        if node.kind is Kind.COLLECTIVE:
            start[v] = max(clock, stream_free.get(node.group, 0.0))
            finish[v] = stream_free[node.group] = start[v] + node.time_us
        elif node.kind is Kind.WAIT:
            done = 0.0 if node.collective is None else finish[node.collective]
            if done > clock:
                stall[v] = done - clock
                exposed += done - clock
                clock = done
            finish[v] = clock
        else:
            clock += node.time_us
            finish[v] = clock
    step = max([clock, *stream_free.values()])
    return Replay(step, exposed, tuple(at), tuple(start), tuple(finish), tuple(stall))
