"""How long an order takes: one compute stream, one communication stream per process group.

In the order given, a compute node advances the clock by its time; a collective starts when the clock has
reached its launch and its group's stream is free, and holds that stream; a wait moves the clock to the finish
of its collective (a collective launched before this graph has finished)::

    compute |   mm 50    | wgrad 30 | dgrad 30 |..10|    the wait for `scatter` stalls for 10 us: exposed
    fsdp    |gather 40 |            |  scatter 40   |

A launch costs the compute stream nothing. Where the problem has contention, the times of what runs at the same time
stretch (:mod:`overlap_sched.judge.contended_clock`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from overlap_sched.judge.contended_clock import ContendedClock
from overlap_sched.problem import Kind, Problem


@dataclass(frozen=True)
class Replay:
    """The timeline of one order; the tuples are indexed by node id.

    Attributes:
        step_us: When the compute stream and every communication stream are done.
        exposed_us: Time that the compute stream stalls at waits.
        at_us: The compute stream's clock when it reached the node.
        start_us, finish_us: When the node ran (a collective: on its stream; a wait: reached, and left).
        stall_us: Standstill at the node; 0 for all but waits.
        slowed_us: Time that compute takes longer than alone, because of contention.
    """

    step_us: float
    exposed_us: float
    at_us: tuple[float, ...]
    start_us: tuple[float, ...]
    finish_us: tuple[float, ...]
    stall_us: tuple[float, ...]
    slowed_us: float = 0.0


def replay(problem: Problem, order: Sequence[int]) -> Replay:
    """Run the order in simulated time. The order must be valid (:func:`overlap_sched.judge.validate.violation`)."""
    if problem.contention:
        return _contended(problem, order)
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


def _contended(problem: Problem, order: Sequence[int]) -> Replay:
    n = len(problem.nodes)
    at, finish, stall = [0.0] * n, [0.0] * n, [0.0] * n
    clock, exposed, slowed = ContendedClock(problem), 0.0, 0.0
    for v in order:
        node = problem.nodes[v]
        at[v] = clock.clock_us
        if node.kind is Kind.COLLECTIVE:
            clock.launch(v)
        elif node.kind is Kind.WAIT:
            if node.collective is not None:
                clock.wait(node.collective)
            stall[v] = clock.clock_us - at[v]
            exposed += stall[v]
        else:
            clock.compute(node.time_us, problem.contention.share_of(node.flops, node.bytes))
            slowed += max(clock.clock_us - at[v] - node.time_us, 0.0)
        finish[v] = clock.clock_us
    step = clock.drain()
    start = list(at)
    for v in problem.collectives:
        start[v], finish[v] = clock.start_us[v], clock.finish_us[v]
    return Replay(step, exposed, tuple(at), tuple(start), tuple(finish), tuple(stall), slowed)
