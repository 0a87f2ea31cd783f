"""What a user may ask for: one frozen dataclass; the command line and the plug-ins take the same names."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, Self, get_args, get_origin, get_type_hints

from overlap_sched.errors import OptionsError
from overlap_sched.problem import MAX_TOTAL_BYTES, MemoryModel
from overlap_sched.problem.pins import read_pin
from overlap_sched.problem.precedence import Preserve
from overlap_sched.problem.sizes import (
    AllocatorSettings,
    allocator_settings,
    parse_allocator,
    parse_limit,
    parse_size,
    settings_in_environment,
    show_number,
)

Budget = Literal["peak", "profile"]
Agree = Literal["digest", "none"]
Concurrent = Literal["any", "disjoint", "one"]
Base = Literal["original", "memory", "memory-peak"]

RewriteKind = Literal["bucket", "coalesce_gathers", "keep", "regather", "stream"]
_ANYWHERE: tuple[RewriteKind, ...] = ("coalesce_gathers", "keep")
"""Bitwise on every backend, without copies, without a second communicator."""

MAX_EFFORT = 64
"""Far more than any graph has use for."""
_HOW = ("stage", "cost", "model", "ranks_per_node", "cluster", "ranks", "timeout_s", "memory_limit", "max_slowdown")
"""What functions take besides options."""
MEMORY_LIMIT = "bytes, a size with a unit (40GiB), or percent of what the original order needs (105%)"
GONE = {
    "allocator_cost": "reserved bytes are reported, and no order is chosen by them. memory_limit='40GiB' asks for an "
    "order that runs in so much."
}
"""Options that there were once, and what became of each."""


@dataclass(frozen=True)
class Options:
    """How to schedule.

    Attributes:
        headroom: How far above the original an order's memory may go: bytes as an integer, or text with a
            unit: ``"1GiB"``, ``"500MB"``, or ``"5%"`` of the original peak; ``"5"`` is taken for a slip and refused.
            Default 0: not a byte above.
        budget: What the headroom is added to. ``"peak"`` (default): the original peak, everywhere.
            ``"profile"``: the original memory at each position, position by position.
        memory_model: ``"runtime"`` (default) or ``"tracker"``, see :data:`overlap_sched.problem.MemoryModel`.
            Graphs are lifted in this model; a problem file is in one model and asking for the other is an error.
        preserve_collective_order: ``"none"`` (default); ``"group"`` keeps the original launch order within each
            process group, ``"all"`` across all groups: for ranks whose graphs may differ. ``"waits"``: so, and no wait
            passes a launch that it followed: for ranks whose launches may differ.
        base: ``"original"`` (default): overlap starts from the original order. ``"memory"``: from the order with the
            lowest peak that is found (:func:`overlap_sched.peak_memory.best_order`), which leaves more of the budget to
            overlap. ``"memory-peak"``: the same, and headroom is counted from that lowest peak: less memory first, then
            as short a step as it allows. Both take longer to find, and want ``budget="peak"``. A graph without
            collectives is ordered, too, then: for its peak alone.
        effort: How much is tried, the best kept: scheduling runs on a graph of up to 15,000 nodes, fewer on a larger
            one but one at least (default 4; 0: the original order stays). The first runs try one policy each, 7 where
            compute binds and 8 where the network does; what is left starts from the order with the lowest peak, then
            from the best found. With ``memory_limit`` up to eight come on top. Counted, not timed, so that all ranks
            get one order.
        strict: Raise :class:`~overlap_sched.errors.VerificationError` where the default (``False``) warns and
            falls back to the original order.
        memory_limit: The device on which the order is to run, besides the budget: bytes, text with a unit
            (``"40GiB"``), or ``"105%"`` of the smallest on which the original order runs. It runs by its live bytes and
            by a replay of torch's CUDA caching allocator. Where the best order does not: the shortest found that does,
            else the original order if it does; else the best, and reports say how much it is short. ``None`` (default):
            live bytes alone count.
        allocator: The allocator that is replayed, for ``memory_limit`` and for reports. ``"plain"`` or
            ``"expandable"``: with segments of that kind. Or settings as in ``PYTORCH_ALLOC_CONF``:
            ``"expandable_segments:True,max_split_size_mb:512"``. ``"environment"`` (default): as that variable says in
            this process, ``"plain"`` where it says nothing; not in the tracker's memory model, nor for graphs
            of another device than CUDA. ``"none"``: none is.
        concurrent_groups: Collectives of which process groups may be in flight together. ``"any"`` (default): of all.
            ``"disjoint"``: of groups that share at most one rank (where ranks are not known: of none). ``"one"``: of
            one group at a time. Between communicators on one device nothing orders what runs, and RCCL hangs with
            some: in plug-ins ``"any"`` means ``"disjoint"`` where torch was built for ROCm. What the original order
            has in flight together may stay so. It costs step time; ``plan`` says how much.
        agreement: What ranks do before they use an order. ``"digest"`` (default): they compare it through the
            process group's store; all use it or none does, see ``docs/agreement.md``. ``"none"``: they trust that
            all have the same graph and options; where they have not, the job may hang. A rank alone does nothing.
        rewrites: How collectives may be rewritten, besides being reordered (:mod:`overlap_sched.transform`).
            ``"coalesce_gathers"`` (default): several all_gathers become one launch of several tensors, which copies
            nothing and sums nothing: bitwise on every backend. It is left out where a backend cannot do that (gloo),
            and with another ``budget``, ``memory_model`` or ``preserve_collective_order`` than the default.
            ``"keep"`` (default): what is gathered twice, as for forward and backward, is kept for its next use where
            memory has room. On every backend; left out as the first.
            ``"bucket"``: several collectives become one, reductions too, coalesced or with copies. Sums of floats may
            change their last bits where a backend adds in another order (NCCL, on more than two ranks). An all_reduce
            of floats on more than two ranks stays alone: where an element lies decides the order in which it is added,
            on gloo too. Members are of one type. What stays alone, and why, is in the record (``Report.refused``).
            ``"stream"``: reductions go to a second communicator. ``"regather"``: what is held for a later use is
            gathered again. With these three, ``budget``, ``memory_model``, ``preserve_collective_order`` and ``pins``
            stay at their defaults. ``()``: none. :func:`schedule`, which has no prices, and the command line, which
            names its own, rewrite nothing by default.
        pins: What every order keeps besides, one line of text each, as ``"in flight 256MiB: all_gather* in layers.*"``
            (:mod:`overlap_sched.problem.pins`). All other promises stay: where no order with them is as short as the
            original within the budget, the original stays, whether it keeps them or not, and the reason says so.
            Nothing is rewritten then. One that is about no node of a graph means nothing there.

    Raises:
        OptionsError: A value is not one of those above.
    """

    headroom: int | str = 0
    budget: Budget = "peak"
    memory_model: MemoryModel = "runtime"
    preserve_collective_order: Preserve = "none"
    base: Base = "original"
    effort: int = 4
    strict: bool = False
    agreement: Agree = "digest"
    memory_limit: int | str | None = None
    allocator: str = "environment"
    rewrites: tuple[RewriteKind, ...] = _ANYWHERE
    concurrent_groups: Concurrent = "any"
    pins: tuple[str, ...] = ()

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse names that are no options, in words that say where they belong.

        Raises:
            OptionsError: There is one.
        """
        for name in given:
            if name in _HOW and name not in cls.__dataclass_fields__:
                raise OptionsError(f"{name} is not one of the options. Write enable(Options(...), {name}=...).")
        check_names("Options", "", given, cls.__dataclass_fields__)
        return super().__new__(cls)

    def items(self) -> NoReturn:
        """Raise: ``torch.compile(options=...)`` calls this, and takes settings of Inductor.

        Raises:
            OptionsError: Always.
        """
        raise OptionsError("options is an Options. Write torch.compile(model, options=inductor_options(Options(...))).")

    def __post_init__(self) -> None:
        headroom_bytes(self.headroom, 0)
        if self.memory_limit is not None:
            parse_limit("memory_limit", self.memory_limit, 0, MEMORY_LIMIT)
        for name, allowed in _CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise OptionsError(f"{name} is {value!r}; it is one of {', '.join(map(repr, allowed))}.")
        if self.base != "original" and self.budget == "profile":
            raise OptionsError(
                f"base is {self.base!r} and budget is 'profile': an order with a lower peak is not lower at every "
                "position. Use budget='peak', or base='original'."
            )
        effort = self.effort
        if isinstance(effort, bool) or not isinstance(effort, int) or not 0 <= effort <= MAX_EFFORT:
            text = show_number(effort) if type(effort) is int else repr(effort)
            raise OptionsError(f"effort is {text}; it is a whole number of runs, 0 to {MAX_EFFORT}.")
        if not isinstance(self.allocator, str):
            said = "it is text: 'environment', 'none', 'plain', 'expandable', or settings."
            raise OptionsError(f"allocator is {self.allocator!r}; {said}")
        named = self.allocator != "environment" and parse_allocator(self.allocator) is not None
        if named and self.memory_model != "runtime":
            raise OptionsError(
                f"allocator is {self.allocator!r} and memory_model is {self.memory_model!r}: only "
                "memory_model='runtime' holds what a real allocator holds. Leave one of the two at its default."
            )
        if not isinstance(self.pins, tuple):
            raise OptionsError(f"pins is {self.pins!r}; it is a tuple of lines of text: pins=('apart: all_to_all*',).")
        for pin in self.pins:
            read_pin(pin)
        if not isinstance(self.strict, bool):
            raise OptionsError(f"strict is {self.strict!r}; it is True or False.")
        known, names = get_args(RewriteKind), self.rewrites
        if isinstance(names, tuple) and (gone := [name for name in names if name in ("split", "in_place")]):
            raise OptionsError(f"rewrites has {gone[0]!r}, which was removed: leave it out.")
        if not isinstance(names, tuple) or not set(names) <= set(known) or len(set(names)) < len(names):
            raise OptionsError(f"rewrites is {names!r}; it is a tuple of {', '.join(map(repr, known))}, each once.")
        for name, default in _REWRITTEN.items() if set(names).difference(_ANYWHERE) else ():
            value = getattr(self, name)
            if value != default:
                raise OptionsError(
                    f"rewrites is {names!r} and {name} is {value!r}: a rewritten graph has other nodes, launches and "
                    f"storages, so that it means nothing there. Use {name}={default!r}, or rewrites=()."
                )


_CHOICES = {name: get_args(of) for name, of in get_type_hints(Options).items() if get_origin(of) is Literal}
_REWRITTEN = {"budget": "peak", "memory_model": "runtime", "preserve_collective_order": "none", "pins": ()}
"""What options mean something of a graph that is rewritten."""


def rewrites_wanted(options: Options) -> tuple[RewriteKind, ...]:
    """Kinds of rewrites that may be tried with these options; none without effort."""
    fits = all(getattr(options, name) == default for name, default in _REWRITTEN.items())
    return options.rewrites if fits and options.effort else ()


def replayed_allocator(options: Options) -> AllocatorSettings | None:
    """The allocator that is replayed (``Options.allocator``); ``None``: none is."""
    if options.allocator != "environment":
        return parse_allocator(options.allocator)
    if options.memory_model != "runtime":
        return None
    return allocator_settings(settings_in_environment())


def on_devices(options: Options, devices: Collection[str]) -> Options:
    """Options for a graph on devices of these types: without ``"cuda"``, its allocator is nobody's."""
    if options.allocator != "environment" or "cuda" in devices:
        return options
    return replace(options, allocator="none")


def headroom_bytes(headroom: int | str, original_peak_bytes: int) -> int:
    """Headroom in bytes: ``"1GiB"`` -> 1073741824; percent are of the original peak, rounded down.

    An integer may be as large as you like, for no limit at all: it counts as 2**60, which no problem can reach.

    Raises:
        OptionsError: Not a size, negative, an unknown unit, or text for more than 2**60 bytes.
    """
    meant = "bytes (0), a size with a unit (500MB, 1GiB) or percent of the original peak (5%)"
    found = parse_size("headroom", headroom, original_peak_bytes, meant)
    if isinstance(headroom, str) and found > MAX_TOTAL_BYTES:
        text = headroom if len(headroom) <= 40 else headroom[:37] + "..."
        raise OptionsError(f"headroom is {text}: more than 2**60 bytes, which no device has. Write less.")
    return min(found, MAX_TOTAL_BYTES)


def options_given(options: Any) -> Options:
    """Return the options of a call; ``None``: the defaults.

    Raises:
        OptionsError: It is something else.
    """
    if options is not None and not isinstance(options, Options):
        raise OptionsError(f"options is {options!r}; it is an Options: Options(headroom='1GiB').")
    return options or Options()


def check_names(call: str, first: str, given: Mapping[str, Any], known: Collection[str]) -> None:
    """Refuse arguments by name that a function does not take, in words that say where they belong.

    Args:
        call: The function's name.
        first: What stands before the options in a call of it: ``"gm, "``.
        given: The arguments.
        known: Names that it takes.

    Raises:
        OptionsError: There is one that it does not take.
    """
    for name, value in given.items():
        if name in GONE:
            raise OptionsError(f"{name} is no option any more: {GONE[name]}")
        if name in Options.__dataclass_fields__ and name not in known:
            raise OptionsError(
                f"{call}() takes no {name}: it is one of the options. Write {call}({first}Options({name}={value!r}))."
            )
        if name not in known:
            near = close_to(name, [*known, *Options.__dataclass_fields__])
            also = "" if call == "Options" else ", and Options"
            raise OptionsError(f"{call}() takes no {name}.{near} It takes {', '.join(known)}{also}.")


def close_to(name: str, known: Collection[str]) -> str:
    """`` Did you mean headroom?``; ``""`` where nothing is like it."""
    near = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {near[0]}?" if near else ""
