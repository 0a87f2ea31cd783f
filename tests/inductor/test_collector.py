"""The cyclic garbage collector stands still while a graph is planned, and goes on after that."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from overlap_sched.inductor.attempt import Attempt

from overlap_sched.inductor import scheduler_pass
from overlap_sched.inductor.scheduler_pass import SchedulerPass
from overlap_sched.inductor.settings import Settings
from overlap_sched.scheduler.collector import no_collection


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.parametrize("enabled", [True, False])
def test_it_stands_still_in_the_block_alone(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with no_collection():
        assert not gc.isenabled()
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() == enabled


def test_it_goes_on_after_a_failure() -> None:
    gc.enable()
    with pytest.raises(KeyError), no_collection():
        raise KeyError
    assert gc.isenabled()


def test_it_stands_still_while_a_graph_is_planned_but_not_while_ranks_are_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.enable()
    seen: list[tuple[str, bool]] = []

    def checked() -> None:
        seen.append(("planned", gc.isenabled()))
        raise RuntimeError("far enough")

    decided = Attempt.decided

    def asked(self: Attempt, plan: Any) -> Any:
        seen.append(("asked", gc.isenabled()))
        return decided(self, plan)

    monkeypatch.setattr(scheduler_pass, "_effects_kept", lambda snodes: snodes)
    monkeypatch.setattr(scheduler_pass, "check_torch", checked)
    monkeypatch.setattr(Attempt, "decided", asked)
    monkeypatch.setattr(Attempt, "record", lambda *_: None)
    with pytest.warns(match="far enough"):
        SchedulerPass(Settings())([])
    assert seen == [("asked", True), ("planned", False)]
    assert gc.isenabled()
