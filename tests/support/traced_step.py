"""A whole training step as one FX graph, on fake tensors: forward, loss, backward, and each weight updated in place.

MAGIS's step (``setup_training_graph`` and ``OpGraph.backward`` of its repository): the loss is the sum of squared
differences, and a weight takes its gradient at once, so that gradients do not pile up. Here the update comes right
behind the last of what makes the gradient and what reads the weight. The graph is AOTAutograd's joint graph, operator
by operator as eager PyTorch runs them.

Training steps small enough to run on real tensors, traced as MAGIS's workloads are.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn import functional

from overlap_sched.cost import RTX_3090, RTX_3090_TF32, Device

_LEARNING_RATE = 0.01
_ADD = torch.ops.aten.add_.Tensor


@dataclass(frozen=True)
class Workload:
    """One network and its batch.

    Attributes:
        name: In tables, and of the problem.
        build: Makes the network; on the meta device nothing is allocated.
        shape: Of the input, batch first.
        weights: How many weights it has.
        dtype: Of all tensors. float32 multiplies in TF32.
    """

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    weights: int
    dtype: torch.dtype = torch.float32

    @property
    def device(self) -> Device:
        """What it is priced for."""
        return RTX_3090 if self.dtype is torch.bfloat16 else RTX_3090_TF32


class Block(nn.Module):
    """One layer: attention and a multilayer perceptron four times as wide, each behind a layer norm and around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.project = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.widen, self.narrow = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """``(batch, sequence, width)`` in and out."""
        hidden = hidden + self._attention(functional.layer_norm(hidden, hidden.shape[-1:]))
        inner = self.widen(functional.layer_norm(hidden, hidden.shape[-1:]))
        return hidden + self.narrow(torch.relu(inner))

    def _attention(self, hidden: Tensor) -> Tensor:
        batch, sequence, width = hidden.shape
        by_head = (batch, sequence, self.heads, width // self.heads)
        query, key, value = (
            matrix(hidden).view(by_head).transpose(1, 2) for matrix in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        out = torch.softmax(scores, -1) @ value
        return self.project(out.transpose(1, 2).reshape(batch, sequence, width))


def language_model(layers: int, width: int, heads: int) -> nn.Module:
    """``(batch, sequence, width)`` in and out."""
    return nn.Sequential(*(Block(width, heads) for _ in range(layers)))


def repeated_pixels(images: Tensor) -> Tensor:
    """Each pixel four times, in one copy, as ``interpolate`` on a GPU; on a CPU that would be traced as indexing."""
    batch, channels, height, width = images.shape
    repeated = images[:, :, :, None, :, None].expand(batch, channels, height, 2, width, 2)
    return repeated.reshape(batch, channels, 2 * height, 2 * width)


def joint_graph(workload: Workload) -> fx.GraphModule:
    """Forward and backward: ``primals_*`` (weights, input, target) and ``tangents_1`` in; loss and gradients out."""
    with torch.device("meta"):
        model = workload.build().to(workload.dtype)
        shape = model(torch.empty(workload.shape, dtype=workload.dtype)).shape
    names = [name for name, _ in model.named_parameters()]
    with FakeTensorMode():
        weights = [torch.empty(p.shape, dtype=p.dtype, requires_grad=True) for p in model.parameters()]
        given, target = (torch.empty(size, dtype=workload.dtype) for size in (workload.shape, shape))

    def step(*flat: Tensor) -> tuple[Tensor]:
        out = functional_call(model, dict(zip(names, flat, strict=False)), (flat[-2],))
        return (((out - flat[-1]) ** 2).sum(),)

    joint = aot_export_joint_simple(step, (*weights, given, target), trace_joint=True)
    assert isinstance(joint, fx.GraphModule)
    for check in joint.graph.find_nodes(op="call_function", target=torch.ops.aten._assert_tensor_metadata.default):
        joint.graph.erase_node(check)  # of types only, and of nothing that runs
    _split_convolutions(joint.graph)
    joint.graph.eliminate_dead_code()
    return joint


def _split_convolutions(graph: fx.Graph) -> None:
    """The gradients of a convolution's weight and of its input are two steps, as in MAGIS.

    The weight's comes first, so that what forward saved for it is gone before the other one takes its memory. That
    needs no input, only its shape: ``torch.nn.grad.conv2d_input`` gives the operator one element that is expanded, and
    so does this.
    """
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default):
        gradient, given, *rest, mask = node.args
        for part in sorted(node.users, key=lambda user: user.args[1], reverse=True):
            assert part.target is operator.getitem, "an operator that returns three tensors is indexed"
            which = part.args[1]
            if not mask[which]:
                continue
            with graph.inserting_before(node):
                image = _shape_of(graph, given, rest[0]) if which == 0 else given
                alone = graph.call_function(node.target, (gradient, image, *rest, [k == which for k in range(3)]))
            alone.meta["val"] = tuple(value if k == which else None for k, value in enumerate(node.meta["val"]))
            part.update_arg(0, alone)
            alone.append(part)


def _shape_of(graph: fx.Graph, given: fx.Node, like: fx.Node) -> fx.Node:
    """A value of this shape that takes one element."""
    element = graph.call_function(torch.ops.aten.new_empty.default, (like, [1]))
    element.meta["val"] = like.meta["val"].new_empty([1])
    shape = list(given.meta["val"].shape)
    expanded = graph.call_function(torch.ops.aten.expand.default, (element, shape))
    expanded.meta["val"] = element.meta["val"].expand(shape)
    return expanded


def with_updates(joint: fx.GraphModule) -> fx.GraphModule:
    """The joint graph as a step: gradients go into the weights, and only the loss comes out. Changes ``joint``."""
    graph = joint.graph
    output = graph.output_node()
    assert isinstance(output.args[0], Sequence)
    loss, *gradients = output.args[0]
    output.args = ((loss,),)
    graph.set_codegen(fx.graph.CodeGen())  # the joint graph's own gives back what autograd returns
    primals = [node for node in graph.find_nodes(op="placeholder") if node.name.startswith("primals")]
    last = _last_readers(graph)
    at = {node: position for position, node in enumerate(graph.nodes)}
    for weight, gradient in zip(primals, gradients, strict=True):
        if gradient is None:  # of the input and the target
            continue
        behind = max(gradient, last[_storage(weight)], key=at.__getitem__)
        with graph.inserting_after(behind):
            update = graph.call_function(_ADD, (weight, gradient), {"alpha": -_LEARNING_RATE})
        update.meta["val"] = weight.meta["val"]
    graph.lint()
    return joint


def _last_readers(graph: fx.Graph) -> dict[int, fx.Node]:
    """Per storage, the last node that reads it, under whatever name."""
    last: dict[int, fx.Node] = {}
    for node in graph.nodes:
        if node.op != "output":
            last.update({_storage(n): node for n in (node, *node.all_input_nodes) if isinstance(n.meta["val"], Tensor)})
    return last


def _storage(node: fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


class Images(nn.Module):
    """One level down and up again, beside it what was there; all kinds of layers that nets of images have."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.norm, self.last = nn.GroupNorm(2, 8), nn.Conv2d(24, 3, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """``(batch, 3, height, width)`` in and out."""
        level = torch.relu(self.norm(self.first(images)))
        below = functional.max_pool2d(repeated_pixels(torch.relu(self.inner(level))), 2)
        return torch.sigmoid(self.last(torch.cat([level, repeated_pixels(below)], 1)))


TINY = Workload("tiny", lambda: language_model(2, 32, 4), (4, 16, 32), 2 * 12 * 32 * 32)
"""Two layers of width 32."""
TINY_IMAGES = Workload("tiny images", Images, (4, 3, 16, 16), 2_067)
"""A net of images with one level."""


def tiny_inputs(workload: Workload = TINY) -> tuple[list[Tensor], list[Tensor]]:
    """Its weights, and its input and target; the same in every call."""
    torch.manual_seed(0)
    weights = [weight.detach() for weight in workload.build().parameters()]
    return weights, [torch.randn(workload.shape), torch.randn(workload.shape)]


def run_step(step: fx.GraphModule, weights: Sequence[Tensor], batch: Sequence[Tensor]) -> Tensor:
    """Run a step as a graph; the weights are changed. Returns the loss."""
    with torch.no_grad():
        (loss,) = fx.Interpreter(step).run(*weights, *batch, torch.ones(()))
    return loss
