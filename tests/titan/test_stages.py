"""GraphPP: what is done to one of its graphs, who is asked, what is said where nothing can be done. No trainer."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, fx

import overlap_sched
from overlap_sched.errors import OverlapSchedWarning, UnsupportedError
from overlap_sched.fx import lift
from overlap_sched.judge.replay import Replay, replay
from overlap_sched.judge.validate import peak_memory
from tests.support.fx_graphs import C10D, trace, wait

DEPTH, ROWS, WIDTH = 4, 256, 8192
"""On an H100 a product takes a little longer than to add it up."""


def chain(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """Layers of tensor parallelism: each sum needs the product before it, so one chain hides nothing."""
    kept = []
    for weight in weights:
        x = wait(C10D.all_reduce(x @ weight, "sum", "0"))
        kept.append(x)
    return tuple(kept)


def stage(name: str, number: int = 0, rows: int = ROWS, width: int = WIDTH) -> fx.GraphModule:
    """A graph of GraphPP with one chain, marked as torchtitan marks its own."""
    return marked(trace(chain, (rows, width), *[(width, width)] * DEPTH), name, number)


def marked(gm: fx.GraphModule, name: str, number: int = 0) -> fx.GraphModule:
    from torchtitan.experiments.graph_trainer.graph_pp.graph_builder import _annotate_graph_pp_graph

    _annotate_graph_pp_graph(gm, stage_index=number, callable_name=name, action_name="")
    return gm


def multiplexed(*shape: int) -> fx.GraphModule:
    """torchtitan's own graph of a forward and a backward."""
    from torchtitan.experiments.graph_trainer.graph_pp.graph_multiplex import multiplex_fw_bw_graph

    return marked(multiplex_fw_bw_graph(stage("fw", 0, *shape), stage("full_bw", 3, *shape)), "multiplex")


def ordered(gm: fx.GraphModule) -> fx.GraphModule:
    from overlap_sched.inductor.settings import Settings
    from overlap_sched.titan.graph_pass import overlap_sched_pass

    return overlap_sched_pass(gm, settings=Settings(stage="titan"))


def played(gm: fx.GraphModule) -> tuple[Replay, int]:
    """The graph as it stands: in simulated time, and its peak."""
    problem = lift(gm).problem
    return replay(problem, problem.original_order), peak_memory(problem, problem.original_order)[0]


def test_a_forward_and_a_backward_hide_each_others_communication(titan: None) -> None:
    """Apart nothing can be hidden; torchtitan concatenates them, and so nothing is; interleaved nearly all is."""
    from overlap_sched.titan.graph_pass import hold_inputs

    overlap_sched.clear_reports()
    gm, alone = multiplexed(), ordered(stage("fw"))
    hold_inputs(gm)
    before, peak = played(gm)
    apart, _ = played(alone)
    assert before.exposed_us == pytest.approx(2 * apart.exposed_us)
    assert [node.name.startswith("bw_") for node in gm.graph.find_nodes(op="placeholder")] == [True] * 5 + [False] * 5
    after, peak_after = played(ordered(gm))
    assert after.exposed_us <= before.exposed_us / (2 * DEPTH) * 1.01  # the last sum has nothing left beside it
    assert after.step_us == pytest.approx(before.step_us - before.exposed_us + after.exposed_us)
    assert peak_after <= peak
    report = overlap_sched.reports()[-1]
    assert report.name == "stage 0 forward beside a backward"
    assert report.report.schedule is not None
    assert report.report.schedule.scheduled.step_us == pytest.approx(after.step_us)


def test_results_stay_equal_to_the_last_bit(titan: None) -> None:
    """Run with sums over a group of this process alone."""
    gm = multiplexed(64, 64)
    inputs = [torch.rand(64, 64) for _ in gm.graph.find_nodes(op="placeholder")]

    def run() -> Any:
        with mock.patch.object(fx.Interpreter, "call_function", local_sums):
            return fx.Interpreter(gm).run(*inputs)

    before, names = run(), [node.name for node in gm.graph.nodes]
    ordered(gm)
    after = run()
    assert len(after) == 2 * DEPTH
    assert all(map(torch.equal, after, before))
    assert [node.name for node in gm.graph.nodes] != names


def local_sums(self: fx.Interpreter, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``Interpreter.call_function`` on a world of one."""
    if target is C10D.all_reduce.default:
        return args[0].clone()
    return args[0] if target is C10D.wait_tensor.default else target(*args, **kwargs)


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("fw", "stage 2 forward"),
        ("bw_dw", "stage 2 backward to weights"),
        ("unshard", "stage 2 gathers"),
        ("new", "stage 2 new"),
    ],
)
def test_names_of_graphs(titan: None, called: str, name: str) -> None:
    from overlap_sched.titan.graph_pass import stage_name

    gm = trace(lambda x: x + 1, (4,))
    assert stage_name(gm) == ""
    assert stage_name(marked(gm, called, 2)) == name


def test_equal_graphs_of_two_stages_are_met_apart(titan: None) -> None:
    """Else the second one would be taken for the first, compiled again."""
    from overlap_sched.inductor import fx_stage

    keys: list[str] = []
    with (
        mock.patch.object(fx_stage, "asks", return_value=True),
        mock.patch.object(fx_stage, "graph_key", lambda graph, stage: keys.append(stage) or stage),
        mock.patch("overlap_sched.inductor.caches.ask", return_value=None),
    ):
        for number in (1, 2):
            ordered(stage("fw", number))
    assert keys == ["titan stage 1 forward", "titan stage 2 forward"]


def test_a_graph_that_meets_other_stages_stays(titan: None) -> None:
    from overlap_sched.inductor.settings import Settings
    from overlap_sched.titan import graph_pass
    from overlap_sched.titan.graph_pass import overlap_sched_pass

    gm = multiplexed()
    names = [node.name for node in gm.graph.nodes]
    said = (
        r"^overlap_sched leaves 'stage 0 forward beside a backward' as it was: it communicates with ranks \[4, 5\], "
        "which hold other stages$"
    )
    overlap_sched.clear_reports()
    with (
        mock.patch.object(graph_pass, "live_ranks", return_value=[0, 1, 4, 5]),
        pytest.warns(OverlapSchedWarning, match=said),
    ):
        overlap_sched_pass(gm, settings=Settings(stage="titan", ranks=[0, 1, 2, 3]))
    assert [node.name for node in gm.graph.nodes] == names


def dims(column: list[int], own: int, world: int) -> Any:
    """torchtitan's ``ParallelDims``, as far as it is asked."""
    mesh = SimpleNamespace(mesh=torch.tensor(column), get_local_rank=lambda: own)
    return SimpleNamespace(world_size=world, pp=len(column), get_mesh=lambda name: {"pp": mesh}[name])


def test_who_holds_the_same_stages(titan: None) -> None:
    from overlap_sched.titan.pipeline import ranks_of_stages

    assert ranks_of_stages(dims([1, 5], 0, 8)) == [0, 1, 2, 3]
    assert ranks_of_stages(dims([1, 5], 1, 8)) == [4, 5, 6, 7]
    assert ranks_of_stages(dims([0, 1], 1, 2)) == [1]
    with pytest.raises(UnsupportedError, match=r"^ranks \[2, 3\] are not a pipeline that is the outermost dimension"):
        ranks_of_stages(dims([2, 3], 0, 8))


class Provider:
    """In place of GraphPP's: compiles so many graphs in its first step."""

    def __init__(self, builder: Any, compile_config: Any, graphs: int) -> None:
        self.builder, self.compile_config, self.left = builder, compile_config, graphs
        self.lists: list[list[Any]] = []

    def prepare_graphs(self, schedule: Any, ctx: Any, *, loss_kwargs: Any) -> str:
        for _ in range(self.left):
            self.lists.append(self.builder.final_inductor_compile_passes(self.compile_config))
        self.left = 0
        return f"{schedule} {ctx} {loss_kwargs}"


def started(config: Any, graphs: int = 0, **fields: Any) -> tuple[Any, Provider]:
    """A trainer with a pipeline, our hook behind it."""
    from torchtitan.experiments.graph_trainer.graph_pp import graph_builder
    from torchtitan.experiments.graph_trainer.registry import POST_INIT_HOOKS

    class Trainer(SimpleNamespace):
        pass

    provider = Provider(graph_builder, config.compile, graphs)
    parallel = dims([0, 2], 0, 4)
    parallel.pp_enabled = True
    parts = {"parallel_dims": parallel, "pp_schedule": SimpleNamespace(graph_provider=provider), **fields}
    trainer = Trainer(config=config, **parts)
    POST_INIT_HOOKS["overlap_sched"](trainer)
    return trainer, provider


def test_every_graph_that_is_compiled_meets_our_pass_first(config: Any) -> None:
    from torchtitan.experiments.graph_trainer.graph_pp import graph_builder

    trainer, provider = started(config, graphs=2)
    ordered_stages = trainer.pp_schedule.graph_provider
    assert ordered_stages.settings.ranks == [0, 1]
    theirs = graph_builder.final_inductor_compile_passes
    assert ordered_stages.prepare_graphs("schedule", "context", loss_kwargs={}) == "schedule context {}"
    assert graph_builder.final_inductor_compile_passes is theirs
    ours, *others = provider.lists[0]
    assert (ours.func.__name__, ours.keywords) == ("overlap_sched_pass", {"settings": ordered_stages.settings})
    assert [each.func for each in others] == [each.func for each in theirs(config.compile)]
    assert len(provider.lists) == ordered_stages.lists == 2
    ordered_stages.prepare_graphs("schedule", "context", loss_kwargs={})
    assert ordered_stages.lists == 2


def test_a_list_that_is_not_understood_stays(config: Any) -> None:
    trainer, provider = started(config, graphs=1)
    said = "^overlap_sched leaves torchtitan's passes as they are: KeyError: 'injected'$"
    with (
        mock.patch("overlap_sched.titan.pipeline.with_ours", side_effect=KeyError("injected")),
        pytest.warns(OverlapSchedWarning, match=said),
    ):
        trainer.pp_schedule.graph_provider.prepare_graphs(0, 0, loss_kwargs={})
    assert "overlap_sched_pass" not in str(provider.lists)


def test_graphs_that_are_compiled_without_a_list_are_said_once(config: Any) -> None:
    trainer, _ = started(config)
    provider = trainer.pp_schedule.graph_provider
    said = "^overlap_sched does nothing in this job: GraphPP has compiled its graphs without a list of passes.$"
    with pytest.warns(OverlapSchedWarning, match=said):
        provider.prepare_graphs(0, 0, loss_kwargs={})
    overlap_sched.clear_reports()
    provider.prepare_graphs(0, 0, loss_kwargs={})  # warnings are errors


def test_another_pipeline_than_graph_pp_is_said(config: Any) -> None:
    said = "^overlap_sched does nothing in this job: with pipeline parallelism it needs torchtitan's GraphPP.$"
    with pytest.warns(OverlapSchedWarning, match=said):
        started(config, pp_schedule=SimpleNamespace())


def test_a_pipeline_that_is_not_known_is_said(config: Any) -> None:
    said = (
        r"^overlap_sched does nothing in this job: its pipeline is not what we know \(UnsupportedError: ranks "
        r"\[1, 2\] are not a pipeline that is the outermost dimension of a mesh\).$"
    )
    parallel = dims([1, 2], 0, 4)
    parallel.pp_enabled = True
    with pytest.warns(OverlapSchedWarning, match=said):
        trainer, provider = started(config, parallel_dims=parallel)
    assert trainer.pp_schedule.graph_provider is provider


def test_another_builder_than_ours_is_said(config: Any) -> None:
    from torchtitan.experiments.graph_trainer.graph_pp import graph_builder

    said = "this torchtitan compiles the graphs of a pipeline in another way than we know.$"
    with mock.patch.object(graph_builder, "final_inductor_compile_passes"):
        del graph_builder.final_inductor_compile_passes
        with pytest.warns(OverlapSchedWarning, match=said):
            started(config)


def test_a_limit_in_a_pipeline(config: Any) -> None:
    config.override.imports = [("overlap_sched.titan.options", {"memory_limit": "80%", "headroom": "1GiB"})]
    said = "^overlap_sched keeps no limit in this job: in a pipeline there is no whole step to fit.$"
    with pytest.warns(OverlapSchedWarning, match=said):
        trainer, _ = started(config)
    settings = trainer.pp_schedule.graph_provider.settings
    assert (settings.fits, settings.options.headroom) == (False, "1GiB")
