"""Which values not to keep, so that an order keeps to a limit: most bytes above the limit per microsecond first.

A covering problem (places above the limit are covered by gaps of values), and its standard greedy: the best of what is
left by (bytes above the limit taken away, summed over places) / (microseconds it costs). Lazily: what is chosen makes
others worth less, so that a value is only looked at again when it comes first (Minoux, "Accelerated greedy algorithms
for maximizing submodular set functions", 1978); where all get worse together, the best of a few is enough. Costs can
fall, too, where values share what runs again: so there are rounds, each with all values anew.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from overlap_sched.fit.choices import AboveHigh, Choice, Gap, Queue, chosen_for, until_of
from overlap_sched.fit.link_time import LinkTime
from overlap_sched.fit.remake import FREE, Remake, RemakePrice, place
from overlap_sched.fit.state import Again, LiveState, Part, Reload, User
from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, Position

ROUNDS = 6
"""Of all values anew."""
SHORTEST = 4
"""A gap of fewer places is none."""
SMALLEST = 1e-5
"""A value of less than this part of the limit is not worth a choice."""
LONGER = 0.1
"""Of what a choice takes away, what a longer life of one input may give back before that rather is made again."""


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
        self.at_us = replay(state.problem, state.problem.original_order).at_us
        self.chosen = self.looked = 0
        self._above: AboveHigh | None = None

    @property
    def smallest(self) -> float:
        """Bytes of the smallest value that is looked at."""
        return SMALLEST * max(self.state.limit_bytes, 1)

    def lowered(self, limit_bytes: int) -> bool:
        """Choose on from where things are, to a lower limit; whether the state fits now."""
        self.state.limit_bytes, self._above = limit_bytes, None
        return self.run()

    @property
    def above(self) -> AboveHigh:
        """Places above the limit, as things are."""
        if self._above is None:
            self._above = AboveHigh(self.state.excess, self.high)
        return self._above

    def run(self) -> bool:
        """Choose; whether the state fits now."""
        for _ in range(ROUNDS):
            if self.state.fits or not self._round():
                break
        if self.state.fits:
            self._take_back()
        self._above = None
        return self.state.fits

    def _take_back(self) -> None:
        """Undo early choices that are no longer needed: values that fit after all are kept, the dearest first."""
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
        queue, chosen = Queue(len(self.state.problem.nodes)), 0
        for k, gap in enumerate(self._gaps()):
            choice = self._choice(gap)
            if choice is not None:
                queue.push(k, choice, choice.score)
        while len(queue) and self.above.all.most:
            ready = queue.take()
            if ready is not None:
                chosen += self._do(ready)
                continue
            k, old = queue.pop()
            gap = old.gap
            if not gap.part.users or gap.after not in gap.part.users[:-1]:
                continue
            most = self._most(old)
            if queue.is_behind(most):  # at what it cost before: its price need not be looked at
                queue.push(k, old, most)
                continue
            choice = self._choice(gap)
            if choice is not None:
                queue.priced(k, choice)
        self.chosen += chosen
        return chosen

    def _gaps(self) -> Iterator[Gap]:
        """Gaps of storages that may be cut, where something is above the limit."""
        state, smallest, above = self.state, self.smallest, self.above.all
        for s, parts in enumerate(state.parts):
            if state.fixed[s] or state.size[s] < smallest:
                continue
            for part in list(parts):
                if not above.any(part.begin, part.end + 1):
                    continue
                for user, following in zip(part.users, part.users[1:], strict=False):
                    begin, end = user.last, following.at
                    if end - begin >= SHORTEST and above.any(begin + 1, end) and self._legal(part, following):
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
        until = until_of(gap)
        gap = gap._replace(until=until)
        self.looked += 1
        begin = gap.after.last + 1
        taken = self.above.taken(begin, until, state.size[s])
        if taken <= 0:
            return None
        best: Choice | None = None
        if "offload" in self.kinds and self.link is not None and gap.part.source is None:
            best = self._offload(gap, begin)
        if "recompute" in self.kinds:
            spare = int(LONGER * taken)
            copy = self._copy_there(gap)
            most_us = math.inf if best is None else taken / best.score
            price = FREE if copy is not None else Remake(state, spare, most_us).again(state.problem.maker[s], until)
            if price is not None:
                price = price._replace(excess=price.excess + self._beside(until, price.peak - state.size[s]))
            if price is not None and taken > price.excess:
                again = replace(chosen_for(gap, taken, price), copy=copy, spare=spare)
                if best is None or again.score >= best.score:
                    best = again
        return best

    def _most(self, old: Choice) -> float:
        """The score of a choice at the price that it had."""
        gap = old.gap
        return self.above.taken(gap.after.last + 1, until_of(gap), self.state.size[gap.storage]) / old.us

    def _beside(self, at: Position, nbytes: int) -> int:
        """Return what copies that need so many bytes before a place add above the limit there."""
        state = self.state
        more = nbytes - state.alloc_bytes[at]
        if more <= int(state.beside[at]):
            return 0
        there = int(state.profile[at]) - state.limit_bytes
        return max(there + more, 0) - max(there + int(state.beside[at]), 0)

    def _copy_there(self, gap: Gap) -> Again | None:
        """A copy of the maker in the gap, which makes this storage, too."""
        copies = self.state.copies.get(self.state.problem.maker[gap.storage], ())
        return next((c for c in copies if gap.after.last < c.at <= gap.until and gap.storage not in c.parts), None)

    def _offload(self, gap: Gap, begin: Position) -> Choice | None:
        state, s, link = self.state, gap.storage, self.link
        assert link is not None
        maker = state.problem.nodes[state.problem.maker[s]]
        waits = state.problem.waits.get(state.problem.maker[s], ())
        if len(maker.alloc) != 1 or (maker.kind is Kind.COLLECTIVE and len(waits) != 1):
            return None
        nbytes = state.size[s]
        slots = link.slots(nbytes, self.at_us[begin], self.at_us[gap.until])
        if slots is None:
            return None
        us = link.link.copy_us(nbytes)
        gone = bisect_left(self.at_us, slots[0] + us)
        back = bisect_right(self.at_us, slots[1]) - 1
        if gone + 1 >= back or back > gap.until:
            return None
        if self.host_limit_bytes is not None:
            there = self.host[begin : gap.until + 1]
            if int(there.max()) + nbytes > self.host_limit_bytes:
                return None
        taken = self.above.taken(gone + 1, back, nbytes)
        if taken <= 0:
            return None
        return replace(chosen_for(gap, taken, RemakePrice(self.host_weight * us, 0)), slots=(*slots, gone, back))

    def _do(self, choice: Choice) -> bool:
        gap, state, self._above = choice.gap, self.state, None
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
        v = state.problem.maker[s]
        rest = state.cut(s, part, gap.after, None, gap.after.last, gap.until)
        price = Remake(state, choice.spare, commit=True).again(v, gap.until)
        assert price is not None, "what has been priced cannot be done"
        more = price.peak - state.size[s] - state.alloc_bytes[gap.until]
        state.beside[gap.until] = max(int(state.beside[gap.until]), more)
        copy = place(state, v, gap.until)
        rest.source, copy.parts[s] = copy, rest
        return True
