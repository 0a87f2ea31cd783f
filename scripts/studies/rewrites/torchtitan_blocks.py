"""torchtitan's bucketing per transformer block, run on a problem and judged at the problem's prices.

torchtitan 0.3.0 (``experiments/graph_trainer``, ``joint_transformer_block_bucketing_reordering_pass``) writes a plan of
modules: embedding, each block, final norm with the head. torch's ``manual_overlap_bucketing`` makes one bucket of each
module's gathers of parameters, and one of its reductions of gradients; then each bucket of gathers is launched one
module ahead, and each bucket of reductions is waited for one module later. That function is what runs here. With
``two_streams`` gathers go to a communicator of their own before (``reassign_collective_pgs_pass``; torchtitan's
``enable_fsdp_ag_rs_overlap``).

Nodes of a problem have no module names; :func:`blocks_of` finds the blocks by the sizes of the parameters.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import fx

from llama_repro.errors import TorchPassError
from llama_repro.harness.problem_graph import RebuiltGraph, problem_to_graph
from llama_repro.harness.torch_pass import any_gpu, groups_of, passed
from overlap_sched.problem import Group, Kind, NodeId, Problem
from overlap_sched.transform.prices import Prices
from scripts.studies.rewrites.torch_buckets import TorchBuckets, compared, judged

MARK = 3
"""A block begins where so many parameters in a row have the sizes of the first ones."""
FINAL, EMBEDDING = "final", "embedding"


def torchtitan_blocks(problem: Problem, prices: Prices, two_streams: bool) -> TorchBuckets:
    """Run the pattern.

    Args:
        problem: A backward graph of transformer blocks, its collectives priced by ``prices``.
        prices: Of new nodes.
        two_streams: Gathers of parameters on a second communicator, which counts as a network of its own.

    Raises:
        TorchPassError: This torch has no such pass, or it failed; the message says how.
    """
    blocks = blocks_of(problem)
    with groups_of(problem) as names, any_gpu():
        rebuilt = problem_to_graph(problem, names, "cpu")
        groups = {names[name]: group for name, group in problem.groups.items()}
        before = judged(problem, rebuilt.graph_module, rebuilt, prices, groups)
        if two_streams:
            groups |= _move_gathers(problem, rebuilt, blocks, names)
        made = passed(problem, rebuilt, _manual_pass(rebuilt, blocks), {})
        return compared(before, judged(problem, made, rebuilt, prices, groups))


def blocks_of(problem: Problem) -> dict[NodeId, str]:
    """Per collective of a parameter or its gradient, the name of its block: ``block_0`` is the first of the model.

    Gathers stand in the order of their parameters: where the sizes of the first :data:`MARK` come again, a block
    begins. The last one is as long as the one before it, behind it are norm and head. A gradient belongs to the block
    that was gathered last before it is reduced, where that has a parameter of its size; else to the embedding.
    """
    nodes = problem.nodes
    gathers = sorted((at, v) for v in problem.collectives if (at := _parameter(problem, v)) is not None)
    sizes = [nodes[v].bytes for _, v in gathers]
    begins = [k for k in range(len(sizes)) if sizes[k : k + MARK] == sizes[:MARK]]
    if len(begins) > 1:
        begins.append(begins[-1] + begins[-1] - begins[-2])
    blocks: dict[NodeId, str] = {}
    for k, (_, v) in enumerate(gathers):
        block = sum(begin <= k for begin in begins) - 1
        blocks[v] = FINAL if block == len(begins) - 1 else f"block_{block}"
    return blocks | _of_gradients(problem, blocks)


def _of_gradients(problem: Problem, gathers: Mapping[NodeId, str]) -> dict[NodeId, str]:
    """Blocks of reductions. Gradients have the type of the parameters, or are twice as wide."""
    nodes, found = problem.nodes, {}
    held = {block: {nodes[v].bytes for v in gathers if gathers[v] == block} for block in set(gathers.values())}
    last = EMBEDDING
    for v in problem.collectives:
        nbytes = nodes[v].bytes
        if v in gathers:
            last = gathers[v]
        elif "reduce_scatter" in nodes[v].op:
            own = held.get(last, set())
            found[v] = last if nbytes in own or nbytes / 2 in own else EMBEDDING
    return found


def _parameter(problem: Problem, v: NodeId) -> NodeId | None:
    """The one input that a gather is of; ``None``: it is no gather of a parameter alone."""
    nodes, at = problem.nodes, v
    if "all_gather" not in nodes[v].op:
        return None
    while len(nodes[at].deps) == 1:
        (at,) = nodes[at].deps
    return at if nodes[at].kind is Kind.INPUT else None


def _move_gathers(
    problem: Problem, rebuilt: RebuiltGraph, blocks: Mapping[NodeId, str], names: Mapping[str, str]
) -> dict[str, Group]:
    """Gathers of parameters go to second communicators; those, by name."""
    made: dict[str, Group] = {}
    second: dict[str, str] = {}
    for node, v in rebuilt.node_ids.items():
        name = problem.nodes[v].group
        if v not in blocks or name is None or "all_gather" not in problem.nodes[v].op:
            continue
        if name not in second:
            group = problem.groups[name]
            second[name] = dist.new_group(list(range(group.size))).group_name
            made[second[name]] = group
        node.args = (*node.args[:-1], second[name])
    return made


def _manual_pass(rebuilt: RebuiltGraph, blocks: Mapping[NodeId, str]) -> Callable[..., fx.GraphModule]:
    try:
        from torch._inductor.fx_passes.overlap_manual_scheduling import manual_overlap_bucketing
    except ImportError:
        raise TorchPassError(
            f"torch {torch.__version__} has no manual_overlap_bucketing. Use torch 2.13 or later."
        ) from None

    def modules(node: fx.Node) -> list[tuple[str, type]]:
        block = blocks.get(rebuilt.node_ids.get(node, -1))
        return [] if block is None else [(block, torch.nn.Module)]

    def run(graph_module: fx.GraphModule, **_: Any) -> fx.GraphModule:
        plans: list[list[str] | str] = list(dict.fromkeys(blocks.values()))
        return manual_overlap_bucketing(graph_module, plans, module_stack_fn=modules)

    return run
