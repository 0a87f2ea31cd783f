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
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal, NamedTuple

from overlap_sched.cost.model import Price
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


def _event(path: str | Path, k: int, fields: Any) -> Event | None:
    """An event with a duration; None: it has none (a mark, an arrow, a name of a thread)."""
    known = fields if isinstance(fields, dict) else {"ph": "X", "dur": None}
    if known.get("ph") != "X" or "dur" not in known:
        return None
    values: list[Any] = [known.get(key) for key in ("name", "ts", "dur", "cat", "args")]
    name, start_us, dur_us, category, args = values
    times = type(start_us) in (int, float) and type(dur_us) in (int, float) and abs(start_us) < 1e18 > dur_us >= 0
    if not isinstance(name, str) or not times:
        raise CostError(
            f"{path}: traceEvents[{k}] is {fields!r:.80}; an event is a JSON object with a name, and ts and dur in "
            "microseconds, a duration of 0 or more."
        )
    thread = str(known.get("pid")), str(known.get("tid"))
    args = args if isinstance(args, dict) else {}
    return Event(name, str(category or ""), float(start_us), float(start_us) + float(dur_us), thread, args)


Shapes = tuple[tuple[int, ...], ...]
"""Of the tensors that a call or a node takes, those in lists too; without those of no dimension: numbers look alike."""

_GRAPH = "## Call CompiledFxGraph"
"""How ranges begin in which Inductor's code runs."""
_HOST = ("cpu_op", "user_annotation", "cuda_runtime", "cuda_driver")
_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP = re.compile(r"ProfilerStep#(\d+)")
_GLOO = "gloo:"
_FUNCTIONAL = "_c10d_functional::"
_LAUNCHES = (_FUNCTIONAL, "c10d_functional::", "c10d::")
_ALIKE = {"all_gather": "gather", "reduce_scatter": "reduce", "all_reduce": "reduce", "all_to_all": "all"}
"""What a collective runs as on gloo: torch 2.13 makes a reduce_scatter of an all_reduce."""
_ITEM_BYTES = {"double": 8, "long": 8, "long int": 8, "float": 4, "int": 4, "bfloat16": 2, "half": 2, "short int": 2}
"""Of the types that have more than one."""


class HostCall(NamedTuple):
    """Something that the host called.

    Attributes:
        name: ``aten::mm``; a collective's always with ``_c10d_functional::`` and neither ``_out`` nor a last ``_``.
        shapes: Of its tensors.
        us: How long it took on the device; ``None``: a collective that was not seen running.
        start_us: When it was called.
        parent: Index of the call around it, or -1.
        bytes: Of a collective, the larger of what it takes and gives, 0 where the trace does not say.
        group: Of a collective, the ranks of its group as the trace writes them, ``""`` where it does not.
    """

    name: str
    shapes: Shapes
    us: float | None
    start_us: float
    parent: int
    bytes: int = 0
    group: str = ""


class RankTrace(NamedTuple):
    """What one rank called, who calls before who is called; of each step its number and the indices of its calls.

    Attributes:
        path: For messages.
        rank, world_size: As the trace says; ``None`` where it does not (a job without process groups).
    """

    path: str
    rank: int | None
    world_size: int | None
    calls: Sequence[HostCall]
    steps: Sequence[tuple[int, Sequence[int]]]


def read_traces(paths: Sequence[str | Path], limits: Limits = DEFAULT_LIMITS) -> list[RankTrace]:
    """Read one trace per rank.

    Raises:
        CostError: One cannot be read, or is not such a trace.
        InputTooLargeError: One is larger than the limits.
    """
    return [_read_trace(path, limits) for path in paths]


def _read_trace(path: str | Path, limits: Limits) -> RankTrace:
    """Read the steps of a trace: those that ``profile.step()`` marks, or one of all that is in it."""
    text = read_json_text(path, limits, CostError)
    try:
        data = json.loads(text)  # which takes NaN, as torch writes it
        listed = data["traceEvents"]
        if not isinstance(listed, list):
            raise TypeError("traceEvents is not a list")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise CostError(
            f"{path}: is not JSON with a list of traceEvents, as profile.export_chrome_trace(PATH) of torch.profiler "
            f"writes it ({error!r}). Was it cut short?"
        ) from None
    about = data.get("distributedInfo")
    numbers = (about.get(name) if isinstance(about, dict) else None for name in ("rank", "world_size"))
    rank, world_size = (n if type(n) is int else None for n in numbers)
    events = [event for k, fields in enumerate(listed) if (event := _event(path, k, fields)) is not None]
    host = [e for e in events if e.category in _HOST and not e.name.startswith(_GLOO)]
    host.sort(key=lambda e: (e.thread, e.start_us, -e.end_us))
    marks = sorted((int(found[1]), e.start_us, e.end_us) for e in host if (found := _STEP.match(e.name)))
    steps = [
        (number, [k for k, e in enumerate(host) if begin <= e.start_us < end])
        for number, begin, end in marks or [(0, -math.inf, math.inf)]
    ]
    return RankTrace(str(path), rank, world_size, _calls(host, events), steps)


def _calls(host: Sequence[Event], events: Sequence[Event]) -> list[HostCall]:
    parents = _parents(host)
    shapes = [_shapes(e) for e in host]
    device = [e for e in events if e.category in _DEVICE]
    device_us = _device_us(host, parents, device)
    inside = {-1: False}  # collectives that no other operator of theirs calls; waits are none
    for k, e in enumerate(host):
        inside[k] = inside[parents[k]] or e.name.startswith(_LAUNCHES)
    launches = {k for k, e in enumerate(host) if inside[k] > inside[parents[k]] and not e.name.endswith("wait_tensor")}
    workers = [e for e in events if e.category in _HOST and e.name.startswith(_GLOO)]
    ran_us = _ran_on_gloo(host, shapes, launches, workers)
    about = dict[int, Mapping[str, Any]]()  # what ``record_param_comms`` says, for each call around it
    for k, e in enumerate(host):
        while e.name == "record_param_comms" and (k := parents[k]) >= 0:
            about.setdefault(k, e.args)
    calls = []
    for k, e in enumerate(host):
        us = device_us[k][0] if device else e.end_us - e.start_us
        call = HostCall(e.name, shapes[k], us, e.start_us, parents[k])
        if k in launches:
            seen_us, args = ran_us.get(k, device_us[k][1] or None), about.get(k, {})
            group = str(args.get("Process Group Ranks", ""))
            call = call._replace(name=_functional(e.name), us=seen_us, bytes=_sent(e, shapes[k], args), group=group)
        calls.append(call)
    return calls


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


def _shapes(e: Event) -> Shapes:
    found: list[tuple[int, ...]] = []
    dims = e.args.get("Input Dims")
    for one in dims if isinstance(dims, list) else []:
        parts = one if isinstance(one, list) and one and isinstance(one[0], list) else [one]
        found += [tuple(p) for p in parts if isinstance(p, list) and p and all(type(n) is int for n in p)]
    return tuple(found)


def _functional(name: str) -> str:
    return _FUNCTIONAL + name.partition("::")[2].removesuffix("_out").removesuffix("_")


def _ran_on_gloo(
    host: Sequence[Event], shapes: Sequence[Shapes], launches: Iterable[int], workers: Iterable[Event]
) -> dict[int, float]:
    """Per launch the time that a thread of gloo's worked on it: the first range after it with a shape of its own."""
    waiting = deque(sorted(workers, key=lambda e: e.start_us))
    found: dict[int, float] = {}
    for k in sorted(launches, key=lambda k: host[k].start_us):
        while waiting and waiting[0].start_us < host[k].start_us:
            waiting.popleft()
        ran = next((e for e in waiting if {*_shapes(e)[:1]} & {*shapes[k]}), None)
        op = _functional(host[k].name).removeprefix(_FUNCTIONAL)
        if ran is not None and all(word in ran.name for kind, word in _ALIKE.items() if op.startswith(kind)):
            waiting.remove(ran)
            found[k] = ran.end_us - ran.start_us
    return found


def _device_us(host: Sequence[Event], parents: Sequence[int], device: Sequence[Event]) -> list[list[float]]:
    """Per call, the time of all that it and what it called launched: of compute, and of NCCL."""
    by_id, launched_by = (
        {number: k for k, e in enumerate(host) if type(number := e.args.get(name)) is int and number > 0}
        for name in ("External id", "correlation")
    )
    us = [[0.0, 0.0] for _ in (*host, "no call")]
    for e in device:
        k = launched_by.get(e.args.get("correlation", 0), by_id.get(e.args.get("External id", 0), -1))
        us[k]["nccl" in e.name.lower()] += e.end_us - e.start_us
    for k in reversed(range(len(host))):
        us[parents[k]] = [whole + part for whole, part in zip(us[parents[k]], us[k], strict=True)]
    return us


def _sent(launch: Event, shapes: Shapes, about: Mapping[str, Any]) -> int:
    """Bytes of the larger side."""
    sent, received = about.get("In msg nelems"), about.get("Out msg nelems")
    if isinstance(sent, int) and isinstance(received, int):
        return max(sent, received) * _ITEM_BYTES.get(str(about.get("dtype")).lower(), 1)
    types, given = launch.args.get("Input type"), launch.args.get("Concrete Inputs")
    if not shapes or not isinstance(types, list) or not types:
        return 0
    nbytes = math.prod(shapes[0]) * _ITEM_BYTES.get(str(types[0]).lower().removeprefix("c10::"), 1)
    if "all_gather" in launch.name and isinstance(given, list):
        nbytes *= next((int(text) for text in given if isinstance(text, str) and text.isdecimal()), 1)
    return nbytes


Keyed = tuple[Hashable, HostCall]
"""A call, behind the key under which the graph has it."""


class Run(NamedTuple):
    """One run of the graph on one rank: its operators, its collectives, the time of fused kernels by operators."""

    calls: list[Keyed]
    launches: list[Keyed]
    fused: dict[str, float]


Runs = Mapping[tuple[int, int], Run]
"""By the number of the step, and the how-manieth it is in it: other graphs of the step may differ from rank to rank."""


def _remove_skew(traces: Sequence[RankTrace], runs: Sequence[Runs]) -> tuple[list[list[tuple[Hashable, float]]], float]:
    """Per run that all ranks have, the times of its collectives; and what was taken out, per rank and run.

    A collective takes the least duration among ranks of one group; where there are several groups, the mean of theirs.
    """
    ranks = [trace.path if trace.rank is None else trace.rank for trace in traces]
    if len(set(ranks)) < len(ranks) or len({trace.world_size for trace in traces}) > 1:
        listed = ", ".join(f"{trace.path} (rank {trace.rank} of {trace.world_size})" for trace in traces)
        raise CostError(f"give traces of one job, each rank once; these are {listed}.")
    places = [place for place in runs[0] if all(place in other for other in runs)]
    if not places:
        steps = [", ".join({str(step): 0 for step, _ in of}) for of in runs]
        listed = " and ".join(f"{trace.path} (step {its})" for trace, its in zip(traces, steps, strict=True))
        raise CostError(f"{listed} have no step in common. Profile the same steps on every rank.")
    launched, skew_us = list[list[tuple[Hashable, float]]](), 0.0
    for place in places:
        times = []
        for k, instances in enumerate(zip_longest(*(of_rank[place].launches for of_rank in runs)), 1):
            if len({keyed and keyed[0] for keyed in instances}) > 1:
                seen = (f"{keyed[1].name} of {keyed[1].shapes}" if keyed else "nothing" for keyed in instances)
                listed = ", ".join(f"{what} in {trace.path}" for what, trace in zip(seen, traces, strict=True))
                raise CostError(
                    f"step {place[0]} is not the same on all ranks: collective {k} is {listed}. "
                    "Give ranks that run the same graph, or one trace alone."
                )
            by_group: dict[str, list[float]] = defaultdict(list)
            for _, call in instances:
                if call.us is not None:
                    by_group[call.group].append(call.us)
            if by_group:
                least_us = mean(map(min, by_group.values()))
                skew_us += mean(us for group in by_group.values() for us in group) - least_us
                times.append((instances[0][0], least_us))
        launched.append(times)
    return launched, skew_us / len(places)


_PRODUCTS = {"aten::mm": ("mm", 0), "aten::addmm": ("mm", 1), "aten::bmm": ("bmm", 0), "aten::baddbmm": ("bmm", 1)}
"""Products of matrices: which kind, and where their factors begin. Inductor makes one of a product and an addition, and
two of one, behind the graph that is dumped."""


class Sought(NamedTuple):
    """A node that takes time.

    Attributes:
        name: As the profiler writes it: ``aten::mm``, ``_c10d_functional::all_reduce``.
        shapes: ``None``: not known (of a problem file), then its operator and ``bytes`` must do.
        us: Its predicted time.
        collective: Whether it is one.
        bytes: Of a collective, the larger of what it takes and gives; 0 of all others.
        fuses: Whether it may be a part of a fused kernel that is not named after it: it is no matmul and the like.
        kernel: Names of all nodes in the kernel whose predicted time it has; empty: it is alone.
    """

    name: str
    shapes: Shapes | None
    us: float
    collective: bool = False
    bytes: int = 0
    fuses: bool = True
    kernel: tuple[str, ...] = ()

    @property
    def key(self) -> Hashable:
        """The key that equals have in common."""
        return self.name, self.bytes if self.shapes is None else self.shapes


def _product(name: str, shapes: Shapes) -> tuple[str, Shapes]:
    """Return what a product shares with one that adds something to it: its kind, and the shapes of its factors."""
    kind, first = _PRODUCTS.get(name, ("", 0))
    return kind, shapes[first : first + 2]


def _runs_in(trace: RankTrace, sought: Sequence[Sought]) -> Runs:
    """The runs of the graph in one trace: of all calls of compiled graphs, those most like it."""
    counts = Counter(node.key for node in sought)
    products = {_product(node.name, node.shapes or ()): node.key for node in sought if node.name in _PRODUCTS}
    kinds = {kind for kind, _ in products}
    names = {node.name for node in sought} | {name for name, (kind, _) in _PRODUCTS.items() if kind in kinds}

    def key_of(call: HostCall) -> Hashable:
        exact = call.name, call.shapes
        written = call.name, call.shapes[:-1]  # with the tensor that it writes to
        keys: tuple[Hashable, ...] = (exact, written, (call.name, call.bytes))
        return next((key for key in keys if key in counts), products.get(_product(*exact), exact))

    best = 0.0
    chosen: dict[tuple[int, int], Run] = {}
    for number, inside in trace.steps:
        for run in _runs_of_step(trace.calls, inside, names, key_of):
            has = Counter(key for key, _ in (*run.calls, *run.launches))
            likeness = 2 * (has & counts).total() / (has.total() + len(sought))  # Dice's coefficient
            if likeness > best:
                best, chosen = likeness, {}
            if likeness == best and best:
                chosen[number, sum(step == number for step, _ in chosen)] = run
    if not chosen:
        raise _nothing_found(trace, sought)
    return chosen


def _runs_of_step(
    calls: Sequence[HostCall], inside: Sequence[int], names: Collection[str], key_of: Callable[[HostCall], Hashable]
) -> Iterable[Run]:
    """List, of each compiled graph (of all, if none), operators and fused kernels, not what these call in turn."""
    runs: dict[int, Run] = {}
    graph_of: dict[int, int] = {}
    taken: set[int] = set()
    for k in sorted(inside, key=lambda k: calls[k].start_us):  # threads stand one behind the other
        call, around = calls[k], graph_of.get(calls[k].parent, -1)
        graph_of[k] = k if around < 0 and call.name.startswith(_GRAPH) else around
        run = runs.setdefault(graph_of[k], Run([], [], defaultdict(float)))
        if call.parent in taken:
            taken.add(k)
        elif call.name in names:
            taken.add(k)
            (run.launches if call.name.startswith(_FUNCTIONAL) else run.calls).append((key_of(call), call))
        elif (ops := fused_ops(call.name)) is not None:
            taken.add(k)
            run.fused[ops] += call.us or 0.0
    return [run for graph, run in runs.items() if graph >= 0] or runs.values()


def _nothing_found(trace: RankTrace, sought: Sequence[Sought]) -> CostError:
    calls = [trace.calls[k] for _, inside in trace.steps for k in inside]
    alike = [call for call in calls if call.name in {node.name for node in sought}] or calls
    most = [f"{name} of {shapes}" for (name, shapes), _ in Counter(call[:2] for call in alike).most_common(5)]
    wanted = next((node for node in sought if node.name == alike[0].name), sought[0]) if alike else sought[0]
    return CostError(
        f"{trace.path}: has none of the graph's operators, by their shapes and number: the graph has {wanted.name} of "
        f"{wanted.shapes} and others, the trace {', '.join(most) or 'nothing'}. Was another job, model, batch or "
        "sharding profiled, or without record_shapes=True? A problem file has no shapes: give the dump."
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
    """Match the nodes of a graph, in its order, with traces of it.

    Raises:
        CostError: A trace has nothing of the graph; ranks do not go together.
    """
    ranks = [_runs_in(trace, sought) for trace in traces]
    launched, skew_us = _remove_skew(traces, ranks)
    runs = [run for rank in ranks for run in rank.values()]
    measured = _by_order(sought, [*([(key, call.us) for key, call in run.calls] for run in runs), *launched])
    if not any(measured):  # of a problem file, whose operators have no shapes: there must be as many
        raise _nothing_found(traces[0], sought)
    every = dict.fromkeys(ops for run in runs for ops in run.fused)
    fused = {ops: median(run.fused.get(ops, 0.0) for run in runs) for ops in every}
    left = [v for v, node in enumerate(sought) if measured[v] is None and not node.collective and node.us > 0.0]
    for v, us in zip(left, share_kernels([sought[v] for v in left], fused), strict=True):
        measured[v] = None if us is None else MeasuredTime(us, "names")
    skew = skew_us if len(traces) > 1 else None
    return Profile(tuple(sought), tuple(measured), len(launched), len(traces), skew, sum(fused.values(), 0.0))


def _by_order(
    sought: Sequence[Sought], runs: Iterable[Sequence[tuple[Hashable, float | None]]]
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
        for key, ids in nodes.items():
            for k, us in enumerate(seen[key]):
                if us is not None:
                    (others[key] if len(seen[key]) % len(ids) else times[ids[k % len(ids)]]).append(us)
    sources: list[tuple[list[float], How]] = [
        (times[v], "order") if times[v] else (others[node.key] if node.shapes is not None else [], "shapes")
        for v, node in enumerate(sought)
    ]
    return [MeasuredTime(median(us), how) if us else None for us, how in sources]


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
    best = [max(column) for column in zip(*likeness.values(), strict=True)]
    result: list[float | None] = [None] * len(parts)
    for kernel, row in likeness.items():
        most = max(row, default=-1.0)
        able = [k for k, like in enumerate(row) if like >= 0.0]
        members = [k for k in able if row[k] == most > 0.0 or row[k] == best[k]] or able
        whole = sum(parts[k].us for k in members)
        for k in members:
            result[k] = (result[k] or 0.0) + kernels[kernel] * parts[k].us / whole
    return result


def apply_profile(
    problem: Problem, prices: Sequence[Price], traces: Sequence[RankTrace], shapes: Sequence[Shapes | None] = ()
) -> tuple[Problem, tuple[Price, ...], Profile]:
    """Give a problem and its prices the times of traces; what they do not know keeps its own.

    Args:
        problem: Its times are predictions.
        prices: Of its nodes; a node may share the kernel that it is part of.
        traces: One per rank, of the same steps.
        shapes: Per node, where they are known: of a graph; empty: of a problem file.

    Raises:
        CostError: See :func:`profile_of`.
    """
    members: dict[str, list[str]] = defaultdict(list)
    found: dict[int, Sought] = {}
    for v, (node, price) in enumerate(zip(problem.nodes, prices, strict=True)):
        if node.kind not in (Kind.COMPUTE, Kind.COLLECTIVE) or not node.op or not (node.time_us or price.part_of):
            continue
        if price.part_of:
            members[price.part_of].append(_name(node))
        known, collective = shapes[v] if shapes else None, node.kind is Kind.COLLECTIVE
        found[v] = Sought(_name(node), known, node.time_us, collective, node.bytes * collective, not node.flops)
    sought = [node._replace(kernel=tuple(members.get(prices[v].part_of, ()))) for v, node in found.items()]
    profile = profile_of(sought, traces)
    nodes, priced = list(problem.nodes), list(prices)
    for v, measured in zip(found, profile.measured, strict=True):
        if measured is not None:
            nodes[v], priced[v] = nodes[v]._replace(time_us=measured.us), Price(measured.us, "profile")
    return replace(problem, nodes=tuple(nodes)), tuple(priced), profile


def _name(node: Node) -> str:
    """As the profiler writes it: ``aten::mm`` for ``aten.mm.default``."""
    return _functional(f"::{node.op}") if node.kind is Kind.COLLECTIVE else "::".join(node.op.split(".")[:2])
