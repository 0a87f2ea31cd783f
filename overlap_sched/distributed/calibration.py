"""Measure a cluster: how long its collectives and kernels take, as tables by size and group for a cluster file.

    with join_ranks("auto") as machine:
        tables, failed = measure(machine, collectives, kernels, tell)

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
from collections.abc import Callable, Iterator, Sequence
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
from torch.utils._pytree import tree_map

from overlap_sched.cost.table import COPY, CollectiveTime, KernelTime, Tables, kind_of
from overlap_sched.errors import CostError
from overlap_sched.fx import Lifted, lift
from overlap_sched.problem import Kind, Problem

DeviceChoice = Literal["auto", "cpu", "cuda"]
_Seen = TypeVar("_Seen")
_TIMEOUT = timedelta(minutes=5)
"""Longer than any single measurement takes, by far: where a rank dies, the others end too."""


@dataclass(frozen=True)
class Machine:
    """This process among the ranks that measure; by default one alone, without a process group: it measures kernels.

    Attributes:
        device: What is measured.
        rank, size: Its number, and how many there are.
        ranks_per_node: How many of them are on one machine.
        control: The gloo group of all ranks over which they speak.
    """

    device: torch.device
    rank: int = 0
    size: int = 1
    ranks_per_node: int = 1
    control: Any = None

    def everyone(self, own: _Seen) -> list[_Seen]:
        """Return what each rank has, on every rank."""
        every: list[Any] = [own] * self.size
        if self.size > 1:
            dist.all_gather_object(every, own, group=self.control)
        return every

    def meet(self) -> None:
        """Return when all ranks are here."""
        if self.size > 1:
            dist.barrier(group=self.control)


@contextmanager
def join_ranks(choice: DeviceChoice) -> Iterator[Machine]:
    """Join the ranks that torchrun has started.

    Args:
        choice: ``"auto"``: a GPU with NCCL where each local rank can have one, else the CPU with gloo.

    Raises:
        CostError: torchrun has not started this process, or there are fewer GPUs than local ranks.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise CostError(
            "calibrate measures what several processes do at once, and torchrun has not started this one. Run: "
            "torchrun --nproc-per-node N -m overlap_sched calibrate --out cluster.toml "
            "(N: the GPUs of this machine; without GPUs, 2 or more processes)"
        )
    device = _device(choice)
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None, timeout=_TIMEOUT)
    try:
        yield machine_on(device)
    finally:
        dist.destroy_process_group()


def machine_on(device: torch.device) -> Machine:
    """This process and the others of its process group, which is up; all ranks call this."""
    size = dist.get_world_size()
    per_node = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    return Machine(device, dist.get_rank(), size, per_node, dist.new_group(backend="gloo", timeout=_TIMEOUT))


def _device(choice: DeviceChoice) -> torch.device:
    local_rank, local_size = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if choice == "cuda" and found < local_size:
        raise CostError(
            f"--device cuda needs {local_size} GPUs on this machine, one per local rank; torch sees {found}. "
            "Start fewer ranks (--nproc-per-node), or use --device cpu."
        )
    return torch.device("cuda", local_rank) if choice != "cpu" and found >= local_size else torch.device("cpu")


WARM_UPS, FEWEST, MOST = 3, 7, 100
"""Repetitions."""
BUDGET_S = 0.6
"""About how long the repetitions of one thing may take; the fewest are made all the same."""


class Timing(NamedTuple):
    """Microseconds, of one repetition or typical ones.

    Typical of a collective is a mean (:func:`steady_mean`): over gloo its times have two modes, some tenths of a
    millisecond and 4 ms (a thread that waits for the kernel's next tick), and a step adds them up.

    Attributes:
        time_us: All of it.
        launch_us: Until what starts it has returned.
        finish_us: From there to the end.
    """

    time_us: float
    launch_us: float
    finish_us: float


def steady_mean(values: Sequence[float]) -> float:
    """The median of the means of ten repetitions in a row; with fewer than thirty the mean of all.

    Both modes of a time count as often as they occur: a mean without the largest values, or of the least of the tens,
    would leave out the long mode. What other processes do to less than half of the tens does not count.
    """
    tens = [values[low : low + 10] for low in range(0, len(values) - 9, 10)]
    return statistics.median(map(statistics.fmean, tens)) if len(tens) >= 3 else statistics.fmean(values)


def time_together(
    machine: Machine,
    begin: Callable[[], Any],
    end: Callable[[Any], object],
    typical: Callable[[Sequence[float]], float] = steady_mean,
    before: Callable[[], object] | None = None,
) -> Timing:
    """Time what all ranks do with each other, a collective: ``begin`` starts it, ``end`` waits for what that returned.

    A rank that comes early waits for the others, and its time is too long by that much: of each repetition the shortest
    time of any rank counts, which is that of the rank that came last. ``before`` is done before each repetition and not
    timed; ``None``: the ranks meet.
    """
    runs = machine.everyone(_repeat(machine, begin, end, before or machine.meet))
    times_us = [min(each.time_us for each in of_ranks) for of_ranks in zip(*runs, strict=True)]
    launches_us = [each.launch_us for of_rank in runs for each in of_rank]
    finishes_us = [min(each.finish_us for each in of_ranks) for of_ranks in zip(*runs, strict=True)]
    return Timing(*(float(f"{typical(values):.6g}") for values in (times_us, launches_us, finishes_us)))


def _repeat(
    machine: Machine, begin: Callable[[], Any], end: Callable[[Any], object], before: Callable[[], object]
) -> list[Timing]:
    """All ranks make as many."""
    once = partial(_time_once, begin, end, machine.device.type == "cuda")
    machine.meet()
    for _ in range(WARM_UPS):
        last = once()
    slowest_s = max(machine.everyone(last.time_us)) / 1e6
    runs = []
    for _ in range(min(max(int(BUDGET_S / max(slowest_s, 1e-9)), FEWEST), MOST)):
        before()
        runs.append(once())
    return runs


def _time_once(begin: Callable[[], Any], end: Callable[[Any], object], on_gpu: bool) -> Timing:
    if on_gpu:
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        torch.cuda._sleep(2_000_000)  # about a millisecond: longer than a launch takes
        first.record()
    began = time.perf_counter()
    started = begin()
    launch_us = (time.perf_counter() - began) * 1e6
    end(started)
    time_us = (time.perf_counter() - began) * 1e6
    if on_gpu:
        last.record()
        last.synchronize()
        time_us = first.elapsed_time(last) * 1e3
    return Timing(time_us, launch_us, time_us - launch_us)


def products_of(machine: Machine, time_us: float) -> Callable[[], None]:
    """A function that computes matrix products for about so long; all ranks call this, and compute as many."""
    matrix = torch.randn(128, 128)  # a product is short beside a collective

    def run(count: int) -> None:
        for _ in range(count):
            torch.mm(matrix, matrix)

    ten_us = time_together(machine, lambda: run(10), lambda _: None, statistics.median).time_us
    return partial(run, max(math.ceil(10 * time_us / ten_us), 1))


FUNCTIONAL = torch.ops._c10d_functional
ELEMENT_BYTES = 4
"""fp32, in which gradients are reduced."""


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
        if world % block:
            raise CostError(
                f"{world} ranks cannot be divided into groups of {self.size} with stride {self.stride}: "
                f"{world} is not a multiple of {block}. Give another --group SIZE or SIZE/STRIDE."
            )
        starts = (first + offset for first in range(0, world, block) for offset in range(self.stride))
        return [list(range(start, start + block, self.stride)) for start in starts]

    def nodes(self, machine: Machine) -> int:
        """On how many nodes a group's ranks are; the most of any."""
        return max(len({rank // machine.ranks_per_node for rank in group}) for group in self.groups(machine.size))


def default_divisions(world: int, ranks_per_node: int) -> list[Division]:
    """All ranks; the ranks of each node; one rank of each node."""
    found = [Division(world)] if world > 1 else []
    if world % ranks_per_node or 1 in (ranks_per_node, world // ranks_per_node):
        return found
    return [*found, Division(ranks_per_node), Division(world // ranks_per_node, ranks_per_node)]


def sizes_between(smallest: int, largest: int) -> list[int]:
    """``smallest``, four times as much, and so on; the last is ``largest``."""
    return list(dict.fromkeys(min(smallest * 4**k, largest) for k in range(32)))


class WantedCollective(NamedTuple):
    """A collective to time.

    Attributes:
        kind: One of :data:`overlap_sched.cost.table.KINDS`.
        division: Which groups communicate.
        bytes: The larger of input and output; cut down to what fp32 numbers and the ranks divide evenly.
    """

    kind: str
    division: Division
    bytes: int

    @property
    def elements(self) -> int:
        """The fp32 numbers of its larger side, at least one of each rank."""
        return max(self.bytes // ELEMENT_BYTES // self.division.size, 1) * self.division.size


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


def time_collective(machine: Machine, groups: dict[Division, Any], wanted: WantedCollective) -> CollectiveTime:
    """Time a collective: alone, and the wait for it once it is long done; all ranks call this.

    Process groups are made once, and kept in ``groups``; all ranks ask for the same divisions in the same order.
    """
    division, wait = wanted.division, FUNCTIONAL.wait_tensor
    if division not in groups:
        groups[division], _ = dist.new_subgroups_by_enumeration(division.groups(machine.size))
    launch = _launch_of(wanted, groups[division].group_name, machine.device)
    row = partial(CollectiveTime, wanted.kind, division.size, division.nodes(machine), wanted.elements * ELEMENT_BYTES)
    if machine.device.type != "cpu":  # a GPU's stream does not wait for the host
        return row(*time_together(machine, launch, wait)[:2])
    alone = time_together(machine, launch, wait, before=products_of(machine, 1_000.0))
    products = products_of(machine, 4.0 * alone.time_us + 10_000.0)  # outlasts two of it

    # After some milliseconds of products the code of a wait is out of the caches, and a wait takes several times as
    # long as right behind another; in a step, which calls operators all the time, it is not. So the second is timed.
    def begin() -> Any:
        first, second = launch(), launch()
        products()
        wait(first)
        return second

    return row(*alone[:2], time_together(machine, begin, wait, statistics.median).finish_us)


def _launch_of(wanted: WantedCollective, group: str, device: torch.device) -> Callable[[], torch.Tensor]:
    """Return a function that starts a collective."""
    ranks, elements = wanted.division.size, wanted.elements
    whole, part = torch.ones(elements, device=device), torch.ones(elements // ranks, device=device)
    splits = [elements // ranks] * ranks

    def gather_out() -> Any:
        """How functional gathers run over gloo, see :mod:`overlap_sched.inductor.gloo`."""
        return FUNCTIONAL.all_gather_into_tensor_out(part, ranks, group, out=torch.empty_like(whole))

    gather = partial(FUNCTIONAL.all_gather_into_tensor, part, ranks, group)
    launches: dict[str, Callable[[], torch.Tensor]] = {
        "all_gather": gather_out if device.type == "cpu" else gather,
        "reduce_scatter": partial(FUNCTIONAL.reduce_scatter_tensor, whole, "sum", ranks, group),
        "all_reduce": partial(FUNCTIONAL.all_reduce, whole, "sum", group),
        "all_to_all": partial(FUNCTIONAL.all_to_all_single, whole, splits, splits, group),
    }
    return launches[wanted.kind]


_SWEPT = {"cpu": 2**23, "cuda": 2**28}
"""Bytes that are written before each repetition, to have other things in the caches: more than a core's own, or all of
a GPU's (as ``triton.testing.do_bench`` does). In a step a kernel's inputs are seldom there."""


class KernelCall(NamedTuple):
    """An operator with arguments that are not made yet.

    Attributes:
        kernel: What it is, not timed yet.
        target: The operator.
        args, kwargs: Its arguments; fake tensors stand for real ones.
    """

    kernel: KernelTime
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


_CPU_SIDES, _GPU_SIDES = (64, 128, 256, 512, 1024), (256, 512, 1024, 2048, 4096, 8192)
CPU_GRID = Grid(
    (*((k, k, k) for k in _CPU_SIDES), (256, 512, 2048), (2048, 512, 256), (1024, 1024, 256)),
    ((1, 8, 128, 64), (1, 8, 256, 64), (2, 8, 512, 64)),
    tuple(2**k for k in range(12, 27, 2)),
)
_LLAMA = ((8192, 4096, 1024), (8192, 4096, 14336), (8192, 14336, 4096), (4096, 8192, 14336), (2048, 4096, 128256))
GPU_GRID = Grid(
    (*((k, k, k) for k in _GPU_SIDES), *_LLAMA),
    ((1, 32, 2048, 128), (1, 32, 4096, 128), (1, 32, 8192, 128)),
    tuple(2**k for k in range(12, 31, 2)),
)
"""Squares; a layer of Llama-3-8B at 8,192 tokens, forward and for its weights' gradients."""


def calls_in(lifted: Lifted, *copies: str) -> list[KernelCall]:
    """List what computes by matrix products in a graph, and ``copies``; each operator and shape once."""
    found: dict[tuple[str, str], KernelCall] = {}
    for node, at in zip(lifted.problem.nodes, lifted.nodes, strict=True):
        if node.kind is Kind.COMPUTE and at.op == "call_function" and (node.flops or node.op in copies):
            args, kwargs = fx.map_arg((at.args, at.kwargs), lambda n: n.meta.get("val"))
            shapes = " ".join(_shape_text(x) for x in args if isinstance(x, torch.Tensor))
            kernel = KernelTime(node.op, shapes, node.flops, node.bytes, 0.0)
            found.setdefault((node.op, shapes), KernelCall(kernel, at.target, args, kwargs))
    return list(found.values())


def calls_in_grid(grid: Grid, dtype: torch.dtype, device: torch.device) -> list[KernelCall]:
    """Matrix products, attention with its backward, and copies of these shapes."""

    def step(matmuls: Any, attentions: Any, copies: Any) -> list[torch.Tensor]:
        outs = [a @ b for a, b in matmuls]
        for query, key, value in attentions:
            out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            outs += torch.autograd.grad(out, (query, key, value), torch.ones_like(out))
        return [*outs, *(torch.ops.aten.clone.default(x) for x in copies)]

    empty = partial(torch.empty, dtype=dtype, device=device)
    with FakeTensorMode():
        matmuls = [(empty(m, k), empty(k, n)) for m, k, n in grid.matmuls]
        attentions = [[empty(*shape, requires_grad=True) for _ in range(3)] for shape in grid.attentions]
        copies = [torch.empty(nbytes, dtype=torch.uint8, device=device) for nbytes in grid.copies]
        gm = make_fx(step, tracing_mode="real")(matmuls, attentions, copies)
    return calls_in(lift(gm), COPY)


def time_kernel(machine: Machine, call: KernelCall) -> KernelTime:
    """Time it on all ranks at once, which share memory and power, with caches as other kernels leave them.

    All ranks call this.
    """
    other = torch.zeros(_SWEPT[machine.device.type], dtype=torch.uint8, device=machine.device)
    runs = machine.everyone(_repeat(machine, make_run(call, machine.device), lambda _: None, lambda: other.add_(1)))
    time_us = statistics.median(each.time_us for of_rank in runs for each in of_rank)
    return call.kernel._replace(time_us=float(f"{time_us:.6g}"))


def make_run(call: KernelCall, device: torch.device) -> Callable[[], object]:
    """A function that runs it once, with arguments of its own: random numbers, and zeros for integers."""

    def real(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            shape, strides = [int(n) for n in x.shape], [int(n) for n in x.stride()]
            length = max(1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True)), 1)
            fill = torch.randn if x.dtype.is_floating_point else torch.zeros
            return fill(length, device=device).to(x.dtype).as_strided(shape, strides)
        return int(x) if isinstance(x, torch.SymInt) else device if isinstance(x, torch.device) else x

    args, kwargs = tree_map(real, (tuple(call.args), dict(call.kwargs)))
    return partial(call.target, *args, **kwargs)


def _shape_text(x: torch.Tensor) -> str:
    """``"bfloat16[512,1536](1,512)"``; strides where a tensor is not contiguous."""
    size, strides = (",".join(map(str, map(int, numbers))) for numbers in (x.shape, x.stride()))
    return f"{str(x.dtype).removeprefix('torch.')}[{size}]" + ("" if x.is_contiguous() else f"({strides})")


def measure(
    machine: Machine,
    collectives: Sequence[WantedCollective],
    calls: Sequence[KernelCall],
    tell: Callable[[str], object],
) -> tuple[Tables, list[str]]:
    """Measure kernels, then collectives; all ranks call this, with the same. ``tell``: called with what is being done.

    Returns:
        The tables, sorted, the same on all ranks; and what could not be measured, and why.
    """
    groups: dict[Division, Any] = {}
    runs: dict[str, Callable[[], Any]] = {}
    for call in calls:
        runs.setdefault(" ".join(call.kernel[:2]), partial(time_kernel, machine, call))
    for wanted in collectives:
        ranks = f"{wanted.division.size} ranks on {wanted.division.nodes(machine)} nodes"
        name = f"{wanted.kind} of {wanted.elements * ELEMENT_BYTES:,} bytes, {ranks}"
        runs.setdefault(name, partial(time_collective, machine, groups, wanted))
    failed, rows = [], list[Any]()
    for count, (name, run) in enumerate(runs.items(), 1):
        tell(f"measuring {count} of {len(runs)}: {name}")
        row, reason = None, ""
        try:
            row = run()
        except (RuntimeError, NotImplementedError, ValueError) as error:  # no such kernel or collective, no memory
            reason = " ".join(str(error).split())[:200] or type(error).__name__
        reason = next(filter(None, machine.everyone(reason)), "")
        if reason:
            failed.append(f"{name}: {reason}")
        else:
            rows.append(machine.everyone(row)[0])
    timed = sorted(row for row in rows if isinstance(row, CollectiveTime))
    return Tables(tuple(timed), tuple(sorted(row for row in rows if isinstance(row, KernelTime)))), failed
