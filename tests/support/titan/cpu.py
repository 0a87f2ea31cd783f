"""What torchtitan needs to run on CPU ranks: stand-ins for the parts of it that ask for a GPU.

``on_cpu()`` comes first, before any other module of torchtitan is imported: many of them copy the device type when they
are loaded. Only what asks for a device is replaced; models, trainer, tracing, passes and collectives are torchtitan's.
"""

import warnings
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from tests.support.titan.graph_pp import with_forward_cache, with_whole_parameters

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
