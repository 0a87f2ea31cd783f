"""Blocks of a stage from graphs: the problems of its forward and of its backward, each in one order.

A problem's step is the time of a block, in the replay of :mod:`overlap_sched.judge.replay`; its memory is that of
:mod:`overlap_sched.judge.validate`. What is live in a graph and counted elsewhere in the job is taken off its peak,
so that a rank that runs nothing else holds exactly the graph's peak:

- pinned storages are parameters: static;
- of a forward, what is live when it ends, but for parameters and the output that is sent, is saved for backward;
- of an input gradient, what is live when it ends, but for parameters and the gradient that is sent, is kept.
"""

from dataclasses import dataclass, replace

from overlap_sched.judge.validate import JudgedOrder
from overlap_sched.pipeline.job import PipelineBlock
from overlap_sched.problem import Problem


@dataclass(frozen=True)
class GraphBlock:
    """What a graph takes; bytes without parameters.

    Attributes:
        name: Of the graph.
        time_us: Its step, microseconds. exposed_us: of it, what compute waits for collectives.
        peak_bytes: The most that is live at once.
        left_bytes: Live when it ends.
        pinned_bytes: Parameters.
    """

    name: str
    time_us: float
    exposed_us: float
    peak_bytes: int
    left_bytes: int
    pinned_bytes: int

    def put_into(self, block: PipelineBlock, held_bytes: int) -> PipelineBlock:
        """A block with this time and memory, of which so much is counted elsewhere while it runs: saved, or kept."""
        transient = max(self.peak_bytes - held_bytes, 0)
        timed = replace(block, time_us=self.time_us, exposed_us=self.exposed_us)
        counted = self.pinned_bytes + held_bytes
        return replace(timed, transient_bytes=transient, graph=self.name, counted_bytes=counted)


def graph_block(name: str, problem: Problem, run: JudgedOrder, parameter_bytes: int | None = None) -> GraphBlock:
    """Take what a block needs from a graph.

    Args:
        name: Of the graph.
        problem: The graph.
        run: The order in which it runs.
        parameter_bytes: How much of what is pinned is parameters; the rest counts as any other input. ``None``: all.
    """
    pinned = sum(storage.bytes for storage in problem.storages if storage.pinned)
    static = pinned if parameter_bytes is None else min(parameter_bytes, pinned)
    line, profile = run.timeline, run.profile
    return GraphBlock(name, line.step_us, line.exposed_us, max(profile) - static, profile[-1] - static, static)


def left_by(graph: GraphBlock, output_bytes: int) -> int:
    """The bytes that a forward, or an input gradient, leaves for what comes later."""
    return max(graph.left_bytes - output_bytes, 0)
