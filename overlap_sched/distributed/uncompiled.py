"""Training in which nothing is compiled, so that nothing can be reordered: said once, on rank 0, after two steps.

A step is one of any optimizer. It is counted from ``enable()`` until torch compiles or the line is written; from then
on nothing runs per step.
"""

import logging
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from overlap_sched.errors import OverlapSchedWarning

STEPS = 2
NOTHING_COMPILED = (
    "overlap_sched: nothing has been compiled, so nothing can be reordered. Give the model to torch.compile, after "
    "overlap_sched.enable() and after shard()."
)


def compiled() -> bool:
    """Has Dynamo made a graph in this process, whatever became of it?"""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and utils.counters["stats"]["unique_graphs"] > 0


class Uncompiled:
    """Counts steps of eager code.

    Attributes:
        counts: Whether there is anything left to find out.
    """

    def __init__(self) -> None:
        self.counts, self._steps = True, 0

    def step(self) -> None:
        """A step has run. Never raises."""
        self._steps += 1
        if self._steps >= STEPS:
            self.tell()

    def tell(self) -> None:
        """Say it, where it is so."""
        if not self.counts:
            return
        self.counts = False
        if compiled() or (dist.is_available() and dist.is_initialized() and dist.get_rank() != 0):
            return
        try:
            warnings.warn(NOTHING_COMPILED, OverlapSchedWarning, stacklevel=3)
        except OverlapSchedWarning:  # where warnings are errors: a job is running
            logging.getLogger("overlap_sched").warning(NOTHING_COMPILED)


uncompiled = Uncompiled()
"""Of this process."""
_hooks: list[Any] = []


def watch_optimizers() -> None:
    """Count the steps of optimizers."""
    if not _hooks and uncompiled.counts:
        _hooks.append(register_optimizer_step_post_hook(_count_step))


def stop_counting() -> None:
    """Count no more: torch is about to compile, and must not find a hook of ours in an optimizer."""
    while _hooks:
        _hooks.pop().remove()


def _count_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    uncompiled.step()
    if not uncompiled.counts:
        stop_counting()
