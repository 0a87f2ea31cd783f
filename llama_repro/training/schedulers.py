"""Who orders the compiled graphs: nobody, overlap_sched, or torch's own pass."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

import torch
from torch import fx
from torch._inductor import config as inductor

import overlap_sched
from llama_repro.training.calibrate import device_of
from overlap_sched.cost import Collective, Roofline
from overlap_sched.cost.table import TableModel
from overlap_sched.errors import OptionsError
from overlap_sched.inductor.gloo import safe_gathers
from overlap_sched.options import Options
from overlap_sched.problem import Group

Scheduler = Literal["none", "overlap_sched", "torch"]
SCHEDULERS: tuple[Scheduler, ...] = ("none", "overlap_sched", "torch")
_BEHIND_FUSION = "reorder_for_compute_comm_overlap"
"""The settings of a pass behind fusion start so; the others that ``inductor_options`` has switch off torch's."""
_PRICED = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce")


@contextmanager
def scheduling(
    scheduler: Scheduler, options: Options, model: Roofline | TableModel | None, *, on_gpu: bool, predict: bool = False
) -> Iterator[None]:
    """What is compiled inside is ordered by ``scheduler``.

    Args:
        scheduler: Who.
        options: Of overlap_sched.
        model: Times of compute and collectives, for overlap_sched and for torch's pass on a CPU.
        on_gpu: Whether torch's pass can ask the GPU for its figures.
        predict: With ``none``: let overlap_sched read each graph (not reorder it) for its figures. (What torch's pass
            has ordered cannot be read: its dependencies hide the collectives.)

    Raises:
        OptionsError: There is no such scheduler, or this torch has no overlap pass.
    """
    if scheduler not in SCHEDULERS:
        raise OptionsError(f"scheduler is {scheduler!r}; it is one of {', '.join(SCHEDULERS)}.")
    with ExitStack() as stack:
        if scheduler != "none":
            stack.enter_context(safe_gathers())
        if scheduler == "overlap_sched":
            stack.enter_context(overlap_sched.enabled(options, model=model))
        elif scheduler == "torch":
            stack.enter_context(_torch_pass(model, on_gpu))
        elif predict:
            stack.enter_context(_reading(model))
        yield


def _reading(model: Roofline | TableModel | None) -> Any:
    """A pass with no effort keeps every order, and reports its figures."""
    wanted = overlap_sched.inductor_options(Options(effort=0, agreement="none"), model=model)
    return inductor.patch({name: value for name, value in wanted.items() if name.startswith(_BEHIND_FUSION)})


@contextmanager
def _torch_pass(model: Roofline | TableModel | None, on_gpu: bool) -> Iterator[None]:
    """The overlap pass of torch, with the dependencies that keep its order in the generated code.

    On a CPU it is given what it would ask a GPU: rates of compute and memory, times of collectives, by ``model``.
    """
    known = inductor.get_config_copy()
    prefix = "aten_distributed_optimizations."
    wanted: dict[str, Any] = {"enable_overlap_scheduling": True, "insert_overlap_deps": True}
    if not on_gpu:
        wanted |= {"compute_estimator": "analytical", "pre_bucketing_fsdp_collectives": False}
        wanted |= {"custom_runtime_estimation": None if model is None else CollectiveTimes(model)}
    if any(prefix + name not in known for name in wanted):
        raise OptionsError(
            f"--scheduler torch: torch {torch.__version__} has no overlap pass that runs here. "
            f"Use torch 2.13{'' if on_gpu else ' or a GPU'}, or another scheduler."
        )
    rates = device_of(model or Roofline())
    with ExitStack() as stack:
        stack.enter_context(inductor.patch({prefix + name: value for name, value in wanted.items()}))
        if not on_gpu:
            there = "torch.utils._runtime_estimation."
            stack.enter_context(mock.patch(there + "get_gpu_dram_gbps", return_value=rates.bytes_per_s / 1e9))
            stack.enter_context(mock.patch(there + "get_device_tflops", return_value=rates.flops_per_s / 1e12))
        yield


@dataclass(frozen=True)
class CollectiveTimes:
    """Milliseconds of a collective by our model, which knows gloo; ``None``, for all else, leaves it to torch's pass.

    A class of its own, so that torch can hash its settings for its caches.
    """

    model: Roofline | TableModel

    def __call__(self, node: fx.Node, override_bytes: int | None = None) -> float | None:
        """As torch's ``custom_runtime_estimation`` is called."""
        op = str(getattr(node.target, "_opname", ""))
        if getattr(node.target, "namespace", "") != "_c10d_functional" or not op.startswith(_PRICED):
            return None
        sent, received = node.args[0].meta["val"], node.meta["val"]
        smaller, larger = sorted((sent.nbytes, received.nbytes))
        group = Group(max(2, larger // max(1, smaller)), True)
        nbytes = larger if override_bytes is None else override_bytes
        return self.model.collective_us(Collective(op, nbytes, group)) / 1e3
