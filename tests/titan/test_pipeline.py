"""Which passes GraphTrainer is given, and what is said where ours does nothing."""

import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, fx

import overlap_sched
from overlap_sched import Options
from overlap_sched.errors import OptionsError, OverlapSchedWarning, UnsupportedError
from overlap_sched.fx import lift
from overlap_sched.judge.replay import Replay, replay
from overlap_sched.judge.validate import peak_memory
from tests.support.fx_graphs import C10D, trace, wait

OURS = "overlap_sched_pass"


class Traced(SimpleNamespace):
    """A traced step, as far as the list of passes looks at it."""


def traced(gm: Any = None) -> Any:
    return Traced(state_fqns=["layers.0.w"], num_static_inputs=1, tensor_input_indices=[0], gm=gm)


def empty_graph() -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(())
    return fx.GraphModule({}, graph)


def names(passes: list[Any]) -> list[str]:
    return [(each.func if isinstance(each, partial) else each).__name__ for each in passes]


def both(config: Any) -> tuple[list[str], list[str]]:
    """Names of torchtitan's passes and of those with ours."""
    from torchtitan.experiments.graph_trainer.passes import construct_default_graph_passes
    from torchtitan.experiments.graph_trainer.registry import PASS_PIPELINE_REGISTRY

    config.compile.disable_passes = []
    theirs = names(construct_default_graph_passes(traced(), config))
    return theirs, names(PASS_PIPELINE_REGISTRY["overlap_sched"](traced(), config))


def test_ours_is_the_last_before_what_compiles(config: Any) -> None:
    theirs, found = both(config)
    assert [name for name in found if name != OURS] == theirs
    place = found.index(OURS)
    assert found[place - 1] == "joint_transformer_block_bucketing_reordering_pass"
    assert found[place + 1] == "annotate_flex_attention_for_regional_inductor_pass"
    assert found[-1] == "cudagraph_pass"


def test_ours_runs_inside_inductor_where_that_compiles_all(config: Any) -> None:
    """The list has the same names, so that ``disable_passes`` means the same."""
    config.compile.inductor_compilation = "full"
    theirs, found = both(config)
    assert found == theirs


def test_full_compilation_runs_with_our_plug_in_switched_on(titan: None) -> None:
    from overlap_sched.inductor.settings import Settings
    from overlap_sched.inductor.switch import current_settings
    from overlap_sched.titan.graph_pass import inside_inductor

    def full_inductor_compilation_pass(gm: Any, example_inputs: Any, *, boxed_codegen: bool) -> Any:
        assert boxed_codegen
        settings = current_settings()
        assert settings is not None
        assert settings.options == Options(headroom="1%")
        assert settings.stage == "inductor"
        return gm

    ours = inside_inductor(full_inductor_compilation_pass, Settings(Options(headroom="1%")))
    gm = empty_graph()
    assert ours(gm, (), boxed_codegen=True) is gm
    assert current_settings() is None


@pytest.mark.parametrize("compilation", ["regional", "full"])
def test_ours_comes_behind_every_reordering_that_the_job_asks_for(config: Any, compilation: str) -> None:
    config.compile.inductor_compilation = compilation
    config.compile.enable_fsdp_dense_region_overlap = config.compile.enable_fsdp_ag_rs_overlap = True
    _, found = both(config)
    behind = OURS if compilation == "regional" else "full_inductor_compilation_pass"
    assert found.index("schedule_fsdp_comms_to_dense_regions_pass") < found.index(behind)


def test_options_of_the_command_line(config: Any) -> None:
    from overlap_sched.titan.graph_pass import settings_of

    assert settings_of(config).options == Options()
    given = {"headroom": "1GiB", "rewrites": ["bucket"]}
    config.override.imports = ["other.one", ("overlap_sched.titan.options", given)]
    assert settings_of(config).options == Options(headroom="1GiB", rewrites=("bucket",))
    assert settings_of(config).stage == "titan"


def test_options_that_are_switched_on_count_where_none_are_given(config: Any) -> None:
    from overlap_sched.titan.graph_pass import settings_of

    with overlap_sched.enabled(Options(headroom="3%"), timeout_s=7.0):
        assert settings_of(config).options == Options(headroom="3%")
        assert settings_of(config).timeout_s == 7.0
        config.override.imports = [("overlap_sched.titan.options", {"headroom": "4%"})]
        assert settings_of(config).options == Options(headroom="4%")


def test_a_wrong_option_is_found_when_the_job_starts(config: Any) -> None:
    from torchtitan.config.override import apply_overrides

    profiler = config.profiler
    config.override.imports = [("overlap_sched.titan.options", {"headroom": "1GiB"})]
    apply_overrides(config.override, config)
    assert config.profiler is profiler
    config.override.imports = [("overlap_sched.titan.options", {"headrom": "1GiB"})]
    with pytest.raises(
        OptionsError,
        match=r"^there is no option 'headrom'\. Did you mean headroom\? The options are head",
    ):
        apply_overrides(config.override, config)


def test_without_us_the_job_runs_as_well(config: Any) -> None:
    from overlap_sched.titan import graph_pass

    said = "^overlap_sched leaves torchtitan's passes as they are: KeyError: 'injected'$"
    with (
        mock.patch.object(graph_pass, "final_inductor_compile_passes", side_effect=KeyError("injected")),
        pytest.warns(OverlapSchedWarning, match=said),
    ):
        theirs, found = both(config)
    assert found == theirs


def test_a_precompiled_artifact_keeps_its_order(config: Any) -> None:
    from overlap_sched.titan.graph_pass import mark
    from overlap_sched.titan.pipeline import passes_of

    config.compile.precompile_artifact_dir = "artifacts"
    assert names(passes_of(traced(mark(empty_graph())), config)) == []


def test_a_precompiled_artifact_without_our_order_is_said(config: Any) -> None:
    from overlap_sched.titan.pipeline import passes_of

    config.compile.precompile_artifact_dir = "artifacts"
    said = (
        r"^overlap_sched did nothing: the artifact in 'artifacts' was made without it\. Make it with python -m "
        r"overlap_sched\.titan\.precompile, in place of torchtitan\.experiments\.graph_trainer\.precompile_main and "
        r"with the same arguments\.$"
    )
    with pytest.warns(OverlapSchedWarning, match=said):
        assert names(passes_of(traced(empty_graph()), config)) == []


def test_precompilation_looks_at_the_pipeline_that_was_chosen(config: Any) -> None:
    from torchtitan.experiments.graph_trainer import passes

    from overlap_sched.titan.precompile import chosen_pipeline

    torchtitans = passes.compile_time_passes
    with chosen_pipeline():
        assert OURS not in names(passes.compile_time_passes(traced(), config))
        config.compile.pass_pipeline = "overlap_sched"
        assert OURS in names(passes.compile_time_passes(traced(), config))
    assert passes.compile_time_passes is torchtitans


def trainer(config: Any, pp: bool = False) -> Any:
    return SimpleNamespace(config=config, parallel_dims=SimpleNamespace(pp_enabled=pp))


@pytest.mark.parametrize(
    ("pp", "fields", "cause"),
    [
        (True, {"mode": "jit"}, "with pipeline parallelism it needs --compile.mode aot_fx_trace"),
        (True, {"enable_passes": False}, "--compile.enable_passes is off"),
        (False, {"mode": "jit"}, "it needs --compile.mode aot_fx_trace, or jit with --compile.backend inductor"),
        (False, {"mode": None}, "it needs --compile.mode aot_fx_trace, or jit with --compile.backend inductor"),
        (False, {"enable_passes": False}, "--compile.enable_passes is off"),
    ],
)
def test_a_trainer_in_which_nothing_of_ours_runs_is_said(
    config: Any, pp: bool, fields: dict[str, Any], cause: str
) -> None:
    from torchtitan.experiments.graph_trainer.registry import POST_INIT_HOOKS

    for name, value in fields.items():
        setattr(config.compile, name, value)
    with pytest.warns(OverlapSchedWarning, match=f"^overlap_sched does nothing in this job: {cause}[.]$"):
        POST_INIT_HOOKS["overlap_sched"](trainer(config, pp))


def test_the_settings_that_torchtitan_overwrites_are_made_again(config: Any) -> None:
    """Its jit backend switches passes after fusion off, while it builds the model; the hook runs after that."""
    from torch._inductor import config as inductor
    from torchtitan.experiments.graph_trainer.jit_backend import get_compile_backend_with_passes

    from overlap_sched.titan.pipeline import start

    config.compile.mode, config.compile.backend = "jit", "inductor"
    config.compile.passes = ["transformer_block_bucketing"]
    with inductor.patch(), overlap_sched.enabled():
        get_compile_backend_with_passes(config.compile, [])
        theirs = inductor.post_grad_custom_post_pass
        assert not inductor.reorder_for_compute_comm_overlap
        started = trainer(config)
        start(started)
        try:
            assert inductor.reorder_for_compute_comm_overlap
            assert type(inductor.reorder_for_compute_comm_overlap_passes[-1]).__name__ == "SchedulerPass"
            ours = inductor.post_grad_custom_post_pass
            assert (type(ours).__name__, ours.before) == ("WatchPass", theirs)
        finally:
            started.overlap_sched.close()
        assert inductor.post_grad_custom_post_pass is theirs


def test_a_limit_of_the_command_line(config: Any) -> None:
    from overlap_sched.titan.graph_pass import settings_of

    with overlap_sched.enabled(Options(headroom="3%"), max_slowdown=0.1):
        config.override.imports = [("overlap_sched.titan.options", {"memory_limit": "80%"})]
        settings = settings_of(config)
        assert (settings.memory_limit, settings.max_slowdown) == ("80%", None)
        assert settings.options == Options(headroom="3%")
    config.override.imports = [("overlap_sched.titan.options", {"memory_limit": "8 bananas"})]
    with pytest.raises(OptionsError, match="memory_limit is '8 bananas'"):
        settings_of(config)


def test_a_limit_where_no_step_is_fitted(config: Any) -> None:
    config.compile.inductor_compilation = "full"
    config.override.imports = [("overlap_sched.titan.options", {"memory_limit": "80%"})]
    said = "^overlap_sched keeps no limit in this job: it fits no step that Inductor compiles as a whole.$"
    with pytest.warns(OverlapSchedWarning, match=said):
        both(config)


def test_a_step_is_fitted_before_its_order_is_decided(titan: None) -> None:
    from overlap_sched.fx import lift
    from overlap_sched.inductor.settings import Settings
    from overlap_sched.judge.validate import peak_memory
    from overlap_sched.titan.graph_pass import overlap_sched_pass
    from tests.support.fx_graphs import sharded_step

    def peak(gm: fx.GraphModule) -> int:
        problem = lift(gm).problem
        return peak_memory(problem, problem.original_order)[0]

    gm = sharded_step()
    before = peak(gm)
    assert overlap_sched_pass(gm, settings=Settings(Options(headroom="50%"), stage="titan", memory_limit="85%")) is gm
    assert any(node.name.startswith("again_") for node in gm.graph.nodes)
    assert peak(gm) <= int(0.85 * before)  # the headroom is of a graph that has not been fitted
    with pytest.warns(OverlapSchedWarning, match="^overlap_sched fits nothing in 'training step': the lowest peak"):
        overlap_sched_pass(sharded_step(), settings=Settings(stage="titan", memory_limit="1%"))


@pytest.mark.parametrize(
    ("chosen", "cause"),
    [
        ("overlap_sched", None),
        ("somebodys", None),
        ("default", "--compile.pass_pipeline overlap_sched is missing."),
        ("overlap_schd", "torchtitan knows no pass pipeline 'overlap_schd' and takes its default. Did you mean"),
        ("xyz", "torchtitan knows no pass pipeline 'xyz' and takes its default. There are 'overlap_sched', 'somebod"),
    ],
)
def test_a_pipeline_that_was_not_chosen_or_is_misspelt_is_said(
    chosen: str, cause: str | None, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchtitan takes its own without a word."""
    from overlap_sched.titan import pipeline

    class Trainer:
        def __init__(self, config: Any) -> None:
            self.config = config

    monkeypatch.setattr(pipeline, "PASS_PIPELINE_REGISTRY", {"overlap_sched": None, "somebodys": None})
    pipeline.tell_if_not_chosen(Trainer)
    pipeline.tell_if_not_chosen(Trainer)  # once
    config.compile.pass_pipeline = chosen
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert Trainer(config).config is config
    ours = [str(w.message) for w in caught if issubclass(w.category, OverlapSchedWarning)]
    assert len(ours) == (cause is not None)
    assert cause is None or ours[0].startswith(f"overlap_sched does nothing in this job: {cause}")


def test_torchtitans_trainer_says_it(titan: None) -> None:
    from torchtitan.experiments.graph_trainer.trainer import GraphTrainer

    assert GraphTrainer.__init__.tells


# GraphPP: what is done to one of its graphs, who is asked, what is said where nothing can be done. No trainer.


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
        mock.patch("overlap_sched.inductor.decision.decisions.take_or_ask", return_value=None),
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


def test_a_limit_in_a_pipeline(config: Any) -> None:
    config.override.imports = [("overlap_sched.titan.options", {"memory_limit": "80%", "headroom": "1GiB"})]
    said = "^overlap_sched keeps no limit in this job: in a pipeline there is no whole step to fit.$"
    with pytest.warns(OverlapSchedWarning, match=said):
        trainer, _ = started(config)
    settings = trainer.pp_schedule.graph_provider.settings
    assert (settings.fits, settings.options.headroom) == (False, "1GiB")
