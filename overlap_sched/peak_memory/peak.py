"""Why the peak is what it is: what is live there, by kind, and the largest storages with their makers and users.

Kinds are told by structure and, for inputs, by the names that AOTAutograd and optimizers give; whoever knows better
says so with ``kinds``. In this order::

    collectives in flight   launched, not yet waited for: what the launch makes, and what it reads of its own
    optimizer               inputs named like an optimizer's state
    parameters              other pinned inputs
    gradients               inputs named tangents; what a reduce_scatter or all_reduce reads or makes (in a graph
                            without tangents: where the result is as large as a parameter, if there are any); what a
                            step that makes nothing reads beside a pinned input (an update in place); outputs of a
                            backward
    gathered parameters     what an all_gather makes
    saved activations       other inputs that may be freed; what nobody touches for a while around the peak
    temporaries             all else
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from overlap_sched.judge.validate import peak_memory
from overlap_sched.peak_memory.memory_graph import memory_graph_of
from overlap_sched.problem import Kind, Problem
from overlap_sched.problem.precedence import find_reachable
from overlap_sched.simulate.ledger import LiveRange, LiveRanges

PeakKind = Literal[
    "parameters",
    "optimizer",
    "saved activations",
    "gathered parameters",
    "gradients",
    "collectives in flight",
    "temporaries",
]
KINDS: tuple[PeakKind, ...] = get_args(PeakKind)

OPTIMIZER_NAMES = ("exp_avg", "momentum", "max_exp_avg", "opt_state", "optimizer", "state_step")
IDLE_SHARE, IDLE_STEPS = 0.02, 8
"""Saved: neither made nor used for this share of the steps around the peak, and so many at least."""


@dataclass(frozen=True)
class PeakStorage:
    """One storage that is live at the peak.

    Attributes:
        storage: Its id. bytes: its size. kind: what it is.
        maker: Id of the node that made it.
        needed_by: Ids of the nodes that still use it, from the peak on, in running order.
        forced: Whether it is live at this node in every order; of the others, each is missing there in some order.
    """

    storage: int
    bytes: int
    kind: PeakKind
    maker: int
    needed_by: tuple[int, ...]
    forced: bool


@dataclass(frozen=True)
class Peak:
    """What is live at an order's peak.

    Attributes:
        problem: Whose order it is.
        bytes: The peak. position: where it is reached first. node: what runs there.
        steps: How many steps the order has.
        storages: All that are live, the largest first.
    """

    problem: Problem
    bytes: int
    position: int
    node: int
    steps: int
    storages: tuple[PeakStorage, ...]

    def by_kind(self) -> dict[PeakKind, int]:
        """Bytes of each kind; they add up to the peak."""
        total = dict.fromkeys(KINDS, 0)
        for storage in self.storages:
            total[storage.kind] += storage.bytes
        return total

    @property
    def forced_bytes(self) -> int:
        """Live at this node in every order."""
        return sum(storage.bytes for storage in self.storages if storage.forced)


def explain_peak(problem: Problem, order: Sequence[int], kinds: Mapping[int, PeakKind] | None = None) -> Peak:
    """Return what is live when an order that can run reaches its peak.

    Args:
        problem: Whose order.
        order: Its nodes in the order in which they run.
        kinds: Kinds of storages, by id, where the caller knows them.
    """
    top, at = peak_memory(problem, order)
    node = order[at]
    position = {v: p for p, v in enumerate(order)}
    ranges = LiveRanges(problem)
    users = [sorted(own, key=position.__getitem__) for own in ranges.users]
    told = dict(kinds or {})
    structure, forced, in_flight, found = StructuralKinds(problem), _forced(problem, node), set[int](), []
    for v in problem.collectives:
        if position[v] <= at and any(position[w] >= at for w in problem.waits.get(v, ())):
            in_flight.update(structure.held_by(v))

    def kind_of(span: LiveRange) -> PeakKind:
        if span.storage in in_flight and structure.may_fly(span.storage):
            return "collectives in flight"
        kind = structure.kind(span.storage)
        touched = [span.first, *(position[v] for v in users[span.storage])]
        before = max((p for p in touched if p <= at), default=span.first)
        after = min((p for p in touched if p >= at), default=span.last)
        return "saved activations" if kind == "temporaries" and after - before >= idle_steps(problem) else kind

    for span in ranges.of(order):
        if span.first <= at <= span.last:
            later = tuple(v for v in users[span.storage] if position[v] >= at)
            kind = told.get(span.storage) or kind_of(span)
            maker = problem.maker[span.storage]
            found.append(PeakStorage(span.storage, span.bytes, kind, maker, later, span.storage in forced))
    found.sort(key=lambda it: (-it.bytes, it.storage))
    return Peak(problem, top, at, node, len(order), tuple(found))


def _forced(problem: Problem, v: int) -> set[int]:
    """Storages that are live while v runs whatever the order."""
    graph = memory_graph_of(problem, "none")
    up = find_reachable([v], graph.before.__getitem__) | {v, *graph.first}
    down = find_reachable([v], graph.after.__getitem__) | {v}
    return {
        s
        for s, touchers in enumerate(graph.touchers)
        if touchers
        and (graph.from_start[s] or touchers[0] in up)
        and (graph.to_end[s] or not down.isdisjoint(touchers))
    }


class StructuralKinds:
    """What structure and names say of storages, whatever the order.

    Attributes:
        problem: Whose storages.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        nodes = problem.nodes
        self._backward = any(node.kind is Kind.INPUT and "tangents" in node.name for node in nodes)
        self._reduced: set[int] = set()
        self._gathered: set[int] = set()
        self._pinned_inputs = {
            s for node in nodes if node.kind is Kind.INPUT for s in node.alloc if problem.storages[s].pinned
        }
        of_parameters = {problem.storages[s].bytes for s in self._pinned_inputs}
        for v in problem.collectives:
            made = [*nodes[v].alloc, *(s for w in problem.waits.get(v, ()) for s in nodes[w].alloc)]
            if nodes[v].op.startswith("all_gather"):
                self._gathered.update(made)
            elif nodes[v].op.startswith(("reduce_scatter", "all_reduce")):
                like_parameters = any(problem.storages[s].bytes in of_parameters for s in made)
                if self._backward or not of_parameters or like_parameters:  # else activations of tensor parallelism
                    self._reduced.update([*self.held_by(v), *made])
        self._updating: set[int] = set()
        for node in nodes:
            in_place = node.kind is Kind.COMPUTE and not node.alloc and not self._pinned_inputs.isdisjoint(node.use)
            if in_place or (node.kind is Kind.OUTPUT and self._backward):
                self._updating.update(node.use)

    def held_by(self, v: int) -> list[int]:
        """Return what a collective holds while it is in flight: what it makes, and what it reads of its own."""
        node = self.problem.nodes[v]
        return [*node.alloc, *(s for s in node.use if s not in self._pinned_inputs)]

    def kind(self, s: int) -> PeakKind:
        """See the module; in flight is nothing, and a temporary what nobody touches for a while, too."""
        maker = self.problem.nodes[self.problem.maker[s]]
        if maker.kind is Kind.INPUT:
            return self._input(maker.name, s)
        if s in self._reduced or s in self._updating:
            return "gradients"
        return "gathered parameters" if s in self._gathered else "temporaries"

    def may_fly(self, s: int) -> bool:
        """Tell whether what a collective holds counts as in flight: parameters, tangents and the like never do."""
        maker = self.problem.nodes[self.problem.maker[s]]
        return maker.kind is not Kind.INPUT or self._input(maker.name, s) == "saved activations"

    def _input(self, name: str, s: int) -> PeakKind:
        if any(part in name for part in OPTIMIZER_NAMES):
            return "optimizer"
        if self.problem.storages[s].pinned:
            return "parameters"
        return "gradients" if "tangents" in name else "saved activations"


def idle_steps(problem: Problem) -> float:
    """For how many steps nobody touches what counts as saved."""
    return max(IDLE_SHARE * len(problem.nodes), IDLE_STEPS)
