"""Graphs to dump: traced by torch over a fake process group of 64 ranks, and written by torch itself."""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch._dynamo.repro.after_aot import save_graph_repro
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.distributed.fake_pg import FakeStore

from overlap_sched.dump.load import Dump, load_dump

RANKS = 64
INSIDE = 8


def loaded(folder: Path, text: str, name: str = "dump.py", **options: Any) -> Dump:
    """A dump of this text, loaded as the user's would be."""
    path = folder / name
    path.write_text(text)
    return load_dump(path, **options)


def values(dump: Dump) -> dict[str, Any]:
    """Per node its fake value."""
    return {node.name: node.meta.get("val") for node in dump.gm.graph.nodes}


@contextlib.contextmanager
def fake_world() -> Iterator[tuple[str, str]]:
    """64 fake ranks; gives the names of the group of all and of a group of 8."""
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    try:
        inside = dist.new_group(list(range(INSIDE)))
        yield dist.group.WORLD.group_name, inside.group_name
    finally:
        dist.destroy_process_group()


def traced(function: Callable[..., Any], *args: Any, mode: str = "fake") -> tuple[fx.GraphModule, list[Any]]:
    """The graph of a function, and the values of its inputs."""
    gm = make_fx(function, tracing_mode=mode)(*args)
    return gm, [node.meta["val"] for node in gm.graph.nodes if node.op == "placeholder"]


Graphs = list[tuple[fx.GraphModule, list[Any]]]
"""Graphs, each with the values of its inputs."""


def _keeper() -> tuple[Graphs, Callable[..., Any]]:
    """A compiler that changes nothing, and the graphs that it is given."""
    found: Graphs = []

    def keep(gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append((gm, list(inputs)))
        return make_boxed_func(gm)

    return found, keep


def forward_and_backward(
    function: Callable[..., Any],
    *args: torch.Tensor,
    partition: Callable[..., Any] = min_cut_rematerialization_partition,
) -> Graphs:
    """The forward and the backward graph that AOTAutograd partitions the function into."""
    found, keep = _keeper()
    compiled = aot_function(function, keep, keep, partition)
    compiled(*args).sum().backward()
    return found


def written(gm: fx.GraphModule, args: Sequence[Any], path: Path) -> Path:
    """The graph as torch writes it. To be called while the fake world lives: torch asks it for sizes of groups."""
    text = io.StringIO()
    save_graph_repro(text, gm, args, "inductor")
    path.write_text(text.getvalue())
    return path


def sharded_layer(world: str, tensor_parallel: str | None = None) -> Callable[..., torch.Tensor]:
    """A Llama-like layer: sharded weights gathered, RMSNorm, rotary attention, SwiGLU; perhaps tensor parallel too."""
    ops = torch.ops._c10d_functional

    def gather(shard: torch.Tensor) -> torch.Tensor:
        return ops.wait_tensor(ops.all_gather_into_tensor(shard, RANKS, world))

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x32 = x.float()
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * weight

    def reduce(x: torch.Tensor) -> torch.Tensor:
        if tensor_parallel is None:
            return x
        return ops.wait_tensor(ops.all_reduce(x, "sum", tensor_parallel))

    def layer(
        x: torch.Tensor, qkv: torch.Tensor, out: torch.Tensor, up: torch.Tensor, down: torch.Tensor
    ) -> torch.Tensor:
        batch, rows, dim = x.shape
        q, k, v = (
            (norm(x, torch.ones(dim, dtype=x.dtype)) @ gather(qkv))
            .view(batch, rows, 3, 4, dim // 4)
            .permute(2, 0, 3, 1, 4)
        )
        angle = torch.arange(rows)[:, None] * torch.arange(dim // 4)[None, :]
        turned = q * torch.cos(angle).to(q.dtype)
        attended = torch.nn.functional.scaled_dot_product_attention(turned, k, v, is_causal=True)
        x = x + reduce(attended.transpose(1, 2).reshape(batch, rows, dim) @ gather(out))
        gate, value = (norm(x, torch.ones(dim, dtype=x.dtype)) @ gather(up)).chunk(2, dim=-1)
        return x + reduce((torch.nn.functional.silu(gate) * value) @ gather(down))

    return layer


def layer_arguments(requires_grad: bool = False) -> list[torch.Tensor]:
    """Arguments for :func:`sharded_layer`: weights are shards of 64."""
    shapes = [(2, 32, 64), (1, 192), (1, 64), (1, 256), (2, 64)]
    return [torch.zeros(shape, dtype=torch.bfloat16, requires_grad=requires_grad) for shape in shapes]


PREAMBLE = """
import os
os.environ['TORCHELASTIC_RUN_ID'] = '${role}'
import torch
from torch import tensor, device
torch._dynamo.config.foo = <function bar at 0x7f>

@triton.jit
def kernel_0(in_ptr, out_ptr, n: tl.constexpr):
    tl.store(out_ptr, tl.load(in_ptr))

torch._higher_order_ops.triton_kernel_wrap.kernel_side_table.constant_args={0: {'n': 8}}

from torch.nn import *
class Repro(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
"""


def handwritten(
    body: str,
    inputs: Sequence[tuple[str, str]],
    *,
    init: str = "",
    nested: str = "",
    head: str = "",
    groups: str = "",
    device: str = "cuda:0",
) -> str:
    """A dump's text: `body` are the statements of forward, `inputs` are (name, "bf16 8 4" or a load_args line)."""
    lines = []
    for i, (name, what) in enumerate(inputs):
        if "reader." in what:
            lines.append(what)
            continue
        dtype, *shape = what.split()
        kind, index = device.split(":") if ":" in device else (device, None)
        where = f"device(type={kind!r}, index={index})" if index else f"device(type={kind!r})"
        nbytes = "*".join([*shape, str(getattr(torch, dtype).itemsize)])
        sizes = ", ".join(shape) + ("," if len(shape) == 1 else "")
        lines.append(f"buf{i} = reader.storage(None, {nbytes}, device={where}, dtype_hint=torch.{dtype})")
        lines.append(f"reader.tensor(buf{i}, ({sizes}), dtype=torch.{dtype}, is_leaf=True)  # {name}")
    text = head + PREAMBLE + _indented(init, 8) + "\n    \n    \n"
    text += f"    def forward(self, {', '.join(name for name, _ in inputs)}):\n" + _indented(body, 8) + "\n        \n"
    text += _indented(nested, 4) + "def load_args(reader):\n" + _indented("\n".join(lines) or "pass", 4)
    text += "load_args._version = 0\nmod = Repro()\nif __name__ == '__main__':\n"
    text += "    from torch._dynamo.repro.after_aot import run_repro\n"
    if groups:
        text += f"    setup_fake_process_groups({groups})\n"
    return text + "    with torch.no_grad():\n        run_repro(mod, load_args, accuracy=False)\n"


def _indented(text: str, columns: int) -> str:
    return (
        "".join(" " * columns + line + "\n" if line else "\n" for line in text.strip("\n").split("\n")) if text else ""
    )
