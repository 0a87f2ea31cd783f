"""DeepCompile's operators of ZeRO-3 on CPU tensors over gloo, as ``csrc/compile`` of DeepSpeed 0.19.8 has them on CUDA.

Schemas are those of ``csrc/compile/init.cpp``; what each does is ``z3.cpp`` and ``deepcompile.cpp``, for the parts that
an order can break: gathers in flight until their wait, a storage that the last release frees, gradients copied into a
bucket that is reduced when it is full or backward ends.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

SCHEMAS = (
    "allgather_param(Tensor a, int graph_id, int id, ScalarType? dtype = None) -> Tensor",
    "prefetch_params_fused(int graph_id, Tensor[] params, int[] ids, ScalarType[]? dtypes = None) -> ()",
    "wait_allgather(Tensor(a) a, int graph_id, int id) -> Tensor(a)",
    "release_param(Tensor(a) a, int graph_id, int id, int n_users) -> Tensor(a)",
    "reduce_grad(Tensor a, int graph_id, int id) -> Tensor",
    "free_tensors(Tensor[] a) -> ()",
    "offload_tensor(Tensor a, int id, int id) -> Tensor",
    "reload_tensor(Tensor a, int id, int id) -> Tensor",
    "wait_offload(Tensor a, int id, int id) -> Tensor",
    "wait_reload(Tensor a, int id, int id) -> Tensor",
    "offload_parameter(Tensor a, int id, int id) -> ()",
    "reload_parameter(Tensor a, int id, int id) -> ()",
    "end_backward(Any deps, int graph_id, bool release_reduce_buckets) -> ()",
)


@dataclass
class Parameter:
    """A parameter in shards: its shape, this rank's shard (flat, padded), and where its gradient's shard goes."""

    shape: torch.Size
    shard: torch.Tensor
    gradient: torch.Tensor


@dataclass
class Zero3:
    """What DeepCompile's executor of a process keeps. ``told``: what was done, in order: ``("gather", 3)``."""

    bucket_elements: int = 64
    ranks: int = 1
    parameters: dict[int, Parameter] = field(default_factory=dict)
    gathered: dict[int, torch.Tensor] = field(default_factory=dict)
    in_flight: dict[int, Any] = field(default_factory=dict)
    uses: dict[int, int] = field(default_factory=dict)
    bucket: list[tuple[int, torch.Tensor]] = field(default_factory=list)
    told: list[tuple[str, int]] = field(default_factory=list)

    def gather(self, one: int, dtype: torch.dtype | None) -> torch.Tensor:
        """Launch a gather into a new storage."""
        known = self.parameters[one]
        shard = known.shard.to(dtype or known.shard.dtype)
        if one not in self.gathered:
            whole = torch.full((shard.numel() * self.ranks,), float("nan"), dtype=shard.dtype)
            if self.ranks > 1:
                self.in_flight[one] = (dist.all_gather_into_tensor(whole, shard, async_op=True), shard)
            else:
                whole.copy_(shard)
            self.gathered[one] = whole
            self.told.append(("gather", one))
        return self.gathered[one][: known.shape.numel()].view(known.shape)

    def wait(self, one: int) -> None:
        """Have what follows see what was gathered."""
        if one in self.in_flight:
            self.in_flight.pop(one)[0].wait()
        self.told.append(("wait", one))

    def release(self, one: int, users: int) -> None:
        """Count a use; free the storage behind the last one."""
        left = self.uses.pop(one, users) - 1
        if left:
            self.uses[one] = left
            return
        self.gathered.pop(one).untyped_storage().resize_(0)
        self.told.append(("free", one))

    def reduce(self, one: int, gradient: torch.Tensor) -> None:
        """Copy a gradient into the bucket; reduce that first where it is full."""
        if sum(copy.numel() for _, copy in self.bucket) + gradient.numel() > self.bucket_elements:
            self.flush()
        self.bucket.append((one, gradient.clone()))

    def flush(self) -> None:
        """Reduce and scatter what is in the bucket."""
        for one, copy in self.bucket:
            into = self.parameters[one].gradient
            padded = torch.zeros(into.numel() * self.ranks, dtype=copy.dtype)
            padded[: copy.numel()] = copy.flatten()
            if self.ranks > 1:
                dist.reduce_scatter_tensor(into, padded)
            else:
                into.copy_(padded)
            self.told.append(("reduce", one))
        self.bucket.clear()


STATE = Zero3()


def start(parameters: dict[int, tuple[torch.Tensor, torch.Size]], ranks: int = 1, bucket_elements: int = 64) -> Zero3:
    """Begin anew with these parameters: per number its shard and its whole shape."""
    define()
    STATE.__init__(bucket_elements, ranks)  # type: ignore[misc]
    for one, (shard, shape) in parameters.items():
        STATE.parameters[one] = Parameter(shape, shard, torch.zeros_like(shard))
    return STATE


@cache
def define() -> torch.library.Library:
    """Register the operators, once a process; the library that keeps them."""
    library = torch.library.Library("dc", "DEF")
    for schema in SCHEMAS:
        library.define(schema)

    def wait(a: torch.Tensor, graph_id: int, one: int) -> torch.Tensor:
        STATE.wait(one)
        return a

    def release(a: torch.Tensor, graph_id: int, one: int, users: int) -> torch.Tensor:
        STATE.release(one, users)
        return a

    def reduce(a: torch.Tensor, graph_id: int, one: int) -> torch.Tensor:
        STATE.reduce(one, a)
        return a.new_empty(0)

    kernels = {
        "allgather_param": lambda a, graph_id, one, dtype=None: STATE.gather(one, dtype),
        "wait_allgather": wait,
        "release_param": release,
        "reduce_grad": reduce,
        "end_backward": lambda deps, graph_id, release_reduce_buckets: STATE.flush(),
    }
    for name, kernel in kernels.items():
        library.impl(name, kernel, "CompositeExplicitAutograd")
    return library
