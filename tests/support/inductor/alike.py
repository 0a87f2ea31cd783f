"""What each of two gloo ranks runs: ``python -m tests.support.inductor.alike FOLDER`` as under torchrun.

Layers whose weights are gathered, with custom operators between them that communicate inside, where rank 1 computes
something more: ``dispatch`` names its process group, ``mix`` does not. Writes ``FOLDER/rank<r>.pt``: per operator and
way of compiling the results of torch alone and of ours, whether ranks were found to differ, and the launches in the
order that was used.
"""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import overlap_sched
from overlap_sched import Options
from overlap_sched.problem.precedence import launched_on
from tests.support.inductor.models import gathered
from tests.support.ranks import save_found

WAYS = ("backend", "inductor")
LIMIT_S = 60.0
LAYERS = 4


@torch.library.custom_op("deep_ranks::dispatch", mutates_args=())
def dispatch(x: Tensor, group_name: str) -> Tensor:
    """Sums over the ranks of a group."""
    out = x.clone()
    dist.all_reduce(out, group=dist.distributed_c10d._resolve_process_group(group_name))
    return out


@torch.library.custom_op("deep_ranks::mix", mutates_args=())
def mix(x: Tensor) -> Tensor:
    """The same; nothing says so."""
    out = x.clone()
    dist.all_reduce(out)
    return out


dispatch.register_fake(lambda x, group_name: torch.empty_like(x))
mix.register_fake(torch.empty_like)


def results(operator: str, **arguments: Any) -> Tensor:
    """Of one batch."""
    torch._dynamo.reset()
    torch.manual_seed(dist.get_rank())
    group, ranks, odd = dist.group.WORLD.group_name, dist.get_world_size(), dist.get_rank() == 1
    shards = [torch.randn(16, 32) / 6 for _ in range(LAYERS)]

    def model(x: Tensor) -> Tensor:
        side = x
        for i, shard in enumerate(shards):
            x = torch.relu(x @ gathered(shard, group, ranks))
            if odd and i % 2:
                x = torch.sigmoid(x @ x.t()) @ x / 64
            side = dispatch(side, group) * 0.5 if operator == "dispatch" else mix(side) * 0.5
        return x @ side.t()

    with torch.no_grad():
        return torch.compile(model, **arguments)(torch.ones(32, 32) * (dist.get_rank() + 1))


def ours(operator: str, way: str) -> tuple[Tensor, list[bool], list[str], list[str]]:
    """Results, whether the launch order was kept, launches as they run (gathers ``g``, others ``D``), warnings."""
    overlap_sched.clear_reports()
    options = Options(headroom="100%", strict=True)
    with (
        overlap_sched.enabled(options, ranks_per_node=1, timeout_s=LIMIT_S),
        warnings.catch_warnings(record=True) as told,
    ):
        warnings.simplefilter("always")
        value = results(operator, **({"backend": overlap_sched.backend} if way == "backend" else {}))
    reports = [one.report for one in overlap_sched.reports()]
    plans = [report.schedule for report in reports if report.schedule is not None]
    there = [[plan.problem.nodes[v] for v in plan.order] for plan in plans]
    launches = ["".join("g" if n.group else "D" for n in nodes if launched_on(n)) for nodes in there]
    kept = [report.kept is not None and report.changed for report in reports]
    return value, kept, launches, [str(one.message) for one in told if "deep_ranks" in str(one.message)]


def found() -> dict[Any, Any]:
    """What is saved."""
    torch._inductor.config.fx_graph_cache = False  # what is found there is not reported graph by graph
    saved = dict[Any, Any]()
    for operator in ("dispatch", "mix"):
        alone = results(operator, backend="aot_eager")
        saved |= {(operator, way): (alone, *ours(operator, way)) for way in WAYS}
    return saved


if __name__ == "__main__":
    save_found(found)
