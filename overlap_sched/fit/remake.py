"""What it takes to have a storage again at a place: nothing, a longer life, or its maker run again, and so on back.

::

    need(s, q)    s is live at q               nothing
                  its part before could last   where that is not over the limit: it does
                  its part behind is a copy's  that copy may run sooner, at q
                  its maker may run again      at q, if all that it reads can be there: need(x, q) for each
"""

import math
from typing import NamedTuple

import numpy as np

from overlap_sched.fit.state import Again, Bytes, LiveState, Part
from overlap_sched.problem import NodeId, Position, StorageId

LONGEST = 60
"""Nodes that run again for one value, at most."""
DEEPEST = 30
"""How far back they go."""


class RemakePrice(NamedTuple):
    """What it takes.

    Attributes:
        us: Compute.
        excess: What it adds above the limit, in bytes times places.
        held: Bytes that are made for it, and held until it is used. peak: the most at once on the way.
    """

    us: float
    excess: int
    held: int = 0
    peak: int = 0


FREE = RemakePrice(0.0, 0)


class Remake:
    """One question to a state; ``commit`` does what the answer says."""

    def __init__(self, state: LiveState, spare: int, most_us: float = math.inf, commit: bool = False) -> None:
        """Ask, or do.

        Args:
            state: Changed only where ``commit``.
            spare: Bytes times places above the limit that a longer life may cost before its maker rather runs again.
            most_us: What takes longer is not asked for any further.
            commit: Do it.
        """
        self.state, self.spare, self.most_us, self.commit = state, spare, most_us, commit
        self._seen: dict[StorageId, None] = {}
        self._nodes, self._us = 0, 0.0

    def again(self, v: NodeId, at: Position, depth: int = 0) -> RemakePrice | None:
        """Return what it takes to run a node again just before a place; ``None``: it cannot be."""
        state = self.state
        self._nodes += 1
        node = state.problem.nodes[v]
        self._us += node.time_us
        if not state.may_run_again[v]:
            return None
        if not self.commit and (depth > DEEPEST or self._nodes > LONGEST or self._us > self.most_us):
            return None
        us, excess, held, peak = node.time_us, 0, 0, 0
        for s in node.use:
            if state.written_between(s, v, at):
                return None
            price = self.need(s, at, depth + 1)
            if price is None:
                return None
            peak = max(peak, held + price.peak)
            us, excess, held = us + price.us, excess + price.excess, held + price.held
        return RemakePrice(us, excess, held, max(peak, held + sum(state.size[s] for s in node.alloc)))

    def need(self, s: StorageId, at: Position, depth: int) -> RemakePrice | None:
        """Return what it takes to have a storage at a place."""
        state = self.state
        if state.covers(s, at) is not None or s in self._seen:
            return FREE
        before, behind = state.around(s, at)
        longer = added(state, before.end + 1, at - 1, state.size[s])
        if not longer:
            return self._extended(s, before, at, 0)
        if behind is not None and isinstance(behind.source, Again):
            price = self._pulled(behind.source, at, depth)
            if price is not None:
                self._seen[s] = None
                return price
        if longer > self.spare or state.fixed[s]:
            price = None if state.fixed[s] else self._made(s, at, depth)
            if price is not None:
                self._seen[s] = None
                return price
        return self._extended(s, before, at, longer)

    def _extended(self, s: StorageId, before: Part, at: Position, longer: int) -> RemakePrice:
        self._seen[s] = None
        if self.commit:
            self.state.extend(s, before, at)
        return RemakePrice(0.0, longer)

    def _made(self, s: StorageId, at: Position, depth: int) -> RemakePrice | None:
        v = self.state.problem.maker[s]
        if self.commit and Remake(self.state, self.spare).again(v, at, depth) is None:
            return None
        price = self.again(v, at, depth)
        if price is not None and self.commit:
            copy = place(self.state, v, at)
            self.state.add_part(s, copy)
        return None if price is None else price._replace(held=self.state.size[s])

    def _pulled(self, copy: Again, at: Position, depth: int) -> RemakePrice | None:
        """A copy that is there runs sooner."""
        state = self.state
        node = state.problem.nodes[copy.node]
        if self.commit and Remake(state, self.spare)._pulled(copy, at, depth) is None:
            return None
        us, excess = 0.0, 0
        for x in node.use:
            price = self.need(x, at, depth + 1) if depth < DEEPEST else None
            if price is None:
                return None
            us, excess = us + price.us, excess + price.excess
        for s, part in copy.parts.items():
            excess += added(state, at, part.begin - 1, state.size[s])
        if self.commit:
            for x in node.use:
                state.unuse(x, copy)
            copy.at = at
            for x in node.use:
                state.use(x, copy)
            for s, part in copy.parts.items():
                state.pull(s, part, at)
        return RemakePrice(us, excess)


def place(state: LiveState, v: NodeId, at: Position) -> Again:
    """A copy of a node is there from now on; what it reads is live."""
    copy = Again(v, at)
    for s in state.problem.nodes[v].use:
        state.use(s, copy)
    state.copies.setdefault(v, []).append(copy)
    return copy


def added(state: LiveState, first: Position, last: Position, nbytes: int) -> int:
    """Return what so many more bytes at each of these places add above the limit, in bytes times places."""
    if first > last or not nbytes:
        return 0
    if first == last:
        one = int(state.profile[first]) - state.limit_bytes
        return max(one + nbytes, 0) - max(one, 0)
    there: Bytes = state.profile[first : last + 1] - state.limit_bytes
    if int(there.max()) + nbytes <= 0:
        return 0
    return int((np.maximum(there + nbytes, 0) - np.maximum(there, 0)).sum())
