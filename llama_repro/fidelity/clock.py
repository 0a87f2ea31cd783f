"""How long compiled graphs take, and how long they stand still at waits.

No profiler: it would make every kernel longer. One clock is read when a graph is entered and left, another when one of
its waits is.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from overlap_sched.inductor.gloo import safe_gathers

_FUNCTIONAL = torch.ops._c10d_functional


@dataclass
class GraphClock:
    """Microseconds since the last :meth:`taken`.

    Attributes:
        graphs_us: Inside graphs. waits_us: of that, at waits.
        processor_us: Inside graphs but not at waits, that the thread had a processor: on a busy machine less than the
            rest of ``graphs_us``.
    """

    graphs_us: float = 0.0
    waits_us: float = 0.0
    processor_us: float = 0.0

    def taken(self) -> tuple[float, float, float]:
        """All three, which start again at zero."""
        figures = (self.graphs_us, self.waits_us, self.processor_us)
        self.graphs_us = self.waits_us = self.processor_us = 0.0
        return figures

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


def medians(taken: Sequence[tuple[float, ...]]) -> dict[str, float]:
    """Of several steps' :meth:`GraphClock.taken`, by name."""
    return dict(
        zip(("step_us", "exposed_us", "processor_us"), map(statistics.median, zip(*taken, strict=True)), strict=True)
    )


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
        clock.waits_us += (time.perf_counter() - began) * 1e6
        clock.processor_us -= (time.thread_time() - processor) * 1e6
        return result

    with safe_gathers(), mock.patch.object(CompiledFxGraph, "__call__", clock.inside(CompiledFxGraph.__call__)):
        library.impl("wait_tensor", wait, "CPU")
        try:
            yield clock
        finally:
            library._destroy()
