"""The cluster that a job is taken to run on where nobody says: by its GPU, and only where CUDA runs already."""

from typing import Any

import pytest
import torch

import overlap_sched
from overlap_sched.cost import H100, Roofline
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.inductor.caches import settings_key
from overlap_sched.inductor.settings import Settings, cluster_here
from overlap_sched.problem import Group, Kind, Problem
from tests.inductor.conftest import compiled_step

pytest.importorskip("torch")


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch):
    def become(name: str) -> None:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)

    return become


@pytest.mark.parametrize(
    ("gpu", "cluster"),
    [
        ("NVIDIA H100 80GB HBM3", "dgx-h100"),
        ("NVIDIA H200", "dgx-h200"),
        ("NVIDIA A100-SXM4-80GB", "dgx-a100"),
        ("NVIDIA B200", "dgx-b200"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA H800", "dgx-h800"),
        ("NVIDIA GB200", "gb200-nvl72"),
        ("NVIDIA H800 PCIe", None),
        ("Tesla V100-SXM2-16GB", None),
    ],
)
def test_by_the_name_of_the_gpu(on_gpu, gpu: str, cluster: str | None) -> None:
    on_gpu(gpu)
    found = cluster_here()
    assert found == (None if cluster is None else read_cluster(cluster))
    assert Settings().costs["cluster"] == found
    assert Settings().priced_for == (cluster or "H100")


def test_cuda_is_not_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: pytest.fail("asked a GPU"))
    assert cluster_here() is None
    assert Settings().costs["cluster"] is None


def test_what_is_given_goes_before_it(on_gpu) -> None:
    on_gpu("NVIDIA H100 80GB HBM3")
    assert Settings(cluster="gloo").costs["cluster"] == read_cluster("gloo")
    assert Settings(model=Roofline(H100)).costs["cluster"] is None
    assert Settings(model=Roofline(H100)).priced_for == "H100"


def test_caches_tell_the_prices_of_two_gpus_apart(on_gpu) -> None:
    on_gpu("NVIDIA H100 80GB HBM3")
    before = settings_key(Settings())
    on_gpu("NVIDIA H200")
    assert before is not None
    assert settings_key(Settings()) not in (before, None)


def problems(**how: Any) -> list[Problem]:
    reports = compiled_step(options=overlap_sched.inductor_options(**how)).reports
    return [one.report.schedule.problem for one in reports if one.report.schedule is not None]


@pytest.mark.slow
@pytest.mark.usefixtures("clean")
@pytest.mark.parametrize("stage", ["inductor", "post_grad"])
def test_the_graphs_of_a_job_are_priced_by_its_cluster(stage: str) -> None:
    plain, priced = problems(stage=stage), problems(stage=stage, cluster="dgx-h100")
    assert len(plain) == len(priced) == 2
    for before, after in zip(plain, priced, strict=True):
        assert not before.contention
        assert after.contention.slowdown == {"": read_cluster("dgx-h100").contention.slowdown["any"]}
        assert set(after.groups.values()) == {Group(2, True, ranks=(0, 1))}
        times = [[node.time_us for node in one.nodes if node.kind is Kind.COLLECTIVE] for one in (before, after)]
        assert times[0] != times[1]
