"""Options.memory_limit: the order runs on such a device, where one is found that does, or says what it is short."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_repro.bench.cases import slower_network
from overlap_sched import EXAMPLE, Options, Problem, Schedule, schedule
from overlap_sched.judge.validate import violation
from overlap_sched.problem.sizes import EXPANDABLE, MIB, PLAIN, AllocatorSettings
from overlap_sched.report.words.schedule import short_text
from overlap_sched.scheduler import restrictions as under_test
from overlap_sched.scheduler.restrictions import BUDGET_PARTS, DeviceLimit, needed_bytes
from overlap_sched.scheduler.task import Reference, Task
from overlap_sched.simulate.allocator import requests_of
from overlap_sched.simulate.ledger import LiveRanges
from tests.peak_memory.test_reserved import with_sizes_of_all_kinds
from tests.support.graphs import problems
from tests.support.layers import large_layers

SETTINGS = {"plain": PLAIN, "expandable": EXPANDABLE, "none": None}


def runs_in(found: Schedule, limit_bytes: int, settings: AllocatorSettings | None) -> bool:
    """By definition."""
    if found.scheduled.peak_bytes > limit_bytes or settings is None:
        return found.scheduled.peak_bytes <= limit_bytes
    return requests_of(LiveRanges(found.problem), found.order).fits(limit_bytes, settings)


@given(
    problems(models=("runtime",), max_steps=20), st.sampled_from([*SETTINGS]), st.integers(50, 130), st.integers(0, 2)
)
def test_every_promise_is_kept(problem: Problem, allocator: str, percent: int, effort: int) -> None:
    problem, settings = with_sizes_of_all_kinds(problem), SETTINGS[allocator]
    found = schedule(problem, Options(memory_limit=f"{percent}%", allocator=allocator, effort=effort, strict=True))
    assert violation(problem, found.order) is None
    assert found.scheduled.peak_bytes <= found.original.peak_bytes
    assert found.scheduled.step_us <= found.original.step_us * (1 + 1e-9)
    needed = needed_bytes(LiveRanges(problem), problem.original_order, settings)
    assert found.memory_limit_bytes == needed * percent // 100
    assert runs_in(found, found.memory_limit_bytes, settings) == (found.short_bytes == 0)
    assert runs_in(found, found.memory_limit_bytes + found.short_bytes, settings)
    assert percent < 100 or not found.short_bytes  # the original order runs there


def test_without_a_limit_the_allocator_chooses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = large_layers(8, 20)
    orders = {schedule(problem, Options(allocator=allocator)).order for allocator in SETTINGS}
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    found = schedule(problem)
    assert orders == {found.order}
    assert (found.memory_limit_bytes, found.short_bytes) == (None, 0)


@pytest.mark.parametrize("allocator", ["plain", "expandable"])
@pytest.mark.parametrize("slower", [1, 3])
def test_what_does_not_run_is_exchanged_for_the_shortest_that_does(allocator: str, slower: int) -> None:
    problem, settings = slower_network(large_layers(24, 20), slower), SETTINGS[allocator]
    assert settings is not None
    free = schedule(problem)
    found = schedule(problem, Options(memory_limit="100%", allocator=allocator))
    limit_bytes = found.memory_limit_bytes
    assert limit_bytes is not None
    assert not runs_in(free, limit_bytes, settings)
    assert runs_in(found, limit_bytes, settings)
    assert free.scheduled.step_us < found.scheduled.step_us < found.original.step_us
    roomy = schedule(problem, Options(memory_limit=2**50, allocator=allocator))
    assert (roomy.order, roomy.short_bytes) == (free.order, 0)


def test_where_nothing_runs_the_best_says_what_it_is_short() -> None:
    problem = large_layers(8, 20)
    found = schedule(problem, Options(memory_limit=100 * MIB, allocator="plain"))
    assert found.order == schedule(problem).order
    needed = needed_bytes(LiveRanges(problem), found.order, PLAIN)
    assert found.short_bytes == needed - 100 * MIB
    assert "runs in the memory_limit of 100.0 MiB: this one needs " in short_text(found)
    assert short_text(schedule(problem)) == ""


def test_the_original_order_is_taken_where_it_alone_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = large_layers(12, 20)
    monkeypatch.setattr(under_test, "BUDGET_PARTS", ())
    found = schedule(problem, Options(memory_limit="100%", allocator="plain"))
    assert (found.order, found.short_bytes) == (problem.original_order, 0)


def test_eight_tighter_runs_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, limits, real = large_layers(8, 20), list[Any](), under_test.list_schedule
    task = Task(problem, Options(memory_limit=1024), int(LiveRanges(problem).profile(problem.original_order).max()))
    live = Reference(problem, problem.original_order).profile

    def noted(reference: Reference, limit: Any, *rest: Any) -> Any:
        limits.append(limit)
        return real(reference, limit, *rest)

    monkeypatch.setattr(under_test, "list_schedule", noted)
    schedule(problem, task.options)
    assert len(limits) == 2 * len(BUDGET_PARTS) == 8
    for k, limit in enumerate(limits):
        assert (limit == (live + BUDGET_PARTS[k // 2] * (task.limit - live)).astype(int)).all()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"memory_limit": "40GiB"}, DeviceLimit(40 * 2**30, PLAIN)),
        ({"memory_limit": 7000, "allocator": "expandable"}, DeviceLimit(7000, EXPANDABLE)),
        ({"memory_limit": 7000, "allocator": "none"}, DeviceLimit(7000, None)),
        ({"memory_limit": "50%", "allocator": "none"}, DeviceLimit(21 * MIB // 2, None)),  # of the live peak
        ({"memory_limit": "50%"}, DeviceLimit(11 * MIB, PLAIN)),  # of the smallest device
        ({}, None),
    ],
)
def test_what_a_limit_means(
    options: dict[str, Any], expected: DeviceLimit | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    assert DeviceLimit.of(Task(EXAMPLE, Options(**options), 21 * MIB)) == expected


def test_process_groups_kept_apart_still_run() -> None:
    problem = large_layers(12, 20)
    nodes = tuple(n._replace(group="other") if n.name.startswith("scatter") else n for n in problem.nodes)
    two = replace(problem, nodes=nodes, groups={**problem.groups, "other": problem.groups["fsdp"]})
    found = schedule(two, Options(memory_limit="100%", allocator="plain", concurrent_groups="one", strict=True))
    assert found.short_bytes == 0
