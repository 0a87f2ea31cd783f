"""A rank's whole training step as one FX graph that runs: forward, loss, backward, and each weight updated in place.

AOTAutograd's two halves, as torch's partitioner cuts them, put together again: gathers that the model's author wants to
run again in backward do. torchtitan's GraphTrainer traces such graphs by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd

from llama_repro.training.data import part_of
from llama_repro.training.trainer import Trainer
from overlap_sched.joint.graphs import copy_of, joined
from tests.support.traced_step import with_updates


@dataclass(frozen=True)
class Step:
    """One rank's step.

    Attributes:
        gm: Takes weights, a batch and the loss's own gradient; returns the loss, and changes the weights.
        inputs: Of the first batch; the weights are those before the first step.
    """

    gm: fx.GraphModule
    inputs: Sequence[Any]

    def fresh(self) -> tuple[fx.GraphModule, list[Any]]:
        """A graph to rewrite, and inputs that it may change."""
        return copy_of(self.gm), [_copied(x) for x in self.inputs]


@dataclass
class _Seen:
    """What passes through the compiler."""

    outputs: int = 0
    halves: dict[str, fx.GraphModule] = field(default_factory=dict)
    inputs: list[Any] = field(default_factory=list)

    def cut(self, gm: fx.GraphModule, joint_inputs: Any, **given: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        self.outputs = given["num_fwd_outputs"]
        halves: tuple[fx.GraphModule, fx.GraphModule] = min_cut_rematerialization_partition(gm, joint_inputs, **given)
        return halves

    def forward(self, gm: fx.GraphModule, _: object) -> Callable[..., Any]:
        self.halves["forward"] = copy_of(gm)

        def run(*inputs: Any) -> Any:
            self.inputs = [_copied(x) for x in inputs]
            return gm(*inputs)

        boxed: Callable[..., Any] = make_boxed_func(run)
        return boxed

    def backward(self, gm: fx.GraphModule, _: object) -> Callable[..., Any]:
        self.halves["backward"] = copy_of(gm)
        boxed: Callable[..., Any] = make_boxed_func(gm.forward)
        return boxed


def whole_step(trainer: Trainer) -> Step:
    """Trace a rank's step, by running it once; every rank calls it."""
    seen = _Seen()
    compilers = {"fw_compiler": seen.forward, "bw_compiler": seen.backward, "partition_fn": seen.cut}
    torch.compiler.reset()
    compiled = torch.compile(trainer.model, fullgraph=True, dynamic=False, backend=aot_autograd(**compilers))
    compiled(*batch_of(trainer, 0), *trainer.rotation).backward()
    for parameter in trainer.model.parameters():
        parameter.grad = None
    gm, _ = joined(seen.halves["forward"], seen.halves["backward"], seen.outputs)
    _without_meshes(gm.graph)
    return Step(with_updates(gm), [*seen.inputs, torch.ones(())])


def _without_meshes(graph: fx.Graph) -> None:
    """What stands for the gradient of a sharded weight's mesh is that mesh: nothing to update by."""
    output = graph.output_node()
    (returned,) = output.args
    assert isinstance(returned, tuple)
    output.args = (tuple(None if getattr(node, "op", "") == "placeholder" else node for node in returned),)


def _copied(value: Any) -> Any:
    """A tensor of its own; meshes are inputs, too, and stay."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def batch_of(trainer: Trainer, number: int) -> tuple[Tensor, ...]:
    """A rank's batch of a step."""
    at = number * trainer.config.fsdp + trainer.place.fsdp_rank
    return tuple(part_of(trainer.data.batch(at), trainer.place.tp_rank, trainer.config.tp))
