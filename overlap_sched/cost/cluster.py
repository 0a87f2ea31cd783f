"""A cluster: nodes, their ranks and devices, the links inside and across them, and what was measured on them.

::

        node 0                            node 1
      +--------------------------+      +--------------------------+
      | rank 0 == rank 1 == ...  |      | rank 8 == rank 9 == ...  |    == inside: NVLink, PCIe, shared memory
      |   |         |            |      |   |         |            |
      | card 0    card 1   ...   |      | card 0    card 1   ...   |    | across: one or more ranks to a card
      +---+---------+------------+      +---+---------+------------+
          +---------|------- rail 0 --------+         |
                    +------- rail 1 ------------------+

Ranks are numbered node by node: rank r is on node r // ``ranks_per_node``. Its file is TOML, by hand or by
``calibrate``, described in ``docs/prices.md``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from overlap_sched.cost.compute import H100, XEON_8480, Device, device_named
from overlap_sched.cost.table import COPY, CollectiveTime, KernelTime, Tables
from overlap_sched.cost.toml_file import (
    Bandwidth,
    Bytes,
    Count,
    Factor,
    Number,
    Positive,
    Rate,
    Table,
    Time,
    decode_toml,
    table_data,
    write_toml,
)
from overlap_sched.errors import CostError, InputTooLargeError, OptionsError, ProblemError
from overlap_sched.problem import Group
from overlap_sched.problem.contention import Contention, check_shares
from overlap_sched.problem.file import DamagedError, Limits, read_bytes
from overlap_sched.problem.sizes import MAX_FLOAT

ASSUMED = {name: f"dgx-{name.lower()}" for name in ("A100", "H100", "H200", "H800", "B200")}
ASSUMED |= {"GB200": "gb200-nvl72", "MI300X": "mi300x"}
"""By device, the shipped cluster that a graph is taken to run on where nothing says otherwise."""
INSIDE, ACROSS = "inside nodes", "across nodes"
"""Links: of all groups whose ranks are in one node, and of all others."""
_SHIPPED = resources.files("overlap_sched.cost") / "shipped"
_MOST_BYTES = 64 * 2**20
_PCIE_BYTES_PER_S = 64e9
"""No PCIe 5 slot of 16 lanes gives more in one direction: a faster link inside a node is NVLink."""
_DEVICE = Device._field_defaults
_Part = Annotated[float, Meta(gt=0, le=1)]
_Above0 = Annotated[float, Meta(gt=0, le=MAX_FLOAT)]

Fabric = Literal["nvswitch", "nvlink", "pcie", "memory"]
"""What joins the ranks of a node: NVLink through switches or directly, PCIe, or the memory of one machine."""
Library = Literal["nccl", "formula"]
"""How collectives are priced: as NCCL's own tuning does, or by latency and bandwidth alone."""
Generation = Literal["volta", "ampere", "hopper", "blackwell", ""]
"""Of an NVIDIA GPU: NCCL's tuning goes by it."""


class IntraNodeLink(Table, rename={"bytes_per_s": "bandwidth", "latency_us": "latency"}):
    """The link of a rank to the others of its node.

    Attributes:
        fabric: See :data:`Fabric`.
        bytes_per_s: Of each rank, in each direction, as the data sheet has it: NCCL's model knows what part is reached.
            With library ``"formula"``: what a large collective gets of it.
        latency_us: To start a collective; only with library ``"formula"``, NCCL's model has its own.
        source: Where the numbers come from, for people.
    """

    fabric: Fabric
    bytes_per_s: Bandwidth
    latency_us: Time = Time(0.0)
    source: str = ""


class Across(Table, rename={"card_bytes_per_s": "bandwidth", "latency_us": "latency"}):
    """The links between nodes.

    Attributes:
        card_bytes_per_s: Of one network card, in each direction.
        cards_per_node: How many of them a node has for its ranks.
        latency_us: What the network adds to each step between nodes.
        rails: Leaf switches over which a node's cards are spread; with as many as cards, card k of every node is on
            switch k, and what stays on one rail passes no spine switch.
        oversubscription: How many times the bandwidth of the spine is asked for when all cards send (1: none).
        source: Where the numbers come from, for people.
    """

    card_bytes_per_s: Bandwidth
    cards_per_node: Positive
    latency_us: Time = Time(0.0)
    rails: Positive = 1
    oversubscription: Factor = 1.0
    source: str = ""


@dataclass(frozen=True)
class MeshDimension:
    """One dimension of the device mesh: its name and how many ranks it has."""

    name: str
    size: int


class DefaultContention(Table):
    """What compute and communication cost each other by default; what was measured goes before it.

    Attributes:
        shared_links: Whether groups whose collectives use the same wires share them.
        source: Where the numbers come from, for people.
        slowdown: By how a collective's operator begins (``any``: all), a factor of 1 or more on compute beside it.
        shares: Of compute bound by ``"flops"`` or ``"bytes"``, which part of a slowdown it takes; where a kind has
            none: all of it.
    """

    shared_links: bool = True
    source: str = ""
    slowdown: dict[str, Factor] = msgspec.field(default_factory=dict)
    shares: dict[str, Number] = msgspec.field(default_factory=dict)


class _Described(Table, kw_only=True):
    name: str
    ranks_per_node: Positive
    inside: IntraNodeLink
    across: Across | None = None
    library: Library = "nccl"
    generation: Generation = ""
    contention: DefaultContention = msgspec.field(default_factory=DefaultContention)
    source: str = ""


class Cluster(_Described, kw_only=True):
    """See the module.

    Attributes:
        name: For people, and for ``--cluster``.
        device: What computes on each rank.
        ranks_per_node: Ranks (GPUs) of a node.
        inside: The link inside a node.
        across: Links between nodes; ``None``: it is one node, and no group crosses it.
        library: How collectives are priced where they were not measured.
        generation: Of the GPU, for NCCL's tuning; ``""`` where that is not NVIDIA's.
        mesh: Dimensions of the device mesh, outermost to innermost; empty: not given.
        contention: By default.
        tables: What was measured.
        source: Where the rest comes from; of a measured file, when and on what.

    Raises:
        CostError: Parts do not fit together.
    """

    device: Device
    mesh: tuple[MeshDimension, ...] = ()
    tables: Tables = msgspec.field(default_factory=Tables)

    def __post_init__(self) -> None:
        across = self.across
        if across is not None and across.cards_per_node % across.rails:
            raise CostError(
                f"across.rails is {across.rails}, but a node has {across.cards_per_node} cards: each rail has as many "
                "of them. Correct one of the two."
            )
        names = [dimension.name for dimension in self.mesh]
        if len(set(names)) != len(names):
            raise CostError(f"mesh.names are {', '.join(names)}: each dimension has a name of its own.")
        if self.library == "nccl" and not self.generation:
            raise CostError(
                'library is "nccl", whose times depend on the generation of the GPU: give generation = "ampere", '
                '"hopper" or "blackwell", or library = "formula".'
            )
        try:
            check_shares("contention.shares: ", self.contention.shares)
        except ProblemError as error:
            raise CostError(str(error)) from None

    @property
    def on_rails(self) -> bool:
        """Tell whether what ranks send to other nodes stays on its rail: each card of a node has one of its own.

        Rings join equal cards of neighbouring nodes, and an all_to_all goes through the GPU of the node that is on the
        receiver's rail (PXN, NCCL 2.12 and later: NVIDIA, Doubling all2all Performance with NCCL 2.12, 2022).
        """
        return self.across is not None and 1 < self.across.rails == self.across.cards_per_node

    @property
    def cards_per_rank(self) -> float:
        """How much of a card, or how many, each rank has when all of a node send; 0.0 on a single node."""
        return 0.0 if self.across is None else self.across.cards_per_node / self.ranks_per_node

    @property
    def across_bytes_per_s(self) -> float:
        """Bandwidth across nodes of one rank when all of its node send; 0.0 on a single node.

        Off their rails the ranks of a node share its part of the spine. No file says which nodes have a leaf switch in
        common, so a group's nodes are taken to have none.
        """
        if self.across is None:
            return 0.0
        spine = 1.0 if self.on_rails else self.across.oversubscription
        return self.across.card_bytes_per_s * self.cards_per_rank / spine


class _DeviceTable(Table):
    name: str
    flops: Rate
    bandwidth: Bandwidth
    flops_efficiency: _Part = _DEVICE["flops_efficiency"]
    bandwidth_efficiency: _Part = _DEVICE["bytes_efficiency"]
    kernel: Time = Time(_DEVICE["kernel_us"])
    memory: Bytes = Bytes(0)
    attention_efficiency: _Part = _DEVICE["attention_efficiency"]
    source: str = ""


class _MeshTable(Table):
    names: list[Annotated[str, Meta(min_length=1)]]
    sizes: list[Positive]


class _CollectiveTable(Table):
    kind: str
    ranks: Positive
    nodes: Positive
    bytes: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    us: tuple[_Above0, ...]
    launch_us: tuple[Number, ...]
    finish_us: tuple[Number, ...] = ()
    spread_us: tuple[Number, ...] = ()


class _KernelTable(Table):
    op: str
    shapes: str
    flops: Count
    bytes: Count
    us: _Above0
    spread_us: Number = 0.0


class _FileTable(_Described, kw_only=True):
    device: str | _DeviceTable
    format: Literal["overlap-cluster/1"] = "overlap-cluster/1"
    mesh: _MeshTable | None = None
    collective: tuple[_CollectiveTable, ...] = ()
    kernel: tuple[_KernelTable, ...] = ()


def shipped_clusters() -> tuple[str, ...]:
    """Names of the clusters that come with the package, sorted."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _SHIPPED.iterdir() if file.name.endswith(".toml")))


def read_cluster(file_or_name: str | Path) -> Cluster:
    """A cluster by its file, or by the name of one that is shipped (``"dgx-h100"``).

    Raises:
        CostError: There is no such file or name, it cannot be read, or it is not TOML; or it has an unknown key, a
            number without its unit, a value out of its range.
    """
    text = str(file_or_name)
    if text in shipped_clusters():
        return parse_cluster((_SHIPPED / f"{text}.toml").read_text(encoding="utf-8"), f"{text} (shipped)")
    try:
        content = read_bytes(Path(text), Limits(input_bytes=_MOST_BYTES)).decode()
    except OSError as error:
        known = ", ".join(shipped_clusters())
        raise CostError(
            f"{text}: is neither a file that can be read ({error.strerror}) nor the name of a shipped cluster: {known}."
        ) from None
    except (UnicodeDecodeError, DamagedError):
        raise CostError(f"{text}: is not text. A cluster file is TOML in UTF-8.") from None
    except InputTooLargeError:
        raise CostError(f"{text}: is larger than {_MOST_BYTES // 2**20} MiB; no cluster file is.") from None
    return parse_cluster(content, text)


def cluster_given(cluster: Cluster | str | Path) -> Cluster:
    """A cluster itself, or the one of a file or name; raises as :func:`read_cluster` does."""
    return cluster if isinstance(cluster, Cluster) else read_cluster(cluster)


def parse_cluster(text: str, where: str) -> Cluster:
    """The cluster in a text; ``where``: how errors name it. Raises as :func:`read_cluster` does."""
    if gone := re.search(r"^\[\[(slowdown|in_flight)\]\]", text, re.MULTILINE):
        raise CostError(f"{where}: delete each {gone[0]}. Factors are in [contention.slowdown].")
    file = decode_toml(text, _FileTable, where, CostError)
    mesh = file.mesh or _MeshTable([], [])
    times = [
        time for k, one in enumerate(file.collective) for time in _collective_times(f"{where}: collective[{k}]", one)
    ]
    kernels = tuple(KernelTime(one.op, one.shapes, one.flops, one.bytes, one.us) for one in file.kernel)
    if len(mesh.names) != len(mesh.sizes):
        raise CostError(
            f"{where}: mesh has {len(mesh.names)} names and {len(mesh.sizes)} sizes; each dimension has both."
        )
    try:
        return Cluster(
            **{name: getattr(file, name) for name in _Described.__struct_fields__},
            device=_device_of(file.device),
            mesh=tuple(map(MeshDimension, mesh.names, mesh.sizes)),
            tables=Tables(tuple(times), kernels),
        )
    except CostError as error:
        raise CostError(f"{where}: {error}") from None


def _device_of(own: str | _DeviceTable) -> Device:
    """A name of the table of devices, or a device of the file's own."""
    if isinstance(own, _DeviceTable):
        name, *numbers, attention, _ = msgspec.structs.astuple(own)
        *rates, memory = map(float, numbers)
        return Device(name, *rates, int(memory), float(attention))  # type: ignore[call-arg, arg-type]
    try:
        return device_named(own)
    except OptionsError as error:
        hint = str(error).removesuffix("Or make your own: cost.Device(...).")
        raise CostError(f"device is unknown: {hint}Or write a [device] table of your own.") from None


def _collective_times(where: str, own: _CollectiveTable) -> list[CollectiveTime]:
    columns = (own.bytes, own.us, own.launch_us, own.finish_us or (0.0,) * len(own.bytes))
    if len({len(column) for column in columns}) != 1:
        lengths = ", ".join(str(len(column)) for column in columns[:3])
        raise CostError(f"{where}: bytes, us and launch_us have {lengths} values; each size has one of each.")
    if own.nodes > own.ranks:
        raise CostError(f"{where}: nodes is {own.nodes}, but the group has {own.ranks} ranks.")
    return [CollectiveTime(own.kind, own.ranks, own.nodes, *row) for row in zip(*columns, strict=True)]


def cluster_text(cluster: Cluster) -> str:
    """A cluster as its file holds it. The same cluster gives the same text."""
    grouped: dict[tuple[str, int, int], list[CollectiveTime]] = {}
    for one in cluster.tables.collectives:
        grouped.setdefault(one[:3], []).append(one)
    file = _FileTable(
        **{name: getattr(cluster, name) for name in _Described.__struct_fields__},
        device=_DeviceTable(*cluster.device),  # type: ignore[arg-type]  # its fields, in their order
        mesh=_MeshTable([d.name for d in cluster.mesh], [d.size for d in cluster.mesh]) if cluster.mesh else None,
        collective=tuple(
            _CollectiveTable(*key, *zip(*(one[3:] for one in ones), strict=True)) for key, ones in grouped.items()
        ),
        kernel=tuple(_KernelTable(*one) for one in cluster.tables.kernels),
    )
    return write_toml({"format": file.format, **table_data(file)}) + "\n"


def contention_of(cluster: Cluster, groups: Mapping[str, Group]) -> Contention:
    """Contention among the groups of a graph, placed on a cluster.

    Every rank runs the same graph: groups of one rank that are in its node share its links there, and those that
    cross nodes share its part of the network cards.
    """
    factors = {"" if kind == "any" else kind: factor for kind, factor in cluster.contention.slowdown.items()}
    own = Contention({kind: factor for kind, factor in factors.items() if factor > 1.0})
    if cluster.contention.shares:
        balance = cluster.device.flops_per_s / cluster.device.bytes_per_s
        own = replace(own, shares=cluster.contention.shares, flops_per_byte=balance)
    if not cluster.contention.shared_links:
        return own
    links = {name: INSIDE if group.intra_node else ACROSS for name, group in groups.items() if group.size > 1}
    shared = list(links.values())
    links = {name: link for name, link in links.items() if shared.count(link) > 1}
    return replace(own, links=links)


def cluster_from_tables(device: str, ranks_per_node: int, tables: Tables, source: str) -> Cluster:
    """A cluster with measured tables, and rates that are the best of them."""
    priced = _device(device, tables)
    inside, across = (_link(tables, across) for across in (False, True))
    bytes_per_s, latency_us = inside or (priced.peak_bytes_per_s, 0.0)
    fabric: Fabric = "memory" if device == "cpu" else "nvlink" if bytes_per_s > _PCIE_BYTES_PER_S else "pcie"
    said = "measured" if inside else "not measured: that of memory"
    together = "measured, all cards of a node together"  # as if each node had one, which all of its ranks share
    return Cluster(
        name=f"measured-{device.replace(' ', '-').lower()}",
        device=priced,
        ranks_per_node=ranks_per_node,
        inside=IntraNodeLink(fabric, Bandwidth(bytes_per_s), Time(latency_us), said),
        across=Across(Bandwidth(across[0] * ranks_per_node), 1, Time(across[1]), source=together) if across else None,
        library="formula",
        tables=tables,
        source=source,
    )


def _device(name: str, tables: Tables) -> Device:
    basis = XEON_8480 if name == "cpu" else H100
    copies = [one for one in tables.kernels if one.op == COPY]
    flops = max((round(one.flops / one.time_us * 1e6) for one in tables.kernels if one.flops), default=0)
    # the largest copy: smaller ones stay in caches
    largest = max(copies, key=lambda one: one.bytes, default=None)
    return Device(
        name,
        flops or basis.peak_flops_per_s,
        basis.peak_bytes_per_s if largest is None else round(largest.bytes / largest.time_us * 1e6),
        flops_efficiency=1.0 if flops else basis.flops_efficiency,
        bytes_efficiency=basis.bytes_efficiency if largest is None else 1.0,
        kernel_us=min((one.time_us for one in copies), default=basis.kernel_us),
        attention_efficiency=basis.attention_efficiency / (basis.flops_efficiency if flops else 1.0),
    )


def _link(tables: Tables, across: bool) -> tuple[float, float] | None:
    """Bytes per second and latency of a ring that takes as long as the all_gathers of the most ranks that were timed.

    ``None``: there are fewer than two sizes.
    """
    gathers = [one for one in tables.collectives if one.kind == "all_gather" and (one.nodes > 1) == across]
    ranks = max((one.ranks for one in gathers), default=0)
    sizes = sorted((one.bytes, one.time_us) for one in gathers if one.ranks == ranks)
    if len(sizes) < 2 or ranks < 2:
        return None
    (least, least_us), (most, most_us) = sizes[0], sizes[-1]
    sent = (most - least) * (ranks - 1) / ranks
    return round(sent / max(most_us - least_us, 1e-3) * 1e6), least_us
