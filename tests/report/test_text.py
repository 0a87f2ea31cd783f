import io
import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from overlap_sched.errors import ProblemError
from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Problem
from overlap_sched.report.words.schedule import explanation, figures, gap_percent, summary
from overlap_sched.scheduler.driver import Schedule

ByHand = Callable[..., Schedule]


def shown(schedule: Schedule) -> str:
    file = io.StringIO()
    Console(file=file, width=100, color_system=None).print(summary(schedule))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def test_figures_have_exactly_the_documented_keys(reordered: Schedule) -> None:
    assert figures(reordered) == {
        "name": "example",
        "nodes": 10,
        "original_step_us": 190.0,
        "step_us": 120.0,
        "exposed_us": 10.0,
        "bound_us": 120.0,
        "gap_percent": 0.0,
        "budget_bound_us": 120.0,
        "gap_within_budget_percent": 0.0,
        "original_peak_bytes": 21 * 2**20,
        "peak_bytes": 26 * 2**20,
        "headroom_bytes": 5 * 2**20,
        "memory_model": "runtime",
        "contention": None,
        "groups_together": {"original": 0, "scheduled": 0},
        "concurrent_groups": "any",
        "unrestricted_step_us": None,
        "schedule_s": 0.25,
        "fell_back": False,
        "pins": [],
        "memory_limit_bytes": None,
        "short_bytes": 0,
    }


def test_a_fallback_is_true_in_the_figures(by_hand: ByHand) -> None:
    kept = by_hand(EXAMPLE, EXAMPLE.original_order, fell_back="full runs before gather")
    assert figures(kept)["fell_back"] is True
    assert figures(kept)["gap_percent"] == pytest.approx(100 * (190 / 120 - 1))


def test_no_bound_no_gap() -> None:
    assert gap_percent(0.0, 0.0) == 0.0
    assert gap_percent(120.0 * (1 + 1e-12), 120.0) == 0.0
    assert gap_percent(90.0, 120.0) == pytest.approx(-25.0)  # a wrong bound must show


def test_a_problem_that_takes_no_time_has_figures(by_hand: ByHand, odd: Problem) -> None:
    text = json.dumps(figures(by_hand(odd, odd.original_order)), allow_nan=False)
    assert json.loads(text)["gap_percent"] == 0.0
    assert "odd $x_1$ \\x1b[31m: 5 nodes, 2 collectives on 2 process groups" in shown(by_hand(odd, odd.original_order))


def test_the_table_for_people(reordered: Schedule) -> None:
    assert shown(reordered).splitlines() == [
        "example: 10 nodes, 2 collectives on 1 process group",
        "",
        "                           original   scheduled    change      limit",
        " ────────────────────────────────────────────────────────────────────",
        "  step                     190.0 us    120.0 us   -36.8 %   120.0 us",
        "  exposed                   80.0 us     10.0 us   -87.5 %",
        "  peak memory              21.0 MiB    26.0 MiB   +23.8 %   26.0 MiB",
        "  gap to the lower bound     58.3 %       0.0 %",
        "",
        "Simulated, in the runtime memory model. Limits: a lower bound on any",
        "order's step; the memory budget, the original peak plus 5.0 MiB.",
        "Scheduled in 0.25 s.",
    ]


def test_the_profile_budget_is_named(by_hand: ByHand) -> None:
    kept = by_hand(EXAMPLE, EXAMPLE.original_order, Options(budget="profile"))
    assert "the original profile (its peak is shown) plus 0 B." in " ".join(shown(kept).split())


def test_explanation_of_one_collective_in_plain_words(reordered: Schedule) -> None:
    decision = replace(
        reordered.decisions[0],
        reason="no stall", under=(4,), held_by="memory", over_bytes=3 * 2**20, over_position=5,
    )  # fmt: skip
    assert explanation(replace(reordered, decisions=(decision,)), "gather").splitlines() == [
        "gather: all_gather_into_tensor on group fsdp of 8, 8.0 MiB, 40.0 us",
        "  exposed 0.0 us, hidden 40.0 us under mm (50.0 us)",
        "  launched at position 2 (as originally), at 0.0 us: every other ready node would have stalled",
        "  ran from 0.0 us to 40.0 us; first waited for at 80.0 us",
        "  blocked by memory: launched sooner, it would not have fitted into the budget",
        "  memory refused an earlier launch: 3.0 MiB (3,145,728 bytes) over the budget while dgrad runs "
        "(position 5 of the original order)",
    ]


def test_deferred_compute_is_explained(reordered: Schedule) -> None:
    decision = replace(reordered.decisions[0], reason="deferred")
    assert explanation(replace(reordered, decisions=(decision,)), "gather").splitlines()[2] == (
        "  launched at position 2 (as originally), at 0.0 us: its compute was deferred behind a launch that it hides"
    )


def test_the_most_exposed_come_first(reordered: Schedule) -> None:
    lines = explanation(reordered).splitlines()
    assert lines[0] == ("example: 2 collectives, 1 exposed for 10.0 us in all (simulated, runtime memory model).")
    assert lines[1:6] == [
        "",
        "Exposed time by cause, and of how many collectives:",
        "  10.0 us  1  at the end of the step: no compute is left to run meanwhile",
        "",
        "Most exposed first:",
    ]
    assert [line.split(":")[0] for line in lines[6:] if line and not line.startswith(" ")] == ["scatter", "gather"]
    assert lines[9] == (
        "  launched at position 5 (originally 7: 2 earlier), at 80.0 us: "
        "its latest start would have passed while the next compute ran"
    )


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ({"held_by": "nothing"}, "blocked by nothing"),
        ({"held_by": "dependency", "held_node": 6}, "blocked by a dependency: wgrad had to run first"),
        ({"held_by": "dependency"}, "blocked by a dependency"),
        ({"held_by": "stream", "held_node": 2}, "blocked by its stream: gather was still on it"),
        ({"held_by": "choice"}, "blocked by nothing: dependencies and live bytes allow an earlier launch"),
        ({"held_by": "stream"}, "blocked by its stream, which was busy"),
        (
            {"held_by": "start"},
            "blocked by the start of the graph: it was launched at once, and waited for too soon",
        ),
    ],
)
def test_what_blocked_it(reordered: Schedule, held: dict[str, object], text: str) -> None:
    decision = replace(reordered.decisions[1], **held)  # type: ignore[arg-type]
    assert explanation(replace(reordered, decisions=(decision,)), "scatter").splitlines()[-1] == f"  {text}"


def test_a_fallback_is_explained(by_hand: ByHand) -> None:
    kept = by_hand(EXAMPLE, EXAMPLE.original_order, fell_back="full runs before gather")
    assert explanation(kept).splitlines()[1] == "The original order was kept: full runs before gather."


def test_a_collective_that_nobody_waits_for(by_hand: ByHand, odd: Problem) -> None:
    text = explanation(by_hand(odd, odd.original_order))
    assert "nothing in this graph waits for it" in text
    assert "a\\nb: all_reduce on group g $1$ of 2" in text
    assert "漢字: collective on group h of 2" in text


def test_an_unknown_collective_gets_a_suggestion(reordered: Schedule) -> None:
    with pytest.raises(ProblemError) as caught:
        explanation(reordered, "gathr")
    assert str(caught.value) == "problem 'example' has no collective named 'gathr'. Did you mean 'gather'?"
    with pytest.raises(ProblemError, match=r"The first ones are 'gather', 'scatter'\.$"):
        explanation(reordered, "mm")
