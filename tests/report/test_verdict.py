"""What a page says first, word by word."""

from dataclasses import replace

from overlap_sched import EXAMPLE, Options, Problem, Schedule, schedule
from overlap_sched.report.words.schedule import InShort, reserved_of, verdict


def told(found: Schedule, fits: bool | None = None) -> InShort:
    return verdict(found, found.problem, reserved_of(found), fits)


def of(problem: Problem = EXAMPLE, **options: object) -> InShort:
    return told(schedule(problem, Options(**options)))  # type: ignore[arg-type]


def test_shorter_in_the_same_memory() -> None:
    """Whether it runs was not asked."""
    assert of() == InShort(
        "reordered",
        "Reordered",
        "The step takes 150.0 us instead of 190.0 us (21.1 % shorter; 25.0 % above the lower bound) with a peak of "
        "21.0 MiB live (as before) and 22.0 MiB reserved (as before).",
    )


def test_with_more_memory() -> None:
    assert of(headroom="5MiB") == InShort(
        "reordered",
        "Reordered",
        "The step takes 120.0 us instead of 190.0 us (36.8 % shorter; 0.0 % above the lower bound) with a peak of "
        "26.0 MiB live (23.8 % more) and 42.0 MiB reserved (90.9 % more).",
    )


def test_the_original_order_stays() -> None:
    alone = replace(EXAMPLE, nodes=tuple(node._replace(time_us=0.0) for node in EXAMPLE.nodes))
    assert of(alone) == InShort(
        "kept",
        "Original order kept",
        "The original order stays: a step of 0.0 us, 0.0 % above the lower bound, a peak of 21.0 MiB live and 22.0 MiB "
        "reserved.",
    )


def test_another_memory_model_knows_nothing_of_the_allocator() -> None:
    assert (
        "reserved" not in of(replace(EXAMPLE, memory_model="tracker"), memory_model="tracker", headroom="5MiB").sentence
    )


def test_what_does_not_run() -> None:
    """Also longer and with less: as of a search for a memory limit."""
    found: Schedule = schedule(EXAMPLE, Options(memory_limit="20MiB"))
    fit = replace(found, scheduled=replace(found.scheduled, step_us=209.0, peak_bytes=6 * 2**20))
    assert told(fit) == InShort(
        "fails",
        "May run out of memory",
        "The step takes 209.0 us instead of 190.0 us (10.0 % longer; 74.2 % above the lower bound) with a peak of "
        "6.0 MiB live (71.4 % less) and 22.0 MiB reserved without a limit (as before), but it does not fit into "
        "20.0 MiB.",
    )
    assert (told(fit, True).came, told(fit, False).came) == ("runs", "fails")
    assert of(memory_limit="1GiB").sentence.endswith(", and it fits into 1.000 GiB.")
