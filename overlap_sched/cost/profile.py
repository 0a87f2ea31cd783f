"""Times of nodes from torch profiler traces of real steps: events in, times out.

Nodes are found by operator and shapes, and among equals by order: the k-th multiplication of these shapes is the k-th
in the trace. Of several runs, the median. A collective holds the time that a rank waits for others: of several ranks of
one group the least duration counts. Fused kernels are found by their names: :func:`share_kernels`.

Traces are what ``torch.profiler.profile.export_chrome_trace`` writes: JSON, plain or gzipped, with a list of events in
the Chrome trace format under ``traceEvents`` (times in microseconds), and what Kineto says of the job beside it.
Nothing of a file is trusted.

On a GPU an operator takes as long as the kernels, copies and fills that it launched (found by their correlation ids);
in a trace without any, as long as on the CPU. A collective takes as long as its NCCL kernel, or as the range
``gloo:...`` on a thread of gloo's.

Where Inductor's code ran (``## Call CompiledFxGraph``), only the calls of that graph count which is most like ours;
else those of the whole step.
"""

import json
import math
import re
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

from overlap_sched.errors import CostError
from overlap_sched.problem import Kind, Node, Problem
from overlap_sched.problem.file import DEFAULT_LIMITS, Limits, read_json_text


class Event(NamedTuple):
    """What happened for some time on one thread or stream.

    Attributes:
        name, category: As in the file: ``aten::mm``, ``cpu_op``.
        start_us, end_us: By the clock of its machine.
        thread: Of which process and thread (of a kernel: device and stream).
        args: What the profiler says of it.
    """

    name: str
    category: str
    start_us: float
    end_us: float
    thread: tuple[str, str]
    args: Mapping[str, Any]


class TraceFile(NamedTuple):
    """The events of one rank.

    Attributes:
        path: For messages.
        rank, world_size: As the trace says; ``None`` where it does not (a job without process groups).
        events: Those with a duration, in the order of the file, checked.
    """

    path: str
    rank: int | None
    world_size: int | None
    events: Sequence[Event]


def read_trace_file(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> TraceFile:
    """Read a trace.

    Raises:
        CostError: It cannot be read, or is not such a trace.
        InputTooLargeError: It is larger than the limits.
    """
    text = read_json_text(path, limits, CostError)
    try:
        data = json.loads(text)  # which takes NaN, as torch writes it
    except (ValueError, RecursionError) as error:
        raise CostError(f"{path}: is not JSON ({error}). Was it cut short?") from None
    listed = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(listed, list):
        raise CostError(
            f"{path}: has no list of traceEvents: it is not a trace of torch.profiler. "
            "Write one with profile.export_chrome_trace(PATH)."
        )
    about = data.get("distributedInfo")
    about = about if isinstance(about, dict) else {}
    rank, world_size = (n if type(n := about.get(name)) is int else None for name in ("rank", "world_size"))
    events = [event for k, fields in enumerate(listed) if (event := _event(path, k, fields)) is not None]
    return TraceFile(str(path), rank, world_size, events)


def _event(path: str | Path, k: int, fields: Any) -> Event | None:
    """An event with a duration; None: it has none (a mark, an arrow, a name of a thread)."""
    known = fields if isinstance(fields, dict) else {}
    if fields is known and (known.get("ph") != "X" or "dur" not in known):
        return None
    name, start_us, dur_us = known.get("name"), known.get("ts"), known.get("dur")
    if not isinstance(name, str) or not is_time(start_us) or not is_time(dur_us) or dur_us < 0:
        raise CostError(
            f"{path}: traceEvents[{k}] is {fields!r:.80}; an event is a JSON object with a name, and ts and dur in "
            "microseconds, a duration of 0 or more."
        )
    category, args = known.get("cat"), known.get("args")
    return Event(
        name,
        category if isinstance(category, str) else "",
        float(start_us),
        float(start_us) + float(dur_us),
        (str(known.get("pid")), str(known.get("tid"))),
        args if isinstance(args, dict) else {},
    )


def is_time(value: Any) -> TypeGuard[float]:
    """Tell whether it is a number that can be microseconds."""
    return type(value) in (int, float) and abs(value) < 1e18 and math.isfinite(value)


Shape = tuple[int, ...]

GRAPH = "## Call CompiledFxGraph"
"""How ranges begin in which Inductor's code runs."""
_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
STEP = re.compile(r"ProfilerStep#(\d+)")
_GLOO = "gloo:"
_FUNCTIONAL = "_c10d_functional::"
_LAUNCHES = (_FUNCTIONAL, "c10d_functional::", "c10d::")
_ALIKE = {"all_gather": "gather", "reduce_scatter": "reduce", "all_reduce": "reduce", "all_to_all": "all"}
"""What a collective runs as on gloo: torch 2.13 makes a reduce_scatter of an all_reduce."""
_ITEM_BYTES = {
    "float": 4, "double": 8, "c10::bfloat16": 2, "bfloat16": 2, "c10::half": 2, "half": 2, "long": 8, "long int": 8,
    "int": 4, "short": 2, "short int": 2, "char": 1, "signed char": 1, "byte": 1, "unsigned char": 1, "bool": 1,
    "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1,
}  # fmt: skip


class HostCall(NamedTuple):
    """Something that the host called.

    Attributes:
        name: ``aten::mm``; a collective's always with ``_c10d_functional::`` and neither ``_out`` nor a last ``_``.
        shapes: Of its tensors, those in lists too; tensors without dimensions are left out, as numbers look alike.
        us: How long it took on the device; ``None``: a collective that was not seen running.
        start_us: When it was called.
        parent: Index of the call around it in the step, or -1.
        bytes: Of a collective, the larger of what it takes and gives, 0 where the trace does not say.
        group: Of a collective, the ranks of its group as the trace writes them, ``""`` where it does not.
    """

    name: str
    shapes: tuple[Shape, ...]
    us: float | None
    start_us: float
    parent: int
    bytes: int = 0
    group: str = ""


class RankTrace(NamedTuple):
    """The steps of one rank: number, and what was called in it, who calls before who is called.

    The rest is as in :class:`overlap_sched.cost.profile.TraceFile`.
    """

    path: str
    rank: int | None
    world_size: int | None
    steps: tuple[tuple[int, tuple[HostCall, ...]], ...]


def rank_trace(file: TraceFile) -> RankTrace:
    """Read the steps of a trace: those that ``profile.step()`` marks, or one of all that is in it."""
    host = [e for e in file.events if e.category in _HOST and not e.name.startswith(_GLOO)]
    host.sort(key=lambda e: (e.thread, e.start_us, -e.end_us))
    calls = _calls(host, file.events)
    marks = sorted((int(found[1]), e.start_us, e.end_us) for e in host if (found := STEP.match(e.name)))
    steps = []
    for number, begin, end in marks or [(0, -math.inf, math.inf)]:
        place = {k: i for i, k in enumerate(k for k, e in enumerate(host) if begin <= e.start_us < end)}
        steps.append((number, tuple(calls[k]._replace(parent=place.get(calls[k].parent, -1)) for k in place)))
    return RankTrace(file.path, file.rank, file.world_size, tuple(steps))


def _parents(host: Sequence[Event]) -> list[int]:
    """Per event, the one around it on its thread, or -1."""
    parents: list[int] = []
    open_: list[int] = []
    for k, e in enumerate(host):
        while open_ and (host[open_[-1]].thread != e.thread or host[open_[-1]].end_us <= e.start_us):
            open_.pop()
        parents.append(open_[-1] if open_ else -1)
        open_.append(k)
    return parents


def _calls(host: Sequence[Event], events: Sequence[Event]) -> list[HostCall]:
    parents = _parents(host)
    shapes = [_shapes(e) for e in host]
    device = [e for e in events if e.category in DEVICE]
    compute_us, nccl_us = _device_us(host, parents, device)
    inside = {-1: False}  # collectives that no other operator of theirs calls; waits are none
    for k, e in enumerate(host):
        inside[k] = inside[parents[k]] or e.name.startswith(_LAUNCHES)
    launches = [k for k, e in enumerate(host) if inside[k] > inside[parents[k]] and not e.name.endswith("wait_tensor")]
    workers = [e for e in events if e.category in _HOST and e.name.startswith(_GLOO)]
    ran = _ran_on_gloo(host, shapes, launches, workers)
    about = dict[int, Mapping[str, Any]]()  # what ``record_param_comms`` says, for each call around it
    for k, e in enumerate(host):
        while e.name == "record_param_comms" and (k := parents[k]) >= 0:
            about.setdefault(k, e.args)
    calls, chosen = [], set(launches)
    for k, e in enumerate(host):
        us = compute_us[k] if device else e.end_us - e.start_us
        call = HostCall(e.name, shapes[k], us, e.start_us, parents[k])
        if k in chosen:
            nbytes, group = _message(e, shapes[k], about.get(k, {}))
            seen_us = ran.get(k, nccl_us[k] or None)
            call = call._replace(name=_functional(e.name), us=seen_us, bytes=nbytes, group=group)
        calls.append(call)
    return calls


def _shapes(e: Event) -> tuple[Shape, ...]:
    found: list[Shape] = []
    dims = e.args.get("Input Dims")
    for one in dims if isinstance(dims, list) else []:
        parts = one if isinstance(one, list) and one and isinstance(one[0], list) else [one]
        found += [tuple(p) for p in parts if isinstance(p, list) and p and all(type(n) is int for n in p)]
    return tuple(found)


def _functional(name: str) -> str:
    return _FUNCTIONAL + name.partition("::")[2].removesuffix("_out").removesuffix("_")


def _ran_on_gloo(
    host: Sequence[Event], shapes: Sequence[tuple[Shape, ...]], launches: Iterable[int], workers: Sequence[Event]
) -> dict[int, float]:
    """Per launch the time that a thread of gloo's worked on it: the first range after it with a shape of its own."""
    waiting: dict[Shape, deque[Event]] = defaultdict(deque)
    for e in sorted(workers, key=lambda e: e.start_us):
        for shape in _shapes(e)[:1]:
            waiting[shape].append(e)
    found: dict[int, float] = {}
    for k in sorted(launches, key=lambda k: host[k].start_us):
        for shape in shapes[k]:
            queue = waiting[shape]
            while queue and queue[0].start_us < host[k].start_us:
                queue.popleft()
            op = _functional(host[k].name).removeprefix(_FUNCTIONAL)
            if queue and all(word in queue[0].name for kind, word in _ALIKE.items() if op.startswith(kind)):
                ran = queue.popleft()
                found[k] = ran.end_us - ran.start_us
                break
    return found


def _device_us(host: Sequence[Event], parents: Sequence[int], device: Sequence[Event]) -> tuple[list[float], ...]:
    """Per call, the time of all that it and what it called launched: of kernels of NCCL apart."""
    by_id, launched_by = (
        {number: k for k, e in enumerate(host) if (number := _number(e, name))}
        for name in ("External id", "correlation")
    )
    compute_us, nccl_us = [0.0] * len(host), [0.0] * len(host)
    for e in device:
        k = launched_by.get(_number(e, "correlation"), by_id.get(_number(e, "External id"), -1))
        if k >= 0:
            (nccl_us if "nccl" in e.name.lower() else compute_us)[k] += e.end_us - e.start_us
    for k in reversed(range(len(host))):
        if parents[k] >= 0:
            compute_us[parents[k]] += compute_us[k]
            nccl_us[parents[k]] += nccl_us[k]
    return compute_us, nccl_us


def _number(e: Event, name: str) -> int:
    value = e.args.get(name)
    return value if type(value) is int and value > 0 else 0


def _message(launch: Event, shapes: tuple[Shape, ...], about: Mapping[str, Any]) -> tuple[int, str]:
    """Bytes of the larger side, and the ranks."""
    group = str(about.get("Process Group Ranks", ""))
    sent, received = about.get("In msg nelems"), about.get("Out msg nelems")
    if type(sent) is int and type(received) is int:
        return max(sent, received) * _ITEM_BYTES.get(str(about.get("dtype")).lower(), 0), group
    types, given = launch.args.get("Input type"), launch.args.get("Concrete Inputs")
    item = _ITEM_BYTES.get(str(types[0]).lower(), 0) if isinstance(types, list) and types else 0
    nbytes = item * math.prod(shapes[0]) if shapes else 0
    if "all_gather" in launch.name and isinstance(given, list):
        nbytes *= next((int(text) for text in given if isinstance(text, str) and text.isdecimal()), 1)
    return nbytes, group


Keyed = tuple[Hashable, HostCall]
"""A call, behind the key under which the graph has it."""


class Run(NamedTuple):
    """One run of the graph on one rank: operators that it has, its collectives, kernels made of several operators."""

    calls: list[Keyed]
    launches: list[Keyed]
    fused: list[HostCall]


Runs = Mapping[tuple[int, int], Run]
"""By the number of the step, and the how-manieth it is in it: other graphs of the step may differ from rank to rank."""


def remove_skew(traces: Sequence[RankTrace], runs: Sequence[Runs]) -> tuple[list[list[tuple[Hashable, float]]], float]:
    """Per run that all ranks have, (key, microseconds) of each collective; and what was taken out, per rank and run.

    A collective takes the least duration among ranks of one group; where there are several groups, the mean of theirs.
    """
    _check_ranks(traces)
    places = [place for place in runs[0] if all(place in other for other in runs)]
    if not places:
        listed = [
            f"{trace.path} (step {', '.join({str(k): 0 for k, _ in of})})"
            for trace, of in zip(traces, runs, strict=True)
        ]
        raise CostError(f"{' and '.join(listed)} have no step in common. Profile the same steps on every rank.")
    launched, skew_us = [], 0.0
    for place in places:
        run = [of_rank[place].launches for of_rank in runs]
        for trace, launches in zip(traces, run, strict=True):
            _check_equal(place[0], traces[0].path, run[0], trace.path, launches)
        times = []
        for instances in zip(*run, strict=True):
            by_group: dict[str, list[float]] = defaultdict(list)
            known = [(call.group, call.us) for _, call in instances if call.us is not None]
            for group, us in known:
                by_group[group].append(us)
            if known:
                least_us = sum(map(min, by_group.values())) / len(by_group)
                skew_us += sum(us for _, us in known) / len(known) - least_us
                times.append((instances[0][0], least_us))
        launched.append(times)
    return launched, skew_us / len(places)


def _check_ranks(traces: Sequence[RankTrace]) -> None:
    paths: dict[object, str] = {}
    for trace in traces:
        who: object = trace.path if trace.rank is None else trace.rank
        if who in paths:
            what = "the same file" if trace.rank is None else f"both of rank {trace.rank}"
            raise CostError(f"{paths[who]} and {trace.path} are {what}: give each rank once.")
        paths[who] = trace.path
        if trace.world_size != traces[0].world_size:
            raise CostError(
                f"{traces[0].path} is of a job of {traces[0].world_size} ranks, {trace.path} of {trace.world_size}. "
                "Give traces of one job."
            )


def _check_equal(step: int, first: str, one: Sequence[Keyed], second: str, other: Sequence[Keyed]) -> None:
    ours, theirs = [key for key, _ in one], [key for key, _ in other]
    if ours != theirs:
        k = next((k for k, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
        a, b = (f"{calls[k][1].name} {calls[k][1].shapes}" if k < len(calls) else "nothing" for calls in (one, other))
        raise CostError(
            f"step {step} is not the same on two ranks: collective {k + 1} is {a} in {first} and {b} in {second}. "
            "Give ranks that run the same graph, or one trace alone."
        )


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


def _product(name: str, shapes: tuple[Shape, ...]) -> Hashable:
    """Return what a product shares with one that adds something to it; ``None``: it is no product."""
    if name not in _PRODUCTS:
        return None
    kind, first = _PRODUCTS[name]
    return kind, shapes[first : first + 2]


def runs_in(trace: RankTrace, sought: Sequence[Sought]) -> Runs:
    """The runs of the graph in one trace: of all calls of compiled graphs, those most like it."""
    products = {_product(node.name, node.shapes or ()): node.key for node in sought if node.name in _PRODUCTS}
    kinds = {_PRODUCTS[node.name][0] for node in sought if node.name in _PRODUCTS}
    names = {node.name for node in sought} | {name for name, (kind, _) in _PRODUCTS.items() if kind in kinds}
    wanted = _Wanted(Counter(node.key for node in sought), names, products)
    best = 0.0
    chosen: list[tuple[int, Run]] = []
    for number, calls in trace.steps:
        for part in _parts(calls):
            run = _run(calls, part, wanted)
            has = Counter(key for key, _ in (*run.calls, *run.launches))
            both = sum(min(n, wanted.counts.get(key, 0)) for key, n in has.items())
            likeness = 2 * both / (has.total() + len(sought))  # Dice's coefficient
            if likeness > best:
                best, chosen = likeness, []
            if likeness == best and best:
                chosen.append((number, run))
    if not chosen:
        raise _nothing_found(trace, sought)
    by_step = groupby(chosen, lambda one: one[0])
    return {(number, k): run for number, runs in by_step for k, (_, run) in enumerate(runs)}


def _parts(calls: Sequence[HostCall]) -> list[list[int]]:
    """The calls within each compiled graph; all of them where there is none."""
    part_of: list[int] = []
    parts: list[list[int]] = []
    for k, call in enumerate(calls):
        around = part_of[call.parent] if call.parent >= 0 else -1
        if around < 0 and call.name.startswith(GRAPH):
            around = len(parts)
            parts.append([])
        part_of.append(around)
        if around >= 0:
            parts[around].append(k)
    return parts or [list(range(len(calls)))]


def _run(calls: Sequence[HostCall], chosen: Sequence[int], wanted: _Wanted) -> Run:
    """Sort the calls chosen: operators of the graph, and fused kernels; not what these call in turn."""
    taken: set[int] = set()
    run = Run([], [], [])
    for k in chosen:
        call = calls[k]
        if call.parent in taken:
            taken.add(k)
        elif call.name in wanted.names:
            taken.add(k)
            (run.launches if call.name.startswith(_FUNCTIONAL) else run.calls).append((_key(call, wanted), call))
        elif fused_ops(call.name) is not None:
            taken.add(k)
            run.fused.append(call)
    for listed in (run.calls, run.launches):  # threads stand one behind the other in a step
        listed.sort(key=lambda keyed: keyed[1].start_us)
    return run


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


def _nothing_found(trace: RankTrace, sought: Sequence[Sought]) -> CostError:
    calls = [call for _, calls in trace.steps for call in calls]
    other, node = next(((call, node) for node in sought for call in calls if call.name == node.name), (None, None))
    if other is None or node is None:
        most = [name for name, _ in Counter(c.name for c in calls if "::" in c.name).most_common(5)]
        return CostError(
            f"{trace.path}: has none of the graph's operators ({sought[0].name} and others); most of it is "
            f"{', '.join(most) or 'nothing'}. Was another job profiled?"
        )
    if not any(call.shapes for call in calls):
        return CostError(
            f"{trace.path}: its operators have no shapes, by which they are told apart. "
            "Profile with record_shapes=True."
        )
    return CostError(
        f"{trace.path}: has operators with other shapes: {node.name} of {other.shapes}, where the graph has "
        f"{node.shapes or ()}. Was another model, batch or sharding profiled?"
    )


How = Literal["order", "shapes", "names"]
"""How a node was found: the k-th of its shapes; by its shapes alone, the median of all; by a kernel's name."""


class MeasuredTime(NamedTuple):
    """The time of a node, and how it was found."""

    us: float
    how: How


@dataclass(frozen=True)
class Profile:
    """What traces say of a graph.

    Attributes:
        measured: Per node; ``None``: not found.
        runs, ranks: How many runs of the graph, of how many ranks.
        skew_us: What was taken out of all collectives of a run; ``None``: of one rank, so it is still in them.
        fused_us: Time of fused kernels in a run.
    """

    sought: tuple[Sought, ...]
    measured: tuple[MeasuredTime | None, ...]
    runs: int
    ranks: int
    skew_us: float | None
    fused_us: float

    def share(self, *how: How) -> float:
        """Part of the predicted time of all nodes that belongs to nodes found (in one of these ways, or in any)."""
        whole = sum(node.us for node in self.sought)
        found = zip(self.sought, self.measured, strict=True)
        part = sum(node.us for node, m in found if m is not None and (not how or m.how in how))
        return part / whole if whole else 0.0


def profile_of(sought: Sequence[Sought], traces: Sequence[RankTrace]) -> Profile:
    """Match the nodes of a graph, in its order, with traces of it."""
    ranks = [runs_in(trace, sought) for trace in traces]
    launched, skew_us = remove_skew(traces, ranks)
    runs = [run for rank in ranks for run in rank.values()]
    measured = _by_order(sought, [*([(key, call.us) for key, call in run.calls] for run in runs), *launched])
    if not any(measured):  # of a problem file, whose operators have no shapes: there must be as many
        seen = Counter(key for key, _ in (*runs[0].calls, *runs[0].launches))
        node = next(node for node in sought if node.key in seen)
        raise CostError(
            f"{traces[0].path}: has {node.name} {seen[node.key]} times, where the graph has "
            f"{sum(other.key == node.key for other in sought)}. Was another graph profiled? A problem file has no "
            "shapes to tell operators apart: give the dump, if you have it."
        )
    fused = _fused(runs)
    left = [v for v, node in enumerate(sought) if measured[v] is None and not node.collective and node.us > 0.0]
    for v, us in zip(left, share_kernels([sought[v] for v in left], fused), strict=True):
        measured[v] = None if us is None else MeasuredTime(us, "names")
    skew = skew_us if len(traces) > 1 else None
    return Profile(tuple(sought), tuple(measured), len(launched), len(traces), skew, sum(fused.values(), 0.0))


def _by_order(
    sought: Sequence[Sought], runs: Sequence[Sequence[tuple[Hashable, float | None]]]
) -> list[MeasuredTime | None]:
    nodes: dict[Hashable, list[int]] = defaultdict(list)
    for v, node in enumerate(sought):
        nodes[node.key].append(v)
    times: dict[int, list[float]] = defaultdict(list)
    others: dict[Hashable, list[float]] = defaultdict(list)
    for run in runs:
        seen: dict[Hashable, list[float | None]] = defaultdict(list)
        for key, us in run:
            seen[key].append(us)
        for key, found in seen.items():
            ids = nodes.get(key, ())
            for k, us in enumerate(found if ids else ()):
                if us is not None:
                    (others[key] if len(found) % len(ids) else times[ids[k % len(ids)]]).append(us)
    result: list[MeasuredTime | None] = [None] * len(sought)
    for v, node in enumerate(sought):
        if times[v]:
            result[v] = MeasuredTime(statistics.median(times[v]), "order")
        elif others[node.key] and node.shapes is not None:
            result[v] = MeasuredTime(statistics.median(others[node.key]), "shapes")
    return result


def _fused(runs: Sequence[Run]) -> dict[str, float]:
    """By the operators in their names, the median time of fused kernels in a run."""
    sums = [defaultdict[str, float](float) for _ in runs]
    for us, run in zip(sums, runs, strict=True):
        for call in run.fused:
            us[fused_ops(call.name) or ""] += call.us or 0.0
    every = dict.fromkeys(ops for us in sums for ops in us)
    return {ops: statistics.median(us.get(ops, 0.0) for us in sums) for ops in every}


_FUSED = re.compile(r"(?:^|_)(?:cpp|triton_[a-z]+|triton_[a-z]+_[a-z]+)_fused_(.*?)_\d+$")
"""Inductor names a kernel after the operators in it, sorted: ``triton_poi_fused_add_mul_3``,
``cpp_fused__to_copy_mean_5`` (``torch._inductor.utils.get_fused_kernel_name``)."""


def fused_ops(kernel: str) -> str | None:
    """The operators in the name of a fused kernel, as they stand there; ``None``: it is not the name of one."""
    found = _FUSED.search(kernel)
    return None if found is None else found[1]


def share_kernels(parts: Sequence[Sought], kernels: Mapping[str, float]) -> list[float | None]:
    """Per node its share of the time of kernels, by what :func:`fused_ops` gives; ``None``: of none.

    A kernel is shared by the nodes whose predicted kernels have most operators in common with its name, and by those
    that are like no other more; by all if there are none. (Kernels are named after operators before decomposition: a
    node whose operators are in no name may be in each of them.) Several may be alike, so each gets a part in proportion
    to what was predicted: the sum is that of the trace, the parts are an estimate.
    """
    ops = [
        {name.partition("::")[2].replace("convert_element_type", "_to_copy") for name in part.kernel or (part.name,)}
        for part in parts
    ]
    likeness: dict[str, list[float]] = {}
    for kernel in kernels:
        its = {name for name in set().union(*ops) if f"_{name}_" in f"_{kernel}_"}
        likeness[kernel] = [
            len(mine & its) / len(mine | its) if part.us > 0.0 and (part.fuses or mine & its) else -1.0
            for part, mine in zip(parts, ops, strict=True)
        ]
    best = [max((row[k] for row in likeness.values()), default=-1.0) for k in range(len(parts))]
    result: list[float | None] = [None] * len(parts)
    for kernel, row in likeness.items():
        most = max(row, default=-1.0)
        able = [k for k, like in enumerate(row) if like >= 0.0]
        members = [k for k in able if row[k] == most > 0.0 or row[k] == best[k]] or able
        whole = sum(parts[k].us for k in members)
        for k in members:
            result[k] = (result[k] or 0.0) + kernels[kernel] * parts[k].us / whole
    return result


Shapes = tuple[Shape, ...]
"""Of the tensors that a node takes, as in :class:`overlap_sched.cost.profile.Sought`."""


class Profiled(NamedTuple):
    """A problem with the times that were found, what was found, and ids of the nodes whose times are measured."""

    problem: Problem
    profile: Profile
    measured: tuple[int, ...]


def read_traces(paths: Sequence[str | Path], limits: Limits = DEFAULT_LIMITS) -> list[RankTrace]:
    """Read one trace per rank."""
    return [rank_trace(read_trace_file(path, limits)) for path in paths]


def apply_profile(
    problem: Problem,
    traces: Sequence[RankTrace],
    shapes: Sequence[Shapes | None] | None = None,
    kernels: Sequence[str] = (),
) -> Profiled:
    """Give a problem the times of traces.

    Args:
        problem: Its times are predictions.
        traces: One per rank, of the same steps.
        shapes: Per node, where they are known: of a graph, not of a problem file.
        kernels: Per node, the name of the kernel that it is predicted to share with others, whose time is on one of
            them; ``""``: none. Empty: no node shares one.

    Raises:
        CostError: A trace has nothing of the graph; ranks do not go together.
    """
    kernel_of = kernels or [""] * len(problem.nodes)
    ids = [
        v
        for v, node in enumerate(problem.nodes)
        if node.kind in (Kind.COMPUTE, Kind.COLLECTIVE) and node.op and (node.time_us > 0.0 or kernel_of[v])
    ]
    members: dict[str, list[str]] = defaultdict(list)
    for v in ids:
        members[kernel_of[v]].append(_name(problem.nodes[v]))
    members[""] = []
    sought = [
        Sought(
            _name(node := problem.nodes[v]),
            None if shapes is None else shapes[v],
            node.time_us,
            node.kind is Kind.COLLECTIVE,
            node.bytes,
            not node.flops,
            tuple(members[kernel_of[v]]),
        )
        for v in ids
    ]
    profile = profile_of(sought, traces)
    found = {v: measured.us for v, measured in zip(ids, profile.measured, strict=True) if measured is not None}
    nodes = [node._replace(time_us=found[v]) if v in found else node for v, node in enumerate(problem.nodes)]
    return Profiled(replace(problem, nodes=tuple(nodes)), profile, tuple(found))


def _name(node: Node) -> str:
    """As the profiler writes it: ``aten::mm`` for ``aten.mm.default``."""
    if node.kind is Kind.COLLECTIVE:
        return _functional(f"::{node.op}")
    namespace, _, rest = node.op.partition(".")
    return f"{namespace}::{rest.partition('.')[0]}" if rest else node.op
