"""How long compiled graphs take, and how long they stand still at waits.

No profiler: it would make every kernel longer. One clock is read when a graph is entered and left, another when one of
its waits is.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from overlap_sched.inductor.gloo import safe_gathers

_FUNCTIONAL = torch.ops._c10d_functional


class Taken(NamedTuple):
    """Microseconds of one step.

    Attributes:
        graphs_us: Inside graphs. waits_us: of that, at each wait.
        processor_us: Inside graphs but not at waits, that the thread had a processor: on a busy machine less than the
            rest of ``graphs_us``.
    """

    graphs_us: float
    waits_us: tuple[float, ...]
    processor_us: float


@dataclass
class GraphClock:
    """What has passed since the last :meth:`taken`, see :class:`Taken`."""

    graphs_us: float = 0.0
    waits_us: list[float] = field(default_factory=list)
    processor_us: float = 0.0

    def taken(self) -> Taken:
        """All of it; it starts again at nothing."""
        found = Taken(self.graphs_us, tuple(self.waits_us), self.processor_us)
        self.graphs_us, self.waits_us, self.processor_us = 0.0, [], 0.0
        return found

    def inside(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose time counts as that of a graph."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began, processor = time.perf_counter(), time.thread_time()
            try:
                return run(*args, **kwargs)
            finally:
                self.graphs_us += (time.perf_counter() - began) * 1e6
                self.processor_us += (time.thread_time() - processor) * 1e6

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


def medians(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of several steps' figures, each by itself."""
    return {name: statistics.median(step[name] for step in steps) for name in steps[0]}


@contextmanager
def clocked() -> Iterator[GraphClock]:
    """Graphs that Inductor compiles inside are timed when they are called, and waits of CPU tensors.

    Gathers over gloo take the way that does not damage memory (:mod:`overlap_sched.inductor.gloo`).
    """
    from torch._inductor.output_code import CompiledFxGraph

    clock = GraphClock()
    library = torch.library.Library("_c10d_functional", "IMPL")

    def wait(tensor: Tensor) -> Tensor:
        began, processor = time.perf_counter(), time.thread_time()
        operator: Any = _FUNCTIONAL.wait_tensor.default
        result: Tensor = operator._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, tensor)
        clock.waits_us.append((time.perf_counter() - began) * 1e6)
        clock.processor_us -= (time.thread_time() - processor) * 1e6
        return result

    with safe_gathers(), mock.patch.object(CompiledFxGraph, "__call__", clock.inside(CompiledFxGraph.__call__)):
        library.impl("wait_tensor", wait, "CPU")
        try:
            yield clock
        finally:
            library._destroy()
