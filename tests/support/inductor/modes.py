"""Ways in which people train and compile, by the rows of ``docs/torch.md``: each a step that gives tensors.

All run in one process that stands for four ranks (a fake process group): collectives return what this rank gives them.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from tests.support.inductor.models import Block, gathered

RANKS = 4
WIDTH = 32
ROWS = 16


class Mode(NamedTuple):
    """A row of the table.

    Attributes:
        step: What is run, alone and with us.
        how: What :func:`overlap_sched.enabled` is given besides the options.
    """

    step: Callable[[], list[Tensor]]
    how: dict[str, Any] = {}  # noqa: RUF012  read only


class Plain(nn.Module):
    """Blocks with sharded weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(Block(WIDTH, RANKS), Block(WIDTH, RANKS))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


class Two(nn.Module):
    """The least that can be reordered: for modes in which compiling takes long."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Parameter(torch.randn(WIDTH // RANKS, WIDTH)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        group = dist.group.WORLD.group_name
        return (x @ gathered(self.first, group, RANKS)) @ gathered(self.second, group, RANKS)


def rows(n: int = ROWS) -> Tensor:
    return torch.linspace(-1, 1, n * WIDTH).reshape(n, WIDTH)


def trained(model: nn.Module, compiled: Any, *batches: Tensor) -> list[Tensor]:
    """Losses, and gradients summed over the batches."""
    losses = []
    for x in batches or (rows(),):
        loss = compiled(x).square().mean()
        loss.backward()
        losses.append(loss.detach())
    return [*losses, *(p.grad for p in model.parameters())]


def plain(**compile_arguments: Any) -> list[Tensor]:
    model = Plain()
    return trained(model, torch.compile(model, fullgraph=True, **compile_arguments))


def context_parallel() -> list[Tensor]:
    """The sequence is divided among the ranks; each gathers the keys and values of all."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            group = dist.group.WORLD.group_name
            for layer in self.layers:
                q, k, v = layer(x).chunk(3, -1)
                k, v = (gathered(t.contiguous(), group, RANKS) for t in (k, v))
                heads = [t.unflatten(-1, (2, -1)).transpose(0, 1).unsqueeze(0) for t in (q, k, v)]
                out = nn.functional.scaled_dot_product_attention(*heads)
                x = x + out.squeeze(0).transpose(0, 1).flatten(1)
            return x

    model = Attention()
    return trained(model, torch.compile(model, fullgraph=True))


def hsdp() -> list[Tensor]:
    """Weights are sharded in one dimension of the mesh; gradients are reduced in both."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))

    class Layers(nn.Module):
        def __init__(self, mesh: DeviceMesh) -> None:
            super().__init__()
            torch.manual_seed(0)
            weights = [torch.randn(WIDTH, WIDTH) for _ in range(3)]
            placed = [distribute_tensor(w, mesh, [Replicate(), Shard(0)]) for w in weights]
            self.weights = nn.ParameterList(nn.Parameter(w) for w in placed)

        def forward(self, x: Tensor) -> Tensor:
            for weight in self.weights:
                full = weight.redistribute(placements=[Replicate(), Replicate()])
                x = (x @ full.to_local(grad_placements=[Partial(), Partial()])).relu()
            return x

    model = Layers(mesh)
    loss, *gradients = trained(model, torch.compile(model, fullgraph=True))
    return [loss, *(gradient.to_local() for gradient in gradients)]


def autocast() -> list[Tensor]:
    model = Two()
    compiled = torch.compile(model, fullgraph=True)

    def under_autocast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return compiled(x)

    return trained(model, under_autocast)


def gradient_accumulation() -> list[Tensor]:
    model = Plain()
    return trained(model, torch.compile(model, fullgraph=True), rows(), 2 * rows(), 3 * rows())


def no_grad() -> list[Tensor]:
    model = Plain()
    with torch.no_grad():
        return [torch.compile(model, fullgraph=True)(rows())]


def dynamic() -> list[Tensor]:
    model = Two()
    return trained(model, torch.compile(model, fullgraph=True, dynamic=True), rows(), rows(24))


def compiled_autograd() -> list[Tensor]:
    with torch._dynamo.config.patch(compiled_autograd=True):
        return whole_step(Plain(), rows())


def whole_step(model: nn.Module, x: Tensor) -> list[Tensor]:
    """The backward is called in what is compiled, as compiled autograd wants it."""

    @torch.compile
    def step(x: Tensor) -> Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return [step(x), *(p.grad for p in model.parameters())]


class Wide(nn.Module):
    """Unsharded, and large enough for several buckets of 25 MiB, torch's default."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def ddp() -> list[Tensor]:
    model = DistributedDataParallel(Wide(3, WIDTH))
    return trained(model, torch.compile(model))


def ddp_python_reducer() -> list[Tensor]:
    """All that a user sets: two settings of Dynamo, before the model is wrapped."""
    with torch._dynamo.config.patch(optimize_ddp="python_reducer", compiled_autograd=True):
        model = DistributedDataParallel(Wide(3, 2048))
        return whole_step(model, torch.linspace(-1, 1, 2048).reshape(1, 2048))


def exported() -> list[Tensor]:
    """``torch.export``, then compiled as any module."""
    model = Plain()
    with torch.no_grad():
        program = torch.export.export(model, (rows(),))
        return [torch.compile(program.module(), fullgraph=True)(rows())]


def aot_inductor() -> list[Tensor]:
    """``torch.export``, then a library that runs without Python."""
    model = Two()
    quickly = torch._inductor.config.patch("aot_inductor.compile_wrapper_opt_level", "O0")
    with torch.no_grad(), quickly:
        program = torch.export.export(model, (rows(),))
        package = torch._inductor.aoti_compile_and_package(program)
        return [torch._inductor.aoti_load_package(package)(rows())]


def two_models() -> list[Tensor]:
    one, other = Two(), Plain()
    first, second = (torch.compile(model, fullgraph=True) for model in (one, other))
    loss = second(first(rows())).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for model in (one, other) for p in model.parameters())]


def functional_call() -> list[Tensor]:
    """Parameters as arguments."""
    model = Plain()
    parameters = {name: p.detach().requires_grad_() for name, p in model.named_parameters()}
    compiled = torch.compile(lambda x: torch.func.functional_call(model, parameters, (x,)), fullgraph=True)
    loss = compiled(rows()).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, list(parameters.values()))]


MODES: dict[str, Mode] = {
    "gradient accumulation": Mode(gradient_accumulation),
    "`torch.autocast`": Mode(autocast),
    "`torch.no_grad`": Mode(no_grad),
    "HSDP": Mode(hsdp),
    "context parallel": Mode(context_parallel),
    "DDP": Mode(ddp),
    "DDP, Python reducer": Mode(ddp_python_reducer),
    "`dynamic=True`": Mode(dynamic),
    '`mode="max-autotune-no-cudagraphs"`': Mode(partial(plain, mode="max-autotune-no-cudagraphs")),
    '`mode="reduce-overhead"`': Mode(partial(plain, mode="reduce-overhead")),
    "compiled autograd": Mode(compiled_autograd),
    '`stage="post_grad"`': Mode(plain, {"stage": "post_grad"}),
    "`torch.export`": Mode(exported),
    "AOTInductor": Mode(aot_inductor),
    "two compiled models": Mode(two_models),
    "`torch.func`": Mode(functional_call),
}
"""By the first cell of their rows."""
