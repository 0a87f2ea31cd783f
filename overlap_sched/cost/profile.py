"""Times of nodes from torch profiler traces of real steps: events in, times out.

Nodes are found by operator and shapes, and among equals by order: the k-th multiplication of these shapes is the k-th
in the trace. Of several runs, the median. A collective holds the time that a rank waits for others: of several ranks of
one group the least duration counts. Fused kernels: :mod:`overlap_sched.cost.fused_names`.

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
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

from overlap_sched.cost.fused_names import PredictedKernel, fused_ops, shared
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
        fields: All events as they are, each a JSON object.
    """

    path: str
    rank: int | None
    world_size: int | None
    events: Sequence[Event]
    fields: Sequence[dict[str, Any]]


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
    events = [event for k, fields in enumerate(listed) if (event := _event(path, k, fields)) is not None]
    return TraceFile(str(path), _number_of(about, "rank"), _number_of(about, "world_size"), events, listed)


def _number_of(about: Mapping[str, Any], name: str) -> int | None:
    value = about.get(name)
    return value if type(value) is int else None


def _event(path: str | Path, k: int, fields: Any) -> Event | None:
    """An event with a duration; None: it has none (a mark, an arrow, a name of a thread)."""
    if not isinstance(fields, dict):
        raise CostError(f"{path}: traceEvents[{k}] is {_shown(fields)}; an event is a JSON object.")
    if fields.get("ph") != "X" or "dur" not in fields:
        return None
    name, start_us, dur_us = fields.get("name"), fields.get("ts"), fields["dur"]
    if not isinstance(name, str):
        raise CostError(f"{path}: traceEvents[{k}] has name {_shown(name)}; it is a text.")
    if not is_time(start_us) or not is_time(dur_us) or dur_us < 0:
        raise CostError(
            f"{path}: traceEvents[{k}] ({_shown(name)}) has ts {_shown(start_us)} and dur {_shown(dur_us)}; "
            "they are microseconds, and a duration is 0 or more."
        )
    category, args = fields.get("cat"), fields.get("args")
    return Event(
        name,
        category if isinstance(category, str) else "",
        float(start_us),
        float(start_us) + float(dur_us),
        (str(fields.get("pid")), str(fields.get("tid"))),
        args if isinstance(args, dict) else {},
    )


def is_time(value: Any) -> TypeGuard[float]:
    """Tell whether it is a number that can be microseconds."""
    return type(value) in (int, float) and abs(value) < 1e18 and math.isfinite(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


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


class ProfiledStep(NamedTuple):
    """One step: its number, and what was called in it, who calls before who is called."""

    number: int
    calls: tuple[HostCall, ...]


class RankTrace(NamedTuple):
    """The steps of one rank; the rest as in :class:`overlap_sched.cost.profile.TraceFile`."""

    path: str
    rank: int | None
    world_size: int | None
    steps: tuple[ProfiledStep, ...]


def rank_trace(file: TraceFile) -> RankTrace:
    """Read the steps of a trace: those that ``profile.step()`` marks, or one of all that is in it."""
    workers = [e for e in file.events if e.category in _HOST and e.name.startswith(_GLOO)]
    host = [e for e in file.events if e.category in _HOST and not e.name.startswith(_GLOO)]
    host.sort(key=lambda e: (e.thread, e.start_us, -e.end_us))
    parents = _parents(host)
    device = [e for e in file.events if e.category in DEVICE]
    calls = _calls(host, parents, device, workers)
    marks = [(int(found[1]), e) for e in host if (found := STEP.match(e.name))]
    if not marks:
        return RankTrace(file.path, file.rank, file.world_size, (_step(0, range(len(calls)), calls),))
    steps = [
        _step(number, [k for k, e in enumerate(host) if mark.start_us <= e.start_us < mark.end_us], calls)
        for number, mark in sorted(marks, key=lambda mark: mark[0])
    ]
    return RankTrace(file.path, file.rank, file.world_size, tuple(steps))


def _step(number: int, chosen: Iterable[int], calls: Sequence[HostCall]) -> ProfiledStep:
    place = {k: i for i, k in enumerate(chosen)}
    return ProfiledStep(number, tuple(calls[k]._replace(parent=place.get(calls[k].parent, -1)) for k in place))


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


def _calls(
    host: Sequence[Event], parents: Sequence[int], device: Sequence[Event], workers: Sequence[Event]
) -> list[HostCall]:
    shapes = [_shapes(e.args.get("Input Dims")) for e in host]
    launches = _outermost_launches(host, parents)
    ran = _ran_on_gloo(host, shapes, launches, workers)
    compute_us, nccl_us = _device_us(host, parents, device)
    about = _about_collectives(host, parents)
    calls = []
    for k, e in enumerate(host):
        us: float | None = compute_us[k] if device else e.end_us - e.start_us
        if k in launches:
            us = ran.get(k, nccl_us[k] or None)
            nbytes, group = _message(e, shapes[k], about.get(k, {}))
            calls.append(HostCall(_functional(e.name), shapes[k], us, e.start_us, parents[k], nbytes, group))
        else:
            calls.append(HostCall(e.name, shapes[k], us, e.start_us, parents[k]))
    return calls


def _shapes(dims: Any) -> tuple[Shape, ...]:
    found: list[Shape] = []
    for one in dims if isinstance(dims, list) else []:
        parts = one if isinstance(one, list) and one and isinstance(one[0], list) else [one]
        found += [tuple(p) for p in parts if isinstance(p, list) and p and all(type(n) is int for n in p)]
    return tuple(found)


def _outermost_launches(host: Sequence[Event], parents: Sequence[int]) -> dict[int, None]:
    """Collectives that no other operator of theirs calls; waits are none."""
    inside: dict[int, bool] = {-1: False}
    found: dict[int, None] = {}
    for k, e in enumerate(host):
        theirs = e.name.startswith(_LAUNCHES)
        if theirs and not inside[parents[k]] and not e.name.endswith("wait_tensor"):
            found[k] = None
        inside[k] = theirs or inside[parents[k]]
    return found


def _functional(name: str) -> str:
    return _FUNCTIONAL + name.partition("::")[2].removesuffix("_out").removesuffix("_")


def _ran_on_gloo(
    host: Sequence[Event], shapes: Sequence[tuple[Shape, ...]], launches: Iterable[int], workers: Sequence[Event]
) -> dict[int, float]:
    """Per launch the time that a thread of gloo's worked on it: the first range after it with a shape of its own."""
    waiting: dict[Shape, deque[Event]] = defaultdict(deque)
    for e in sorted(workers, key=lambda e: e.start_us):
        for shape in _shapes(e.args.get("Input Dims"))[:1]:
            waiting[shape].append(e)
    found: dict[int, float] = {}
    for k in sorted(launches, key=lambda k: host[k].start_us):
        for shape in shapes[k]:
            queue = waiting[shape]
            while queue and queue[0].start_us < host[k].start_us:
                queue.popleft()
            if queue and _fits(host[k].name, queue[0].name):
                ran = queue.popleft()
                found[k] = ran.end_us - ran.start_us
                break
    return found


def _fits(launch: str, ran: str) -> bool:
    op = _functional(launch).removeprefix(_FUNCTIONAL)
    return all(word in ran for kind, word in _ALIKE.items() if op.startswith(kind))


def _device_us(host: Sequence[Event], parents: Sequence[int], device: Sequence[Event]) -> tuple[list[float], ...]:
    """Per call, the time of all that it and what it called launched: of kernels of NCCL apart."""
    by_id = {e.args["External id"]: k for k, e in enumerate(host) if _is_id(e.args.get("External id"))}
    launched_by = {e.args["correlation"]: k for k, e in enumerate(host) if _is_id(e.args.get("correlation"))}
    compute_us, nccl_us = [0.0] * len(host), [0.0] * len(host)
    for e in device:
        correlation, external = e.args.get("correlation"), e.args.get("External id")
        k = launched_by.get(correlation) if _is_id(correlation) else None
        if k is None:
            k = by_id.get(external, -1) if _is_id(external) else -1
        times = nccl_us if "nccl" in e.name.lower() else compute_us
        if k >= 0:
            times[k] += e.end_us - e.start_us
    for times in (compute_us, nccl_us):
        for k in reversed(range(len(host))):
            if parents[k] >= 0:
                times[parents[k]] += times[k]
    return compute_us, nccl_us


def _is_id(value: Any) -> bool:
    return type(value) is int and value > 0


def _about_collectives(host: Sequence[Event], parents: Sequence[int]) -> dict[int, Mapping[str, Any]]:
    """Collect what ``record_param_comms`` says, for each call around it."""
    found: dict[int, Mapping[str, Any]] = {}
    for k, e in enumerate(host):
        if e.name == "record_param_comms":
            around = parents[k]
            while around >= 0:
                found.setdefault(around, e.args)
                around = parents[around]
    return found


def _message(launch: Event, shapes: tuple[Shape, ...], about: Mapping[str, Any]) -> tuple[int, str]:
    """Bytes of the larger side, and the ranks."""
    group = str(about.get("Process Group Ranks", ""))
    sent, received = about.get("In msg nelems"), about.get("Out msg nelems")
    if type(sent) is int and type(received) is int:
        return max(sent, received) * _ITEM_BYTES.get(str(about.get("dtype")).lower(), 0), group
    types, given = launch.args.get("Input type"), launch.args.get("Concrete Inputs")
    item = _ITEM_BYTES.get(str(types[0]).lower(), 0) if isinstance(types, list) and types else 0
    nbytes = item
    for n in shapes[0] if shapes else ():
        nbytes *= n
    if "all_gather" in launch.name and isinstance(given, list):
        nbytes *= next((int(text) for text in given if isinstance(text, str) and text.isdecimal()), 1)
    return nbytes if shapes else 0, group


class Seen(NamedTuple):
    """A call that the graph has, too: by what it is looked up, and how long it took."""

    key: Hashable
    call: HostCall


class Sample(NamedTuple):
    """One run of the graph on one rank.

    Attributes:
        place: Number of its step, and the how-manieth run in it.
        calls: Operators that the graph has.
        launches: Its collectives.
        fused: Kernels that a compiler made of several operators.
    """

    place: tuple[int, int]
    calls: tuple[Seen, ...]
    launches: tuple[Seen, ...]
    fused: tuple[HostCall, ...]


class Rank(NamedTuple):
    """The runs of one rank, for messages with its file."""

    path: str
    rank: int | None
    world_size: int | None
    samples: tuple[Sample, ...]


def remove_skew(ranks: Sequence[Rank]) -> tuple[list[list[tuple[Hashable, float]]], float]:
    """Per run that all ranks have, (key, microseconds) of each collective; and what was taken out, per rank and run."""
    _check_ranks(ranks)
    samples = [{sample.place: sample for sample in rank.samples} for rank in ranks]
    places = [place for place in samples[0] if all(place in other for other in samples)]
    if not places:
        raise CostError(
            f"{ranks[0].path} and {ranks[1].path} have no step in common (steps {_steps(ranks[0])} and "
            f"{_steps(ranks[1])}). Profile the same steps on every rank."
        )
    runs, skew_us = [], 0.0
    for place in places:
        run = [sample[place].launches for sample in samples]
        for other, launches in zip(ranks[1:], run[1:], strict=True):
            _check_equal(place, ranks[0], run[0], other, launches)
        times = [_least(instances) for instances in zip(*run, strict=True)]
        runs.append([(seen.key, us) for seen, us in zip(run[0], times, strict=True) if us is not None])
        for us, instances in zip(times, zip(*run, strict=True), strict=True):
            known = [seen.call.us for seen in instances if seen.call.us is not None]
            skew_us += sum(known) / len(known) - us if us is not None else 0.0
    return runs, skew_us / len(places)


def _least(instances: Sequence[Seen]) -> float | None:
    """The least duration among ranks of one group; where there are several groups, the mean of theirs."""
    by_group: dict[str, list[float]] = defaultdict(list)
    for seen in instances:
        if seen.call.us is not None:
            by_group[seen.call.group].append(seen.call.us)
    return sum(map(min, by_group.values())) / len(by_group) if by_group else None


def _check_ranks(ranks: Sequence[Rank]) -> None:
    paths: dict[object, str] = {}
    for rank in ranks:
        who: object = rank.path if rank.rank is None else rank.rank
        if who in paths:
            what = "the same file" if rank.rank is None else f"both of rank {rank.rank}"
            raise CostError(f"{paths[who]} and {rank.path} are {what}: give each rank once.")
        paths[who] = rank.path
        if rank.world_size != ranks[0].world_size:
            raise CostError(
                f"{ranks[0].path} is of a job of {ranks[0].world_size or 'no known number of'} ranks, {rank.path} of "
                f"{rank.world_size or 'no known number of'}. Give traces of one job."
            )


def _check_equal(place: tuple[int, int], first: Rank, one: Sequence[Seen], second: Rank, other: Sequence[Seen]) -> None:
    if [seen.key for seen in one] == [seen.key for seen in other]:
        return
    k = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a.key != b.key), min(len(one), len(other)))
    a, b = (described(seen[k].call) if k < len(seen) else "nothing" for seen in (one, other))
    raise CostError(
        f"step {place[0]} is not the same on two ranks: collective {k + 1} is {a} in {first.path} and {b} in "
        f"{second.path}. Give ranks that run the same graph, or one trace alone."
    )


def described(call: HostCall) -> str:
    """``all_gather_into_tensor [64, 128]``."""
    name = call.name.removeprefix("_c10d_functional::")
    return " ".join([name, *(str(list(shape)) for shape in call.shapes)])


def _steps(rank: Rank) -> str:
    numbers = list(Counter(sample.place[0] for sample in rank.samples))
    return ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")


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


def _nothing_found(trace: RankTrace, sought: Sequence[Sought]) -> CostError:
    calls = [call for step in trace.steps for call in step.calls]
    names = {call.name for call in calls}
    wanted = dict.fromkeys(node.name for node in sought)
    there = [name for name in wanted if name in names]
    if not there:
        return CostError(
            f"{trace.path}: has none of the graph's operators ({_listed(list(wanted))}); it has "
            f"{_listed([name for name, _ in Counter(c.name for c in calls if '::' in c.name).most_common()])}. "
            "Was another job profiled?"
        )
    if not any(call.shapes for call in calls):
        return CostError(
            f"{trace.path}: its operators have no shapes, by which they are told apart. "
            "Profile with record_shapes=True."
        )
    other = next(call for call in calls if call.name == there[0])
    node = next(node for node in sought if node.name == there[0])
    return CostError(
        f"{trace.path}: has the graph's operators with other shapes: {there[0]} of {_shapes_text(other.shapes)}, where "
        f"the graph has {_shapes_text(node.shapes or ())}. Was another model, batch or sharding profiled?"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "") if names else "none"


def _shapes_text(shapes: Sequence[Shape]) -> str:
    return " ".join(str(list(shape)) for shape in shapes) or "no shapes"


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
    launched, skew_us = remove_skew(ranks)
    runs = [[(seen.key, seen.call.us) for seen in sample.calls] for rank in ranks for sample in rank.samples]
    measured = _by_order(sought, [*runs, *launched])
    if not any(measured):
        raise _numbers_differ(traces[0].path, sought, ranks[0].samples[0])
    fused = _fused(ranks)
    left = [v for v, node in enumerate(sought) if measured[v] is None and not node.collective and node.us > 0.0]
    parts = shared([_part(sought[v]) for v in left], fused)
    for v, us in zip(left, parts, strict=True):
        measured[v] = None if us is None else MeasuredTime(us, "names")
    return Profile(
        tuple(sought),
        tuple(measured),
        runs=len(launched),
        ranks=len(ranks),
        skew_us=skew_us if len(ranks) > 1 else None,
        fused_us=sum(fused.values(), start=0.0),
    )


def _part(node: Sought) -> PredictedKernel:
    return PredictedKernel(frozenset(node.kernel or (node.name,)), node.us, node.fuses)


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
            in_order = bool(ids) and len(found) % len(ids) == 0
            for k, us in enumerate(found):
                if us is not None and in_order:
                    times[ids[k % len(ids)]].append(us)
                elif us is not None and ids:
                    others[key].append(us)
    result: list[MeasuredTime | None] = [None] * len(sought)
    for v, node in enumerate(sought):
        if times[v]:
            result[v] = MeasuredTime(statistics.median(times[v]), "order")
        elif others[node.key] and node.shapes is not None:
            result[v] = MeasuredTime(statistics.median(others[node.key]), "shapes")
    return result


def _fused(ranks: Sequence[Rank]) -> dict[str, float]:
    """By the operators in their names, the median time of fused kernels in a run."""
    runs: list[dict[str, float]] = []
    for sample in (sample for rank in ranks for sample in rank.samples):
        run: dict[str, float] = defaultdict(float)
        for call in sample.fused:
            run[fused_ops(call.name) or ""] += call.us or 0.0
        runs.append(run)
    every = dict.fromkeys(ops for run in runs for ops in run)
    return {ops: statistics.median(run.get(ops, 0.0) for run in runs) for ops in every}


def _numbers_differ(path: str, sought: Sequence[Sought], sample: Sample) -> CostError:
    """Return the error for a problem file, whose operators have no shapes: there must be as many."""
    seen = Counter(seen.key for seen in (*sample.calls, *sample.launches))
    node = next(node for node in sought if node.key in seen)
    return CostError(
        f"{path}: has other numbers of the graph's operators: {node.name} {seen[node.key]} times, where the graph has "
        f"{sum(other.key == node.key for other in sought)}. Was another model or graph profiled? A problem file has no "
        "shapes to tell operators apart: give the dump, if you have it."
    )


Shapes = tuple[Shape, ...]
"""Of the tensors that a node takes, as in :class:`overlap_sched.cost.profile.Sought`."""


@dataclass(frozen=True)
class Profiled:
    """A problem with measured times.

    Attributes:
        problem: The problem, with the times that were found.
        profile: What was found.
        nodes: Per node of ``profile``, its id in the problem.
    """

    problem: Problem
    profile: Profile
    nodes: tuple[int, ...]

    @property
    def measured(self) -> tuple[int, ...]:
        """Ids of the nodes whose times are from the profile."""
        return tuple(v for v, m in zip(self.nodes, self.profile.measured, strict=True) if m is not None)


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
    ids = [v for v, node in enumerate(problem.nodes) if node.kind in (Kind.COMPUTE, Kind.COLLECTIVE) and node.op]
    kernel_of = kernels or [""] * len(problem.nodes)
    ids = [v for v in ids if problem.nodes[v].time_us > 0.0 or kernel_of[v]]
    members: dict[str, list[str]] = defaultdict(list)
    for v in ids:
        members[kernel_of[v]].append(_name(problem.nodes[v]))
    members[""] = []
    sought = [
        _sought(problem.nodes[v], None if shapes is None else shapes[v], tuple(members[kernel_of[v]])) for v in ids
    ]
    profile = profile_of(sought, traces)
    nodes = list(problem.nodes)
    for v, measured in zip(ids, profile.measured, strict=True):
        if measured is not None:
            nodes[v] = nodes[v]._replace(time_us=measured.us)
    return Profiled(replace(problem, nodes=tuple(nodes)), profile, tuple(ids))


def _sought(node: Node, shapes: Shapes | None, kernel: tuple[str, ...]) -> Sought:
    collective = node.kind is Kind.COLLECTIVE
    return Sought(_name(node), shapes, node.time_us, collective, node.bytes, not node.flops, kernel)


def _name(node: Node) -> str:
    """As the profiler writes it: ``aten::mm`` for ``aten.mm.default``."""
    if node.kind is Kind.COLLECTIVE:
        return "_c10d_functional::" + node.op.removesuffix("_out").removesuffix("_")
    namespace, _, rest = node.op.partition(".")
    return f"{namespace}::{rest.partition('.')[0]}" if rest else node.op
