"""Times of FX graphs from traces of the torch profiler: the shapes by which nodes are found in them."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from overlap_sched.cost import CostModel
from overlap_sched.cost.model import Source
from overlap_sched.cost.profile import Profile, RankTrace, Shapes, apply_profile, read_traces
from overlap_sched.errors import CostError, OverlapSchedWarning
from overlap_sched.fx.lifting import Lifted, lift
from overlap_sched.problem.file import DEFAULT_LIMITS, Limits


def lifted_with_profile(lifted: Lifted, traces: Sequence[RankTrace]) -> tuple[Lifted, Profile]:
    """Give a lifted graph the times of traces; what they do not know keeps its price.

    Raises:
        CostError: See :func:`overlap_sched.cost.profile.apply_profile`.
    """
    shapes = [shapes_of(node) for node in lifted.nodes]
    problem, prices, profile = apply_profile(lifted.problem, lifted.prices, traces, shapes)
    return replace(lifted, problem=problem, prices=prices), profile


class ProfileCost:
    """Times of nodes from traces: a ``cost`` for ``lift``, ``schedule_graph`` and the plug-ins.

    A graph of which the traces have nothing keeps its predicted times, with a warning that says why. Every rank must be
    given the same traces, or orders differ.

    Args:
        traces: Files of the torch profiler, one per rank, of the same steps.
        model: Predicts what the traces do not have, and with it how the time of a fused kernel is shared; as ``lift``.
        limits: How large a file may be.

    Attributes:
        source: Of its prices.
        profiles: What was found, of each graph that was asked for.

    Raises:
        CostError, InputTooLargeError: A file cannot be read.
    """

    source: Source = "profile"

    def __init__(self, *traces: str | Path, model: CostModel | None = None, limits: Limits = DEFAULT_LIMITS) -> None:
        self._traces = read_traces(traces, limits)
        self._model = model
        self._digests = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in traces]
        self._times: WeakKeyDictionary[fx.Graph, Mapping[fx.Node, float]] = WeakKeyDictionary()
        self.profiles: list[Profile] = []

    def uuid(self) -> str:
        """Return what the caches of torch keep with compiled code: other traces or another model are other times.

        Raises:
            TypeError: The model is no dataclass, so nobody knows whether it is the same; then nothing is cached.
        """
        if self._model is not None and not is_dataclass(self._model):
            raise TypeError(f"{type(self._model).__name__} is no dataclass")
        return " ".join(["profile", *self._digests, repr(self._model)])

    def __call__(self, node: fx.Node) -> float | None:
        """Microseconds; ``None``: the traces do not have it."""
        if node.graph not in self._times:
            self._times[node.graph] = self._times_of(node.graph)
        return self._times[node.graph].get(node)

    def _times_of(self, graph: fx.Graph) -> Mapping[fx.Node, float]:
        lifted = lift(graph, model=self._model)
        try:
            lifted, profile = lifted_with_profile(lifted, self._traces)
        except CostError as error:
            warnings.warn(f"a graph keeps its predicted times: {error}", OverlapSchedWarning, stacklevel=2)
            return {}
        self.profiles.append(profile)
        priced = zip(lifted.nodes, lifted.prices, strict=True)
        return {node: price.time_us for node, price in priced if price.source == "profile"}


def shapes_of(node: fx.Node) -> Shapes | None:
    """Shapes of the tensors that a node takes; ``None`` where one is not known as numbers."""
    values = [n.meta.get("val") for n in tree_leaves((node.args, dict(node.kwargs))) if isinstance(n, fx.Node)]
    shapes = [tuple(value.shape) for value in tree_leaves(values) if isinstance(value, torch.Tensor)]
    known = all(type(n) is int for shape in shapes for n in shape)
    return tuple(shape for shape in shapes if shape) if known else None
