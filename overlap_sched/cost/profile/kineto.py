"""What ran in each step of a profiled job: operators, kernels and collectives, from the events of Kineto.

On a GPU an operator takes as long as the kernels, copies and fills that it launched (found by their correlation ids);
in a trace without any, as long as on the CPU. A collective takes as long as its NCCL kernel, or as the range
``gloo:...`` on a thread of gloo's; both hold the time that a rank waits for others:
see :mod:`overlap_sched.cost.profile.skew`.
"""

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from overlap_sched.cost.profile.trace_file import Event, TraceFile

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
    """The steps of one rank; the rest as in :class:`overlap_sched.cost.profile.trace_file.TraceFile`."""

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
