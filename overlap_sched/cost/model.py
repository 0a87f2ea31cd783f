"""Prices and networks, and the small protocol behind which cost models stand; the first is a roofline."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from overlap_sched.cost.compute import DEVICES, H100, Compute, Device, kernel_times
from overlap_sched.errors import CostError, OptionsError, OverlapSchedError
from overlap_sched.problem import Group

Source = Literal["roofline", "fusion", "nccl", "table", "profile", "user", "file", "free"]
"""Where a time comes from.

``roofline``: the device's rates (:class:`overlap_sched.cost.Roofline`); ``fusion``: the same, of the kernel that a
compiler makes of several nodes; ``nccl``: a model of NCCL's algorithms; ``table``: interpolated between measurements;
``profile``: a trace of a real step; ``user``: a cost function or a cost model of the user's own; ``file``: a problem
file; ``free``: nothing is computed or moved.
"""


class Price(NamedTuple):
    """The time of a node, and why it is what it is.

    Attributes:
        time_us: Microseconds, finite, 0 or more.
        source: See :data:`Source`.
        bound: What limits it: ``"flops"``, ``"bytes"``, ``"kernel"`` (the shortest that a kernel takes),
            ``"latency"``, ``"bandwidth"``; ``""`` where the source does not know.
        part_of: Of a node that is compiled into one kernel with others, the name of that group; ``""`` else. The
            group's time is on one of its nodes, the others have 0.
    """

    time_us: float
    source: Source
    bound: str = ""
    part_of: str = ""


FREE = Price(0.0, "free")
"""Views, inputs, waits, outputs."""


class Link(NamedTuple):
    """What a collective gets: ``latency_us`` to start it, ``bytes_per_s`` while it runs."""

    latency_us: float
    bytes_per_s: float


class Network(NamedTuple):
    """Two links: inside a node (NVLink and the like), and across nodes."""

    intra_node: Link
    across_nodes: Link

    def link(self, group: Group) -> Link:
        """The link that a group's collectives run over."""
        return self.intra_node if group.intra_node else self.across_nodes


HGX = Network(intra_node=Link(12.0, 370e9), across_nodes=Link(30.0, 180e9))
"""Nodes of eight H100: the network of the shared problem files. NVLink 4 has 450 GB/s in each direction, of
which a large collective reaches 370; across nodes a group that uses all the node's network cards reaches 180."""


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
    """A cost model that can also say where a time comes from and what limits it: its times are those of its prices."""

    @abstractmethod
    def compute_price(self, work: Compute) -> Price:
        """Price on the compute stream."""

    @abstractmethod
    def collective_price(self, work: Collective) -> Price:
        """Price on the group's communication stream."""

    def compute_us(self, work: Compute) -> float:
        """The time of its price."""
        return self.compute_price(work).time_us

    def collective_us(self, work: Collective) -> float:
        """The time of its price."""
        return self.collective_price(work).time_us


def price_of(model: CostModel, work: Compute | Collective) -> Price:
    """Price by any cost model: its own where it explains itself, else its times as the user's.

    ``compute_us`` and ``collective_us`` decide. An explanation of another time than theirs is not one (a subclass that
    has its own ``compute_us`` inherits the explanation of its parent's), and the price is the user's then, too.

    Raises:
        CostError: The model gives no time.
    """
    what = "compute" if isinstance(work, Compute) else "collective"
    us, explain = ask_model(getattr(model, f"{what}_us"), work), getattr(model, f"{what}_price", None)
    price = None if explain is None else explain(work)
    return price if price is not None and price.time_us == us else Price(us, "user")


def ask_model(times: Callable[[Any], Any], work: Any, read: Callable[[Any], Any] = float) -> Any:
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


@dataclass(frozen=True)
class Roofline(PricedModel):
    """Compute runs at the device's rate or its bandwidth, whichever is slower; collectives by latency and bandwidth.

    compute: by the kernel's kind (:mod:`overlap_sched.cost.compute`); nothing to do (views, getitem) takes no time.
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
        flops_us, bytes_us, shortest = kernel_times(self.device, work)
        longer_us, kernel_us = max(flops_us, bytes_us), max(shortest, 1.0) * self.device.kernel_us
        us = longer_us + kernel_us if shortest else max(longer_us, kernel_us)
        bound = "kernel" if longer_us < kernel_us else "flops" if longer_us == flops_us else "bytes"
        return Price(us, "roofline", bound)

    def collective_price(self, work: Collective) -> Price:
        """Bound by ``latency`` or ``bandwidth``, whichever takes longer."""
        link, ranks = self.network.link(work.group), work.group.size
        rounds = 2 if work.op.startswith(("all_reduce", "allreduce")) else 1
        sending_us = rounds * work.bytes * (ranks - 1) / ranks / link.bytes_per_s * 1e6
        bound = "latency" if link.latency_us > sending_us else "bandwidth"
        return Price(link.latency_us + sending_us, "roofline", bound)


def check_model(model: Any) -> None:
    """Refuse what cannot price nodes; ``None`` is no model, and fine.

    Raises:
        OptionsError: The name of a device, a class, or something else without the methods of
            :class:`overlap_sched.cost.CostModel`.
    """
    methods = ("compute_us", "collective_us")
    fits = all(callable(getattr(model, name, None)) for name in methods)
    if model is None or (fits and not isinstance(model, type)):
        return
    devices = {name.lower(): name for name in ("cpu", *(device.name for device in DEVICES))}
    meant = f"{model.__name__}()" if fits else ""
    if isinstance(model, str) and model.lower() in devices:
        meant = f"Roofline(device_named({devices[model.lower()]!r})), from overlap_sched.cost"
    raise OptionsError(
        f"model is {model!r}; it is an object with {' and '.join(methods)}, such as overlap_sched.cost.Roofline()."
        f"{f' Did you mean {meant}?' if meant else ''}"
    )
