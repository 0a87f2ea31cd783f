"""A slow network between CPU ranks: a collective ends when a link of that speed would have ended it.

gloo's own time is processor time, which compute on the same cores pays for: nothing can hide it. Here each process
group has one stream. A collective starts on it when it is launched and the one before has ended, and takes as long as
the cost model says; its wait returns when gloo is done and that moment has come. Until then the waiting thread sleeps,
so the link costs no processor time, and what is computed before the wait is really hidden.

The operators are those of compiled graphs, ``_c10d_functional``; eager collectives run at gloo's speed.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

from llama_repro.training.calibrate import with_link
from llama_repro.training.link import LATENCY_US
from overlap_sched.cost import Collective, Link, Roofline
from overlap_sched.cost.model import Price
from overlap_sched.cost.table import TableModel, Tables
from overlap_sched.inductor.gloo import safe_gathers
from overlap_sched.problem import Group

_FUNCTIONAL = torch.ops._c10d_functional
_LAUNCHES = {
    "all_gather_into_tensor_out": "all_gather_into_tensor",  # what gathers over gloo come to, see safe_gathers
    "reduce_scatter_tensor": "reduce_scatter_tensor",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_to_all_single": "all_to_all_single",
}
"""The operators that are slowed down, and how the cost model names them."""


@dataclass
class Traffic:
    """What went over the link since the last :meth:`taken`.

    Attributes:
        link_us: How long the link was busy.
        exposed_us: How long waits took until the link was done.
        blocked_us: How long waits took until gloo was done too, which had to wait for late ranks and for a processor.
        settle_s: How much longer each wait is to take. When gloo's thread has finished a collective, it still holds its
            tensors for a moment; if the graph lets go of them first, that thread frees them, which the profiler does
            not see. To measure memory, waits take a little longer.
    """

    link_us: float = 0.0
    exposed_us: float = 0.0
    blocked_us: float = 0.0
    settle_s: float = 0.0
    _free_at: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _done_at: dict[int, float] = field(default_factory=dict)

    def taken(self) -> tuple[float, float, float]:
        """``(link_us, exposed_us, blocked_us)``, which start again at zero."""
        figures = (self.link_us, self.exposed_us, self.blocked_us)
        self.link_us = self.exposed_us = self.blocked_us = 0.0
        return figures

    def launched(self, result: Tensor, group: str, us: float, now: float) -> None:
        """A collective of this length is on its way; ``now`` in seconds."""
        self._free_at[group] = max(now, self._free_at[group]) + us / 1e6
        self._done_at[result.data_ptr()] = self._free_at[group]
        self.link_us += us

    def left_s(self, result: Tensor, now: float) -> float:
        """Seconds until what was launched into this tensor has arrived; 0 for all else."""
        return max(0.0, self._done_at.pop(result.data_ptr(), now) - now)


class Timed(Protocol):
    """What knows how long a collective takes."""

    def collective_us(self, work: Collective) -> float:
        """Microseconds."""


class NoLink:
    """A link that adds nothing: collectives take as long as gloo takes."""

    def collective_us(self, work: Collective) -> float:
        """Nothing."""
        return 0.0


@contextmanager
def slow_network(
    model: Timed,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[Traffic]:
    """Collectives of CPU tensors take as long as ``model`` says, or as gloo takes where that is longer.

    Args:
        model: Length of a collective.
        clock: Seconds; tests give their own.
        sleep: Waits some seconds; tests give their own.
    """
    traffic = Traffic()
    library = torch.library.Library("_c10d_functional", "IMPL")
    with safe_gathers():
        for name, kernel in kernels_over(model, traffic, clock, sleep).items():
            library.impl(name, kernel, "CPU")
        try:
            yield traffic
        finally:
            library._destroy()


def kernels_over(
    model: Timed,
    traffic: Traffic,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], object] = time.sleep,
) -> Mapping[str, Callable[..., Tensor]]:
    """By operator, what runs for CPU tensors over such a network; ``traffic`` gets what went over it."""

    def wait(tensor: Tensor) -> Tensor:
        began = clock()
        on_its_way_s = traffic.left_s(tensor, began)
        result = _as_without(_FUNCTIONAL.wait_tensor.default, tensor)
        passed_s = clock() - began
        left_s = max(0.0, on_its_way_s - passed_s) + traffic.settle_s
        if left_s:
            sleep(left_s)
        traffic.exposed_us += on_its_way_s * 1e6
        traffic.blocked_us += (passed_s + left_s) * 1e6
        return result

    launch = partial(_launch, model=model, traffic=traffic, clock=clock)
    launches = {name: launch(getattr(_FUNCTIONAL, name).default, priced) for name, priced in _LAUNCHES.items()}
    return {**launches, "wait_tensor": wait}


def kernels_at(gb_per_s: float | None, latency_us: float = LATENCY_US) -> Mapping[str, Callable[..., Tensor]]:
    """The same for a link of that speed alone; none, so that torch's own run, where no link is emulated."""
    return {} if gb_per_s is None else kernels_over(with_slow_links(Roofline(), gb_per_s * 1e9, latency_us), Traffic())


def with_slow_links(model: Roofline | TableModel, bytes_per_s: float, latency_us: float = LATENCY_US) -> TableModel:
    """The same machine with links of this bandwidth and latency, inside a node and across nodes."""
    return with_link(model, Link(latency_us, bytes_per_s))


class OverLink(TableModel):
    """Collectives take what the emulated link takes; launching them and ending waits, what gloo was seen to take."""

    def collective_price(self, work: Collective) -> Price:
        """By the link alone."""
        return self.otherwise.collective_price(work)


def over_link(gloo: TableModel, bytes_per_s: float) -> OverLink:
    """What is predicted over such a link: its times, with the host's part as measured over gloo without it."""
    tables = Tables(gloo.tables.collectives, gloo.tables.kernels)
    return OverLink(tables, with_slow_links(gloo, bytes_per_s), on_host=True)


def _launch(
    operator: Any, priced: str, model: Timed, traffic: Traffic, clock: Callable[[], float]
) -> Callable[..., Tensor]:
    def launch(sent: Tensor, *arguments: Any, **keywords: Any) -> Tensor:
        result: Tensor = _as_without(operator, sent, *arguments, **keywords)
        name = arguments[-1]
        group = _resolve_process_group(name) if isinstance(name, str) else name
        work = Collective(priced, max(sent.nbytes, result.nbytes), Group(dist.get_world_size(group), True))
        traffic.launched(result, group.group_name, model.collective_us(work), clock())
        return result

    return launch


def _as_without(operator: Any, *arguments: Any, **keywords: Any) -> Any:
    return operator._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *arguments, **keywords)
