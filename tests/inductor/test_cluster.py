"""A training job priced by a cluster: its prices, where its groups are, and what compute and communication cost."""

from typing import Any

import pytest

import overlap_sched
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.problem import Group, Kind, Problem
from tests.inductor.conftest import compiled_step

pytestmark = pytest.mark.usefixtures("clean")


def problems(**how: Any) -> list[Problem]:
    reports = compiled_step(options=overlap_sched.inductor_options(**how)).reports
    return [one.report.schedule.problem for one in reports if one.report.schedule is not None]


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["inductor", "post_grad"])
def test_the_graphs_of_a_job_are_priced_by_its_cluster(stage: str) -> None:
    plain, priced = problems(stage=stage), problems(stage=stage, cluster="dgx-h100")
    assert len(plain) == len(priced) == 2
    for before, after in zip(plain, priced, strict=True):
        assert not before.contention
        assert after.contention.slowdown == read_cluster("dgx-h100").beside.slowdown
        assert set(after.groups.values()) == {Group(2, True, ranks=(0, 1))}
        times = [[node.time_us for node in one.nodes if node.kind is Kind.COLLECTIVE] for one in (before, after)]
        assert times[0] != times[1]
