"""Which values not to keep, so that an order keeps to a limit: most bytes above the limit per microsecond first.

A covering problem (places above the limit are covered by gaps of values), and its standard greedy: the best of what is
left by (bytes above the limit taken away, summed over places) / (microseconds it costs). Lazily: what is chosen makes
others worth less, so that a value is only looked at again when it comes first (Minoux, "Accelerated greedy algorithms
for maximizing submodular set functions", 1978); where all get worse together, so many are priced in vain at most.
Costs can fall, too, where values share what runs again: so there are rounds, each with all values anew.

What is chosen becomes rewrites (:func:`rewrites_of`): each copy and each reload is one, the latest in the step first,
so that whatever uses a copy is there, by its name, when that copy is made.
"""

import heapq
import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from overlap_sched.fit.state import FREE, Again, Bytes, LinkTime, LiveState, Part, Reload, Remake, User
from overlap_sched.fit.tuning import TUNING
from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, NodeId, Position, StorageId
from overlap_sched.problem.precedence import find_reachable
from overlap_sched.transform.rewrites import Offload, Recompute


class Gap(NamedTuple):
    """Between two users of a storage's part; ``until``: where the storage is needed next."""

    storage: StorageId
    part: Part
    after: User
    until: Position


@dataclass(frozen=True)
class Choice:
    """One way not to keep a value through a gap.

    Attributes:
        gap: It. score: bytes above the limit taken away per microsecond. us: those microseconds.
        copy: Runs again already, for another value of the same maker; ``None``: not that way.
        slots: Of copies to the host and back, and the places between which it is gone.
    """

    gap: Gap
    score: float
    us: float
    copy: Again | None = None
    slots: tuple[float, float, Position, Position] | None = None


Entry = tuple[float, int, Choice]
"""Minus the score, the number of the gap, and what was thought of it when it was last priced."""


class Above:
    """Bytes above the limit, of the places alone that are above it: asked many times between two changes.

    Attributes:
        most: Above it anywhere.
    """

    def __init__(self, excess: Bytes) -> None:
        """Sum up the bytes above the limit of all places."""
        over = excess > 0
        self._bytes = excess[over]
        self._rank = _summed(over)
        self._sums = _summed(self._bytes)
        self.most = int(self._bytes.max()) if len(self._bytes) else 0

    def any(self, begin: Position, end: Position) -> bool:
        """Tell whether a place from one to before another is above."""
        return begin < end and bool(self._rank[begin] < self._rank[end])

    def taken(self, begin: Position, end: Position, nbytes: int) -> int:
        """Return what so many bytes less from one place to before another take away, in bytes times places."""
        if not self.any(begin, end):
            return 0
        first, last = self._rank[begin], self._rank[end]
        if nbytes >= self.most:
            return int(self._sums[last] - self._sums[first])
        return int(np.minimum(self._bytes[first:last], nbytes).sum())


def _summed(values: npt.NDArray[Any]) -> Bytes:
    """Sums of the first 0, 1, 2, ... of them."""
    return np.concatenate(([0], np.cumsum(values, dtype=np.int64)))


class Greedy:
    """Choose until the state fits, or nothing helps."""

    def __init__(
        self,
        state: LiveState,
        link: LinkTime | None,
        host_limit_bytes: int | None,
        kinds: Collection[str],
        host_weight: float,
        high: float = 0.0,
    ) -> None:
        """Start with nothing chosen.

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
        self._above: Above | None = None
        self._high: Above | None = None

    @property
    def above(self) -> Above:
        """Places above the limit, as things are."""
        if self._above is None:
            excess = self.state.excess
            self._above = Above(excess)
            high = int(self.high * self._above.most)
            self._high = Above(np.maximum(excess - high, 0)) if self.high else None
        return self._above

    def run(self, limit_bytes: int | None = None) -> bool:
        """Choose on from where things are, to another limit where one is given; tell whether the state fits now."""
        state = self.state
        state.limit_bytes, self._above = state.limit_bytes if limit_bytes is None else limit_bytes, None
        while not state.fits and self._round():
            pass
        if state.fits:
            self._take_back()
        self._above = None
        return state.fits

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
        """Make choices, the best first: what was priced before the last one may be worse by now."""
        priced = ((k, self._choice(gap)) for k, gap in enumerate(self._gaps()))
        best: list[Entry] = [(-choice.score, k, choice) for k, choice in priced if choice is not None]
        heapq.heapify(best)
        chosen = in_vain = 0
        while best and self.above.most:
            _, k, old = heapq.heappop(best)
            users = old.gap.part.users
            choice = self._choice(old.gap) if old.gap.after in users[:-1] else None
            if choice is None:
                continue
            if best and choice.score < -best[0][0] and in_vain < TUNING.in_vain:
                heapq.heappush(best, (-choice.score, k, choice))
                in_vain += 1
            else:
                self._do(choice)
                chosen, in_vain = chosen + 1, 0
        return chosen

    def _taken(self, begin: Position, end: Position, nbytes: int) -> int:
        """Bytes times places above the limit that so many bytes less take away; what is not high counts little."""
        above = self.above
        if self._high is None:
            return above.taken(begin, end, nbytes)
        return self._high.taken(begin, end, nbytes) or above.taken(begin, end, nbytes) // TUNING.little

    def _gaps(self) -> Iterator[Gap]:
        """Gaps of storages that may be cut, where something is above the limit."""
        state, above = self.state, self.above
        for s, parts in enumerate(state.parts):
            if state.fixed[s] or state.size[s] <= TUNING.smallest * state.limit_bytes:
                continue
            for part in list(parts):
                if not above.any(part.begin, part.end + 1):
                    continue
                for user, following in pairwise(part.users):
                    begin, end = user.last, following.at
                    if above.any(begin + 1, end) and self._legal(part, following):
                        yield Gap(s, part, user, end)

    def _legal(self, part: Part, following: User) -> bool:
        """Tell whether no collective in flight across the gap holds the storage."""
        nodes = (self.state.problem.nodes[user.node] for user in part.users[part.users.index(following) :])
        waits = (node for node in nodes if node.kind is Kind.WAIT)
        return all(node.collective is not None and node.collective >= following.at for node in waits)

    def _choice(self, gap: Gap) -> Choice | None:
        """The better way through a gap, as things are; ``None``: there is none, or it takes nothing away."""
        state, s, until = self.state, gap.storage, _until(gap)
        gap = gap._replace(until=until)
        taken = self._taken(gap.after.last + 1, until, state.size[s])
        if taken <= 0:
            return None
        best: Choice | None = None
        if "offload" in self.kinds and self.link is not None and gap.part.source is None:
            best = self._offload(gap, self.link)
        if "recompute" not in self.kinds:
            return best
        v = state.problem.maker[s]
        copies = state.copies.get(v, ())  # one in the gap makes this storage, too
        copy = next((one for one in copies if gap.after.last < one.at <= until and s not in one.parts), None)
        most_us = math.inf if best is None else taken / best.score
        price = FREE if copy is not None else Remake(state, most_us).again(v, until)
        if price is None:
            return best
        excess, us = price.excess + self._beside(until, price.peak - state.size[s]), max(price.us, TUNING.least_us)
        again = Choice(gap, (taken - excess) / us, us, copy=copy)
        return again if taken > excess and (best is None or again.score >= best.score) else best

    def _beside(self, at: Position, nbytes: int) -> int:
        """Bytes that copies which need so many before a place add above the limit there."""
        state = self.state
        more, beside = nbytes - state.alloc_bytes[at], int(state.beside[at])
        there = int(state.profile[at]) - state.limit_bytes
        return max(there + more, 0) - max(there + beside, 0) if more > beside else 0

    def _offload(self, gap: Gap, link: LinkTime) -> Choice | None:
        state, s, begin = self.state, gap.storage, gap.after.last + 1
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
        most_bytes = math.inf if self.host_limit_bytes is None else self.host_limit_bytes
        if int(self.host[begin : gap.until + 1].max()) + nbytes > most_bytes:
            return None
        taken, us = self._taken(gone + 1, back, nbytes), max(self.host_weight * us, TUNING.least_us)
        return Choice(gap, taken / us, us, slots=(*slots, gone, back)) if taken > 0 else None

    def _do(self, choice: Choice) -> None:
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
            return
        if choice.copy is not None:
            rest = state.cut(s, part, gap.after, choice.copy, gap.after.last, choice.copy.at)
            choice.copy.parts[s] = rest
            return
        v = state.problem.maker[s]
        rest = state.cut(s, part, gap.after, None, gap.after.last, gap.until)
        price = Remake(state, commit=True).again(v, gap.until)
        assert price is not None, "what has been priced cannot be done"
        more = price.peak - state.size[s] - state.alloc_bytes[gap.until]
        state.beside[gap.until] = max(int(state.beside[gap.until]), more)
        copy = state.place(v, gap.until)
        rest.source, copy.parts[s] = copy, rest


def _until(gap: Gap) -> Position:
    """Where the storage is needed next, as things are."""
    users = gap.part.users
    return users[users.index(gap.after) + 1].at


def rewrites_of(state: LiveState) -> list[Recompute | Offload]:
    """Return the rewrites that make the chosen parts, in the order in which they are to be done."""
    nodes, made = state.problem.nodes, list[Recompute | Offload]()
    names, numbers = dict[Again, str](), dict[tuple[bool, NodeId], int]()
    copies = [(copy.at, copy.node, copy) for of_one in state.copies.values() for copy in of_one]
    reloads = [(reload.at, state.problem.maker[reload.storage], reload) for reload in state.reloads]
    events: list[tuple[Position, NodeId, Again | Reload]] = [*copies, *reloads]
    for _, v, one in sorted(events, key=lambda it: it[:2], reverse=True):
        needed, users, again = {v}, dict[str, None](), isinstance(one, Again)
        if isinstance(one, Again):
            parts = one.parts
        else:
            parts = {one.storage: next(part for part in state.parts[one.storage] if part.source is one)}
        for s, part in parts.items():
            _collect(state, s, part, names, needed, users)
        ran = sorted(needed if again else needed - {v})
        ran = ran if again else [v, *(u for u in ran if nodes[u].kind is not Kind.WAIT)]
        if not users:
            continue
        number = 1 + max(numbers.get((again, u), 0) for u in ran)  # of the copy of any of them
        numbers.update({(again, u): number for u in ran})
        called = tuple(nodes[u].name for u in ran)
        if isinstance(one, Again):
            made.append(Recompute(called, tuple(users), number))
            names[one] = made[-1].new_name(nodes[v].name)
        else:
            made.append(Offload(called[0], tuple(users), called[1:], number))
    return made


def _collect(
    state: LiveState, s: StorageId, part: Part, names: dict[Again, str], needed: set[NodeId], users: dict[str, None]
) -> None:
    """Who takes the new storage, and through which views, to the maker, that must be made again, too."""
    nodes, inside = state.problem.nodes, {user.node for user in part.users if user.copy is None}

    def through(v: NodeId) -> list[NodeId]:
        return [u for u in nodes[v].deps if state.gives(u, s)]

    for user in part.users:
        name = nodes[user.node].name if user.copy is None else names.get(user.copy, "")
        outside = [u for u in through(user.node) if u not in inside]
        if name and outside:
            users[name] = None
            needed.update(outside, find_reachable(outside, through))
