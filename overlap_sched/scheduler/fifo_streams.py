"""The scheduler's times without contention: every stream does its collectives one after the other, at full speed."""

from overlap_sched.problem import NodeId, Problem


class FifoStreams:
    """One stream per process group; see :class:`overlap_sched.scheduler.streams.StreamTimes`."""

    def __init__(self, problem: Problem) -> None:
        """Nothing has been launched."""
        self.finish_us: dict[int, float] = {}
        self._nodes = problem.nodes
        self._free_us = dict.fromkeys(problem.groups, 0.0)

    def free_us(self, group: str) -> float:
        """When the group's stream is free."""
        return self._free_us[group]

    def completes_us(self, v: NodeId) -> float:
        """When collective v is finished."""
        return self.finish_us[v]

    def launch(self, v: NodeId, clock_us: float) -> None:
        """Collective v is launched now."""
        node = self._nodes[v]
        group = node.group or ""
        self.finish_us[v] = self._free_us[group] = max(clock_us, self._free_us[group]) + node.time_us

    def compute(self, time_us: float, clock_us: float, share: float = 1.0) -> float:
        """The clock after compute that takes so long."""
        return clock_us + time_us

    def wait(self, v: NodeId, clock_us: float) -> float:
        """The clock once collective v is finished."""
        return max(clock_us, self.finish_us[v])

    def end_us(self, clock_us: float) -> float:
        """When all that was launched is finished, and the compute stream is done."""
        return max([clock_us, *self._free_us.values()])
