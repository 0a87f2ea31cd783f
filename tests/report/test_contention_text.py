"""Contention beside figures, in words and as data."""

from overlap_sched.problem.contention import NO_CONTENTION, Contention
from overlap_sched.report.words.schedule import contention_figures, contention_line


def test_both_directions_are_said() -> None:
    both = Contention({"all_gather": 1.5}, stretch={"all_gather": 4.0, "": 2.0})
    assert contention_line(both) == (
        "With contention: compute takes 1.5 times as long beside all_gather*; all_gather* takes 4 times as long beside "
        "compute; any other collective takes 2 times as long beside compute."
    )
    assert contention_figures(both) == {
        "slowdown": {"all_gather": 1.5},
        "links": {},
        "stretch": {"all_gather": 4.0, "": 2.0},
    }
    assert contention_figures(Contention({"": 1.1})) == {"slowdown": {"": 1.1}, "links": {}}
    lanes = Contention(lanes=2, crowding=1.5)
    assert contention_line(lanes) == (
        "With contention: 2 collectives of a group are in flight at once, where each takes 1.5 times as long as one "
        "alone."
    )
    assert contention_figures(lanes) == {"slowdown": {}, "links": {}, "lanes": 2, "crowding": 1.5}
    kinds = Contention({"": 1.2}, shares={"flops": 0.5, "bytes": 1.5}, flops_per_byte=295.0)
    assert contention_line(kinds) == (
        "With contention: compute takes 1.2 times as long beside any collective; of that it takes 0.5 where it is "
        "bound by its flops and 1.5 where it is bound by its bytes."
    )
    assert contention_figures(kinds) == {
        "slowdown": {"": 1.2},
        "links": {},
        "shares": {"flops": 0.5, "bytes": 1.5},
        "flops_per_byte": 295.0,
    }
    assert contention_line(NO_CONTENTION) == ""
    assert contention_figures(NO_CONTENTION) is None
