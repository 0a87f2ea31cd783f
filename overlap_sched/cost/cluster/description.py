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

Ranks are numbered node by node: rank r is on node r // ``ranks_per_node``. A file with one: TOML, read and written by
:mod:`overlap_sched.cost.cluster.file`, described in ``docs/prices.md``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from overlap_sched.cost.device import Device
from overlap_sched.cost.measured.table import Tables
from overlap_sched.errors import CostError, ProblemError
from overlap_sched.problem.contention import check_shares

Fabric = Literal["nvswitch", "nvlink", "pcie", "memory"]
"""What joins the ranks of a node: NVLink through switches or directly, PCIe, or the memory of one machine."""
FABRICS: tuple[Fabric, ...] = ("nvswitch", "nvlink", "pcie", "memory")
Library = Literal["nccl", "formula"]
"""How collectives are priced: as NCCL's own tuning does, or by latency and bandwidth alone."""
LIBRARIES: tuple[Library, ...] = ("nccl", "formula")
Generation = Literal["volta", "ampere", "hopper", "blackwell", ""]
"""Of an NVIDIA GPU: NCCL's tuning goes by it."""
GENERATIONS: tuple[Generation, ...] = ("volta", "ampere", "hopper", "blackwell", "")


@dataclass(frozen=True)
class IntraNodeLink:
    """The link of a rank to the others of its node.

    Attributes:
        fabric: See :data:`Fabric`.
        bytes_per_s: Of each rank, in each direction, as the data sheet has it: NCCL's model knows what part is reached.
            With library ``"formula"``: what a large collective gets of it.
        latency_us: To start a collective; only with library ``"formula"``, NCCL's model has its own.
        source: Where the numbers come from, for people.
    """

    fabric: Fabric
    bytes_per_s: float
    latency_us: float = 0.0
    source: str = ""


@dataclass(frozen=True)
class Across:
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

    card_bytes_per_s: float
    cards_per_node: int
    latency_us: float = 0.0
    rails: int = 1
    oversubscription: float = 1.0
    source: str = ""


@dataclass(frozen=True)
class MeshDimension:
    """One dimension of the device mesh: its name and how many ranks it has."""

    name: str
    size: int


@dataclass(frozen=True)
class DefaultContention:
    """What compute and communication cost each other by default; what was measured goes before it.

    Attributes:
        slowdown: By how a collective's operator begins (``""``: any), a factor of 1 or more on compute beside it.
        shares: Of compute bound by ``"flops"`` or ``"bytes"``, which part of a slowdown it takes; where a kind has
            none: all of it.
        shared_links: Whether groups whose collectives use the same wires share them.
        source: Where the numbers come from, for people.
    """

    slowdown: Mapping[str, float] = field(default_factory=dict)
    shared_links: bool = True
    source: str = ""
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
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
        beside: Default contention.
        tables: What was measured.
        source: Where the rest comes from; of a measured file, when and on what.

    Raises:
        CostError: A number is out of its range, or parts do not fit together.
    """

    name: str
    device: Device
    ranks_per_node: int
    inside: IntraNodeLink
    across: Across | None = None
    library: Library = "nccl"
    generation: Generation = ""
    mesh: tuple[MeshDimension, ...] = ()
    beside: DefaultContention = field(default_factory=DefaultContention)
    tables: Tables = field(default_factory=Tables)
    source: str = ""

    def __post_init__(self) -> None:
        _positive("ranks_per_node", self.ranks_per_node)
        _rate("inside.bandwidth", self.inside.bytes_per_s)
        _latency("inside.latency", self.inside.latency_us)
        if self.across is not None:
            _check_across(self.across)
        for dimension in self.mesh:
            _positive(f"mesh dimension {dimension.name!r}", dimension.size)
        names = [dimension.name for dimension in self.mesh]
        if len(set(names)) != len(names):
            raise CostError(f"mesh.names are {', '.join(names)}: each dimension has a name of its own.")
        if self.library == "nccl" and not self.generation:
            raise CostError(
                'library is "nccl", whose times depend on the generation of the GPU: give generation = "ampere", '
                '"hopper" or "blackwell", or library = "formula".'
            )
        for kind, factor in self.beside.slowdown.items():
            if not 1.0 <= factor < math.inf:
                raise CostError(
                    f"contention.slowdown of {kind!r} is {factor:g}: a factor is finite and 1 or more (1.1: compute "
                    "takes a tenth longer beside it)."
                )
        try:
            check_shares("contention.shares: ", self.beside.shares)
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


def _check_across(across: Across) -> None:
    _rate("across.bandwidth", across.card_bytes_per_s)
    _latency("across.latency", across.latency_us)
    _positive("across.cards_per_node", across.cards_per_node)
    _positive("across.rails", across.rails)
    if across.cards_per_node % across.rails:
        raise CostError(
            f"across.rails is {across.rails}, but a node has {across.cards_per_node} cards: each rail has as many of "
            "them. Correct one of the two."
        )
    if not 1.0 <= across.oversubscription < math.inf:
        raise CostError(f"across.oversubscription is {across.oversubscription:g}: it is finite and 1 or more.")


def _positive(what: str, number: int) -> None:
    if number < 1:
        raise CostError(f"{what} is {number}: it is 1 or more.")


def _rate(what: str, number: float) -> None:
    if not 0 < number < math.inf:
        raise CostError(f"{what} is {number:g} bytes per second: it is finite and above 0.")


def _latency(what: str, number: float) -> None:
    if not 0 <= number < math.inf:
        raise CostError(f"{what} is {number:g} us: it is finite and 0 or more.")
