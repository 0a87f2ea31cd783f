"""What the nodes take that rewrites make: by the cost model that priced the rest, so that old and new compare.

All parts of a fission are alike, so a sum over the nodes says what the step takes, where nothing communicates::

    outside + parts * (inside, slices that are copied) + what puts together, or adds up, what leaves
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from overlap_sched.cost.cluster import Cluster
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.compute import Compute
from overlap_sched.cost.model import Collective, CostModel, FinishingModel, LaunchingModel
from overlap_sched.cost.repricing import placed_on
from overlap_sched.errors import RewriteError
from overlap_sched.problem import Group, Kind, Node, NodeId, Problem, Storage, StorageId
from overlap_sched.transform.host import PCIE_5, HostLink
from overlap_sched.transform.recipes import ADD, CAT, CLONE
from overlap_sched.transform.rewrites import Fission, Leave


@dataclass(frozen=True)
class Prices:
    """Times of new nodes, in microseconds.

    Attributes:
        model: Of the device and the network.
        comm_scale: Every collective takes so many times as long, as ``--comm-scale`` says.
        host: Of copies to and from host memory.
        scales: Per operator (coalesced or not) and group, how many times what the model says such a collective takes,
            where times that were given say so; 1.0 of all others.
    """

    model: CostModel
    comm_scale: float = 1.0
    host: HostLink = PCIE_5
    scales: Mapping[tuple[str, Group], float] = field(default_factory=dict)

    def collective_us(self, op: str, nbytes: int, group: Group) -> float:
        """A collective whose larger side has so many bytes: of several coalesced ones, all together."""
        scale = self.comm_scale * self.scales.get((op.removesuffix("_coalesced"), group), 1.0)
        return self.model.collective_us(Collective(op, nbytes, group)) * scale

    def copy_us(self, op: str, nbytes: int) -> float:
        """A copy that reads and writes so many bytes, both together."""
        return self.model.compute_us(Compute(op, 0, nbytes))

    def launch_us(self, op: str, nbytes: int, group: Group) -> float:
        """Return what launching takes of the compute stream; 0.0 where that is not known, or not of it."""
        return self.model.launch_us(Collective(op, nbytes, group)) if isinstance(self.model, LaunchingModel) else 0.0

    def finish_us(self, op: str, nbytes: int, group: Group) -> float:
        """Return what the wait for one that is done takes of it; 0.0 as for :meth:`launch_us`."""
        return self.model.finish_us(Collective(op, nbytes, group)) if isinstance(self.model, FinishingModel) else 0.0


def on_cluster(problem: Problem, cluster: Cluster, comm_scale: float = 1.0) -> tuple[Problem, Prices]:
    """A problem with all its collectives priced for a cluster, and the prices of new ones.

    A problem file has its own times and no model behind them: merged and unmerged collectives compare only where one
    model prices both. A group that the file puts inside a node stays there, the others are placed on the cluster's
    nodes. Times of compute and contention stay the problem's own.

    Raises:
        CostError: A process group does not fit the cluster.
    """
    prices = Prices(model_of(cluster), comm_scale)
    placed = placed_on(problem, cluster).groups
    groups = {name: group if group.intra_node else placed[name] for name, group in problem.groups.items()}
    nodes = tuple(
        node._replace(time_us=prices.collective_us(node.op, node.bytes, groups[node.group]))
        if node.kind is Kind.COLLECTIVE and node.group is not None
        else node
        for node in problem.nodes
    )
    return replace(problem, nodes=nodes, groups=groups), prices


class PartTimes:
    """Bytes and times of a node in one of so many parts."""

    def __init__(self, prices: Prices, parts: int, full: Collection[StorageId]) -> None:
        """For one fission; ``full`` are storages that are as large in every part as in the whole."""
        self.prices, self.parts, self.full = prices, parts, frozenset(full)
        self._modelled: dict[tuple[Compute, Compute], tuple[float, float]] = {}

    def bytes(self, node: Node, storages: Sequence[Storage], cut: Collection[StorageId]) -> int:
        """Count the bytes that a part moves: 1/n of what is cut; all of what goes in or comes out whole."""
        whole = sum(storages[s].bytes for s in node.use if s not in cut or s in self.full)
        whole += sum(storages[s].bytes for s in node.alloc if s in self.full)
        if whole > node.bytes:  # of a table, only some rows are read
            whole = 0
        return whole + -(-(node.bytes - whole) // self.parts)

    def us(self, node: Node, nbytes: int) -> float:
        """The node's time, scaled as the model scales its own; 1/n of it, where that knows nothing of the node."""
        whole, part = Compute(node.op, node.flops, node.bytes), Compute(node.op, node.flops // self.parts, nbytes)
        if (whole, part) not in self._modelled:
            us, part_us = self.prices.model.compute_us(whole), self.prices.model.compute_us(part)
            self._modelled[whole, part] = (part_us, us) if us else (1.0, float(self.parts))
        part_us, us = self._modelled[whole, part]
        return node.time_us * part_us / us

    def left_us(self, leave: Leave) -> float:
        """Return the time that all parts that leave take to be put together, or added up."""
        if leave.how == "cat":
            return self.prices.copy_us(CAT, 2 * leave.bytes)
        return (self.parts - 1) * self.prices.copy_us(ADD, 3 * leave.bytes) if leave.how == "sum" else 0.0


def fissioned_us(problem: Problem, fission: Fission, prices: Prices) -> float:
    """The step of a problem without collectives that runs in parts, to rounding.

    Raises:
        RewriteError: A node is not there.
    """
    nodes, ids = problem.nodes, {node.name: v for v, node in enumerate(problem.nodes)}
    try:
        inside = sorted(ids[name] for name in fission.nodes)
        taken = {ids[one.value]: (one, nodes[ids[one.maker]].alloc[one.result :][:1]) for one in fission.slices}
        full = {s for name, k in fission.full for s in nodes[ids[name]].alloc[k : k + 1]}
    except KeyError as error:
        raise RewriteError(f"there is no node {error} to rewrite.") from None
    times = PartTimes(prices, fission.parts, full)
    own: set[StorageId] = set()
    seen: dict[NodeId, set[StorageId]] = {}  # of views: what they look at of what enters in part
    part_us = 0.0
    for v in inside:
        node = nodes[v]
        own.update(node.alloc)
        entered = {s for u in node.deps for s in (taken[u][1] if u in taken else seen.get(u, ()))}
        if not node.alloc:
            seen[v] = entered
        part_us += times.us(
            node, times.bytes(node, problem.storages, [s for s in node.use if s in own or s in entered])
        )
    used = sorted({u for v in inside for u in nodes[v].deps if u in taken})
    copied = [taken[u][0].bytes // fission.parts for u in used if not taken[u][0].free]
    part_us += sum(prices.copy_us(CLONE, 2 * nbytes) for nbytes in copied)
    gone = set(inside).difference(ids[name] for name in fission.views)
    outside_us = sum(node.time_us for v, node in enumerate(nodes) if v not in gone)
    return outside_us + fission.parts * part_us + sum(map(times.left_us, fission.leaves))
