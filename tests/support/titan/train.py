"""What each rank runs: torchtitan's own command on a CPU, one job after the other in one process.

    python -m tests.support.titan.train FOLDER JOBS

``JOBS`` is a file: per job its name, its arguments, and what is done to it (:data:`DONE_TO`). Writes
``FOLDER/<job>-<rank>.json``:

    losses   per step: the mean, the largest and the gradient norm, every bit of them
    order    names of the nodes of the graph that runs, in its order
    between  compute kernels between the launch of each collective and its wait, all together
    regions  calls of code that Inductor has compiled
    stages   per graph of GraphPP that has run: its order; its step and what of it is exposed, replayed (us); `between`;
             how often it changes from a backward to a forward and back
    reports  what overlap_sched says of each graph
    warned   its warnings
"""

import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import fx

from tests.support.titan.cpu import annotate_regions, on_cpu, stages_seen, turns


def main() -> None:
    """Run the jobs of a file."""
    folder, jobs = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    warnings.simplefilter("ignore")
    on_cpu()
    torch.set_num_threads(1)
    for name, arguments, done_to in jobs:
        store = f"file://{folder}/{name}.store"
        dist.init_process_group("gloo", store, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
        with DONE_TO[done_to]():
            found = trained([*arguments, "--dump_folder", str(folder / "dump")])
        (folder / f"{name}-{os.environ['RANK']}.json").write_text(json.dumps(found))


def run_titan(arguments: list[str], run_traced: Callable[..., Any]) -> list[list[str]]:
    """``python -m torchtitan.train ARGUMENTS``; the losses of each step, every bit of them.

    ``run_traced`` stands in for torchtitan's, and is given that before its arguments.
    """
    import torchtitan.experiments.graph_trainer.trainer as graph_trainer
    import torchtitan.train
    from torchtitan.components.metrics import MetricsProcessor

    losses: list[list[str]] = []
    log = MetricsProcessor.log

    def keep_losses(self: Any, step: int, *values: float, **more: Any) -> None:
        losses.append([float(value).hex() for value in values])
        log(self, step, *values, **more)

    torch._dynamo.reset()  # the model of the job before is another one, but its code would serve
    with (
        mock.patch.object(sys, "argv", ["train", *arguments]),
        mock.patch.object(MetricsProcessor, "log", keep_losses),
        mock.patch.object(graph_trainer, "run_traced", partial(run_traced, graph_trainer.run_traced)),
        mock.patch("torchtitan.trainer.time.sleep"),
    ):
        torchtitan.train.main()
    return losses


def trained(arguments: list[str]) -> dict[str, Any]:
    """A training, looked at from the outside."""
    import overlap_sched
    from tests.support.reports import report_data

    overlap_sched.clear_reports()
    graphs: list[fx.GraphModule] = []

    def keep_graph(run: Callable[..., Any], traced: Any, **how: Any) -> Any:
        graphs[:] = [traced.gm]
        return run(traced, **how)

    with stages_seen(played) as stages, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", overlap_sched.errors.OverlapSchedWarning)
        losses = run_titan(arguments, keep_graph)
    nodes = list(graphs[0].graph.nodes) if graphs else []
    return {
        "losses": losses,
        "order": [node.name for node in nodes],
        "between": between(graphs[0]) if graphs else 0,
        "regions": sum(hasattr(node.target, "__wrapped__") for node in nodes),
        "stages": stages,
        "reports": [report_data(report) for report in overlap_sched.reports()],
        "warned": [str(one.message) for one in said if one.category is overlap_sched.errors.OverlapSchedWarning],
    }


def played(gm: fx.GraphModule) -> dict[str, Any]:
    """A graph as it ran, played through by the judge."""
    from overlap_sched.fx import lift
    from overlap_sched.judge.replay import replay

    problem = lift(gm).problem
    found = replay(problem, problem.original_order)
    order = [node.name for node in gm.graph.nodes]
    times = {"step_us": found.step_us, "exposed_us": found.exposed_us}
    return {"order": order, **times, "between": between(gm), "turns": turns(gm)}


def between(gm: fx.GraphModule) -> int:
    """Compute kernels between the launch of each collective and its first wait, added up."""
    from overlap_sched.fx import lift
    from overlap_sched.problem import Kind

    nodes = lift(gm).problem.nodes
    kernels = [0]
    for node in nodes:
        kernels.append(kernels[-1] + (node.kind is Kind.COMPUTE and node.time_us > 0.0))
    ends = {node.collective: v for v, node in reversed(list(enumerate(nodes))) if node.collective is not None}
    return sum(kernels[end] - kernels[launch] for launch, end in ends.items())


def regions() -> Any:
    """With regions that Inductor compiles."""
    name = "torchtitan.experiments.graph_trainer.passes.annotate_flex_attention_for_regional_inductor_pass"
    return mock.patch(name, annotate_regions())


def fault() -> Any:
    """Lifting fails on the last rank."""
    last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
    faulty = mock.patch("overlap_sched.fx.apply.lift", side_effect=ZeroDivisionError("injected"))
    return faulty if last else nullcontext()


DONE_TO: dict[str, Callable[[], Any]] = {"nothing": nullcontext, "regions": regions, "fault": fault}

if __name__ == "__main__":
    main()
