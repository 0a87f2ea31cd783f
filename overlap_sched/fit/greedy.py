"""Which values not to keep, so that an order keeps to a limit: most bytes above the limit per microsecond first.

A covering problem (places above the limit are covered by gaps of values), and its standard greedy: the best of what is
left by (bytes above the limit taken away, summed over places) / (microseconds it costs). Lazily: what is chosen makes
others worth less, so that a value is only looked at again when it comes first (Minoux, "Accelerated greedy algorithms
for maximizing submodular set functions", 1978). Costs can fall, too, where values share what runs again: so there are
rounds, each with all values anew.
"""

import heapq
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from overlap_sched.fit.link_time import LinkTime
from overlap_sched.fit.remake import FREE, Price, Remake, place
from overlap_sched.fit.state import Again, LiveState, Part, Reload, User
from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, Position
from overlap_sched.problem.node import StorageId

ROUNDS = 6
"""Of all values anew."""
SHORTEST = 4
"""A gap of fewer places is none."""
SMALLEST = 1e-5
"""A value of less than this part of the limit is not worth a choice."""
LONGER = 0.1
"""Of what a choice takes away, what a longer life of one input may give back before that rather is made again."""
LITTLE = 8
"""What is not high counts this part of its bytes."""
LEAST_US = 0.5
"""No choice costs less."""


class Gap(NamedTuple):
    """Between two users of a storage's part."""

    storage: StorageId
    part: Part
    after: User
    until: Position


@dataclass(frozen=True)
class Choice:
    """One way not to keep a value through a gap.

    Attributes:
        gap: It. score: bytes above the limit taken away per microsecond.
        copy: Runs again already, for another value of the same maker; ``None``: not that way.
        slots: Of copies to the host and back, and the places between which it is gone.
        spare: See :class:`Remake`.
    """

    gap: Gap
    score: float
    copy: Again | None = None
    slots: tuple[float, float, Position, Position] | None = None
    spare: int = 0


class Greedy:
    """Choose until the state fits, or nothing helps.

    Attributes:
        chosen: How many choices were made. looked: how many were priced: the work.
    """

    def __init__(
        self,
        state: LiveState,
        link: LinkTime | None,
        host_limit_bytes: int | None,
        kinds: Collection[str],
        host_weight: float,
        high: float = 0.0,
    ) -> None:
        """Nothing is chosen.

        Args:
            state: Changed as values are chosen.
            link: To the host.
            host_limit_bytes: Pinned host memory at most; ``None``: no limit.
            kinds: ``"recompute"``, ``"offload"``.
            host_weight: What a hidden microsecond of a copy counts as.
            high: What is less above the limit than this part of the most counts little: 0: all places count alike.
        """
        self.state, self.link, self.kinds, self.host_weight = state, link, kinds, host_weight
        self.host_limit_bytes, self.high = host_limit_bytes, high
        self.host = np.zeros(len(state.problem.nodes), dtype=np.int64)
        self.at_us = np.array(replay(state.problem, state.problem.original_order).at_us)
        self.chosen = self.looked = 0

    @property
    def smallest(self) -> float:
        """Bytes of the smallest value that is looked at."""
        return SMALLEST * max(self.state.limit_bytes, 1)

    def lowered(self, limit_bytes: int) -> bool:
        """Choose on from where things are, to a lower limit; whether the state fits now."""
        self.state.limit_bytes = limit_bytes
        return self.run()

    def run(self) -> bool:
        """Choose; whether the state fits now."""
        for _ in range(ROUNDS):
            if self.state.fits or not self._round():
                break
        if self.state.fits:
            self._take_back()
        return self.state.fits

    def _take_back(self) -> None:
        """What was chosen early may not be needed any more: values that fit after all are kept, the dearest first."""
        state = self.state
        nodes = state.problem.nodes
        copies = [copy for of_one in state.copies.values() for copy in of_one if len(copy.parts) == 1]
        for copy in sorted(copies, key=lambda copy: (-nodes[copy.node].time_us, copy.at, copy.node)):
            (s,) = copy.parts
            if state.joins(s, copy.parts[s]):
                state.join(s, copy.parts[s])
                for x in nodes[copy.node].use:
                    state.unuse(x, copy)
                copy.parts = {}

    def _round(self) -> int:
        heap: list[tuple[float, int, Choice]] = []
        for k, gap in enumerate(self._gaps()):
            choice = self._choice(gap)
            if choice is not None:
                heap.append((-choice.score, k, choice))
        heapq.heapify(heap)
        chosen = 0
        while heap and not self.state.fits:
            _, k, old = heapq.heappop(heap)
            gap = old.gap
            choice = self._choice(gap) if gap.part.users and gap.after in gap.part.users[:-1] else None
            if choice is None:
                continue
            if heap and choice.score < -heap[0][0] * (1 - 1e-9):
                heapq.heappush(heap, (-choice.score, k, choice))
                continue
            if self._do(choice):
                chosen += 1
        self.chosen += chosen
        return chosen

    def _gaps(self) -> Iterator[Gap]:
        """Gaps of storages that may be cut, where something is above the limit."""
        state, smallest = self.state, self.smallest
        before = np.concatenate([[0], np.cumsum(state.excess > 0)]).tolist()
        for s, parts in enumerate(state.parts):
            if state.fixed[s] or state.size[s] < smallest:
                continue
            for part in list(parts):
                if not before[part.end + 1] - before[part.begin]:
                    continue
                for user, following in zip(part.users, part.users[1:], strict=False):
                    begin, end = user.last, following.at
                    if end - begin >= SHORTEST and before[end] - before[begin + 1] and self._legal(part, following):
                        yield Gap(s, part, user, end)

    def _legal(self, part: Part, following: User) -> bool:
        """No collective in flight across the gap holds the storage."""
        nodes, k = self.state.problem.nodes, part.users.index(following)
        for user in part.users[k:]:
            node = nodes[user.node]
            if node.kind is Kind.WAIT and (node.collective is None or node.collective < following.at):
                return False
        return True

    def _choice(self, gap: Gap) -> Choice | None:
        """The better way through a gap, as things are; ``None``: there is none, or it takes nothing away."""
        state, s = self.state, gap.storage
        until = next(user.at for user in gap.part.users[gap.part.users.index(gap.after) + 1 :])
        gap = gap._replace(until=until)
        self.looked += 1
        begin = gap.after.last + 1
        taken = self._taken(begin, until, state.size[s])
        if taken <= 0:
            return None
        best: Choice | None = None
        if "offload" in self.kinds and self.link is not None and gap.part.source is None:
            best = self._offload(gap, begin)
        if "recompute" in self.kinds:
            spare = int(LONGER * taken)
            copy = self._copy_there(gap)
            most_us = math.inf if best is None else taken / best.score
            price = FREE if copy is not None else Remake(state, spare, most_us).again(state.problem.allocator[s], until)
            if price is not None:
                price = price._replace(excess=price.excess + self._beside(until, price.peak - state.size[s]))
            if price is not None and taken > price.excess:
                score = _score(taken, price)
                if best is None or score >= best.score:
                    best = Choice(gap, score, copy, None, spare)
        return best

    def _taken(self, begin: Position, end: Position, nbytes: int) -> int:
        """What so many bytes less from one place to before another take away, in bytes above the limit times places."""
        state = self.state
        there = np.maximum(state.profile[begin:end] + state.beside[begin:end] - state.limit_bytes, 0)
        if not self.high:
            return int(np.minimum(there, nbytes).sum())
        above = np.maximum(there - int(self.high * int(state.excess.max())), 0)
        return int(np.minimum(above, nbytes).sum()) or int(np.minimum(there, nbytes).sum()) // LITTLE

    def _beside(self, at: Position, nbytes: int) -> int:
        """What copies that need so many bytes before a place add above the limit there."""
        state = self.state
        more = nbytes - state.alloc_bytes[at]
        if more <= int(state.beside[at]):
            return 0
        there = int(state.profile[at]) - state.limit_bytes
        return max(there + more, 0) - max(there + int(state.beside[at]), 0)

    def _copy_there(self, gap: Gap) -> Again | None:
        """A copy of the maker in the gap, which makes this storage, too."""
        copies = self.state.copies.get(self.state.problem.allocator[gap.storage], ())
        return next((c for c in copies if gap.after.last < c.at <= gap.until and gap.storage not in c.parts), None)

    def _offload(self, gap: Gap, begin: Position) -> Choice | None:
        state, s, link = self.state, gap.storage, self.link
        assert link is not None
        maker = state.problem.nodes[state.problem.allocator[s]]
        waits = state.problem.waits.get(state.problem.allocator[s], ())
        if len(maker.alloc) != 1 or (maker.kind is Kind.COLLECTIVE and len(waits) != 1):
            return None
        nbytes = state.size[s]
        slots = link.slots(nbytes, float(self.at_us[begin]), float(self.at_us[gap.until]))
        if slots is None:
            return None
        us = link.link.copy_us(nbytes)
        gone = int(np.searchsorted(self.at_us, slots[0] + us, side="left"))
        back = int(np.searchsorted(self.at_us, slots[1], side="right")) - 1
        if gone + 1 >= back or back > gap.until:
            return None
        if self.host_limit_bytes is not None:
            there = self.host[begin : gap.until + 1]
            if int(there.max()) + nbytes > self.host_limit_bytes:
                return None
        taken = self._taken(gone + 1, back, nbytes)
        if taken <= 0:
            return None
        return Choice(gap, _score(taken, Price(self.host_weight * us, 0)), None, (*slots, gone, back))

    def _do(self, choice: Choice) -> bool:
        gap, state = choice.gap, self.state
        s, part = gap.storage, gap.part
        if choice.slots is not None:
            out_us, in_us, gone, back = choice.slots
            assert self.link is not None
            self.link.take(state.size[s], out_us, in_us)
            self.host[gap.after.last + 1 : gap.until + 1] += state.size[s]
            reload = Reload(s, gap.until, out_us, in_us)
            state.reloads.append(reload)
            state.cut(s, part, gap.after, reload, gone, back)
            return True
        if choice.copy is not None:
            rest = state.cut(s, part, gap.after, choice.copy, gap.after.last, choice.copy.at)
            choice.copy.parts[s] = rest
            return True
        v = state.problem.allocator[s]
        rest = state.cut(s, part, gap.after, None, gap.after.last, gap.until)
        price = Remake(state, choice.spare, commit=True).again(v, gap.until)
        assert price is not None, "what has been priced cannot be done"
        more = price.peak - state.size[s] - state.alloc_bytes[gap.until]
        state.beside[gap.until] = max(int(state.beside[gap.until]), more)
        copy = place(state, v, gap.until)
        rest.source, copy.parts[s] = copy, rest
        return True


def _score(taken: int, price: Price) -> float:
    return (taken - price.excess) / max(price.us, LEAST_US)
