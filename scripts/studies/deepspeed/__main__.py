"""What our pass gains on DeepCompile's graphs of ZeRO-3, beside its own ``prefetch``: steps and live peaks, replayed.

``python -m scripts.studies.deepspeed --layers 8 --ranks 64``: a Llama-3-8B-shaped model without its ends, traced on fake
tensors. DeepSpeed need not be installed; where it is, its own ``schedule_prefetch`` orders the same graphs, with memory
as replayed here and 80 GB in all.
"""

import argparse
import contextlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from functorch.compile import aot_function, min_cut_rematerialization_partition
from torch import fx, nn
from torch._subclasses import FakeTensorMode

from overlap_sched import Options
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.deepspeed.graph_pass import called, zero3_values
from overlap_sched.fx.lifting import Lifted, lift
from overlap_sched.joint.graphs import copy_of
from overlap_sched.judge.lower_bound import lower_bound_us
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import memory_profile, peak_memory
from overlap_sched.problem import Group
from overlap_sched.scheduler.driver import schedule
from tests.support.deepspeed_graphs import define, gather_and_release, reduce_gradients

WIDTH, HIDDEN, HEADS, KEYS = 4096, 14336, 32, 8
DEVICE_BYTES = 80 * 10**9


class Layer(nn.Module):
    """A decoder layer of Llama 3 8B, without rotations."""

    def __init__(self) -> None:
        super().__init__()
        like = {"bias": False, "dtype": torch.bfloat16}
        self.q, self.o = nn.Linear(WIDTH, WIDTH, **like), nn.Linear(WIDTH, WIDTH, **like)
        self.k, self.v = (nn.Linear(WIDTH, WIDTH // HEADS * KEYS, **like) for _ in range(2))
        self.gate, self.up = (nn.Linear(WIDTH, HIDDEN, **like) for _ in range(2))
        self.down = nn.Linear(HIDDEN, WIDTH, **like)
        self.first, self.second = (nn.RMSNorm(WIDTH, dtype=torch.bfloat16) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then three products."""
        y = self.first(x)
        heads = [one(y).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for one in (self.q, self.k, self.v)]
        heads[1:] = (one.repeat_interleave(HEADS // KEYS, dim=1) for one in heads[1:])
        x = x + self.o(nn.functional.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))
        y = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class _TracedError(Exception):
    """Both graphs are there: nothing is to be run."""


def graphs_of(layers: int, tokens: int) -> list[fx.GraphModule]:
    """Forward and backward as ``zero3_compile`` leaves them."""
    define()
    found: list[fx.GraphModule] = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = nn.Sequential(*(Layer() for _ in range(layers)))
        names, parameters = zip(*model.named_parameters(), strict=True)
        x = torch.empty(1, tokens, WIDTH, dtype=torch.bfloat16, requires_grad=True)

        def run(*given: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(model, dict(zip(names, given, strict=False)), given[-1])

        def both(joint: fx.GraphModule, inputs: Any, **given: Any) -> Any:
            forward, backward = min_cut_rematerialization_partition(joint, inputs, **given)
            placeholders = list(forward.graph.find_nodes(op="placeholder"))[: len(names)]
            named = {node.name: k for k, node in enumerate(placeholders)}
            for gm in (forward, backward):
                gather_and_release(gm.graph, named)
            results = backward.graph.output_node().args[0]
            reduce_gradients(backward.graph, {k: results[k] for k in range(len(names))})
            found.extend((forward, backward))
            raise _TracedError

        with contextlib.suppress(_TracedError):
            aot_function(run, lambda gm, _: gm, partition_fn=both)(*parameters, x)
    return found


def prefetched(gm: fx.GraphModule, lifted: Lifted) -> list[int] | None:
    """The order of DeepCompile's own ``prefetch``, its fused gathers launched one after the other; ``None``: not there."""
    try:
        from deepspeed.compile.passes import prefetch
    except ImportError:
        return None
    problem = lifted.problem
    live = memory_profile(problem, problem.original_order)
    at = {lifted.nodes[v].name: live[k] for k, v in enumerate(problem.original_order)}
    memory = [(node.name, at.get(node.name, 0), 0, at.get(node.name, 0)) for node in gm.graph.nodes]
    sizes = {lifted.nodes[v].name: node.bytes for v, node in enumerate(problem.nodes)}
    result = SimpleNamespace(
        process_group=None, fwd_graph=gm.graph, bwd_graph=None, fwd_mem=memory, fwd_mem_complete=True,
        fwd_time=[(node.name, 0.0, 0.0) for node in gm.graph.nodes],
        fwd_tensor_sizes=[(node.name, sizes.get(node.name, 0)) for node in gm.graph.nodes],
    )  # fmt: skip
    gathers = [node for node in problem.nodes if node.op.startswith("all_gather")]
    rate = sum(node.time_us for node in gathers) / sum(node.bytes for node in gathers)
    prefetch.create_predictor = lambda: lambda nbytes: 20.0 + rate * nbytes
    prefetch.get_accelerator = lambda: SimpleNamespace(
        total_memory=lambda: DEVICE_BYTES, current_device=lambda: "cpu", available_memory=lambda: DEVICE_BYTES,
        memory_allocated=lambda: 0, max_memory_allocated=lambda: 0,
    )  # fmt: skip
    prefetch.dist = SimpleNamespace(
        get_rank=lambda: 1, all_reduce=lambda *_, **__: None, ReduceOp=SimpleNamespace(MIN=0)
    )
    new = prefetch.schedule_prefetch(copy_of(gm), 7, [], {7: result}, None, 0.0, None, False)
    place: dict[str, list[int]] = {}  # a wait of several stands for as many
    for v, node in enumerate(lifted.nodes):
        place.setdefault(node.name, []).append(v)
    gather_of = {node.args[2]: node.name for node in lifted.nodes if called(node) == "allgather_param"}
    order: dict[int, None] = {}
    for node in new.graph.nodes:
        fused = called(node) == "prefetch_params_fused"
        for name in [gather_of[one] for one in node.args[2]] if fused else [node.name]:
            order.update(dict.fromkeys(place[name]))
    return list(order)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--ranks", type=int, default=64)
    options = parser.parse_args()
    print("| graph | bound | as written | DeepCompile's prefetch | ours, headroom 0 | ours, 1 GiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for part, gm in zip(("forward", "backward"), graphs_of(options.layers, options.tokens), strict=True):
        with zero3_values(gm.graph):
            lifted = lift(
                gm,
                groups={"dc": Group(options.ranks, options.ranks <= 8)},
                cluster=read_cluster("dgx-h100"),
                contention=False,
            )
        problem = lifted.problem
        orders: list[Sequence[int] | None] = [problem.original_order, prefetched(gm, lifted)]
        orders += [schedule(problem, Options(headroom=more)).order for more in (0, "1GiB")]
        cells = []
        for order in orders:
            if order is None:
                cells.append("-")
                continue
            peak, _ = peak_memory(problem, order)
            cells.append(f"{replay(problem, order).step_us / 1e3:.1f} ms, {peak / 2**30:.2f} GiB")
        print(f"| {part}, {len(problem.nodes)} nodes | {lower_bound_us(problem) / 1e3:.1f} ms | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
