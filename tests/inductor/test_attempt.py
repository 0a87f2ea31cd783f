"""What one rank does with the answer of all: a second plan with its launches kept, and no launch moved after all."""

from typing import Any

import pytest
import torch.distributed as dist
from torch import fx

from overlap_sched import EXAMPLE, Options, schedule
from overlap_sched.distributed import Agreement, Digest, Verdict
from overlap_sched.distributed.agreement import Membership
from overlap_sched.distributed.negotiation import LaunchChoice
from overlap_sched.errors import OverlapSchedWarning, VerificationError
from overlap_sched.fx.apply import Report
from overlap_sched.inductor import agree, attempt, console
from overlap_sched.inductor.agree import Traffic
from overlap_sched.inductor.reporting import forget_warnings
from overlap_sched.inductor.settings import Settings
from overlap_sched.scheduler.follow import Proposal

A, B = (fx.Graph().placeholder(name) for name in "ab")
REASON = "the ranks differ in tensor sizes: rank 0 against rank 1; launch order kept."
ALIKE = Agreement(False, Verdict(False, REASON, True, {"sizes": ((0,), (1,))}))
MEND = Agreement(False, Verdict(False, "the ranks differ in options.", True, {"options": ((0,), (1,))}))
NOT_ALIKE = Agreement(False, Verdict(False, "others launch otherwise.", False, {"sizes": ((0,), (1,))}))


def decided(
    monkeypatch: pytest.MonkeyPatch,
    answer: Agreement,
    *plans: Any,
    options: Options | None = None,
    original: Traffic | None = None,
) -> tuple[Report, Attempt, list[str]]:
    """What becomes of a graph whose plans launch as given, one after the other: a sequence, or an error."""
    monkeypatch.setattr(attempt, "decided", lambda mine, settings: answer)
    monkeypatch.setattr(attempt, "shown", lambda *_: Digest("p", "s", "o", "c", "r", "key", "l"))
    made, preserved = Attempt(Settings(options or Options())), []
    forget_warnings()

    def plan(known: Attempt) -> Report:
        preserved.append(known.settings.options.preserve_collective_order)
        known.key, known.problem, known.launches, known.asked = "key", EXAMPLE, (A, B), Options()
        known.original = original
        found = plans[len(preserved) - 1]
        if isinstance(found, Exception):
            raise found
        known.planned = found if isinstance(found, Traffic) else Traffic(found, {})
        return Report("g", schedule(EXAMPLE), changed=True)

    return made.decided(plan), made, preserved


def test_a_plan_that_moves_launches_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    report, made, preserved = decided(monkeypatch, ALIKE, (B, A), (A, B))
    assert (report.changed, report.kept, report.reason) == (True, REASON, None)
    assert preserved == ["none", "all"]
    assert made.cached is not None
    assert not made.cached.agreed


def test_a_plan_that_moves_none_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    report, _, preserved = decided(monkeypatch, ALIKE, (A, B))
    assert (report.changed, report.kept) == (True, REASON)
    assert preserved == ["none"]


def test_a_second_plan_that_moves_launches_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(OverlapSchedWarning, match="moves a launch"):
        report, _, _ = decided(monkeypatch, ALIKE, (B, A), (B, A))
    assert not report.changed
    assert report.reason == "UnsupportedError: the order moves a launch though all are to be kept"


def test_a_second_plan_that_fails_leaves_the_graph_on_this_rank_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(OverlapSchedWarning, match="KeyError"):
        report, _, _ = decided(monkeypatch, ALIKE, (B, A), KeyError("mm"))
    assert not report.changed
    with pytest.raises(VerificationError, match="KeyError"):
        decided(monkeypatch, ALIKE, (B, A), KeyError("mm"), options=Options(strict=True))


def test_a_warning_only_where_somebody_can_mend_it(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    decided(monkeypatch, ALIKE, (A, B))
    assert len(recwarn) == 0
    decided(monkeypatch, MEND, (A, B))
    assert [str(w.message) for w in recwarn] == [
        "overlap_sched keeps the launch order of 'g': the ranks differ in options."
    ]


def test_launches_that_are_not_alike_leave_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(OverlapSchedWarning, match="leaves 'g' as it was: others launch otherwise"):
        report, _, preserved = decided(monkeypatch, NOT_ALIKE, (A, B))
    assert (report.changed, report.kept, report.reason) == (False, None, "others launch otherwise.")
    assert preserved == ["none"]


ORIGINAL = Traffic((A, B), {"w": 1})
EARLY, LATE, MOVED = Traffic((A, B), {"w": 0}), Traffic((A, B), {"w": 2}), Traffic((B, A), {"w": 2})


@pytest.mark.parametrize(
    ("plans", "kept"), [([LATE], ["none"]), ([EARLY, LATE], ["none", "waits"]), ([MOVED, ORIGINAL], ["none", "waits"])]
)
def test_launches_that_are_not_alike_stay_and_no_wait_passes_one_that_it_followed(
    monkeypatch: pytest.MonkeyPatch, plans: list[Traffic], kept: list[str]
) -> None:
    with pytest.warns(OverlapSchedWarning, match="keeps the launches and waits of 'g': others launch otherwise"):
        report, made, preserved = decided(monkeypatch, NOT_ALIKE, *plans, original=ORIGINAL)
    assert (report.changed, report.kept, report.reason) == (True, "others launch otherwise.", None)
    assert (made.planned, preserved) == (plans[-1], kept)
    assert made.cached is not None
    assert made.cached.digest.order.startswith("launches kept: and waits: ")


@pytest.mark.parametrize("second", [EARLY, MOVED, KeyError("mm")])
def test_a_second_plan_in_which_a_wait_passes_a_launch_is_not_used(
    monkeypatch: pytest.MonkeyPatch, second: Any
) -> None:
    with pytest.warns(OverlapSchedWarning) as heard:
        report, _, _ = decided(monkeypatch, NOT_ALIKE, EARLY, second, original=ORIGINAL)
    why = "UnsupportedError: the order moves a launch, or a wait before one that it followed"
    why = "KeyError: 'mm'" if isinstance(second, Exception) else why
    assert (report.changed, report.kept, report.reason) == (False, None, f"{why}; others launch otherwise.")
    assert str(heard[-1].message) == f"overlap_sched leaves 'g' as it was: {why}; others launch otherwise."


def test_where_all_agree_nothing_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    report, made, preserved = decided(monkeypatch, Agreement(True, Verdict(agreed=True)), (B, A))
    assert (report.changed, report.kept) == (True, None)
    assert preserved == ["none"]
    assert made.cached is not None
    assert made.cached.agreed


NEGOTIABLE = Agreement(False, Verdict(False, REASON, True, {"sizes": ((0,), (1,))}, negotiable=True))
PROPOSAL = Proposal(("collective a", "collective b"), (0, 1), (1, 0))


def negotiated(
    monkeypatch: pytest.MonkeyPatch,
    choice: Any,
    agreed: bool,
    *plans: Any,
    options: Options | None = None,
) -> tuple[Report, Attempt, list[str], list[Digest]]:
    """What becomes of it where all ranks choose so, and agree on that or not; and what this rank has shown of it."""
    asked: list[Digest] = []

    def ask(mine: Digest, settings: Settings) -> Agreement:
        asked.append(mine)
        return Agreement(agreed and not mine.failure, Verdict(agreed and not mine.failure))

    def negotiate(*arguments: Any, **more: Any) -> LaunchChoice:
        if isinstance(choice, Exception):
            raise choice
        return choice

    monkeypatch.setattr(attempt, "ask", ask)
    monkeypatch.setattr(attempt, "negotiate", negotiate)
    return *decided(monkeypatch, NEGOTIABLE, *plans, options=options), asked


def test_the_launches_that_the_ranks_have_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    report, made, preserved, asked = negotiated(monkeypatch, LaunchChoice(0, PROPOSAL), True, (B, A), (A, B), (B, A))
    assert preserved == ["none", "all", "none"]
    assert (report.changed, made.planned) == (True, Traffic((B, A), {}))
    assert report.kept == "the ranks differ in tensor sizes: rank 0 against rank 1; all launch as rank 0 does."
    assert [one.order for one in asked] == ["launches of rank 0: [1, 0]"]
    assert made.cached is None  # nothing would ask the ranks again


@pytest.mark.parametrize(
    ("choice", "agreed", "last", "failure"),
    [
        (LaunchChoice(0, PROPOSAL), False, (B, A), ""),  # another rank has failed
        (LaunchChoice(0, PROPOSAL), True, KeyError("mm"), "KeyError: 'mm'"),  # this one has
        (KeyError("store"), True, None, "KeyError: 'store'"),
        (LaunchChoice(), True, None, ""),
    ],
)
def test_launches_are_kept_where_there_is_no_choice(
    monkeypatch: pytest.MonkeyPatch, choice: Any, agreed: bool, last: Any, failure: str
) -> None:
    plans = [(B, A), (A, B), *([] if last is None else [last, (A, B)])]
    report, made, preserved, asked = negotiated(monkeypatch, choice, agreed, *plans)
    assert preserved == ["none", "all", *([] if last is None else ["none", "all"])]
    assert (report.changed, report.kept, made.planned, made.following) == (True, REASON, Traffic((A, B), {}), None)
    assert [one.failure for one in asked] == [failure]


def test_where_launches_are_to_be_kept_nothing_is_negotiated(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, asked = negotiated(
        monkeypatch, LaunchChoice(0, PROPOSAL), True, (A, B), options=Options(preserve_collective_order="group")
    )
    assert asked == []


def test_a_rank_without_an_order_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(OverlapSchedWarning, match="no order"):
        report, _, _, asked = negotiated(monkeypatch, LaunchChoice(0, PROPOSAL), True, RuntimeError("no order"))
    assert not report.changed
    assert [one.failure for one in asked] == ["UnsupportedError: there is no order to propose"]


NONE = (
    "nothing was compiled with overlap_sched there so far. Call overlap_sched.enable() on every rank; nothing is wrong "
)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ((), f"ranks 1-2: {NONE}where compiling only takes longer. It goes on without them after 0.5 s at most."),
        ((1,), f"rank 2: {NONE}where compiling only takes longer. It goes on without it after 0.5 s at most."),
        ((1, 2), "ranks 1-2: other graphs are compiled there, or more slowly. It goes on without them after 0.5 s "),
    ],
)
def test_a_rank_that_waits_says_once_for_whom(
    monkeypatch: pytest.MonkeyPatch, asked: tuple[int, ...], line: str
) -> None:
    store, told = dist.HashStore(), list[str]()
    for r in asked:
        store.set(f"overlap_sched/agreement/all/at/{r}", "j/0")
    own = Membership(store, 0, 3)
    monkeypatch.setattr(agree, "LATE_S", 0.0)
    monkeypatch.setattr(agree.agreement, "membership_of", lambda *_: own)
    monkeypatch.setattr(agree, "asks", lambda _: True)
    monkeypatch.setattr(console, "say", lambda message, level: told.append(message))
    forget_warnings()
    for key in ("k", "l"):
        answer = agree.ask(Digest("", "", "", "", "", key), Settings(timeout_s=0.5))
        assert answer is not None
        assert answer.verdict.missing == (1, 2)
    assert len(told) == 1
    assert told[0].startswith(f"overlap_sched: rank 0 has waited 0 s for {line}")
    monkeypatch.setattr(agree, "LATE_S", 10.0)
    agree.ask(Digest("", "", "", "", "", "m"), Settings(timeout_s=0.5))
    assert len(told) == 1


@pytest.mark.parametrize(
    ("verdict", "rank", "lines"),
    [
        (Verdict(False, "r", True, {"options": ((0,), (1,))}), 0, 1),
        (Verdict(False, "r", True, {"options": ((0,), (1,))}), 1, 0),
        (Verdict(False, "r", missing=(1,)), 0, 1),
        (Verdict(False, "r", missing=(0,)), 1, 1),
        (Verdict(False, "r", missing=(0,)), 2, 0),
        (Verdict(False, "r", differs={"operators": ((0,), (1,))}), 1, 2),
    ],
)
def test_what_concerns_all_graphs_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, verdict: Verdict, rank: int, lines: int
) -> None:
    monkeypatch.setattr(agree, "rank", lambda: rank)
    forget_warnings()
    for graph in ("forward", "backward"):
        agree.warn_of_ranks(f"leaves {graph!r}", verdict, Settings())
    told = ["overlap_sched leaves 'forward': r", "overlap_sched leaves 'backward': r"]
    assert [str(w.message) for w in recwarn] == told[:lines]
