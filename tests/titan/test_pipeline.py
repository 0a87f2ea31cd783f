"""Which passes GraphTrainer is given, and what is said where ours does nothing."""

import warnings
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from torch import fx

import overlap_sched
from overlap_sched import Options
from overlap_sched.errors import OptionsError, OverlapSchedWarning

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


def test_a_pass_that_fails_leaves_the_graph_as_it_was(titan: None) -> None:
    from overlap_sched.inductor.settings import Settings
    from overlap_sched.titan.graph_pass import overlap_sched_pass

    gm = empty_graph()
    with (
        mock.patch("overlap_sched.fx.apply.lift", side_effect=ZeroDivisionError("injected")),
        pytest.warns(OverlapSchedWarning, match="as it was: ZeroDivisionError: injected"),
    ):
        assert overlap_sched_pass(gm, (), settings=Settings()) is gm


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


def test_a_trainer_that_runs_it_is_not_warned(config: Any) -> None:
    from overlap_sched.inductor.switch import current_settings
    from overlap_sched.titan.pipeline import start

    start(trainer(config))
    assert current_settings() is None


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
            rewrites = inductor.post_grad_custom_post_pass.before
            assert (type(rewrites).__name__, rewrites.before) == ("RewritePass", theirs)
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
    from tests.support.sharded_step import sharded_step

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
        (
            "overlap_schd",
            "torchtitan knows no pass pipeline 'overlap_schd' and takes its default. Did you mean overlap_sched?",
        ),
        (
            "xyz",
            "torchtitan knows no pass pipeline 'xyz' and takes its default. There are 'overlap_sched', 'somebodys'.",
        ),
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
    assert ours == ([] if cause is None else [f"overlap_sched does nothing in this job: {cause}"])


def test_torchtitans_trainer_says_it(titan: None) -> None:
    from torchtitan.experiments.graph_trainer.trainer import GraphTrainer

    assert GraphTrainer.__init__.tells
