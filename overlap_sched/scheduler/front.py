"""The Pareto front of orders: by how long their steps are, and by how much memory they lack.

::

    lacking   600 MiB  a
              200         b
               40             c      d is as long as c and lacks more: c dominates it
                0                  e
                       ---------|------|--->  step
                                |      what takes longer is not kept
                                short enough: what is shorter still counts as no better
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from overlap_sched.problem import Order, StorageId
from overlap_sched.problem.allocator_settings import NO_LIMIT
from overlap_sched.scheduler.candidate import Candidate
from overlap_sched.scheduler.needs import Reserve, Tried

ALIKE = 0.0005
"""Steps that differ by less than this part of what is enough count as equally long."""
FAR = 1.02
"""What takes longer than this part of what is enough is not kept."""
STEP_WEIGHT = 4
"""What is a percent too long is as far from the goal as what lacks so many percent of memory."""


@dataclass(frozen=True)
class FrontMember:
    """An order of the front.

    Attributes:
        lacking: In bytes. lacking_for: the storages for which something is lacking.
        made_from: The candidate that the walk to it started from.
    """

    order: Order
    step_us: float
    lacking: int
    lacking_for: Sequence[StorageId]
    made_from: Candidate


class Front:
    """Orders of which none dominates another: none is as short as another one and lacks no more."""

    def __init__(self, members: Iterable[FrontMember], enough_us: float, reserved_bytes: int) -> None:
        """Build the front of such members; what takes less than enough, in microseconds, counts as no better."""
        self.enough_us, self._reserved_bytes = enough_us, max(reserved_bytes, 1)
        self.members: list[FrontMember] = []
        for member in members:
            if member.lacking <= self.most_lacking(member.step_us):
                self.keep(member)

    @classmethod
    def of(cls, reserve: Reserve, starts: Iterable[Tried], enough_us: float) -> "Front":
        """The front of such orders; what breaks no less than a shorter one is not replayed again."""
        members, least = list[FrontMember](), None
        for broken, found in sorted(starts, key=lambda pair: pair[1].step_us):
            if least is None or broken < least:
                lacking, least = reserve.lacking(found.order), broken
                count = lacking.lent_bytes or broken.over_bytes  # by luck alone it lacks nothing
                members.append(FrontMember(found.order, found.step_us, count, lacking.storages, found))
        return cls(members, enough_us, reserve.reserved_bytes)

    def shorter(self, enough_us: float) -> "Front":
        """The same where less is enough."""
        return Front(self.members, enough_us, self._reserved_bytes)

    def anew(self, look: Callable[[FrontMember], FrontMember]) -> "Front":
        """The same where each is looked at once more."""
        return Front(map(look, self.members), self.enough_us, self._reserved_bytes)

    def most_lacking(self, step_us: float) -> int:
        """Return how much an order of such a step may lack to be kept, in bytes; below 0: it is too long."""
        if step_us > self.enough_us * FAR:
            return -1
        length = self._length(step_us)
        as_short = (member for member in self.members if self._length(member.step_us) <= length)
        return min((member.lacking for member in as_short), default=NO_LIMIT)

    def keep(self, new: FrontMember) -> None:
        """Keep an order, which none dominates, instead of those that it dominates."""
        length = self._length(new.step_us)
        left = [old for old in self.members if self._length(old.step_us) < length or old.lacking < new.lacking]
        self.members = sorted([*left, new], key=self._distance)

    def pick(self, rng: random.Random) -> FrontMember:
        """One of them, more often what is near the goal."""
        return self.members[int(len(self.members) * rng.random() ** 2)]

    def _length(self, step_us: float) -> int:
        """By how many times :data:`ALIKE` it is too long: those that are equal here count as equally long."""
        return math.ceil(self._too_long(step_us) / ALIKE)

    def _distance(self, member: FrontMember) -> float:
        """From the goal."""
        return member.lacking / self._reserved_bytes + STEP_WEIGHT * self._too_long(member.step_us)

    def _too_long(self, step_us: float) -> float:
        """By what part of what is enough; 0: it is short enough, which may be no time at all."""
        return 0.0 if step_us <= self.enough_us else step_us / self.enough_us - 1
