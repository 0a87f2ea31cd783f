"""The one line on all graphs, word by word."""

import logging

import pytest

import overlap_sched
from overlap_sched import Kind, Node, Options, Problem
from overlap_sched.fx.apply import Report
from overlap_sched.inductor import summary as module
from overlap_sched.inductor.reporting import HOOKS, Outcome, Tally, outcome_of, summary

H100 = "H100"
NONE = Outcome(False, reason="the graph has no collectives")
DONE = Outcome(True, True, "", 7_050.0, 400.0, H100)
HIDDEN = Outcome(True, False, "no better order was found: nothing is exposed")
DIFFER = Outcome(
    True, False, "the ranks differ in problem: rank 0 against rank 1. Each rank must compile the same graphs."
)
DETAILS = ". Details: overlap_sched.reports()"


def line(*outcomes: Outcome, passed_by: tuple[str, ...] = (), ranks: bool = True) -> str:
    return summary(outcomes, passed_by, ranks=ranks).text


def test_some_of_each() -> None:
    assert line(NONE, DONE, DIFFER, DONE, NONE) == (
        "overlap_sched: 5 graphs, 3 with collectives, 2 reordered (exposed 14.10 ms -> 800.0 us predicted for H100), "
        "1 not: the ranks differ in problem: rank 0 against rank 1; 2 without collectives" + DETAILS
    )


def test_graphs_ordered_for_their_peak() -> None:
    lowered = Outcome(False, True)
    assert line(lowered, NONE, lowered, ranks=False) == (
        "overlap_sched: 3 graphs, none with collectives, 2 ordered for a lower peak" + DETAILS
    )
    assert line(HIDDEN, lowered) == (
        "overlap_sched: 2 graphs, 1 with collectives, none reordered: no better order was found: nothing is exposed; "
        "1 without collectives, 1 ordered for a lower peak" + DETAILS
    )


def test_all_is_well() -> None:
    found = summary([DONE], (), ranks=True)
    assert found.text == (
        "overlap_sched: 1 graph, 1 with collectives, 1 reordered (exposed 7.05 ms -> 400.0 us predicted for H100)"
        + DETAILS
    )
    assert found.level == logging.INFO


def test_none_is_better() -> None:
    found = summary([HIDDEN, HIDDEN], (), ranks=True)
    assert found.text == (
        "overlap_sched: 2 graphs, 2 with collectives, none reordered: no better order was found: nothing is exposed"
        + DETAILS
    )
    assert found.level == logging.INFO


def test_reasons_of_one_kind_are_counted() -> None:
    other = Outcome(True, False, "no better order was found: 3.0 us stay exposed because of rounding (1 collective)")
    assert line(HIDDEN, other, HIDDEN, DIFFER) == (
        "overlap_sched: 4 graphs, 4 with collectives, none reordered: no better order was found (3); "
        "the ranks differ in problem: rank 0 against rank 1 (1)" + DETAILS
    )


def test_only_so_many_reasons_are_named() -> None:
    kinds = [Outcome(True, False, f"{name}: broken") for name in "abcd"]
    assert line(*kinds, kinds[3]).endswith(
        "none reordered: d: broken (2); a: broken (1); b: broken (1); other reasons (1)" + DETAILS
    )


def test_a_reason_is_cut() -> None:
    long = Outcome(True, False, "word " * 100)
    assert len(line(long)) < 300
    assert line(long).endswith("word ..." + DETAILS)


def test_several_devices() -> None:
    other = Outcome(True, True, "", 10.0, 0.0, "this CPU over gloo")
    assert "predicted for H100 and this CPU over gloo)" in line(DONE, other)
    assert "(exposed 10.0 -> 0 us predicted for this CPU over gloo)" in line(other)
    assert "(exposed 10.0 -> 0 us predicted)" in line(Outcome(True, True, "", 10.0, 0.0))


def test_no_collectives_on_several_ranks_says_where_they_went() -> None:
    found = summary([NONE, NONE], (), ranks=True)
    assert found.text == (
        "overlap_sched: 2 graphs, none with collectives; nothing to reorder. fully_shard, DDP and other hooks launch "
        "collectives outside of the graph. Use overlap_sched.distributed.shard, or with DDP "
        'torch._dynamo.config.optimize_ddp = "python_reducer"' + DETAILS
    )
    assert found.level == logging.WARNING
    assert HOOKS in found.text


def test_no_collectives_on_one_rank() -> None:
    assert summary([NONE], (), ranks=False) == (
        "overlap_sched: 1 graph, none with collectives" + DETAILS,
        logging.INFO,
    )


def test_graphs_that_did_not_come_to_us() -> None:
    found = summary([], ("backend 'aot_eager' never calls it",) * 2, ranks=True)
    assert found == (
        "overlap_sched: no graph reached it; 2 graphs compiled without it, as backend 'aot_eager' never calls it",
        logging.WARNING,
    )
    found = summary([DONE], ("backend 'aot_eager' never calls it",), ranks=True)
    assert found.text.endswith("H100); 1 graph compiled without it, as backend 'aot_eager' never calls it" + DETAILS)
    assert found.level == logging.INFO


def test_launches_that_were_kept() -> None:
    differ = "the ranks differ in operators: rank 0 against rank 1; launch order kept"
    kept = Outcome(True, True, "", 10.0, 5.0, H100, f"{differ}. All is well.")
    assert line(kept) == (
        "overlap_sched: 1 graph, 1 with collectives, 1 reordered "
        f"(exposed 10.0 -> 5.0 us predicted for H100; 1 of them: {differ})" + DETAILS
    )
    plan = overlap_sched.schedule(overlap_sched.EXAMPLE)
    assert outcome_of(Report("a", plan, True, kept="why"), H100).kept == "why"


def test_graphs_out_of_a_cache() -> None:
    assert summary([], cached=1, ranks=True) == (
        "overlap_sched: 1 graph out of torch's caches, in the order that was cached",
        logging.INFO,
    )
    assert "; 2 graphs out of torch's caches, in" in summary([DONE], cached=2, ranks=True).text


@pytest.mark.parametrize(
    ("outcome", "level"),
    [(DONE, logging.INFO), (HIDDEN, logging.INFO), (NONE, logging.INFO), (DIFFER, logging.WARNING)],
)
def test_what_is_to_be_mended_is_a_warning(outcome: Outcome, level: int) -> None:
    assert summary([DONE, outcome], (), ranks=True).level == level


def test_what_is_kept_of_a_report() -> None:
    plan = overlap_sched.schedule(overlap_sched.EXAMPLE)
    assert outcome_of(Report("a", plan, True), H100) == Outcome(True, True, "", 80.0, 40.0, H100)
    assert outcome_of(Report("a", reason="the graph has no collectives"), H100) == NONE
    assert outcome_of(Report("a", reason="broken"), H100) == Outcome(True, False, "broken")
    alone = overlap_sched.schedule(Problem("p", (Node("x", Kind.INPUT),), ()))
    assert outcome_of(Report("a", alone, True), H100) == Outcome(False, True, priced_for=H100)
    assert outcome_of(Report("a", alone, reason="b"), H100) == Outcome(False, False, "b")
    kept = overlap_sched.schedule(overlap_sched.EXAMPLE, Options(effort=0))
    assert outcome_of(Report("a", kept, reason="b"), H100) == Outcome(True, False, "b")


def test_rewritten_graphs_are_counted_apart() -> None:
    rewritten = Outcome(True, False, "", 10.0, 5.0, H100, rewritten=True)
    assert line(DONE, rewritten) == (
        "overlap_sched: 2 graphs, 2 with collectives, 1 reordered (exposed 7.05 ms -> 400.0 us predicted for H100), 1 "
        "rewritten (exposed 10.0 -> 5.0 us predicted for H100)" + DETAILS
    )
    assert line(rewritten) == (
        "overlap_sched: 1 graph, 1 with collectives, none reordered, 1 rewritten (exposed 10.0 -> 5.0 us predicted for "
        "H100)" + DETAILS
    )


def test_code_out_of_a_cache_in_which_nothing_can_be_reordered() -> None:
    """A second start of a job with ``fully_shard``."""
    found = summary([], cached=1, loaded=[False, False], ranks=True)
    assert found == (
        "overlap_sched: 2 graphs out of torch's caches, none with collectives; nothing to reorder. " + HOOKS,
        logging.WARNING,
    )
    for loaded, ranks in (([False, True], True), ([], True)):
        graphs = "2 graphs" if loaded else "1 graph"
        text = f"overlap_sched: {graphs} out of torch's caches, in the order that was cached"
        assert summary([], cached=1, loaded=loaded, ranks=ranks) == (text, logging.INFO)
    assert summary([], cached=1, loaded=[False], ranks=False).level == logging.INFO
    assert summary([DONE], cached=1, loaded=[False], ranks=True).level == logging.INFO


def test_the_line_stays_a_line() -> None:
    """At most about 300 characters, whatever the reasons are."""
    differ = "the ranks differ in constants or offsets (no tensor has another size): ranks 0-7 against ranks 8-15"
    kinds = [Outcome(True, False, f"{word * 10}: {'broken in some way or other ' * 9}") for word in ("a ", "b ", "c ")]
    kept = [Outcome(True, True, "", 10.0, 5.0, H100, f"{differ} {k}; launch order kept") for k in range(4)]
    text = line(*kinds, *kept, *[NONE] * 100)
    assert text == (
        "overlap_sched: 107 graphs, 7 with collectives, 4 reordered (exposed 40.0 -> 20.0 us predicted for H100; 4 of "
        "them: the ranks differ in constants or ...), 3 not: a a a a a a a a a a : broken in some ... (1); other "
        "reasons (2); 100 without collectives" + DETAILS
    )
    assert len(text) <= 300


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(module, "say", lambda text, level: lines.append(text))
    return lines


def test_the_line_is_said_once_on_what_is_new(said: list[str]) -> None:
    tally = Tally()
    tally.say()
    assert said == []
    for graphs in (2, 1):
        for _ in range(graphs):
            tally.add(DONE)
        tally.say()
        tally.say()
    assert [text.split(",")[0] for text in said] == ["overlap_sched: 2 graphs", "overlap_sched: 1 graph"]


def test_a_fork_says_nothing_of_its_parents_graphs(said: list[str]) -> None:
    tally = Tally()
    tally.add(DONE)
    tally.forget()
    tally.say()
    assert (said, tally.seen) == ([], 0)


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_speaks_and_all_count(rank: int, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "rank", lambda: rank)
    monkeypatch.setattr(module, "several_ranks", lambda: True)
    tally = Tally()
    tally.add(NONE)
    tally.pass_by("x", 2)
    monkeypatch.setattr(module, "rank", lambda: 0)  # the process group is gone by now
    monkeypatch.setattr(module, "several_ranks", lambda: False)
    tally.say()
    assert tally.seen == 3
    assert [HOOKS in text for text in said] == [True] * (1 - rank)


def test_words_that_fail_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "summary", None)
    tally = Tally()
    tally.add(DONE)
    tally.say()
