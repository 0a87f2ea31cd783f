"""How long compiled graphs take, and how long they stand still at waits.

No profiler: it would make every kernel longer. The clock is read when a graph is entered and left, and before and after
each of its communications: launches and waits.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from overlap_sched.inductor.gloo import safe_gathers

_FUNCTIONAL = torch.ops._c10d_functional
_LAUNCHES = ("all_gather_into_tensor_out", "reduce_scatter_tensor", "all_reduce", "all_reduce_", "all_to_all_single")
"""Functional collectives; all_gathers without a given output become those with one (overlap_sched.inductor.gloo)."""
NO_KERNELS: Mapping[str, Callable[..., Tensor]] = {}
"""Communication runs as torch runs it."""


class Taken(NamedTuple):
    """Microseconds of one step.

    Attributes:
        graphs_us: Inside graphs. waits_us: of that, at each wait.
        processor_us: Inside graphs but not at waits, that the thread had a processor: on a busy machine less than the
            rest of ``graphs_us``.
        launches_us: At each launch.
        stretches_us: From each communication, or the beginning of a graph, to the next: what the thread had of a
            processor, so that others, and gloo's threads beside a rank that is late, are no part of it.
    """

    graphs_us: float
    waits_us: tuple[float, ...]
    processor_us: float
    launches_us: tuple[float, ...] = ()
    stretches_us: tuple[float, ...] = ()


@dataclass
class GraphClock:
    """What has passed since the last :meth:`taken`, see :class:`Taken`."""

    graphs_us: float = 0.0
    waits_us: list[float] = field(default_factory=list)
    processor_us: float = 0.0
    launches_us: list[float] = field(default_factory=list)
    stretches_us: list[float] = field(default_factory=list)
    _last_s: float = 0.0  # the thread's processor time when the last communication was over, or the graph began

    def taken(self) -> Taken:
        """All of it; it starts again at nothing."""
        waits, launches, stretches = (tuple(of) for of in (self.waits_us, self.launches_us, self.stretches_us))
        found = Taken(self.graphs_us, waits, self.processor_us, launches, stretches)
        self.graphs_us, self.waits_us, self.processor_us = 0.0, [], 0.0
        self.launches_us, self.stretches_us = [], []
        return found

    @contextmanager
    def communicating(self, times_us: list[float]) -> Iterator[None]:
        """A launch or a wait is made inside; its time is added to those."""
        self.stretches_us.append((time.thread_time() - self._last_s) * 1e6)
        began = time.perf_counter()
        yield
        times_us.append((time.perf_counter() - began) * 1e6)
        self._last_s = time.thread_time()

    def inside(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose time counts as that of a graph."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began, processor = time.perf_counter(), time.thread_time()
            self._last_s = processor
            try:
                return run(*args, **kwargs)
            finally:
                self.graphs_us += (time.perf_counter() - began) * 1e6
                ended = time.thread_time()
                self.stretches_us.append((ended - self._last_s) * 1e6)
                self.processor_us += (ended - processor) * 1e6

        return timed


def step_figures(of_ranks: Sequence[Taken], rank: int) -> dict[str, float]:
    """Of one step on all ranks, the figures of one of them.

    At a wait a rank waits for the collective, and for ranks that have not launched it yet: the *skew*. The rank that
    came last waits for the collective alone, so the shortest wait of any rank is without skew (as Holistic Trace
    Analysis compares ranks). All ranks wait in one order.
    """
    own = of_ranks[rank]
    shortest = [min(waits) for waits in zip(*(one.waits_us for one in of_ranks), strict=True)]
    exposed_us = sum(own.waits_us)
    skew_us = exposed_us - sum(shortest)
    return {"step_us": own.graphs_us, "exposed_us": exposed_us, "skew_us": skew_us, "processor_us": own.processor_us}


def everyone(own: Taken) -> list[Taken]:
    """What each rank has taken, on every rank."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return every


def typical_stretches(steps: Sequence[Taken]) -> list[float]:
    """Of several steps of one graph, the lower quartile of each stretch: what else runs on the machine only adds."""
    every = zip(*(one.stretches_us for one in steps), strict=True)
    return [statistics.quantiles(times, n=4, method="inclusive")[0] for times in every]


def quietest(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The medians of the third of the steps that were shortest without skew, each figure by itself."""
    quiet = sorted(steps, key=lambda step: step["step_us"] - step["skew_us"])[: max(len(steps) // 3, 1)]
    return {name: statistics.median(step[name] for step in quiet) for name in steps[0]}


@contextmanager
def clocked(kernels: Mapping[str, Callable[..., Tensor]] = NO_KERNELS) -> Iterator[GraphClock]:
    """Graphs that Inductor compiles inside are timed when they are called, and waits of CPU tensors.

    Gathers over gloo take the way that does not damage memory (:mod:`overlap_sched.inductor.gloo`).

    Args:
        kernels: By operator, what runs for communication in place of torch's own.
    """
    from torch._inductor.output_code import CompiledFxGraph

    clock = GraphClock()
    library = torch.library.Library("_c10d_functional", "IMPL")

    def of(name: str) -> Callable[..., Any]:
        return kernels.get(name) or _own_kernel(name)

    def launched(run: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with clock.communicating(clock.launches_us):
                return run(*args, **kwargs)

        return timed

    def wait(tensor: Tensor) -> Tensor:
        processor = time.thread_time()
        with clock.communicating(clock.waits_us):
            result: Tensor = of("wait_tensor")(tensor)
        clock.processor_us -= (time.thread_time() - processor) * 1e6
        return result

    with (
        safe_gathers(),
        mock.patch.object(CompiledFxGraph, "__call__", clock.inside(CompiledFxGraph.__call__)),
    ):
        library.impl("wait_tensor", wait, "CPU")
        for name in _LAUNCHES:
            library.impl(name, launched(of(name)), "CPU")
        try:
            yield clock
        finally:
            library._destroy()


def _own_kernel(name: str) -> Callable[..., Any]:
    """Of a functional collective, what runs without us."""
    operator: Any = getattr(_FUNCTIONAL, name).default
    return partial(operator._op_dk, torch._C.DispatchKey.CompositeExplicitAutograd)
