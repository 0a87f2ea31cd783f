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
            name, of = called(node), node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
            if of is None:
                continue
            if name == "allgather_param":
                like = next((one.meta[VAL] for one in (node, of) if isinstance(one.meta.get(VAL), torch.Tensor)), None)
                if like is None:  # how large it is nobody knows: what is read of it says so
                    continue
                node.meta[VAL] = torch.empty(like.shape, dtype=like.dtype, device=like.device)
                if of.op == "placeholder":
                    of.meta[VAL] = torch.empty(0, dtype=like.dtype, device=like.device)
            elif name in ("wait_allgather", "release_param") and VAL in of.meta:
                node.meta[VAL] = of.meta[VAL]
            elif name == "reduce_grad" and isinstance(of.meta.get(VAL), torch.Tensor):
                node.meta[VAL] = torch.empty(0, dtype=of.meta[VAL].dtype, device=of.meta[VAL].device)
