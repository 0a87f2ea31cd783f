"""Streams on which collectives go together: what is launched while its stream is busy joins what waits there already.

As databases commit in groups and queues are served in batches: an idle stream starts what comes at once; a busy one
lets launches pile up, and takes all of one kind together when it is free. So nothing is merged where nothing waits, and
the later the stream is, the more go together::

    compute       | f 20 | g 20 | h 20 | ...           scatters of f, g, h become ready at 20, 40, 60
    alone         .......|=== f ===|=== g ===|=== h ===|
    together      .......|=== f ===|==== g h ====|      g and h wait while f runs: they start when it is done

What waits has not started, so to join it delays no start. It does delay the end of those that it joins, so no batch
takes longer than a cap.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from overlap_sched.problem import NodeId, Problem
from overlap_sched.transform.keys import SMALL_BYTES, BatchTime, Key


@dataclass
class Batch:
    """Collectives that go together.

    Attributes:
        key: What they share. members: by id, as they came.
        bytes, time_us: Of all together. start_us: when they start on their stream, or are expected to.
    """

    key: Key | None
    members: list[NodeId] = field(default_factory=list)
    bytes: int = 0
    time_us: float = 0.0
    start_us: float = 0.0


class BatchingStreams:
    """See the module, and :class:`overlap_sched.simulate.clock.Clock`.

    Attributes:
        finish_us: Per collective launched. batches: all so far, in the order in which the first of each was launched.
    """

    def __init__(
        self,
        problem: Problem,
        keys: Mapping[NodeId, Key],
        time_us: BatchTime,
        latencies: float,
    ) -> None:
        """Nothing has been launched.

        Args:
            problem: Without contention.
            keys: Of the collectives that may go together with others of their key.
            time_us: Of a batch.
            latencies: How many latencies of its key a batch may take.
        """
        self.clock_us, self.finish_us = 0.0, dict[NodeId, float]()
        self.batches: list[Batch] = []
        self._nodes, self._keys, self._time_us = problem.nodes, keys, time_us
        self._most_us = {key: latencies * time_us(key, SMALL_BYTES) for key in dict.fromkeys(keys.values())}
        self._waiting: dict[str, list[Batch]] = {group: [] for group in problem.groups}
        self._busy_until = dict.fromkeys(problem.groups, 0.0)  # by what has started

    def free_us(self, group: str) -> float:
        """When the group's stream is free, as far as is known."""
        waiting = self._waiting[group]
        return waiting[-1].start_us + waiting[-1].time_us if waiting else self._busy_until[group]

    def completes_us(self, v: NodeId) -> float:
        """When collective v is finished; later if others join it."""
        return self.finish_us[v]

    def launch(self, v: NodeId) -> None:
        """Collective v is launched now."""
        clock_us = self.clock_us
        node, key = self._nodes[v], self._keys.get(v)
        group = node.group or ""
        waiting = self._waiting[group]
        while waiting and waiting[0].start_us < clock_us:
            started = waiting.pop(0)
            self._busy_until[group] = started.start_us + started.time_us
        batch = self._joins(waiting, key, node.bytes)
        if batch is None or key is None:
            batch = Batch(key, time_us=node.time_us if key is None else self._time_us(key, node.bytes))
            waiting.append(batch)
            self.batches.append(batch)
        else:
            batch.time_us = self._time_us(key, batch.bytes + node.bytes)
        batch.members.append(v)
        batch.bytes += node.bytes
        at_us = max(self._busy_until[group], clock_us)
        for one in waiting:
            one.start_us, at_us = at_us, at_us + one.time_us
            for u in one.members:
                self.finish_us[u] = at_us

    def _joins(self, waiting: list[Batch], key: Key | None, nbytes: int) -> Batch | None:
        if key is None:
            return None
        for batch in waiting:
            if batch.key == key and self._time_us(key, batch.bytes + nbytes) <= self._most_us[key]:
                return batch
        return None

    def compute(self, v: NodeId) -> None:
        """Compute node v runs."""
        self.clock_us += self._nodes[v].time_us

    def wait(self, v: NodeId) -> None:
        """The compute stream stalls until collective v is finished."""
        self.clock_us = max(self.clock_us, self.finish_us[v])

    def end_us(self) -> float:
        """When all that was launched is finished, and the compute stream is done."""
        return max([self.clock_us, *(self.free_us(group) for group in self._waiting)])
