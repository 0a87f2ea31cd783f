"""What a page says first, word by word."""

from dataclasses import replace

import pytest

from overlap_sched import EXAMPLE, Options, Problem, Schedule, schedule
from overlap_sched.report.words.verdict import verdict


def of(problem: Problem = EXAMPLE, **options: object) -> str:
    return verdict(schedule(problem, Options(**options)), problem)  # type: ignore[arg-type]


def test_shorter_in_the_same_memory() -> None:
    assert of(allocator="none") == (
        "The step is 21.1 % shorter: 150.0 us instead of 190.0 us, 25.0 % above the lower bound. "
        "The peak of live memory is 21.0 MiB, the same as before."
    )


def test_with_more_memory() -> None:
    assert of(headroom="5MiB", allocator="plain") == (
        "The step is 36.8 % shorter: 120.0 us instead of 190.0 us, 0.0 % above the lower bound. "
        "The peak of live memory is 26.0 MiB, 23.8 % more. It runs where the original order runs."
    )


def test_the_original_order_stays() -> None:
    alone = replace(EXAMPLE, nodes=tuple(node._replace(time_us=0.0) for node in EXAMPLE.nodes))
    assert of(alone).startswith("The original order stays: a step of 0.0 us, 0.0 % above the lower bound, a peak of ")


def test_what_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also longer and with less: as of a search for a memory limit."""
    found: Schedule = schedule(EXAMPLE)
    fit = replace(found, scheduled=replace(found.scheduled, step_us=209.0, peak_bytes=6 * 2**20))
    monkeypatch.setattr("overlap_sched.report.words.verdict.runs_as_before", lambda *_: False)
    assert verdict(fit, EXAMPLE) == (
        "The step is 10.0 % longer: 209.0 us instead of 190.0 us, 74.2 % above the lower bound. The peak of live "
        "memory is 6.0 MiB, 71.4 % less. It may run out of memory where the original order runs."
    )
