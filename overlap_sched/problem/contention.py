"""What compute and communication cost each other when they run at the same time; by default nothing.

Five things are modelled, all of a problem (like its times, they are the hardware's):

``slowdown``
    Compute takes longer while a collective of a given kind is in flight (it takes memory bandwidth, and NCCL's kernels
    take multiprocessors). ``{"all_gather": 1.1}``: while any collective whose operator begins with ``all_gather`` runs
    on its stream, compute takes 1.1 times its time. Of several in flight, the largest factor counts.

``shares``, ``flops_per_byte``
    How much of the slowdown compute of a kind takes: ``{"flops": 0.5, "bytes": 1.5}``: beside a collective with a
    factor of 1.2 what is bound by its FLOPs takes 1.1 times its time (kernels take multiprocessors from it), what is
    bound by its bytes 1.3 times (they take memory bandwidth). Bound by FLOPs is what has at least ``flops_per_byte`` of
    them for each byte (the device's own balance: Williams, Waterman, Patterson: Roofline, 2009), by bytes all else.
    Where a node has neither, or a kind no share, the factor counts as it is: by default always.

``stretch``
    The reverse: a collective of a given kind takes another time while compute runs. ``{"all_gather": 4.0}``: gloo's
    threads wait for the cores that compute, so of such a collective only a quarter gets done while compute runs beside
    it; at a wait, where nothing computes, it goes on at full speed. ``{"all_gather": 0.5}``: it is the wait that costs,
    beside compute twice as much gets done (ranks that all stall wait for each other's threads to be woken up).
    NCCL's kernels know neither; by default 1.

``links``
    Process groups that use the same wires. ``{"tp": "nvlink", "ep": "nvlink"}``: while collectives of k groups of one
    link are in flight, each gets 1 / k of it and takes k times as long. A group without a link has its own::

        fsdp  |==== 40 ====|                fsdp  |====== 40 ======|        together for 2 x 20
        ep             |= 20 =|             ep             |== 20 ==|

``lanes``, ``crowding``
    How many collectives of one group are in flight at once (NCCL: one, a stream does one after the other; gloo: as
    many as its threads), and how many times as long each takes while so many are. With two lanes and a crowding of 1.5
    two of 20 that are launched together take 30, not 40; a third one starts when one of them is finished::

        first   |======= 30 =======|
        second  |======= 30 =======|
        third                      |==== 20 ====|

    With n of more than two lanes in use each takes 1 + (crowding - 1) (n - 1) / (lanes - 1) times as long. Of groups
    that share a link the one with most in flight counts.

Times of nodes (``Node.time_us``) are those of each alone. "In flight" is from when a collective starts on its stream
(in its lane) to when it is finished.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from overlap_sched.errors import ProblemError
from overlap_sched.problem.sizes import MAX_FLOAT, show_number

KINDS = ("flops", "bytes")
"""What binds compute."""


@dataclass(frozen=True)
class Contention:
    """See the module.

    Attributes:
        slowdown: By how an operator of collectives begins (``Node.op``; ``""``: all of them): a factor of 1 or more on
            the time of compute. Of several that fit, the longest counts.
        links: Of process groups that share a link, by name: which link.
        stretch: As ``slowdown``: a factor above 0 on the time of such collectives while compute runs.
        lanes: How many collectives of one group are in flight at once.
        crowding: How many times as long each of ``lanes`` in flight takes as one alone: 1 (they do not meet) to
            ``lanes`` (no faster than one after the other).
        shares: Of compute bound by ``"flops"`` or ``"bytes"``: which part of a slowdown it takes, 0 or more.
        flops_per_byte: From so many on compute is bound by FLOPs; above 0 where there are shares.

    Raises:
        ProblemError: A factor is too small (``slowdown``: below 1; ``stretch``: not above 0; ``shares``: below 0) or
            not finite, or there is less than one lane.
    """

    slowdown: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    stretch: Mapping[str, float] = field(default_factory=dict)
    lanes: int = 1
    crowding: float = 1.0
    shares: Mapping[str, float] = field(default_factory=dict)
    flops_per_byte: float = 0.0

    def __post_init__(self) -> None:
        check_shares("contention: ", self.shares)
        if self.shares and not 0.0 < self.flops_per_byte <= MAX_FLOAT:
            shown = show_number(self.flops_per_byte)
            raise ProblemError(f"contention: shares, and flops_per_byte is {shown}: give FLOP/s divided by bytes/s.")
        factors = [(f"compute beside {op!r}", n, n >= 1.0, "1 or more") for op, n in self.slowdown.items()]
        factors += [(f"{op!r} beside compute", n, n > 0.0, "above 0") for op, n in self.stretch.items()]
        for what, factor, fits, meant in factors:
            if not (fits and factor <= MAX_FLOAT):
                raise ProblemError(
                    f"contention: {what} takes {show_number(factor)} times its time; a factor is finite and {meant}: "
                    "1.1 for a tenth longer."
                )
        if self.lanes < 1:
            raise ProblemError(f"contention: lanes is {self.lanes}; a group has one collective in flight, or more.")
        if not 1.0 <= self.crowding <= self.lanes:
            shown = show_number(self.crowding)
            raise ProblemError(f"contention: crowding is {shown} and lanes {self.lanes}; crowding is 1 to lanes.")

    def __bool__(self) -> bool:
        """Is there any?"""
        factors = (*self.slowdown.values(), *self.stretch.values())
        return self.lanes > 1 or any(factor != 1.0 for factor in factors) or bool(self.shared_links)

    @property
    def slowest(self) -> float:
        """A factor that no node's time exceeds, whatever runs beside it."""
        slowest = max(self.slowdown.values(), default=1.0) * max(self.stretch.values(), default=1.0)
        return slowest * self.crowding * max(self.shares.values(), default=1.0) * max(len(self.links), 1)

    @property
    def shared_links(self) -> Collection[str]:
        """Links of more than one group, in the order in which they are named."""
        links = list(self.links.values())
        return [link for link in dict.fromkeys(links) if links.count(link) > 1]

    def slowdown_of(self, op: str) -> float:
        """Factor on the time of compute while a collective of this operator is in flight."""
        return _factor_of(self.slowdown, op)

    def least_slowdown_of(self, op: str) -> float:
        """The same on the compute that it slows least: for bounds."""
        return slowed_factor(self.slowdown_of(op), min([1.0, *self.shares.values()]))

    def share_of(self, flops: int, nbytes: int) -> float:
        """The part of a slowdown that compute of so many FLOPs and bytes takes; 1.0 where that is not known."""
        if not self.shares or not (flops or nbytes):
            return 1.0
        return self.shares.get("flops" if flops >= self.flops_per_byte * nbytes else "bytes", 1.0)

    def stretch_of(self, op: str) -> float:
        """Factor on the time of a collective of this operator while compute runs."""
        return _factor_of(self.stretch, op)

    def crowded(self, in_flight: int) -> float:
        """How many times as long a collective takes while so many (1 to ``lanes``) of its group are in flight."""
        return 1.0 if in_flight <= 1 else 1.0 + (self.crowding - 1.0) * (in_flight - 1) / (self.lanes - 1)

    def link_of(self, group: str | None) -> str:
        """The link of a group: groups with the same one share it."""
        name = group or ""
        return f"link {self.links[name]}" if name in self.links else f"group {name}"


def slowed_factor(factor: float, share: float) -> float:
    """How many times as long compute takes that takes such a part of a slowdown."""
    return factor if share == 1.0 else 1.0 + (factor - 1.0) * share


def check_shares(where: str, shares: Mapping[str, float]) -> None:
    """Raise :class:`~overlap_sched.errors.ProblemError` for a share that cannot be; ``where`` begins the text."""
    for kind, share in shares.items():
        if kind not in KINDS or not 0.0 <= share <= MAX_FLOAT:
            raise ProblemError(
                f"{where}compute bound by {kind!r} takes {show_number(share)} of a slowdown; kinds are 'flops' and "
                "'bytes', a share is finite and 0 or more."
            )


def _factor_of(factors: Mapping[str, float], op: str) -> float:
    fits = [begin for begin in factors if op.startswith(begin)]
    return factors[max(fits, key=len)] if fits else 1.0


NO_CONTENTION = Contention()
"""Compute and communication do not slow each other down."""
