"""What DeepCompile's operators give, as ``meta["val"]``, which its graphs leave out or leave stale.

| node | as DeepCompile leaves it | as it is |
| --- | --- | --- |
| a parameter | its full shape, or nothing | the shard: nothing that a graph makes or frees |
| ``allgather_param`` | a cast of the parameter's: often the same storage | a new storage of the full shape |
| ``wait_allgather``, ``release_param`` | the gather's; ``None`` | what they are given |
| ``reduce_grad`` | ``None`` | nothing, new (``csrc/compile/deepcompile.cpp``) |
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensor, FakeTensorMode

VAL = "val"
_MISSING = object()


@contextmanager
def zero3_values(graph: fx.Graph) -> Iterator[None]:
    """Give the nodes of a graph of ZeRO-3 their true values inside the block, and back what they had behind it."""
    kept = [(node, node.meta.get(VAL, _MISSING)) for node in graph.nodes]
    try:
        _give(graph)
        yield
    finally:
        for node, val in kept:
            if val is _MISSING:
                node.meta.pop(VAL, None)
            else:
                node.meta[VAL] = val


def called(node: fx.Node) -> str:
    """Return which of DeepCompile's operators a node calls: ``"allgather_param"``; ``""``: none."""
    target = node.target
    is_one = node.op == "call_function" and isinstance(target, OpOverload) and target.namespace == "dc"
    return target.overloadpacket.__name__ if is_one else ""


def _give(graph: fx.Graph) -> None:
    mode = next((node.meta[VAL].fake_mode for node in graph.nodes if isinstance(node.meta.get(VAL), FakeTensor)), None)
    with mode or FakeTensorMode():
        for node in graph.nodes:
            name = called(node)
            if name == "allgather_param":
                parameter = node.args[0]
                node.meta[VAL] = _like(node.meta.get(VAL), parameter.meta.get(VAL))
                if parameter.op == "placeholder":
                    parameter.meta[VAL] = torch.empty(0, dtype=node.meta[VAL].dtype, device=node.meta[VAL].device)
            elif name in ("wait_allgather", "release_param"):
                node.meta[VAL] = node.args[0].meta.get(VAL)
            elif name == "reduce_grad":
                gradient = node.args[0].meta[VAL]
                node.meta[VAL] = torch.empty(0, dtype=gradient.dtype, device=gradient.device)


def _like(gathered: Any, parameter: Any) -> torch.Tensor:
    """Return a new tensor of the shape that a gather gives."""
    of = gathered if isinstance(gathered, torch.Tensor) else parameter
    return torch.empty(of.shape, dtype=of.dtype, device=of.device)
