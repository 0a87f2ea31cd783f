"""Measure a cluster: how long its collectives and kernels take, as tables by size and group for a cluster file.

    with join_ranks("auto") as machine:
        tables, failed = measure(machine, Wishes(collectives, kernels), tell)

Ranks that measure together tell each other what they have seen over gloo and with Python objects, so that nothing of
it runs on the network of the GPUs while that is being measured. Each thing is warmed up and repeated; on a CPU the
clock is the host's. On a GPU it is the GPU's (CUDA events), and each repetition begins with a kernel that spins while
the host launches what is timed: else a short kernel would be charged for its launch.

Ranks that leave a barrier together and wait for a collective at once do not meet as in a step: there each comes from
its own compute, and the collective before was one of the same group. Over gloo that makes a difference of 16 to 45 %::

    a barrier each time     |barrier|collective|        |barrier|collective|
    as in a step            |== products ==|collective|== products ==|collective|

So between collectives matrix products keep a CPU busy.

A *division* cuts all ranks into groups of one size; all of them communicate at the same time, as they do in a job, and
share what they share there. A grid of kernels is a graph, too, traced from plain torch functions: so what is timed has
the operations and bytes that the scheduler counts, and is found again by them.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from overlap_sched.cost.table import COPY, KINDS, CollectiveTime, KernelTime, Tables, kind_of
from overlap_sched.errors import CostError
from overlap_sched.fx import Lifted, lift
from overlap_sched.problem import Kind, Problem

DeviceChoice = Literal["auto", "cpu", "cuda"]
_Seen = TypeVar("_Seen")
_TIMEOUT = timedelta(minutes=5)
"""Longer than any single measurement takes, by far: where a rank dies, the others end too."""


@dataclass(frozen=True)
class Machine:
    """This process among the ranks that measure.

    Attributes:
        rank, size: Its number, and how many there are.
        ranks_per_node: How many of them are on one machine.
        device: What is measured.
        control: The gloo group of all ranks over which they speak; of a rank alone nothing asks for it.
    """

    rank: int
    size: int
    ranks_per_node: int
    device: torch.device
    control: Any

    def everyone(self, own: _Seen) -> list[_Seen]:
        """Return what each rank has, on every rank."""
        if self.size == 1:
            return [own]
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, own, group=self.control)
        return every

    def from_first(self, own: _Seen) -> _Seen:
        """Return what rank 0 has, on every rank."""
        if self.size == 1:
            return own
        box: list[Any] = [own]
        dist.broadcast_object_list(box, src=0, group=self.control)
        found: _Seen = box[0]
        return found

    def meet(self) -> None:
        """Return when all ranks are here."""
        if self.size > 1:
            dist.barrier(group=self.control)

    @property
    def name(self) -> str:
        """The name of the device."""
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"


def alone_on(device: torch.device) -> Machine:
    """A rank alone, without a process group: it measures kernels."""
    return Machine(0, 1, 1, device, None)


@contextmanager
def join_ranks(choice: DeviceChoice) -> Iterator[Machine]:
    """Join the ranks that torchrun has started; a process group that is up already is used as it is.

    Args:
        choice: ``"auto"``: a GPU with NCCL where each local rank can have one, else the CPU with gloo.

    Raises:
        CostError: torchrun has not started this process, or there are fewer GPUs than local ranks.
    """
    if dist.is_initialized():
        yield machine_on(_device(choice))
        return
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise CostError(
            "calibrate measures what several processes do at once, and torchrun has not started this one. Run: "
            "torchrun --nproc-per-node N -m overlap_sched calibrate --out cluster.toml "
            "(N: the GPUs of this machine; without GPUs, 2 or more processes)"
        )
    device = _device(choice)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=_TIMEOUT)
    else:
        dist.init_process_group("gloo", timeout=_TIMEOUT)
    try:
        yield machine_on(device)
    finally:
        dist.destroy_process_group()


def machine_on(device: torch.device) -> Machine:
    """This process and the others of its process group, which is up; all ranks call this."""
    size = dist.get_world_size()
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    return Machine(dist.get_rank(), size, per_node, device, dist.new_group(backend="gloo", timeout=_TIMEOUT))


def _device(choice: DeviceChoice) -> torch.device:
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if choice == "cuda" and found < local_size:
        raise CostError(
            f"--device cuda needs {local_size} GPUs on this machine, one per local rank; torch sees {found}. "
            "Start fewer ranks (--nproc-per-node), or use --device cpu."
        )
    return torch.device("cuda", local_rank) if choice != "cpu" and found >= local_size else torch.device("cpu")


Begin = Callable[[], Any]
"""Starts what is timed."""
End = Callable[[Any], object]
"""Waits for what ``Begin`` has returned."""
Typical = Callable[[Sequence[float]], float]
"""One time for those of all repetitions."""

WARM_UPS = 3
FEWEST, MOST = 7, 100
"""Repetitions."""
BUDGET_S = 0.6
"""About how long the repetitions of one thing may take; the fewest are made all the same."""
_SPIN_CYCLES = 2_000_000
"""About a millisecond on a GPU: longer than a launch takes."""
_MATRIX_SIDE = 128
"""Of the square fp32 matrices whose products keep a CPU busy; a product is short beside a collective."""
_BETWEEN_US = 1_000.0
"""Products between two collectives."""
_IN_A_ROW = 10
"""Repetitions whose mean is taken."""


class Timing(NamedTuple):
    """Microseconds.

    Attributes:
        time_us: Of one repetition: the median; of a collective a mean (:func:`steady_mean`). Over gloo its times have
            two modes, some tenths of a millisecond and 4 ms (a thread that waits for the kernel's next tick), and a
            step adds them up.
        launch_us: Until ``Begin`` has returned, as ``time_us``.
        finish_us: From there to the end, as ``time_us``; of each repetition on the rank where it was shortest.
    """

    time_us: float
    launch_us: float
    finish_us: float


class _Once(NamedTuple):
    time_us: float
    launch_us: float


def steady_mean(values: Sequence[float]) -> float:
    """The median of the means of ten repetitions in a row; with fewer than thirty the mean of all.

    Both modes of a time count as often as they occur: a mean without the largest values, or of the least of the tens,
    would leave out the long mode. What other processes do to less than half of the tens does not count.
    """
    tens = [values[low : low + _IN_A_ROW] for low in range(0, len(values) - _IN_A_ROW + 1, _IN_A_ROW)]
    return statistics.median(map(statistics.fmean, tens)) if len(tens) >= 3 else statistics.fmean(values)


def time_together(
    machine: Machine,
    begin: Begin,
    end: End,
    typical: Typical = steady_mean,
    before: Callable[[], object] | None = None,
) -> Timing:
    """Time what all ranks do with each other, a collective.

    A rank that comes early waits for the others, and its time is too long by that much: of each repetition the shortest
    time of any rank counts, which is that of the rank that came last. ``before`` is done before each repetition and not
    timed; ``None``: the ranks meet.
    """
    runs = machine.everyone(_repeat(machine, begin, end, before or machine.meet))
    times_us = [min(once.time_us for once in of_ranks) for of_ranks in zip(*runs, strict=True)]
    launches_us = [once.launch_us for of_rank in runs for once in of_rank]
    finishes_us = [min(once.time_us - once.launch_us for once in of_ranks) for of_ranks in zip(*runs, strict=True)]
    return Timing(*(float(f"{typical(values):.6g}") for values in (times_us, launches_us, finishes_us)))


def time_side_by_side(machine: Machine, run: Callable[[], object], before: Callable[[], object]) -> float:
    """Time what each rank does by itself, all at the same time: they share memory, caches and power; microseconds.

    ``before`` is done before each repetition and not timed.
    """
    runs = machine.everyone(_repeat(machine, run, lambda _: None, before))
    return float(f"{statistics.median(once.time_us for of_rank in runs for once in of_rank):.6g}")


def _repeat(machine: Machine, begin: Begin, end: End, before: Callable[[], object]) -> list[_Once]:
    """All ranks make as many."""
    once = _time_on_gpu if machine.device.type == "cuda" else _time_on_host
    machine.meet()
    for _ in range(WARM_UPS):
        last = once(begin, end)
    slowest_s = max(machine.everyone(last.time_us)) / 1e6
    repeats = min(max(int(BUDGET_S / max(slowest_s, 1e-9)), FEWEST), MOST)
    runs = []
    for _ in range(repeats):
        before()
        runs.append(once(begin, end))
    return runs


def _time_on_host(begin: Begin, end: End) -> _Once:
    began = time.perf_counter()
    started = begin()
    launched = time.perf_counter()
    end(started)
    return _Once((time.perf_counter() - began) * 1e6, (launched - began) * 1e6)


def _time_on_gpu(begin: Begin, end: End) -> _Once:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(_SPIN_CYCLES)
    first.record()
    began = time.perf_counter()
    started = begin()
    launched = time.perf_counter()
    end(started)
    last.record()
    last.synchronize()
    return _Once(first.elapsed_time(last) * 1e3, (launched - began) * 1e6)


def products_of(machine: Machine, time_us: float) -> Callable[[], None]:
    """A function that computes matrix products for about so long; all ranks call this, and compute as many."""
    matrix = torch.randn(_MATRIX_SIDE, _MATRIX_SIDE)

    def run(count: int) -> None:
        for _ in range(count):
            torch.mm(matrix, matrix)

    ten_us = time_together(machine, lambda: run(10), lambda _: None, statistics.median).time_us
    return partial(run, machine.from_first(max(math.ceil(10 * time_us / ten_us), 1)))


FUNCTIONAL = torch.ops._c10d_functional
ELEMENT_BYTES = 4
"""fp32, in which gradients are reduced."""
_LONG_TIMES, _LONG_MORE_US = 4.0, 10_000.0
"""Products for so many times as long as a collective, and so much more, outlast two of it."""


class Division(NamedTuple):
    """Groups of ``size`` ranks that are ``stride`` apart.

    Eight ranks in groups of 4: stride 1 makes ``0123 4567``, stride 2 makes ``0246 1357``.
    """

    size: int
    stride: int = 1

    def groups(self, world: int) -> list[list[int]]:
        """All of them, as ranks.

        Raises:
            CostError: The ranks cannot be divided so.
        """
        block = self.size * self.stride
        if self.size < 1 or self.stride < 1 or world % block:
            raise CostError(
                f"{world} ranks cannot be divided into groups of {self.size} with stride {self.stride}: "
                f"{world} is not a multiple of {block}. Give another --group SIZE or SIZE/STRIDE."
            )
        starts = (first + offset for first in range(0, world, block) for offset in range(self.stride))
        return [list(range(start, start + block, self.stride)) for start in starts]

    def nodes(self, world: int, ranks_per_node: int) -> int:
        """On how many nodes a group's ranks are; the most of any."""
        return max(len({rank // ranks_per_node for rank in group}) for group in self.groups(world))


def default_divisions(world: int, ranks_per_node: int) -> list[Division]:
    """All ranks; the ranks of each node; one rank of each node."""
    nodes = world // ranks_per_node
    found = [Division(world)] if world > 1 else []
    if nodes > 1 and world % ranks_per_node == 0:
        found += [Division(ranks_per_node)] if ranks_per_node > 1 else []
        found += [Division(nodes, ranks_per_node)] if ranks_per_node > 1 else []
    return found


def count_elements(nbytes: int, ranks: int) -> int:
    """How many fp32 numbers so many bytes hold, cut down to what the ranks of a group divide evenly; one of each."""
    return max(nbytes // ELEMENT_BYTES // ranks, 1) * ranks


def launch_of(kind: str, elements: int, group: Any, ranks: int, device: torch.device) -> Callable[[], torch.Tensor]:
    """Return a function that starts a collective of so many fp32 numbers on its larger side."""
    name = group.group_name
    whole = torch.ones(elements, device=device)
    part = torch.ones(elements // ranks, device=device)
    if kind == "all_gather":
        return partial(_gather_out if device.type == "cpu" else FUNCTIONAL.all_gather_into_tensor, part, ranks, name)
    if kind == "reduce_scatter":
        return partial(FUNCTIONAL.reduce_scatter_tensor, whole, "sum", ranks, name)
    if kind == "all_reduce":
        return partial(FUNCTIONAL.all_reduce, whole, "sum", name)
    splits = [elements // ranks] * ranks
    return partial(FUNCTIONAL.all_to_all_single, whole, splits, splits, name)


def _gather_out(part: torch.Tensor, ranks: int, group: Any) -> torch.Tensor:
    """How functional gathers run over gloo, see :mod:`overlap_sched.inductor.gloo`."""
    out = part.new_empty(part.shape[0] * ranks)
    gathered: torch.Tensor = FUNCTIONAL.all_gather_into_tensor_out(part, ranks, group, out=out)
    return gathered


def sizes_between(smallest: int, largest: int, factor: int = 4) -> Sequence[int]:
    """``smallest``, ``factor`` times as much, and so on; the last is ``largest``."""
    sizes = [smallest]
    while sizes[-1] * factor < largest:
        sizes.append(sizes[-1] * factor)
    return sizes if smallest >= largest else [*sizes, largest]


def time_collective(
    machine: Machine, groups: dict[Division, Any], kind: str, division: Division, nbytes: int
) -> CollectiveTime:
    """Time a collective: alone, and the wait for it once it is long done; all ranks call this.

    ``kind`` is one of :data:`overlap_sched.cost.table.KINDS`, ``division`` says which groups communicate, and
    ``nbytes`` is the larger of input and output, cut down to what divides evenly. Process groups are made once, and
    kept in ``groups``; all ranks ask for the same divisions in the same order.
    """
    if division not in groups:
        groups[division], _ = dist.new_subgroups_by_enumeration(division.groups(machine.size))
    elements = count_elements(nbytes, division.size)
    launch = launch_of(kind, elements, groups[division], division.size, machine.device)
    on_host, wait = machine.device.type == "cpu", FUNCTIONAL.wait_tensor  # a GPU's stream does not wait for the host
    alone = time_together(machine, launch, wait, before=products_of(machine, _BETWEEN_US) if on_host else None)
    finish_us = _time_finish(machine, launch, _LONG_TIMES * alone.time_us + _LONG_MORE_US) if on_host else 0.0
    nodes = division.nodes(machine.size, machine.ranks_per_node)
    times = (alone.time_us, alone.launch_us, finish_us)
    return CollectiveTime(kind, division.size, nodes, elements * ELEMENT_BYTES, *times)


def _time_finish(machine: Machine, launch: Callable[[], Any], products_us: float) -> float:
    """Time the second of two waits for collectives that were done while products ran.

    After some milliseconds of products the code of a wait is out of the caches, and a wait takes several times as long
    as right behind another; in a step, which calls operators all the time, it is not.
    """
    products = products_of(machine, products_us)

    def begin() -> Any:
        first, second = launch(), launch()
        products()
        FUNCTIONAL.wait_tensor(first)
        return second

    return time_together(machine, begin, FUNCTIONAL.wait_tensor, statistics.median).finish_us


_SWEPT = {"cpu": 2**23, "cuda": 2**28}
"""Bytes that are written before each repetition, to have other things in the caches: more than a core's own, or all of
a GPU's (as ``triton.testing.do_bench`` does). In a step a kernel's inputs are seldom there."""


class KernelCall(NamedTuple):
    """An operator with arguments that are not made yet.

    Attributes:
        op, shapes, flops, bytes: As in :class:`overlap_sched.cost.table.KernelTime`.
        target: The operator.
        args, kwargs: Its arguments; fake tensors stand for real ones.
    """

    op: str
    shapes: str
    flops: int
    bytes: int
    target: Any
    args: Any
    kwargs: Any


class Grid(NamedTuple):
    """Shapes for those who have no graph yet.

    Attributes:
        matmuls: (rows, inner, columns). attentions: (batch, heads, sequence, head width).
        copies: Bytes of the tensor that is copied.
    """

    matmuls: tuple[tuple[int, int, int], ...]
    attentions: tuple[tuple[int, int, int, int], ...]
    copies: tuple[int, ...]


def _squares(smallest: int, largest: int) -> list[tuple[int, int, int]]:
    """By powers of 2."""
    sides = (2**k for k in range(smallest.bit_length() - 1, largest.bit_length()))
    return [(side, side, side) for side in sides]


CPU_GRID = Grid(
    (*_squares(64, 1024), (256, 512, 2048), (2048, 512, 256), (1024, 1024, 256)),
    ((1, 8, 128, 64), (1, 8, 256, 64), (2, 8, 512, 64)),
    tuple(2**k for k in range(12, 27, 2)),
)
GPU_GRID = Grid(
    (
        *_squares(256, 8192),
        (8192, 4096, 1024),
        (8192, 4096, 14336),
        (8192, 14336, 4096),
        (4096, 8192, 14336),
        (2048, 4096, 128256),
    ),
    ((1, 32, 2048, 128), (1, 32, 4096, 128), (1, 32, 8192, 128)),
    tuple(2**k for k in range(12, 31, 2)),
)
"""Squares; a layer of Llama-3-8B at 8,192 tokens, forward and for its weights' gradients."""


def calls_in(lifted: Lifted) -> list[KernelCall]:
    """List what computes by matrix products in a graph; each operator and shape once."""
    return _calls(lifted, lambda op, flops: flops > 0)


def calls_in_grid(grid: Grid, dtype: torch.dtype, device: torch.device) -> list[KernelCall]:
    """Matrix products, attention with its backward, and copies of these shapes."""

    def step(matmuls: Any, attentions: Any, copies: Any) -> list[torch.Tensor]:
        outs = [a @ b for a, b in matmuls]
        for query, key, value in attentions:
            out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            outs += torch.autograd.grad(out, (query, key, value), torch.ones_like(out))
        return [*outs, *(torch.ops.aten.clone.default(x) for x in copies)]

    with FakeTensorMode():
        matmuls = [(_empty(device, dtype, m, k), _empty(device, dtype, k, n)) for m, k, n in grid.matmuls]
        attentions = [[_empty(device, dtype, *shape).requires_grad_() for _ in range(3)] for shape in grid.attentions]
        copies = [_empty(device, torch.uint8, nbytes) for nbytes in grid.copies]
        gm = make_fx(step, tracing_mode="real")(matmuls, attentions, copies)
    return _calls(lift(gm), lambda op, flops: flops > 0 or op == COPY)


def time_kernel(machine: Machine, call: KernelCall) -> KernelTime:
    """Time it on all ranks at once, with caches as other kernels leave them; all ranks call this."""
    other = torch.zeros(_SWEPT[machine.device.type], dtype=torch.uint8, device=machine.device)
    time_us = time_side_by_side(machine, make_run(call, machine.device), lambda: other.add_(1))
    return KernelTime(call.op, call.shapes, call.flops, call.bytes, time_us)


def make_run(call: KernelCall, device: torch.device) -> Callable[[], object]:
    """A function that runs it once, with arguments of its own: random numbers, and zeros for integers."""

    def real(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return _make_tensor(x, device)
        return int(x) if isinstance(x, torch.SymInt) else device if isinstance(x, torch.device) else x

    args, kwargs = torch.utils._pytree.tree_map(real, (tuple(call.args), dict(call.kwargs)))
    return partial(call.target, *args, **kwargs)


def _calls(lifted: Lifted, wanted: Callable[[str, int], bool]) -> list[KernelCall]:
    found: dict[tuple[str, str], KernelCall] = {}
    for node, at in zip(lifted.problem.nodes, lifted.nodes, strict=True):
        if node.kind is Kind.COMPUTE and at.op == "call_function" and wanted(node.op, node.flops):
            args, kwargs = fx.map_arg((at.args, at.kwargs), lambda n: n.meta.get("val"))
            call = KernelCall(node.op, _shapes(args), node.flops, node.bytes, at.target, args, kwargs)
            found.setdefault((call.op, call.shapes), call)
    return list(found.values())


def _shapes(args: Iterable[Any]) -> str:
    """``"bfloat16[512,512] bfloat16[512,1536](1,512)"``; strides where a tensor is not contiguous."""
    texts = []
    for x in args:
        if isinstance(x, torch.Tensor):
            size, strides = (",".join(map(str, map(int, numbers))) for numbers in (x.shape, x.stride()))
            text = f"{str(x.dtype).removeprefix('torch.')}[{size}]"
            texts.append(text if x.is_contiguous() else f"{text}({strides})")
    return " ".join(texts)


def _make_tensor(like: torch.Tensor, device: torch.device) -> torch.Tensor:
    shape, strides = [int(n) for n in like.shape], [int(n) for n in like.stride()]
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=like.dtype, device=device)
    length = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if like.dtype.is_floating_point:
        flat = torch.randn(length, device=device).to(like.dtype)
    else:
        flat = torch.zeros(length, dtype=like.dtype, device=device)
    return flat.as_strided(shape, strides)


def _empty(device: torch.device, dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device=device)


Row = CollectiveTime | KernelTime


class WantedCollective(NamedTuple):
    """A collective to time, see :func:`time_collective`."""

    kind: str
    division: Division
    bytes: int


@dataclass(frozen=True)
class Wishes:
    """What is to be measured: each kind, division and size of collectives, and kernels; the same on all ranks."""

    collectives: tuple[WantedCollective, ...] = ()
    calls: tuple[KernelCall, ...] = ()


def combine_wishes(
    divisions: Sequence[Division],
    sizes: Iterable[int],
    calls: Iterable[KernelCall],
    more: Iterable[WantedCollective] = (),
) -> Wishes:
    """Every kind of collective in each division and size; ``more`` besides; the kernels."""
    grid = [WantedCollective(kind, division, nbytes) for division in divisions for kind in KINDS for nbytes in sizes]
    return Wishes(tuple(dict.fromkeys([*grid, *more])), tuple(calls))


def collectives_of(problem: Problem, divisions: Sequence[Division]) -> list[WantedCollective]:
    """The collectives of a problem whose groups are as large as those of a division, each size once."""
    of_size = {division.size: division for division in reversed(divisions)}
    found: dict[WantedCollective, None] = {}
    for node in problem.nodes:
        if node.kind is Kind.COLLECTIVE and node.group is not None:
            division, kind = of_size.get(problem.groups[node.group].size), kind_of(node.op)
            if division is not None and kind:
                found[WantedCollective(kind, division, node.bytes)] = None
    return list(found)


def measure(machine: Machine, wishes: Wishes, tell: Callable[[str], object]) -> tuple[Tables, list[str]]:
    """Measure everything wished for, kernels first; all ranks call this. ``tell`` is called with what is being done.

    Returns:
        The tables, sorted, the same on all ranks; and what could not be measured, and why.
    """
    made: dict[Division, Any] = {}
    runs: dict[tuple[object, ...], tuple[str, Callable[[], Row]]] = {}
    for call in wishes.calls:
        runs.setdefault((call.op, call.shapes), (f"{call.op} {call.shapes}", partial(time_kernel, machine, call)))
    for wanted in wishes.collectives:
        whole = count_elements(wanted.bytes, wanted.division.size) * ELEMENT_BYTES
        name = f"{wanted.kind} of {whole:,} bytes, {wanted.division.size} ranks"
        key = (wanted.kind, wanted.division.size, wanted.division.nodes(machine.size, machine.ranks_per_node), whole)
        runs.setdefault(key, (name, partial(time_collective, machine, made, *wanted)))
    failed, rows = [], list[Row]()
    for count, (name, run) in enumerate(runs.values(), 1):
        tell(f"measuring {count} of {len(runs)}: {name}")
        row, reason = None, ""
        try:
            row = run()
        except (RuntimeError, NotImplementedError, ValueError) as error:  # no such kernel or collective, no memory
            reason = " ".join(str(error).split())[:200] or type(error).__name__
        reasons = [one for one in machine.everyone(reason) if one]
        if reasons:
            failed.append(f"{name}: {reasons[0]}")
        elif row is not None:
            rows.append(machine.from_first(row))
    collectives = sorted(row for row in rows if isinstance(row, CollectiveTime))
    kernels = sorted(row for row in rows if isinstance(row, KernelTime))
    return Tables(tuple(collectives), tuple(kernels)), failed
