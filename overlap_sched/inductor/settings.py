"""How graphs are scheduled while a plug-in is on."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from overlap_sched.cost import CostModel, Roofline
from overlap_sched.cost.cluster import ASSUMED, Cluster, cluster_given, read_cluster
from overlap_sched.cost.model import check_model
from overlap_sched.distributed import TIMEOUT_S
from overlap_sched.errors import OptionsError
from overlap_sched.fit.answer import Question
from overlap_sched.fx.costs import Cost
from overlap_sched.inductor.reporting import Stage
from overlap_sched.options import Options, options_given
from overlap_sched.problem.precedence import Preserve

_NO_SWITCH = ("PCIE", "NVL")
"""Words of GPUs that are not on a board with the switches of those nodes."""


@dataclass(frozen=True)
class Settings:
    """How graphs are scheduled while a plug-in is on.

    Attributes:
        options: How to schedule.
        stage: ``"inductor"`` (default): after fusion, where an order survives to the generated code. ``"post_grad"``:
            on the FX graph before lowering. ``"backend"``, ``"titan"``, ``"deepspeed"``: on the FX graph that runs.
        cost: Microseconds of an FX node, or ``None`` to leave it to ``model``. With a function torch compiles without
            its caches, unless it has a ``uuid()``.
        model: Cost model; by default see ``cluster``.
        ranks_per_node: Consecutive ranks that share a node; a cluster has its own.
        cluster: Where the job runs: a file, or the name of one that is shipped (``"dgx-h100"``). It prices all that
            ``cost`` and ``model`` leave open, places process groups, and says what they cost each other. By default,
            without a ``model``, the shipped nodes of this process's GPU, see
            :func:`cluster_here`; where there are none, an H100 in nodes of eight.
        ranks: Those who compile the graphs that this one does and must agree with it, the same on each of them; by
            default all. For pipelines, where each stage has graphs of its own.
        timeout_s: How long to wait for them (seconds), see :data:`overlap_sched.distributed.TIMEOUT_S`.
        memory_limit: Of forward and backward; what is saved for backward, and what runs again there, is chosen for it
            (:mod:`overlap_sched.inductor.partitioning`), and the order of each is to run there, as with
            ``Options.memory_limit`` (but for percent: they are of the peak of torch's own choice). ``None``: that is
            left to torch, unless ``max_slowdown`` is given.
        max_slowdown: Or for the lowest peak within this: 0.05 for five percent. ``None``: see above.
        notes: What was switched off for it; goes into the reports.
        graph: Ranks meet under it, where a job has graphs that may be alike; ``""``: their operators tell them apart.
        follows: It is switched off: only what launches in a new sequence elsewhere is ordered, as that says.
    """

    options: Options = field(default_factory=Options)
    stage: Stage = "inductor"
    cost: Cost | None = None
    model: CostModel | None = None
    ranks_per_node: int = 8
    cluster: Cluster | str | Path | None = None
    ranks: Sequence[int] | None = None
    timeout_s: float = TIMEOUT_S
    memory_limit: int | str | None = None
    max_slowdown: float | None = None
    notes: tuple[str, ...] = ()
    graph: str = ""
    follows: bool = False

    def __post_init__(self) -> None:
        """Reads the cluster's file, now and not in the middle of a job; raises as :func:`read_cluster` does.

        Raises:
            OptionsError: ``memory_limit`` and ``max_slowdown`` are none of :class:`overlap_sched.joint.Question`, or
                another value cannot be.
        """
        options_given(self.options)
        check_model(self.model)
        if self.cost is not None and not callable(self.cost):
            raise OptionsError(f"cost is {self.cost!r}; it is a function from an FX node to microseconds, or None.")
        if type(self.ranks_per_node) is not int or self.ranks_per_node < 1:
            raise OptionsError(f"ranks_per_node is {self.ranks_per_node!r}; it is a whole number of 1 or more.")
        if isinstance(self.timeout_s, bool) or not isinstance(self.timeout_s, int | float) or self.timeout_s <= 0:
            raise OptionsError(f"timeout_s is {self.timeout_s!r}; it is a number of seconds above 0.")
        if torch.version.hip and self.options.concurrent_groups == "any":  # RCCL hangs with some
            object.__setattr__(self, "options", replace(self.options, concurrent_groups="disjoint"))
        if self.fits:
            Question(self.memory_limit, self.max_slowdown)
        if self.memory_limit is not None and "%" not in str(self.memory_limit):  # percent are of forward and backward
            object.__setattr__(self, "options", replace(self.options, memory_limit=self.memory_limit))
        if self.cluster is not None:
            object.__setattr__(self, "cluster", cluster_given(self.cluster))

    @property
    def fits(self) -> bool:
        """Tell whether cuts are chosen, too."""
        return self.memory_limit is not None or self.max_slowdown is not None

    @property
    def costs(self) -> dict[str, Any]:
        """The arguments with which a graph is lifted."""
        return {"cost": self.cost, "model": self.model, "ranks_per_node": self.ranks_per_node, "cluster": self.where}

    def preserving(self, order: Preserve) -> "Settings":
        """The same with this order of launches kept, and no rewrites."""
        return replace(self, options=replace(self.options, preserve_collective_order=order, rewrites=()))

    @property
    def where(self) -> Cluster | None:
        """The cluster that prices are for; ``None``: the cost model says it."""
        if self.cluster is None:
            return cluster_here() if self.model is None else None
        return cluster_given(self.cluster)

    @property
    def priced_for(self) -> str:
        """For which device or cluster times are predicted: the cost model's device or its name, for people."""
        model: Any = self.model or self.where or Roofline()
        device = model if isinstance(model, Cluster) else getattr(model, "device", model)
        name = getattr(device, "name", None) or type(model).__name__
        return f"{name}{'' if self.cost is None else ' and your costs'}"


def cluster_here() -> Cluster | None:
    """The shipped cluster whose nodes have this process's GPU; ``None``: none has it, or CUDA has not been started.

    CUDA is never started for it: that takes memory on a GPU which the job may not have chosen yet. Where a graph on a
    GPU is compiled it has been.
    """
    return _cluster_of(torch.cuda.get_device_name()) if torch.cuda.is_initialized() else None


@cache
def _cluster_of(gpu: str) -> Cluster | None:
    words = re.findall(r"[A-Za-z0-9]+", gpu)
    with_switch = not any(word in map(str.upper, words) for word in _NO_SWITCH)
    return next((read_cluster(name) for word, name in ASSUMED.items() if with_switch and word in words), None)
