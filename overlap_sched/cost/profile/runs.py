"""The runs of a graph in the trace of a rank: which calls are its operators, and what is said where none is.

Where Inductor's code ran (``## Call CompiledFxGraph``), only the calls of that graph count which is most like ours;
else those of the whole step.
"""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

from overlap_sched.cost.fusion.fused_names import fused_ops
from overlap_sched.cost.profile.kineto import GRAPH, HostCall, ProfiledStep, RankTrace, Shape
from overlap_sched.cost.profile.skew import Rank, Sample, Seen
from overlap_sched.errors import ProfileError

_PRODUCTS = {"aten::mm": ("mm", 0), "aten::addmm": ("mm", 1), "aten::bmm": ("bmm", 0), "aten::baddbmm": ("bmm", 1)}
"""Products of matrices: which kind, and where their factors begin. Inductor makes one of a product and an addition, and
two of one, behind the graph that is dumped."""


class Sought(NamedTuple):
    """A node that takes time.

    Attributes:
        name: As the profiler writes it: ``aten::mm``, ``_c10d_functional::all_reduce``.
        shapes: Of the tensors that it takes, those in lists too, without such of no dimension; ``None``: not known (of
            a problem file), then its operator and ``bytes`` must do.
        us: Its predicted time.
        collective: Whether it is one.
        bytes: Of a collective, the larger of what it takes and gives.
        fuses: Whether it may be a part of a fused kernel that is not named after it: it is no matmul and the like.
        kernel: Names of all nodes in the kernel whose predicted time it has; empty: it is alone.
    """

    name: str
    shapes: tuple[Shape, ...] | None
    us: float
    collective: bool = False
    bytes: int = 0
    fuses: bool = True
    kernel: tuple[str, ...] = ()

    @property
    def key(self) -> Hashable:
        """The key that equals have in common."""
        if self.shapes is not None:
            return self.name, self.shapes
        return (self.name, self.bytes) if self.collective else (self.name,)


class _Wanted(NamedTuple):
    """What the graph has: how many of each key, names of calls that may be of it, keys of its products."""

    counts: Mapping[Hashable, int]
    names: Collection[str]
    products: Mapping[Hashable, Hashable]


def _wanted(sought: Sequence[Sought]) -> _Wanted:
    products = {_product(node.name, node.shapes or ()): node.key for node in sought if node.name in _PRODUCTS}
    kinds = {_PRODUCTS[node.name][0] for node in sought if node.name in _PRODUCTS}
    others = {name for name, (kind, _) in _PRODUCTS.items() if kind in kinds}
    return _Wanted(Counter(node.key for node in sought), {node.name for node in sought} | others, products)


def _product(name: str, shapes: tuple[Shape, ...]) -> Hashable:
    """Return what a product shares with one that adds something to it; ``None``: it is no product."""
    if name not in _PRODUCTS:
        return None
    kind, first = _PRODUCTS[name]
    return kind, shapes[first : first + 2]


def runs_in(trace: RankTrace, sought: Sequence[Sought]) -> Rank:
    """The runs of the graph in one trace: of all calls of compiled graphs, those most like it."""
    wanted = _wanted(sought)
    best = 0.0
    chosen: list[Sample] = []
    for step in trace.steps:
        for k, calls in enumerate(_parts(step)):
            sample = _sample((step.number, k), step, calls, wanted)
            likeness = _likeness(sample, wanted.counts)
            if likeness > best:
                best, chosen = likeness, []
            if likeness == best and best:
                chosen.append(sample)
    if not chosen:
        raise _nothing_found(trace, sought)
    return Rank(trace.path, trace.rank, trace.world_size, _counted(chosen))


def _counted(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """With the how-manieth of its step as place: other graphs of the step may differ from rank to rank."""
    seen: Counter[int] = Counter()
    result = []
    for sample in samples:
        step = sample.place[0]
        result.append(sample._replace(place=(step, seen[step])))
        seen[step] += 1
    return tuple(result)


def _parts(step: ProfiledStep) -> list[list[int]]:
    """The calls within each compiled graph; all of them where there is none."""
    part_of: list[int] = []
    parts: list[list[int]] = []
    for k, call in enumerate(step.calls):
        around = part_of[call.parent] if call.parent >= 0 else -1
        if around < 0 and call.name.startswith(GRAPH):
            around = len(parts)
            parts.append([])
        part_of.append(around)
        if around >= 0:
            parts[around].append(k)
    return parts or [list(range(len(step.calls)))]


def _sample(place: tuple[int, int], step: ProfiledStep, chosen: Sequence[int], wanted: _Wanted) -> Sample:
    """Sample the calls chosen: operators of the graph, and fused kernels; not what these call in turn."""
    taken: set[int] = set()
    calls: list[Seen] = []
    launches: list[Seen] = []
    fused: list[HostCall] = []
    for k in chosen:
        call = step.calls[k]
        if call.parent in taken:
            taken.add(k)
            continue
        if call.name in wanted.names:
            taken.add(k)
            seen = Seen(_key(call, wanted), call)
            (launches if call.name.startswith("_c10d_functional::") else calls).append(seen)
        elif fused_ops(call.name) is not None:
            taken.add(k)
            fused.append(call)
    for listed in (calls, launches):  # threads stand one behind the other in a step
        listed.sort(key=lambda seen: seen.call.start_us)
    return Sample(place, tuple(calls), tuple(launches), tuple(fused))


def _key(call: HostCall, wanted: _Wanted) -> Hashable:
    """The key under which the graph has such a call; the first where it has none."""
    keys: tuple[Hashable, ...] = (
        (call.name, call.shapes),
        (call.name, call.shapes[:-1]),  # with the tensor that it writes to
        (call.name, call.bytes),
        (call.name,),
    )
    product = wanted.products.get(_product(call.name, call.shapes), keys[0])
    return next((key for key in keys if key in wanted.counts), product)


def _likeness(sample: Sample, wanted: Mapping[Hashable, int]) -> float:
    """0 to 1: how many calls both have (Dice's coefficient)."""
    has = Counter(seen.key for seen in (*sample.calls, *sample.launches))
    both = sum(min(n, wanted.get(key, 0)) for key, n in has.items())
    return 2 * both / (sum(has.values()) + sum(wanted.values()))


def _nothing_found(trace: RankTrace, sought: Sequence[Sought]) -> ProfileError:
    calls = [call for step in trace.steps for call in step.calls]
    names = {call.name for call in calls}
    wanted = dict.fromkeys(node.name for node in sought)
    there = [name for name in wanted if name in names]
    if not there:
        return ProfileError(
            f"{trace.path}: has none of the graph's operators ({_listed(list(wanted))}); it has "
            f"{_listed([name for name, _ in Counter(c.name for c in calls if '::' in c.name).most_common()])}. "
            "Was another job profiled?"
        )
    if not any(call.shapes for call in calls):
        return ProfileError(
            f"{trace.path}: its operators have no shapes, by which they are told apart. "
            "Profile with record_shapes=True."
        )
    other = next(call for call in calls if call.name == there[0])
    node = next(node for node in sought if node.name == there[0])
    return ProfileError(
        f"{trace.path}: has the graph's operators with other shapes: {there[0]} of {_shown(other.shapes)}, where the "
        f"graph has {_shown(node.shapes or ())}. Was another model, batch or sharding profiled?"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "none"


def _shown(shapes: Sequence[Shape]) -> str:
    return " ".join(str(list(shape)) for shape in shapes) or "no shapes"
