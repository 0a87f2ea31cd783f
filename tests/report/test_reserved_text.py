"""Reserved memory of a schedule, as people and programs read it."""

from dataclasses import replace

import pytest

from llama_repro.bench.cases import slower_network
from overlap_sched import EXAMPLE, Options, schedule
from overlap_sched.peak_memory.allocator.reserved import ReservedChange
from overlap_sched.report.words.reserved import (
    held_lines,
    not_held,
    not_taken,
    other_segments,
    reserved_changes,
    reserved_figures,
    reserved_lines,
    reserved_rows,
    settings_shown,
)
from overlap_sched.scheduler.needs import Overdraft, Reserve
from tests.scheduler.test_reserve import large_layers

GIB = 2**30
CHANGES = {
    "plain": ReservedChange(4 * GIB, 5 * GIB, 3 * GIB, 3 * GIB, None),
    "expandable": ReservedChange(4 * GIB, 4 * GIB, 4 * GIB, 2 * GIB, 1),
}


def test_rows() -> None:
    assert reserved_rows(CHANGES) == [
        ("reserved, plain", "4.000 GiB", "5.000 GiB", "+25.0 %"),
        ("... runs in at least", "3.000 GiB", "3.000 GiB", "+0.0 %"),
        ("... retries in 4.000 GiB", "0", "out of memory"),
        ("reserved, expandable", "4.000 GiB", "4.000 GiB", "+0.0 %"),
        ("... runs in at least", "4.000 GiB", "2.000 GiB", "-50.0 %"),
        ("... retries in 4.000 GiB", "0", "1"),
    ]


def test_lines() -> None:
    assert reserved_lines(CHANGES) == [
        "reserved by torch's caching allocator (replayed), original order and this one:",
        "  plain segments: 4.000 → 5.000 GiB; runs in at least 3.000 → 3.000 GiB; in 4.000 GiB: it runs out of memory",
        "  expandable segments: 4.000 → 4.000 GiB; runs in at least 4.000 → 2.000 GiB; in 4.000 GiB: 1 retry",
    ]
    assert reserved_lines({}) == []


def test_figures() -> None:
    assert [entry["retries"] for entry in reserved_figures(CHANGES)] == [None, 1]


def test_what_the_environment_sets_is_a_third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert list(settings_shown()) == ["plain", "expandable"]
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    assert list(settings_shown()) == ["plain", "expandable", "as set"]


def test_only_in_the_runtime_memory_model() -> None:
    assert list(reserved_changes(schedule(EXAMPLE)))[:2] == ["plain", "expandable"]
    tracked = schedule(replace(EXAMPLE, memory_model="tracker"), Options(memory_model="tracker"))
    assert reserved_changes(tracked) == {}


def test_an_order_that_its_allocator_cannot_hold_is_said_to_be_one() -> None:
    problem = replace(EXAMPLE, storages=tuple(s._replace(bytes=s.bytes * 100) for s in EXAMPLE.storages))
    free = replace(schedule(problem, Options(headroom="100%", allocator="none")), headroom_bytes=0)
    assert held_lines(free) == []
    loose = replace(free, options=Options(allocator="plain"))
    line, said = held_lines(loose)
    assert line.startswith("reserved, plain segments: ")
    assert said == not_held(loose)
    assert said.startswith(
        "Allocator (plain segments): the new order runs out of memory where the original order needs no "
    )
    assert said.endswith("No order that was tried runs where the original order does, and headroom gives room.")
    held = schedule(problem, Options(allocator="expandable"))
    assert not_held(held) == ""
    assert [line.partition(":")[0] for line in held_lines(held)] == ["reserved, expandable segments"]
    assert not_held(replace(loose, order=problem.original_order)) == ""


@pytest.mark.slow
def test_what_is_not_taken_is_offered_with_what_it_needs() -> None:
    problem = slower_network(large_layers(12, 128), 2)
    plain, expandable = (schedule(problem, Options(allocator=name)) for name in ("plain", "expandable"))
    assert other_segments(plain) == ""
    assert not_taken(plain) == (
        "A faster order was not taken: 1.64 ms instead of 1.88 ms, but with plain segments it needs 738.8 MiB more "
        "memory than the original order. allocator='none' (--allocator none) takes it, and headroom gives room."
    )
    assert held_lines(plain)[1] == not_taken(plain)
    assert not_taken(expandable).startswith("A faster order was not taken: 1.64 ms instead of 1.68 ms, but with exp")
    assert not_held(expandable).startswith(
        "Allocator (expandable segments): the new order reserves 1.836 GiB more than it may where there is no limit. "
    )
    assert other_segments(expandable) == (
        "For a job with plain segments: this order runs out of memory where the original order needs no retry and "
        "needs 738.8 MiB more than it may and reserves 5.573 GiB more than it may where there is no limit; "
        "allocator='plain' (--allocator plain) plans for it."
    )
    free = schedule(problem, Options(allocator="none"))
    assert (not_taken(free), other_segments(free)) == ("", "")


def test_what_lacks_a_few_mebibytes_is_taken_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = schedule(EXAMPLE, Options(headroom="100%", allocator="plain"))
    monkeypatch.setattr(Reserve, "overdraft", lambda *_: Overdraft(False, 0, 9 * 2**20, 9 * 2**20))
    monkeypatch.setattr(Reserve, "runs", lambda *_: True)
    assert not_held(found) == (
        "Allocator (plain segments): the new order needs 9.0 MiB more than it may, which is little enough to be taken. "
        "No order that was tried fits with a step within 2% of the shortest; a higher allocator_cost admits longer "
        "ones, and headroom gives room."
    )
