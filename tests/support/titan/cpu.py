"""What torchtitan needs to run on CPU ranks: stand-ins for the parts of it that ask for a GPU.

``on_cpu()`` comes first, before any other module of torchtitan is imported: many of them copy the device type when they
are loaded. Only what asks for a device is replaced; models, trainer, tracing, passes and collectives are torchtitan's.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch.distributed.pipelining.stage import PipelineStage

# torchtitan's GraphPP on torch 2.15, and what runs there, looked at from the outside.
#
# torchtitan 0.3.0 keeps the outputs of a microbatch in ``PipelineStage.fwd_cache``. torch 2.15.0 has no such attribute:
# it sends from ``_forward_chunk_states``, and GraphPP ends in an ``AttributeError`` at its first forward. So here a
# stage has the cache again, and what is put into it is also put where torch sends from.


class _ForwardCache(dict[int, Any]):
    """Per microbatch ``(outputs, saved values)``; torch's state of the same microbatch comes and goes with it."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self.stage = stage

    def __setitem__(self, microbatch: int, value: Any) -> None:
        super().__setitem__(microbatch, value)
        states = self.stage._forward_chunk_states
        states[microbatch] = self.stage._make_forward_chunk_state(value[0], [])

    def pop(self, microbatch: int, *default: Any) -> Any:
        self.stage._forward_chunk_states.pop(microbatch, None)
        return super().pop(microbatch, *default)


@contextmanager
def stages_seen(look: Callable[[fx.GraphModule], Any]) -> Iterator[dict[str, Any]]:
    """Inside, look at each graph of a stage when it first runs; by what it is: ``"fw 0"``, ``"multiplex 3"``."""
    from torchtitan.experiments.graph_trainer.graph_pp import graph_builder

    seen: dict[str, Any] = {}
    execute = graph_builder._execute_graph_module

    def run(gm: fx.GraphModule, inputs: list[Any]) -> tuple[Any, ...]:
        about = gm.graph.output_node().meta
        name = f"{about['graph_pp_callable']} {about['graph_pp_stage_index']}"
        if name not in seen:
            seen[name] = look(gm)
        return execute(gm, inputs)

    with mock.patch.object(graph_builder, "_execute_graph_module", run):
        yield seen


def turns(gm: fx.GraphModule) -> int:
    """How often the order of a multiplexed graph changes from the backward to the forward or back; concatenated: once.

    What is computed from inputs of the backward is backward. What is computed from no input belongs to neither.
    """
    backward: dict[fx.Node, bool] = {}
    sequence = []
    for node in gm.graph.nodes:
        before = [backward[one] for one in node.all_input_nodes if one in backward]
        if node.op == "placeholder":
            backward[node] = node.name.startswith("bw_")
        elif before and node.op != "output":
            backward[node] = any(before)
            sequence.append(backward[node])
    return sum(one != other for one, other in pairwise(sequence))


def with_forward_cache() -> None:
    """Give torchtitan's stages the attribute that torch has renamed, where this torch has."""
    from torchtitan.experiments.graph_trainer.graph_pp.stage import GraphPipelineStage

    if not hasattr(PipelineStage, "_make_forward_chunk_state"):
        return
    build = GraphPipelineStage.__init__

    def built(self: Any, *arguments: Any, **named: Any) -> None:
        build(self, *arguments, **named)
        self.fwd_cache = _ForwardCache(self)

    GraphPipelineStage.__init__ = built  # type: ignore[method-assign]


def with_whole_parameters() -> None:
    """Give GraphPP one value per flat parameter, as it counts them, where its unshard graph returns fewer.

    It counts the device mesh of each sharded parameter, which torch 2.15 flattens with it and no forward graph takes,
    and looks for inputs behind them: ``IndexError`` at the first forward, with FSDP and without buckets.
    """
    from torchtitan.experiments.graph_trainer.graph_pp.graph_builder import GraphTrainerStageGraphs

    unshard = GraphTrainerStageGraphs.unshard_params

    def padded(self: Any, values: list[Any], **named: Any) -> list[Any]:
        found = unshard(self, values, **named)
        return [*found, *[None] * (self.meta.num_flat_param_values - len(found))]

    GraphTrainerStageGraphs.unshard_params = padded  # type: ignore[method-assign]


GPU_ONLY = ("cudagraph_pass",)
"""Passes of torchtitan's default list that cannot run without a GPU."""


def on_cpu() -> None:
    """Make this process one of torchtitan's on a CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's and torchtitan's own, at import
        import torchtitan.tools.utils as utils

        utils.device_type, utils.device_module = "cpu", _device()
        _without_timeouts()
        _with_gpu_rates()
        _without_migration()
        with_forward_cache()
        with_whole_parameters()


def _device() -> Any:
    """Answers as a device module of torch does, for one device with 64 GiB."""
    return SimpleNamespace(
        device_count=lambda: 1,
        set_device=lambda device: None,
        current_device=lambda: 0,
        get_device_name=lambda device=None: "CPU",
        get_device_properties=lambda device=None: SimpleNamespace(total_memory=2**36),
        reset_peak_memory_stats=lambda: None,
        empty_cache=lambda: None,
        synchronize=lambda: None,
        memory_stats=lambda device=None: defaultdict(int),
    )


def _without_timeouts() -> None:
    """Gloo takes no device for a barrier, and has no timeout to be set."""
    import torchtitan.distributed.utils as distributed

    distributed.set_pg_timeouts = lambda timeout, parallel_dims: None


def _with_gpu_rates() -> None:
    """torch's bucketing asks how fast the device is: the rates of an H100."""
    import torch.utils._runtime_estimation as estimation

    rates = {"get_device_tflops": lambda *_, **__: 989.0, "get_device_dram_gbps": lambda *_, **__: 3350.0}
    for name, rate in rates.items():
        if hasattr(estimation, name):
            setattr(estimation, name, rate)


def _without_migration() -> None:
    """Constants stay on the CPU: full compilation moves them to a GPU for the graphs of CUDA."""
    import torchtitan.experiments.graph_trainer.inductor_passes as passes

    passes._migrate_cpu_get_attrs_to_cuda = lambda gm: None


def annotate_regions() -> Callable[..., fx.GraphModule]:
    """Stands in for the pass that has Inductor compile FlexAttention, which has no backward on a CPU: each silu."""

    def annotate_flex_attention_for_regional_inductor_pass(gm: fx.GraphModule, *_: Any, **__: Any) -> fx.GraphModule:
        for number, node in enumerate(gm.graph.nodes):
            if node.target is torch.ops.aten.silu.default:
                custom = dict(node.meta.get("custom") or {})
                node.meta["custom"] = custom | {"compile_with_inductor": {"inductor_region": number}}
        return gm

    return annotate_flex_attention_for_regional_inductor_pass


class Precompile:
    """Stands in for ``torch`` in ``precompile_main``, which names a GPU by hand."""

    cuda = SimpleNamespace(set_device=lambda device: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def device(name: str) -> torch.device:
        return torch.device("cpu" if name.startswith("cuda") else name)
