"""How FX graphs are priced, by what runs them."""

from unittest import mock

import pytest

from overlap_sched.fx.apply import NO_COLLECTIVES, Report
from overlap_sched.inductor import fx_stage
from overlap_sched.inductor.reporting import Stage
from overlap_sched.inductor.settings import Settings
from tests.support.fx_graphs import trace


@pytest.mark.parametrize(
    ("stage", "fusion"), [("post_grad", "inductor"), ("backend", "none"), ("titan", "none")], ids=str
)
def test_only_what_inductor_compiles_is_priced_by_its_kernels(stage: Stage, fusion: str) -> None:
    nothing = Report("graph", reason=NO_COLLECTIVES)
    with mock.patch.object(fx_stage, "schedule_graph", return_value=nothing) as scheduled:
        fx_stage.schedule_fx(trace(lambda x: x + 1, (4, 4)), Settings(stage=stage))
    assert scheduled.call_args.kwargs["fusion"] == fusion
