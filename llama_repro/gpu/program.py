"""A captured graph in one order, run node by node; every value is let go of as soon as a running job would.

When values die is found from the graph alone, not from the lifted problem's storages: a value dies after its last
user; what a collective takes dies no earlier than its wait (the process group holds it until then); pinned inputs stay.
So a peak that is counted here checks the problem's.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from llama_repro.gpu.streams import Streams, Ticket
from overlap_sched.fx import Lifted
from overlap_sched.problem import Kind, Order

_ATEN = torch.ops.aten
_FLASH = _ATEN._scaled_dot_product_flash_attention.default
_FLASH_BACKWARD = _ATEN._scaled_dot_product_flash_attention_backward.default

_SCALE = 0.02
"""Standard deviation of what is drawn: small enough that products over thousands of terms stay finite in bf16."""

Observe = Callable[[fx.Node, dict[fx.Node, Any]], None]
"""Called after each node has run and before anything dies, with all values alive."""


class Step(NamedTuple):
    """One node to run, and the nodes whose values die when it has run."""

    node: fx.Node
    kind: Kind
    dies: tuple[fx.Node, ...]


class Program:
    """A lifted graph in an order.

    Attributes:
        steps: What to run, inputs left out.
        us: Per launch node, how long its collective is to take (microseconds).
    """

    def __init__(self, lifted: Lifted, order: Order) -> None:
        problem, nodes = lifted.problem, lifted.nodes
        self._inputs = [node for node in nodes if node.op == "placeholder"]
        self._launch = {
            nodes[v]: nodes[wait.collective] for v, wait in enumerate(problem.nodes) if wait.collective is not None
        }
        self._group = {nodes[v]: problem.nodes[v].group or "" for v in problem.collectives}
        self.us = {nodes[v]: problem.nodes[v].time_us for v in problem.collectives}
        run = [v for v in order if nodes[v].op != "placeholder"]
        pinned = {s for s, storage in enumerate(problem.storages) if storage.pinned}
        kept = {
            nodes[v] for v, node in enumerate(problem.nodes) if node.kind is Kind.INPUT and pinned & set(node.alloc)
        }
        dies: dict[fx.Node, list[fx.Node]] = {}
        for value, last in self._last_uses([nodes[v] for v in run]).items():
            if value not in kept:
                dies.setdefault(last, []).append(value)
        self.steps = tuple(Step(nodes[v], problem.nodes[v].kind, tuple(dies.get(nodes[v], ()))) for v in run)

    def _last_uses(self, run: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
        """Per value that is made or used by what runs, the node after which it dies."""
        last: dict[fx.Node, fx.Node] = {}
        for node in run:
            last[node] = node
            last.update(dict.fromkeys(node.all_input_nodes, node))
            launch = self._launch.get(node)
            if launch is not None:
                last.update(dict.fromkeys(launch.all_input_nodes, node))
        return last

    def run(self, inputs: list[Any], streams: Streams, observe: Observe | None = None) -> Any:
        """Run it; ``inputs`` are those of the graph in its order, and the list is emptied.

        Returns:
            What the graph returns.
        """
        env: dict[fx.Node, Any] = dict(zip(self._inputs, inputs, strict=True))
        inputs.clear()
        tickets: dict[fx.Node, Ticket] = {}
        result = None
        for node, kind, dies in self.steps:
            if kind is Kind.OUTPUT:
                result = env[node] = fx.map_arg(node.args[0], env.__getitem__)
            elif kind is Kind.COLLECTIVE:
                env[node], tickets[node] = self._launched(node, env, streams)
            else:
                if kind is Kind.WAIT and node in self._launch:
                    streams.wait(tickets.pop(self._launch[node]))
                env[node] = _evaluated(node, env, streams.device)
            if observe is not None:
                observe(node, env)
            for value in dies:
                env.pop(value, None)
        streams.finish()
        return result

    def _launched(self, node: fx.Node, env: dict[fx.Node, Any], streams: Streams) -> tuple[torch.Tensor, Ticket]:
        """The output of a collective, allocated on the compute stream as NCCL's is, and what to wait for."""
        taken, value = env[node.all_input_nodes[0]].view(-1), node.meta["val"]
        out = torch.empty(value.size(), dtype=value.dtype, device=streams.device)
        return out, streams.launch(node, self._group[node], lambda: emulate(taken, out.view(-1)), self.us[node])


def emulate(taken: torch.Tensor, out: torch.Tensor) -> None:
    """Copy what moves: what is gathered as often as it fits, of what is scattered the first part."""
    if out.numel() > taken.numel():
        out.view(-1, taken.numel()).copy_(taken)
    else:
        out.copy_(taken[: out.numel()])


def _evaluated(node: fx.Node, env: dict[fx.Node, Any], device: torch.device) -> Any:
    if node.target is torch.ops._c10d_functional.wait_tensor.default:
        return env[node.all_input_nodes[0]]  # the emulated collective is known to no process group
    args, kwargs = fx.map_arg((node.args, node.kwargs), env.__getitem__)
    if "device" in kwargs:
        kwargs = {**kwargs, "device": device}
    if device.type == "cpu" and node.target is _FLASH_BACKWARD:
        return _attention_backward_on_cpu(node, args)
    if device.type == "cpu" and node.target is _FLASH:
        return _attention_on_cpu(node, args)
    target: Any = node.target
    return target(*args, **kwargs)


def _attention_on_cpu(node: fx.Node, args: Sequence[Any]) -> tuple[Any, ...]:
    """The CPU's own operator; its results laid out as the GPU's are, and what it lacks (seeds) as zeros."""
    own = _ATEN._scaled_dot_product_flash_attention_for_cpu(*args[:5])
    like, *others = node.meta["val"]
    out = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype).copy_(own[0])
    rest = (torch.zeros(x.size(), dtype=x.dtype) if isinstance(x, torch.Tensor) else x for x in others[1:])
    return out, own[1], *rest


def _attention_backward_on_cpu(node: fx.Node, args: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """The CPU's own operator; its results laid out as the GPU's are."""
    gradients = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(*args[:6], *args[10:12])
    layouts = node.meta["val"]
    return tuple(
        torch.empty_strided(like.size(), like.stride(), dtype=like.dtype).copy_(gradient)
        for like, gradient in zip(layouts, gradients, strict=True)
    )


def random_inputs(placeholders: Sequence[fx.Node], device: torch.device, tokens: int, seed: int = 0) -> list[Any]:
    """Values for placeholders by their ``meta["val"]``: the same for the same seed and device.

    Args:
        placeholders: The inputs of a graph, in its order.
        device: Where to make them.
        tokens: Integers are drawn below this: they are indices of the vocabulary.
        seed: Of the random numbers.
    """
    generator = torch.Generator(device).manual_seed(seed)
    return [_random(node.meta["val"], device, tokens, generator) for node in placeholders]


def _random(like: Any, device: torch.device, tokens: int, generator: torch.Generator) -> Any:
    if not isinstance(like, torch.Tensor):
        return like
    made = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=device)
    if made.is_complex() or made.is_floating_point():
        return made.normal_(0.0, _SCALE, generator=generator)
    if made.dtype is torch.int64:
        return made.random_(0, tokens, generator=generator)
    return made.zero_()  # seeds of attention without dropout


def live_bytes(values: Iterable[Any]) -> int:
    """Bytes of the distinct storages behind tensors, however many look at one."""
    storages = {}
    for leaf in tree_leaves(list(values)):
        if isinstance(leaf, torch.Tensor):
            storage = leaf.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def same_bits(one: Any, other: Any) -> bool:
    """Whether two results are bitwise the same, not-a-numbers too."""
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(_same_bits(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8))
