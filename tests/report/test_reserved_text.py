"""Reserved memory of a schedule, as people and programs read it: one row, replayed before and after."""

from dataclasses import replace

import pytest

from overlap_sched import EXAMPLE, Options, schedule
from overlap_sched.peak_memory import replay_allocator
from overlap_sched.problem.sizes import EXPANDABLE, PLAIN, AllocatorSettings
from overlap_sched.report.words.schedule import (
    Reserved,
    reserved_figures,
    reserved_lines,
    reserved_of,
    reserved_rows,
    short_text,
)

GIB = 2**30
FOUND = Reserved(4 * GIB, 5 * GIB, PLAIN)


def test_as_a_row_a_line_and_data() -> None:
    assert reserved_rows(FOUND) == (("reserved, plain segments", "4.000 GiB", "5.000 GiB", "+25.0 %"),)
    assert reserved_rows(FOUND, 6 * GIB)[0][-1] == "6.000 GiB"
    assert reserved_lines(FOUND) == ["reserved, plain segments (replayed): 4.000 → 5.000 GiB"]
    assert reserved_figures(FOUND) == {"original_reserved_bytes": 4 * GIB, "reserved_bytes": 5 * GIB}
    assert (reserved_rows(None), reserved_lines(None)) == ((), [])
    assert set(reserved_figures(None).values()) == {None}


@pytest.mark.parametrize(
    ("here", "allocator", "settings", "title"),
    [
        ("", "environment", PLAIN, "reserved, plain segments"),
        ("expandable_segments:True", "environment", EXPANDABLE, "reserved, expandable segments"),
        ("expandable_segments:True", "plain", PLAIN, "reserved, plain segments"),
        (
            "max_split_size_mb:64",
            "environment",
            AllocatorSettings(max_split_size_bytes=2**26),
            "reserved, PYTORCH_ALLOC_CONF",
        ),
    ],
)
def test_with_the_settings_of_the_process_or_those_asked_for(
    here: str, allocator: str, settings: AllocatorSettings, title: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", here)
    found = schedule(EXAMPLE, Options(headroom="5MiB", allocator=allocator))
    orders = (EXAMPLE.original_order, found.order)
    reserved = reserved_of(found)
    assert reserved == Reserved(
        *(replay_allocator(EXAMPLE, order, settings).reserved_bytes for order in orders), settings
    )
    assert reserved is not None
    assert reserved.title == title


def test_where_nothing_is_replayed() -> None:
    assert reserved_of(schedule(EXAMPLE, Options(allocator="none"))) is None
    tracked = schedule(replace(EXAMPLE, memory_model="tracker"), Options(memory_model="tracker"))
    assert reserved_of(tracked) is None


def test_what_a_memory_limit_lacks_is_said() -> None:
    assert short_text(schedule(EXAMPLE, Options(memory_limit="12MiB"))) == (
        "No order was found that runs in the memory_limit of 12.0 MiB: this one needs 10.0 MiB more. Raise the limit, "
        "or let `overlap-sched fit` recompute and offload."
    )
    assert short_text(schedule(EXAMPLE, Options(memory_limit="1GiB"))) == ""
