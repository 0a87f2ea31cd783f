"""From one of torchtitan's models to the graph of its whole training step, on a machine without a GPU.

torchtitan's own code builds, shards and traces the model (``experiments/graph_trainer`` of torchtitan 0.3.0, after its
``precompile_main.py``) and runs its own list of graph passes, bucketing and reordering among them, up to those that
compile. What is left is the FX graph that its trainer would run: forward, loss and backward in one.

Ours are: a fake world instead of ranks, fake CPU tensors instead of a GPU, attention as a GPU runs it, rates of a GPU
for torchtitan's bucketing, and balanced experts where a size depends on data.
"""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from llama_repro.capture.parallelism import fake_world
from llama_repro.errors import TitanError
from llama_repro.harness.torch_pass import any_gpu
from llama_repro.titan.attention import attention_of_a_gpu
from llama_repro.titan.models import TitanModel

_TRAINER = "torchtitan.experiments.graph_trainer"


@contextmanager
def whole_step(model: TitanModel) -> Iterator[fx.GraphModule]:
    """The graph of one step; the fake world that its process groups live in lasts as long as the ``with`` block.

    Once in a process: torch remembers meshes of an earlier world, and a second model may be sharded wrongly.

    Raises:
        TitanError: torchtitan 0.3.0 is not installed, or cannot trace this model.
        RuntimeError: A process group is initialized already.
    """
    try:
        importlib.import_module(f"{_TRAINER}.trainer")
    except ImportError as error:
        raise TitanError(
            f"torchtitan's GraphTrainer cannot be imported ({error}). "
            "Install torch 2.15.0, torchtitan==0.3.0 and spmd_types; or read the files in llama_repro/titan/graphs."
        ) from error
    with fake_world(model.world), _no_gpu():
        try:
            graph_module = _traced(model)
        except (RuntimeError, AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
            raise TitanError(f"{model.name}: torchtitan cannot trace it: {type(error).__name__}: {error}") from error
        yield graph_module


def _traced(model: TitanModel) -> fx.GraphModule:
    from torchtitan.experiments.graph_trainer.common_utils import maybe_register_blockmask_pytree_node
    from torchtitan.experiments.graph_trainer.make_fx_tracer import minimal_fx_tracer
    from torchtitan.experiments.graph_trainer.passes import apply_graph_passes, compile_time_passes
    from torchtitan.experiments.graph_trainer.trainer import make_fwd_bwd_step

    config = _configured(model)
    dims = _mesh(config, model)
    module = _sharded(config, dims)
    step = make_fwd_bwd_step(module, _loss(config, module))
    maybe_register_blockmask_pytree_node()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, ExitStack() as stack:
        module.to_empty(device="cpu")
        tokens = torch.empty(model.batch, model.sequence, dtype=torch.int64)
        positions = torch.arange(model.sequence, dtype=torch.int32).expand(model.batch, -1)
        count = torch.empty((), dtype=torch.int64)
        if model.tp > 1:
            stack.enter_context(torch.distributed.tensor.parallel.loss_parallel())
        traced = minimal_fx_tracer(step, module=module)(
            tokens, torch.empty_like(tokens), count, {"positions": positions}
        )
    graph_module = apply_graph_passes(
        traced.gm,
        traced.example_inputs,
        compile_time_passes(traced, config, parallel_dims=dims, include_inductor=False),
        compile_config=config.compile,
    )
    _balance_experts(graph_module.graph, config, model)
    return graph_module


@contextmanager
def _no_gpu() -> Iterator[None]:
    """Meshes on the CPU, GPU rates for torchtitan's bucketing, attention as on a GPU."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch("torchtitan.distributed.parallel_dims.device_type", "cpu"))
        stack.enter_context(any_gpu())
        stack.enter_context(attention_of_a_gpu())
        yield


def _configured(model: TitanModel) -> Any:
    """The configuration that torchtitan has for the model: its defaults, but for what the model says."""
    family = importlib.import_module(f"{_TRAINER}.{model.family}")
    registry = importlib.import_module(f"{_TRAINER}.{model.family}.config_registry")
    config = getattr(registry, f"graph_trainer_{model.family}_{model.flavor.lower()}")()
    config.model_spec = family.model_registry(model.flavor, attn_backend="sdpa")
    if model.layers:
        config.model_spec.model.layers = config.model_spec.model.layers[: model.layers]
    config.training.local_batch_size, config.training.seq_len = model.batch, model.sequence
    config.compile.memory_policy = model.memory_policy
    sharding = config.parallelism
    sharding.data_parallel_shard_degree, sharding.tensor_parallel_degree = model.fsdp, model.tp
    sharding.expert_parallel_degree = model.ep
    config.model_spec.model.update_from_config(config=config)
    return config


def _mesh(config: Any, model: TitanModel) -> Any:
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.utils import set_spmd_backend

    backend = config.parallelism.spmd_backend
    set_spmd_backend(backend)
    dims = ParallelDims(
        dp_shard=model.fsdp,
        dp_replicate=1,
        cp=1,
        tp=model.tp,
        pp=1,
        ep=model.ep,
        world_size=model.world,
        spmd_backend=backend,
    )
    dims.build_mesh()
    return dims


def _sharded(config: Any, dims: Any) -> Any:
    from torchtitan.config import TORCH_DTYPE_MAP
    from torchtitan.tools.utils import set_default_dtype

    with torch.device("meta"), set_default_dtype(TORCH_DTYPE_MAP[config.training.dtype]):
        module = config.model_spec.model.build()
    return config.model_spec.parallelize_fn(
        module,
        parallel_dims=dims,
        training=config.training,
        parallelism=config.parallelism,
        compile_config=config.compile,
        ac_config=config.activation_checkpoint,
        dump_folder=config.dump_folder,
    ).train()


def _loss(config: Any, module: Any) -> Any:
    """The loss; a chunked one multiplies by the model's last matrix itself."""
    from torchtitan.components.loss import ChunkedLossWrapper

    loss = config.loss.build(compile_config=config.compile)
    if isinstance(loss, ChunkedLossWrapper):
        loss.set_lm_head(module.lm_head)
        module._skip_lm_head = True
    return loss


def _balance_experts(graph: fx.Graph, config: Any, model: TitanModel) -> None:
    """Every rank sends as many tokens to every other: what the sizes that depend on data are assumed to be."""
    sparse = [layer.moe for layer in config.model_spec.model.layers if getattr(layer, "moe", None) is not None]
    if not sparse:
        return
    rows = model.batch * model.sequence * sparse[0].router.top_k // model.ep
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten._local_scalar_dense.default):
        size = node.meta["val"]
        size.node.shape_env._set_unbacked_var_to_hint_override(size, rows)
