"""Operators of ``torch.ops`` by name: those of this torch, stand-ins for newer ones, and marks for those it lacks.

Stand-ins let an older torch read dumps that hold operators of a newer one, or of vLLM. They are registered under this
package's own name, when a dump first asks for one: the other namespaces say what is installed here.
"""

import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

import torch
import torch._higher_order_ops.flex_attention  # registers its operators
import torch._higher_order_ops.triton_kernel_wrap

# where ops of torch itself are registered that are not there after `import torch`
_REGISTERING_MODULES = {
    "prims": "torch._inductor.inductor_prims",
    "_c10d_functional": "torch.distributed._functional_collectives",
    "_c10d_functional_autograd": "torch.distributed._functional_collectives",
    "bucketing": "torch._inductor.fx_passes.bucketing",
    "fsdp": "torch.distributed.fsdp._fully_shard._fsdp_collectives",
    "symm_mem": "torch.distributed._symmetric_memory",
    "_dtensor": "torch.distributed.tensor._collective_utils",
    "inductor": "torch._inductor.inductor_prims",
    "quantized_decomposed": "torch.ao.quantization.fx._decomposed",
    "streams": "torch._dynamo.variables.streams",
    "rngprims": "torch._prims.rng_prims",
}
_SCHEMAS = {
    ("_c10d_functional", "wait_tensors"): "wait_tensors(Tensor[] tensors) -> Tensor[]",  # torch 2.15
    ("vllm", "all_reduce"): "vllm_all_reduce(Tensor tensor, str group_name) -> Tensor",
    ("vllm", "all_gather"): "vllm_all_gather(Tensor tensor, int dim, int world_size, str group_name) -> Tensor",
    ("vllm", "reduce_scatter"): "vllm_reduce_scatter(Tensor tensor, int dim, int world_size, str group_name) -> Tensor",
}


class UnknownOp:
    """Stands in a graph for an operator that this torch build does not have; it cannot be called."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = "torch.ops"

    def __repr__(self) -> str:
        return f"torch.ops.{self.__name__}"  # Python: torch compiles what it prints of a graph

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise: there is no kernel."""
        raise NotImplementedError(f"{self.__name__} is not known to this torch build")


def operator_named(parts: Sequence[str]) -> Any:
    """The operator called ``torch.ops.`` and these parts, or an :class:`UnknownOp`."""
    if parts[0] == "higher_order":
        found = getattr(torch.ops.higher_order, parts[1], None) if len(parts) == 2 else None
        found = found if isinstance(found, torch._ops.HigherOrderOperator) else None
    else:
        found = _in_torch(*parts) or stand_in(*parts)
    return UnknownOp(".".join(parts)) if found is None else found


def _in_torch(namespace: str, name: str, overload: str | None = None) -> Any:
    """An operator of the dispatcher, or None.

    Operators that only TorchScript's interpreter has (``aten::save`` writes files) are not operators here: fake
    tensors do not guard them.
    """
    if namespace in _REGISTERING_MODULES:
        try:
            importlib.import_module(_REGISTERING_MODULES[namespace])
        except ImportError:
            return None
    packet = getattr(getattr(torch.ops, namespace, None), name, None)
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    found = packet if overload is None else getattr(packet, overload, None)
    if not isinstance(found, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return None
    overloads = packet.overloads() if overload is None else [overload]
    in_dispatcher = [_in_dispatcher(f"{namespace}::{name}", o) for o in overloads]
    return found if overloads and all(in_dispatcher) else None


def _in_dispatcher(name: str, overload: str) -> bool:
    try:
        torch._C._dispatch_find_schema_or_throw(name, "" if overload == "default" else overload)
    except RuntimeError:
        return False
    return True


def stand_in(namespace: str, name: str, overload: str | None = None) -> Any:
    """Return what stands for an operator that this torch does not have; ``None``: nothing does."""
    if (namespace, name) not in _SCHEMAS or overload not in (None, "default"):
        return None
    _register()
    packet = getattr(torch.ops.overlap_sched, _SCHEMAS[namespace, name].partition("(")[0])
    return packet if overload is None else packet.default


@cache
def _register() -> torch.library.Library:
    """Define them all; they exist as long as what this returns, which the cache keeps."""
    library = torch.library.Library("overlap_sched", "DEF")
    for schema in _SCHEMAS.values():
        library.define(schema)
    library.impl("wait_tensors", list, "Meta")  # as torch 2.15 has it: the tensors themselves
    library.impl("vllm_all_reduce", lambda tensor, _: torch.empty_like(tensor), "Meta")
    library.impl("vllm_all_gather", lambda tensor, dim, ranks, _: torch.cat([tensor] * ranks, dim), "Meta")
    library.impl("vllm_reduce_scatter", lambda tensor, dim, ranks, _: tensor.chunk(ranks, dim)[0].clone(), "Meta")
    return library
