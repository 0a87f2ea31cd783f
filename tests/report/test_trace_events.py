"""Events by themselves: both ends of a span are rounded, so that neighbours touch and never overlap."""

from itertools import pairwise

from overlap_sched.report.trace.events import arrow, span


def test_neighbours_touch() -> None:
    cuts = (0.0004, 1.0006, 2.0015, 2.0016)
    first, second, third = (span(1, 1, "s", "c", a, b, {}) for a, b in pairwise(cuts))
    assert [(e["ts"], e["dur"]) for e in (first, second)] == [(0.0, 1.001), (1.001, second["dur"])]
    assert round(second["ts"] + second["dur"], 3) == third["ts"]
    assert third["dur"] in (0, 0.001)


def test_only_the_end_of_an_arrow_says_how_it_is_bound() -> None:
    parts = [arrow(phase, 1, 2, "c", 3, 4.00049) for phase in ("s", "t", "f")]
    assert [part.get("bp") for part in parts] == [None, None, "e"]
    assert {(part["ts"], part["id"], part["name"], part["cat"]) for part in parts} == {(4.0, 3, "c", "c")}
