"""What each rank runs: torchtitan's own command on a CPU. Writes ``$TITAN_RESULTS/rank<r>.json``.

losses   per step: the mean, the largest and the gradient norm, every bit of them
order    names of the nodes of the graph that runs, in its order
between  compute kernels between the launch of each collective and its wait, all together
reports  what overlap_sched says of each graph
"""

import json
import os
from pathlib import Path
from typing import Any

from tests.support.titan.cpu import on_cpu


def main() -> None:
    """``torchtitan.train`` with the arguments of this command."""
    on_cpu()
    import torch
    import torchtitan.experiments.graph_trainer.trainer as graph_trainer
    import torchtitan.train
    from torchtitan.components.metrics import MetricsProcessor

    torch.set_num_threads(1)
    losses: list[list[str]] = []
    graphs: list[torch.fx.GraphModule] = []
    log, run = MetricsProcessor.log, graph_trainer.run_traced

    def keep_losses(self: Any, step: int, *values: float, **more: Any) -> None:
        losses.append([float(value).hex() for value in values])
        log(self, step, *values, **more)

    def keep_graph(traced: Any, **how: Any) -> Any:
        graphs[:] = [traced.gm]
        return run(traced, **how)

    MetricsProcessor.log, graph_trainer.run_traced = keep_losses, keep_graph
    torchtitan.train.main()
    found = {"losses": losses, "reports": _reports()}
    if graphs:
        nodes = list(graphs[0].graph.nodes)
        found |= {"order": [node.name for node in nodes], "between": between(nodes)}
    Path(os.environ["TITAN_RESULTS"], f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))


def between(nodes: list[Any]) -> int:
    """Compute kernels between the launch of each collective and its first wait, added up."""
    from overlap_sched.fx import lift
    from overlap_sched.problem import Kind

    problem = lift(nodes[0].graph).problem
    kernels = [0]
    for node in problem.nodes:
        kernels.append(kernels[-1] + (node.kind is Kind.COMPUTE and node.time_us > 0.0))
    ends = {node.collective: v for v, node in reversed(list(enumerate(problem.nodes))) if node.collective is not None}
    return sum(kernels[end] - kernels[launch] for launch, end in ends.items())


def _reports() -> list[dict[str, Any]]:
    import sys

    if "overlap_sched.titan" not in sys.modules:
        return []
    import overlap_sched

    return [report.to_json() for report in overlap_sched.reports()]


if __name__ == "__main__":
    main()
