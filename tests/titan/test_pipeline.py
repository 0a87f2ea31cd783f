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
from overlap_sched.fx.lifting import STAYS
from overlap_sched.inductor import agree
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import current_settings
from overlap_sched.judge.replay import Replay, replay
from overlap_sched.judge.validate import peak_memory
from tests.support.fx_graphs import C10D, sharded_step, trace, wait

OURS = "overlap_sched_pass"


class Held(SimpleNamespace):
    """What of torchtitan's is looked at, where something is held for as long as it is there."""


def traced(gm: Any = None) -> Any:
    return Held(state_fqns=["layers.0.w"], num_static_inputs=1, tensor_input_indices=[0], gm=gm)


def empty_graph() -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(())
    return fx.GraphModule({}, graph)


def names(passes: list[Any]) -> list[str]:
    return [(each.func if isinstance(each, partial) else each).__name__ for each in passes]


def both(titan: Any, config: Any) -> tuple[list[str], list[str]]:
    """Names of torchtitan's passes and of those with ours."""
    config.compile.disable_passes = []
    theirs = names(titan.passes.construct_default_graph_passes(traced(), config))
    return theirs, names(titan.registry.PASS_PIPELINE_REGISTRY["overlap_sched"](traced(), config))


def given(config: Any, **options: Any) -> Any:
    """The configuration with options of ours on the command line."""
    config.override.imports = [("overlap_sched.titan.options", options)]
    return config


@pytest.mark.parametrize("overlaps", [False, True])
def test_ours_is_the_last_before_what_compiles(titan: Any, config: Any, overlaps: bool) -> None:
    config.compile.enable_fsdp_dense_region_overlap = config.compile.enable_fsdp_ag_rs_overlap = overlaps
    theirs, found = both(titan, config)
    assert [name for name in found if name != OURS] == theirs
    place, last = found.index(OURS), "joint_transformer_block_bucketing_reordering_pass"
    assert overlaps or found[place - 1] == last
    assert found[place + 1] == "annotate_flex_attention_for_regional_inductor_pass"
    assert found[-1] == "cudagraph_pass"
    config.compile.inductor_compilation = "full"  # inside Inductor: ``disable_passes`` means the same
    theirs, found = both(titan, config)
    assert found == theirs
    assert ("schedule_fsdp_comms_to_dense_regions_pass" in found) == overlaps


def test_full_compilation_runs_with_our_plug_in_switched_on(titan: Any) -> None:
    def full_inductor_compilation_pass(gm: Any, example_inputs: Any, *, boxed_codegen: bool) -> Any:
        assert boxed_codegen
        settings = current_settings()
        assert settings is not None
        assert (settings.options, settings.stage) == (Options(headroom="1%"), "inductor")
        return gm

    gm = empty_graph()
    for full in (full_inductor_compilation_pass, partial(full_inductor_compilation_pass, boxed_codegen=True)):
        ours = titan.graph_pass.inside_inductor(full, Settings(Options(headroom="1%")))
        assert ours.__name__ == "full_inductor_compilation_pass"
        assert ours(gm, (), boxed_codegen=True) is gm
        assert titan.graph_pass.is_marked(gm)
        assert current_settings() is None


def test_options_of_the_command_line(titan: Any, config: Any) -> None:
    settings_of = titan.graph_pass.settings_of
    assert settings_of(config).options == Options()
    settings = settings_of(given(config, headroom="1GiB", rewrites=["bucket"]))
    assert (settings.options, settings.stage) == (Options(headroom="1GiB", rewrites=("bucket",)), "titan")
    with overlap_sched.enabled(Options(headroom="3%"), timeout_s=7.0, max_slowdown=0.1):
        settings = settings_of(given(config))
        assert (settings.options, settings.timeout_s) == (Options(headroom="3%"), 7.0)
        settings = settings_of(given(config, headroom="4%"))
        assert (settings.options, settings.max_slowdown) == (Options(headroom="4%"), 0.1)
        settings = settings_of(given(config, memory_limit="80%"))
        assert (settings.memory_limit, settings.max_slowdown) == ("80%", None)
        assert settings.options == Options(headroom="3%")
    with pytest.raises(OptionsError, match="memory_limit is '8 bananas'"):
        settings_of(given(config, memory_limit="8 bananas"))


def test_a_wrong_option_is_found_when_the_job_starts(config: Any) -> None:
    from torchtitan.config.override import apply_overrides

    profiler = config.profiler
    apply_overrides(given(config, headroom="1GiB").override, config)
    assert config.profiler is profiler
    with pytest.raises(OptionsError, match=r"headrom'?\. Did you mean headroom\?"):
        apply_overrides(given(config, headrom="1GiB").override, config)


def test_without_us_the_job_runs_as_well(titan: Any, config: Any) -> None:
    with (
        mock.patch.object(titan.graph_pass, "final_inductor_compile_passes", side_effect=KeyError("injected")),
        pytest.warns(OverlapSchedWarning, match="leaves torchtitan's passes as they are: KeyError: 'injected'$"),
    ):
        theirs, found = both(titan, config)
    assert found == theirs


def test_a_precompiled_artifact_keeps_its_order_or_it_is_said(titan: Any, config: Any) -> None:
    config.compile.precompile_artifact_dir = "artifacts"
    assert titan.pipeline.passes_of(traced(titan.graph_pass.mark(empty_graph())), config) == []
    with pytest.warns(
        OverlapSchedWarning, match=r"'artifacts' .* Make it with python -m overlap_sched\.titan\.precomp"
    ):
        assert titan.pipeline.passes_of(traced(empty_graph()), config) == []


def trainer(config: Any, pp: bool = False) -> Any:
    return SimpleNamespace(config=config, parallel_dims=SimpleNamespace(pp_enabled=pp))


@pytest.mark.parametrize(
    ("pp", "fields", "cause"),
    [
        (True, {"mode": "jit"}, "it needs --compile.mode aot_fx_trace"),
        (True, {"enable_passes": False}, "--compile.enable_passes is off"),
        (True, {}, "with pipeline parallelism it needs torchtitan's GraphPP, as torchtitan 0.3.0 has it"),
        (False, {"mode": "jit"}, "it needs --compile.mode aot_fx_trace, or jit with --compile.backend inductor"),
        (False, {"mode": None}, "it needs --compile.mode aot_fx_trace, or jit with --compile.backend inductor"),
    ],
)
def test_a_trainer_in_which_nothing_of_ours_runs_is_said(
    titan: Any, config: Any, pp: bool, fields: dict[str, Any], cause: str
) -> None:
    for name, value in fields.items():
        setattr(config.compile, name, value)
    with pytest.warns(OverlapSchedWarning, match=f"^overlap_sched does nothing in this job: {cause}[.]$"):
        titan.registry.POST_INIT_HOOKS["overlap_sched"](trainer(config, pp))


def test_a_step_is_fitted_before_its_order_is_decided(titan: Any) -> None:
    run, gm = titan.graph_pass.overlap_sched_pass, sharded_step()
    _, before = played(gm)
    assert run(gm, settings=Settings(Options(headroom="50%"), stage="titan", memory_limit="85%")) is gm
    assert any(node.name.startswith("again_") for node in gm.graph.nodes)
    assert played(gm)[1] <= int(0.85 * before)  # the headroom is of a graph that has not been fitted
    with pytest.warns(OverlapSchedWarning, match="^overlap_sched fits nothing in 'training step': the lowest peak"):
        run(sharded_step(), settings=Settings(stage="titan", memory_limit="1%"))


@pytest.mark.parametrize(
    ("chosen", "cause"),
    [
        ("overlap_sched", None),
        ("somebodys", None),
        ("default", "'default' torchtitan takes its own list of passes. Give --compile.pass_pipeline overlap_sched."),
        ("overlap_schd", "'overlap_schd' torchtitan takes its own list of passes. Did you mean"),
    ],
)
def test_a_pipeline_that_was_not_chosen_or_is_misspelt_is_said(
    chosen: str, cause: str | None, titan: Any, config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchtitan takes its own without a word."""

    class Trainer:
        def __init__(self, config: Any) -> None:
            self.config = config

    build = titan.trainer.GraphTrainer.__init__
    assert build.__name__ == "__init__" != build.__code__.co_name
    monkeypatch.setattr(titan.pipeline, "PASS_PIPELINE_REGISTRY", {"overlap_sched": None, "somebodys": None})
    titan.pipeline.tell_if_not_chosen(Trainer)
    config.compile.pass_pipeline = chosen
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert Trainer(config).config is config
    ours = [str(w.message) for w in caught if issubclass(w.category, OverlapSchedWarning)]
    assert len(ours) == (cause is not None)
    assert cause is None or f"with --compile.pass_pipeline {cause}" in ours[0]


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


def stage(titan: Any, name: str, number: int = 0, rows: int = ROWS, width: int = WIDTH) -> fx.GraphModule:
    """A graph of GraphPP with one chain, marked as torchtitan marks its own."""
    return marked(titan, trace(chain, (rows, width), *[(width, width)] * DEPTH), name, number)


def marked(titan: Any, gm: fx.GraphModule, name: str, number: int = 0) -> fx.GraphModule:
    titan.graph_builder._annotate_graph_pp_graph(gm, stage_index=number, callable_name=name, action_name="")
    return gm


def multiplexed(titan: Any, *shape: int) -> fx.GraphModule:
    """torchtitan's own graph of a forward and a backward."""
    chains = stage(titan, "fw", 0, *shape), stage(titan, "full_bw", 3, *shape)
    return marked(titan, titan.graph_multiplex.multiplex_fw_bw_graph(*chains), "multiplex")


def ordered(titan: Any, gm: fx.GraphModule) -> fx.GraphModule:
    return titan.graph_pass.overlap_sched_pass(gm, settings=Settings(stage="titan"))


def played(gm: fx.GraphModule) -> tuple[Replay, int]:
    """The graph as it stands: in simulated time, and its peak."""
    problem = lift(gm).problem
    return replay(problem, problem.original_order), peak_memory(problem, problem.original_order)[0]


def test_a_forward_and_a_backward_hide_each_others_communication(titan: Any) -> None:
    """Apart nothing can be hidden; torchtitan concatenates them, and so nothing is; interleaved nearly all is."""
    overlap_sched.clear_reports()
    gm, alone = multiplexed(titan), ordered(titan, stage(titan, "fw"))
    for node in gm.graph.find_nodes(op="placeholder"):
        node.meta[STAYS] = True
    before, peak = played(gm)
    apart, _ = played(alone)
    assert before.exposed_us == pytest.approx(2 * apart.exposed_us)
    assert [node.name.startswith("bw_") for node in gm.graph.find_nodes(op="placeholder")] == [True] * 5 + [False] * 5
    after, peak_after = played(ordered(titan, gm))
    assert after.exposed_us <= before.exposed_us / (2 * DEPTH) * 1.01  # the last sum has nothing left beside it
    assert after.step_us == pytest.approx(before.step_us - before.exposed_us + after.exposed_us)
    assert peak_after <= peak
    report = overlap_sched.reports()[-1]
    assert report.name == "stage 0 multiplex"
    assert report.report.schedule is not None
    assert report.report.schedule.scheduled.step_us == pytest.approx(after.step_us)


def test_equal_graphs_of_two_stages_are_met_apart(titan: Any) -> None:
    """Else the second one would be taken for the first, compiled again."""
    keys: list[str] = []
    with (
        mock.patch.object(agree, "asks", return_value=True),
        mock.patch.object(agree, "graph_key", lambda graph, stage: keys.append(stage) or stage),
        mock.patch("overlap_sched.inductor.decision.take_or_ask", return_value=None),
    ):
        for number in (1, 2):
            ordered(titan, stage(titan, "fw", number))
    assert keys == ["titan stage 1 fw", "titan stage 2 fw"]


def test_a_graph_that_meets_other_stages_stays(titan: Any) -> None:
    gm = multiplexed(titan)
    order = [node.name for node in gm.graph.nodes]
    overlap_sched.clear_reports()
    with (
        mock.patch.object(titan.graph_pass, "live_ranks", return_value=[0, 1, 4, 5]),
        pytest.warns(OverlapSchedWarning, match=r"leaves 'stage 0 multiplex' .* ranks \[4, 5\], which hold other"),
    ):
        titan.graph_pass.overlap_sched_pass(gm, settings=Settings(stage="titan", ranks=[0, 1, 2, 3]))
    assert [node.name for node in gm.graph.nodes] == order


def dims(column: list[int], own: int, world: int) -> Any:
    """torchtitan's ``ParallelDims``, as far as it is asked."""
    mesh = SimpleNamespace(mesh=torch.tensor(column), get_local_rank=lambda: own)
    return SimpleNamespace(world_size=world, pp=len(column), get_mesh=lambda name: {"pp": mesh}[name], pp_enabled=True)


def test_who_holds_the_same_stages(titan: Any) -> None:
    ranks_of_stages = titan.pipeline.ranks_of_stages
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


def started(titan: Any, config: Any, graphs: int = 0) -> tuple[Any, Provider]:
    """Our provider of graphs and that behind it, once our hook has run."""
    provider = Provider(titan.graph_builder, config.compile, graphs)
    schedule = SimpleNamespace(graph_provider=provider)
    hook = titan.registry.POST_INIT_HOOKS["overlap_sched"]
    hook(Held(config=config, parallel_dims=dims([0, 2], 0, 4), pp_schedule=schedule))
    return schedule.graph_provider, provider


def test_every_graph_that_is_compiled_meets_our_pass_first(titan: Any, config: Any) -> None:
    stages, provider = started(titan, config, graphs=2)
    assert stages.settings.ranks == [0, 1]
    theirs = titan.graph_builder.final_inductor_compile_passes
    assert stages.prepare_graphs("schedule", "context", loss_kwargs={}) == "schedule context {}"
    assert titan.graph_builder.final_inductor_compile_passes is theirs
    ours, *others = provider.lists[0]
    assert (ours.func.__name__, ours.keywords) == (OURS, {"settings": stages.settings})
    assert [each.func for each in others] == [each.func for each in theirs(config.compile)]
    assert len(provider.lists) == 2
    stages.prepare_graphs("schedule", "context", loss_kwargs={})
    assert len(provider.lists) == 2


def test_a_list_that_is_not_understood_stays(titan: Any, config: Any) -> None:
    stages, provider = started(titan, config, graphs=1)
    with (
        mock.patch.object(titan.graph_pass, "with_ours", side_effect=KeyError("injected")),
        pytest.warns(OverlapSchedWarning, match="leaves torchtitan's passes as they are: KeyError: 'injected'$"),
    ):
        stages.prepare_graphs(0, 0, loss_kwargs={})
    assert OURS not in str(provider.lists)


def test_a_limit_where_no_step_is_fitted(titan: Any, config: Any) -> None:
    with pytest.warns(OverlapSchedWarning, match="keeps no limit in this job: in a pipeline there is no whole step"):
        stages, _ = started(titan, given(config, memory_limit="80%", headroom="1GiB"))
    assert (stages.settings.fits, stages.settings.options.headroom) == (False, "1GiB")
    config.compile.inductor_compilation = "full"
    with pytest.warns(OverlapSchedWarning, match="keeps no limit in this job: it fits no step that Inductor compiles"):
        both(titan, config)
