"""torch's caches never serve a stale order: what an order depends on is part of the key, or nothing is cached."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from torch import fx
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

import overlap_sched
from overlap_sched import Options
from overlap_sched.cost import A100, Compute, Roofline
from overlap_sched.inductor import agree, cache_key, cached_orders, torch_caches
from overlap_sched.inductor.caches import settings_key
from overlap_sched.inductor.scheduler_pass import SchedulerPass
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import PostGradPass
from overlap_sched.problem.allocator_settings import VARIABLES
from tests.support.inductor.generated import events, numbered
from tests.support.inductor.models import RANKS, Net, step


def free(node: fx.Node) -> float | None:
    return None


class NamedCost:
    """A user's costs with a name of their own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, node: fx.Node) -> float | None:
        return None

    def uuid(self) -> str:
        return self.name


class PlainModel:
    """A cost model that is no dataclass: nothing tells two of them apart."""

    def compute_us(self, work: Compute) -> float:
        return 1.0

    def collective_us(self, work: Any) -> float:
        return 1.0


def test_the_same_settings_have_the_same_name() -> None:
    one = settings_key(Settings(Options(headroom="1GiB"), model=Roofline()))
    assert one == settings_key(Settings(Options(headroom="1GiB"), model=Roofline(), notes=("torch's pass is off",)))
    assert one is not None


def test_everything_that_an_order_depends_on_changes_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = [
        Settings(Options()),
        Settings(Options(headroom=1)),
        Settings(Options(effort=1)),
        Settings(Options(base="memory")),
        Settings(Options(base="memory-peak")),
        Settings(Options(), model=Roofline()),
        Settings(Options(), model=Roofline(device=A100)),
        Settings(Options(), ranks_per_node=4),
        Settings(Options(), cost=NamedCost("a")),
        Settings(Options(), cost=NamedCost("b")),
    ]
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    names = [settings_key(one) for one in settings]
    monkeypatch.setenv(VARIABLES[0], "expandable_segments:True")  # with the options as they were
    names.append(settings_key(Settings(Options())))
    monkeypatch.delenv(VARIABLES[0])
    monkeypatch.setattr(cache_key, "_package", lambda: "another version")
    names.append(settings_key(Settings(Options())))
    assert None not in names
    assert len(set(names)) == len(names)


def test_what_has_no_name_is_not_cached() -> None:
    assert settings_key(Settings(Options(), cost=free)) is None
    assert settings_key(Settings(Options(), model=PlainModel())) is None


def test_who_must_agree_is_part_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that ranks had to agree on is for them alone, and none of it is for a rank that asks nobody."""
    names = [settings_key(Settings())]
    monkeypatch.setattr(agree, "several_ranks", lambda: True)
    monkeypatch.setattr(cache_key.dist, "get_world_size", lambda: 4)
    names += [settings_key(Settings()), settings_key(Settings(ranks=[0, 1]))]
    monkeypatch.setattr(cache_key.dist, "get_world_size", lambda: 2)
    names += [settings_key(Settings())]
    assert None not in names
    assert len(set(names)) == len(names)
    assert PostGradPass(Settings(stage="post_grad")).uuid() is None


def test_ranks_that_must_agree_do_not_cache_with_a_torch_that_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agree, "several_ranks", lambda: True)
    monkeypatch.setattr(cache_key.dist, "get_world_size", lambda: 2)
    assert pickle.dumps(SchedulerPass(Settings()))
    monkeypatch.setattr(torch_caches, "watch_cache", lambda *_: False)
    with pytest.raises(TypeError, match="no stable cache key"):
        pickle.dumps(SchedulerPass(Settings()))
    monkeypatch.setattr(torch_caches, "watch_cache", fails)
    with pytest.raises(TypeError, match="no stable cache key"):
        pickle.dumps(SchedulerPass(Settings()))
    assert pickle.dumps(SchedulerPass(Settings(Options(agreement="none"))))


def fails(*_: object) -> bool:
    raise KeyError("injected")


def test_a_pass_is_hashed_by_its_name() -> None:
    def pickled(options: Options) -> bytes:
        (only,) = overlap_sched.inductor_options(options)["reorder_for_compute_comm_overlap_passes"]
        return pickle.dumps(only)

    assert pickled(Options()) == pickled(Options())
    assert pickled(Options()) != pickled(Options(headroom=1))
    assert pickle.loads(pickled(Options(headroom=1))).settings.options == Options(headroom=1)


@pytest.fixture(scope="module")
def runs(ranks: None) -> Iterator[dict[str, Any]]:
    """The model compiled with torch's caches on: twice alike, with other options, with costs that have no name."""
    found: dict[str, Any] = {}
    options = {"first": {}, "again": {}, "other": {"headroom": "20%"}, "unnamed": {}}
    tag = f"overlap_sched test {uuid4()}"  # other runs' graphs are none of ours; their kernels may be
    with torch._inductor.config.patch(fx_graph_cache=True), torch.compiler.config.patch(cache_key_tag=tag):
        for name, changed in options.items():
            torch._dynamo.reset()
            counters.clear()
            overlap_sched.clear_reports()
            cost = free if name == "unnamed" else None
            settings = overlap_sched.inductor_options(Options(strict=True, **changed), cost=cost)
            model = Net(blocks=2)
            compiled = torch.compile(model, fullgraph=True, options=settings)
            results, code = run_and_get_code(step, model, compiled)
            found[name] = (results, code, dict(counters["inductor"]), overlap_sched.reports())
    yield found
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.private
def test_a_hit_serves_the_same_order(runs: dict[str, Any]) -> None:
    first, again = runs["first"], runs["again"]
    assert first[2]["fxgraph_cache_miss"] == 2
    assert first[2].get("fxgraph_cache_hit", 0) == 0
    assert again[2].get("fxgraph_cache_miss", 0) == 0
    assert again[2]["fxgraph_cache_hit"] == 2
    assert len(first[3]) == 2
    assert again[3] == ()  # the pass is not called
    assert all(map(torch.equal, first[0], again[0]))


@pytest.mark.slow
@pytest.mark.private
def test_other_options_do_not_hit(runs: dict[str, Any]) -> None:
    first, other = runs["first"], runs["other"]
    assert other[2]["fxgraph_cache_miss"] == 2
    assert numbered(events(first[1][1])) != numbered(events(other[1][1]))
    assert all(map(torch.equal, first[0], other[0]))


@pytest.mark.slow
@pytest.mark.private
def test_costs_without_a_name_bypass_the_cache(runs: dict[str, Any]) -> None:
    unnamed = runs["unnamed"]
    assert unnamed[2]["fxgraph_cache_bypass"] == 2
    assert len(unnamed[3]) == 2


def test_the_name_covers_the_code_of_this_package(tmp_path: Path) -> None:
    assert len(cache_key._package().split()[-1]) == 64


def test_the_hash_that_a_mesh_remembers_is_in_no_key(ranks: None) -> None:
    """Each process has another."""
    from torch.distributed.device_mesh import init_device_mesh

    torch_caches.watch_cache(cached_orders._may_load, cached_orders._may_save)
    mesh = init_device_mesh("cpu", (RANKS,))
    before = pickle.dumps(mesh)
    assert hash(mesh)
    assert pickle.dumps(mesh) == before
    assert hash(pickle.loads(before)) == hash(mesh)
