"""Reserved memory of a schedule, as people and programs read it."""

from dataclasses import replace

import pytest

from overlap_sched import EXAMPLE, Options, schedule
from overlap_sched.peak_memory.reserved import ReservedChange
from overlap_sched.report.reserved_text import (
    reserved_changes,
    reserved_figures,
    reserved_lines,
    reserved_rows,
    settings_shown,
)

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
