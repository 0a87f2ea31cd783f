"""The small protocol behind which cost models stand, and the first of them: a roofline."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from overlap_sched.cost.device import H100, HGX, Device, Network
from overlap_sched.cost.price import FREE, Price
from overlap_sched.errors import CostError, OverlapSchedError
from overlap_sched.problem import Group


class Compute(NamedTuple):
    """What a model is told of a compute step; fields may be added behind these.

    Attributes:
        op: Operator, as in ``Node.op``: ``"aten.mm.default"``.
        flops: Floating-point operations. bytes: read and written.
    """

    op: str
    flops: int
    bytes: int


class Collective(NamedTuple):
    """What a model is told of a collective.

    Attributes:
        op: Operator without its namespace: ``"all_gather_into_tensor"``.
        bytes: The larger of its input and its output.
        group: Where it runs.
    """

    op: str
    bytes: int
    group: Group


class CostModel(Protocol):
    """Times in microseconds, finite and not negative; the same facts give the same time on every rank."""

    def compute_us(self, work: Compute) -> float:
        """Time on the compute stream; 0.0 where nothing is computed, read or written."""

    def collective_us(self, work: Collective) -> float:
        """Time on the group's communication stream."""


@runtime_checkable
class ExplainingModel(CostModel, Protocol):
    """A cost model that can also say where a time comes from and what limits it: same facts, same times."""

    def compute_price(self, work: Compute) -> Price:
        """:meth:`CostModel.compute_us`, explained."""

    def collective_price(self, work: Collective) -> Price:
        """:meth:`CostModel.collective_us`, explained."""


@runtime_checkable
class LaunchingModel(CostModel, Protocol):
    """A cost model that knows what starting a collective takes of the stream that computes."""

    def launch_us(self, work: Collective) -> float:
        """Microseconds; 0.0 where the host launches ahead of that stream, as it does for a GPU."""


@runtime_checkable
class FinishingModel(LaunchingModel, Protocol):
    """A launching model that knows, too, what a wait takes of that stream when its collective has long been done."""

    def finish_us(self, work: Collective) -> float:
        """Microseconds; 0.0 where the host waits ahead of that stream."""


class PricedModel(ABC):
    """A cost model whose prices say it all: its times are theirs."""

    @abstractmethod
    def compute_price(self, work: Compute) -> Price:
        """See :class:`ExplainingModel`."""

    @abstractmethod
    def collective_price(self, work: Collective) -> Price:
        """See :class:`ExplainingModel`."""

    def compute_us(self, work: Compute) -> float:
        """The time of its price."""
        return self.compute_price(work).time_us

    def collective_us(self, work: Collective) -> float:
        """The time of its price."""
        return self.collective_price(work).time_us


class Pricer:
    """Prices by any cost model: its own where it explains itself, else its times as the user's.

    ``compute_us`` and ``collective_us`` decide. An explanation of another time than theirs is not one (a subclass that
    has its own ``compute_us`` inherits the explanation of its parent's), and the price is the user's then, too.
    """

    def __init__(self, model: CostModel) -> None:
        self._model = model
        self._explaining = model if isinstance(model, ExplainingModel) else None

    def compute(self, work: Compute) -> Price:
        """Price on the compute stream."""
        us = asked(self._model.compute_us, work)
        return _explained(us, None if self._explaining is None else self._explaining.compute_price(work))

    def collective(self, work: Collective) -> Price:
        """Price on the group's communication stream."""
        us = asked(self._model.collective_us, work)
        return _explained(us, None if self._explaining is None else self._explaining.collective_price(work))


def asked(times: Callable[[Any], Any], work: Any, read: Callable[[Any], Any] = float) -> Any:
    """Return the time that a function, perhaps the user's, gives.

    Raises:
        CostError: It gives none.
    """
    try:
        return read(times(work))
    except OverlapSchedError:
        raise
    except Exception as error:
        name = getattr(times, "__qualname__", "the cost model")
        raise CostError(f"{name} raised {type(error).__name__}: {error}, of {work}. Return microseconds.") from error


def _explained(us: float, price: Price | None) -> Price:
    return price if price is not None and price.time_us == us else Price(us, "user")


@dataclass(frozen=True)
class Roofline(PricedModel):
    """Compute runs at the device's rate or its bandwidth, whichever is slower; collectives by latency and bandwidth.

    compute: max(flops / rate, bytes / bandwidth, ``kernel_us``); nothing to do (views, getitem) takes no time.
    collective: latency + bytes * (n - 1) / n / bandwidth, the time of a ring of n ranks that sends the larger side
    once (Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in MPICH, 2005); an
    all_reduce is a reduce_scatter and an all_gather, so twice the bytes.
    """

    device: Device = H100
    network: Network = HGX

    def compute_price(self, work: Compute) -> Price:
        """Bound by ``flops``, ``bytes`` or ``kernel``, whichever takes longest."""
        if not work.flops and not work.bytes:
            return FREE
        device = self.device
        flops_us = work.flops / device.flops_per_s * 1e6
        bytes_us = work.bytes / device.bytes_per_s * 1e6
        us = max(flops_us, bytes_us, device.kernel_us)
        bound = "flops" if us == flops_us else "bytes" if us == bytes_us else "kernel"
        return Price(us, "roofline", bound)

    def collective_price(self, work: Collective) -> Price:
        """Bound by ``latency`` or ``bandwidth``, whichever takes longer."""
        link, ranks = self.network.link(work.group), work.group.size
        rounds = 2 if work.op.startswith(("all_reduce", "allreduce")) else 1
        sending_us = rounds * work.bytes * (ranks - 1) / ranks / link.bytes_per_s * 1e6
        bound = "latency" if link.latency_us > sending_us else "bandwidth"
        return Price(link.latency_us + sending_us, "roofline", bound)
