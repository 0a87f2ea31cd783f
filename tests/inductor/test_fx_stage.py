"""How FX graphs are priced, by what runs them."""

from typing import Any
from unittest import mock

import pytest
from overlap_sched.inductor.attempt import Attempt

from overlap_sched.errors import OverlapSchedWarning
from overlap_sched.fx.apply import NO_COLLECTIVES, Report
from overlap_sched.inductor import fx_stage
from overlap_sched.inductor.reporting import Stage
from overlap_sched.inductor.settings import Settings
from tests.support.fx_graphs import C10D, trace, wait


@pytest.mark.parametrize(
    ("stage", "fusion"), [("post_grad", "inductor"), ("backend", "none"), ("titan", "none")], ids=str
)
def test_only_what_inductor_compiles_is_priced_by_its_kernels(stage: Stage, fusion: str) -> None:
    nothing = Report("graph", reason=NO_COLLECTIVES)
    with mock.patch.object(fx_stage, "schedule_graph", return_value=nothing) as scheduled:
        fx_stage.schedule_fx(trace(lambda x: x + 1, (4, 4)), Settings(stage=stage))
    assert scheduled.call_args.kwargs["fusion"] == fusion


@pytest.mark.parametrize("communicates", [True, False])
def test_a_rank_that_fails_asks_only_about_graphs_that_others_ask_about(communicates: bool) -> None:
    """It would wait for its whole limit: no other rank comes to speak of a graph without collectives."""

    def step(x: Any) -> Any:
        return wait(C10D.all_reduce(x, "sum", "0")) if communicates else x + 1

    with (
        mock.patch.object(fx_stage, "asks", return_value=True),
        mock.patch("overlap_sched.fx.apply.lift", side_effect=ZeroDivisionError("injected")),
        mock.patch("overlap_sched.inductor.attempt.decided", return_value=None) as asked,
        pytest.warns(OverlapSchedWarning, match="as it was: ZeroDivisionError: injected$"),
    ):
        fx_stage.schedule_fx(trace(step, (4, 4)), Settings(stage="titan"))
    assert asked.called is communicates


@pytest.mark.parametrize(
    ("stage", "region", "known"),
    [
        ("backend", False, True),
        ("titan", False, True),
        ("titan", True, False),
        ("post_grad", False, False),
        ("deepspeed", False, False),
    ],
)
def test_waits_are_known_only_where_the_graph_runs_as_it_is(stage: Stage, region: bool, known: bool) -> None:
    """Inductor, which lowers the others, keeps launches in order and moves waits; so do regions that it compiles."""
    made = []

    def decided(attempt: Attempt, plan: Any) -> Report:
        made.append(attempt)
        return plan(attempt)

    with mock.patch.object(fx_stage, "asks", return_value=True), mock.patch.object(Attempt, "decided", decided):
        gm = trace(lambda x: wait(C10D.all_reduce(x, "sum", "0")), (4, 4))
        if region:
            list(gm.graph.nodes)[1].meta["custom"] = {"compile_with_inductor": {"inductor_region": 0}}
        fx_stage.schedule_fx(gm, Settings(stage=stage))
    assert (made[0].original is not None) is known
