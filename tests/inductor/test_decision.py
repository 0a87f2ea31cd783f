"""What one rank does with the answer of all: plans again with its launches kept, follows what is in force, or stops."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import fx
from torch._dynamo import convert_frame
from torch._inductor import config
from torch._inductor.codecache import PyCodeCache

import overlap_sched
from overlap_sched import EXAMPLE, Options, schedule
from overlap_sched.distributed import Agreement, Digest, Verdict, agreement
from overlap_sched.distributed.agreement import Membership
from overlap_sched.distributed.negotiation import LaunchChoice
from overlap_sched.distributed.sequences import Entry
from overlap_sched.errors import OverlapSchedWarning, SequenceError, VerificationError
from overlap_sched.fx.apply import Report
from overlap_sched.inductor import agree, clear_reports, decision
from overlap_sched.inductor.agree import Traffic, launch_texts
from overlap_sched.inductor.decision import FOLLOWS, LaunchFacts, OrderDraft, PlanRequest, ScheduleCall, decide
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import SchedulerPass
from overlap_sched.problem import Kind, Node, Problem, Storage
from overlap_sched.scheduler.driver import follow_launches
from overlap_sched.scheduler.restrictions import Proposal
from tests.support.agreement_ranks import MemoryStore
from tests.support.fx_graphs import C10D, trace

A, B = (fx.Graph().placeholder(name) for name in "ab")
TEXTS = launch_texts((A, B))
KEPT, SWAPPED = Entry(TEXTS, (0, 1), True), Entry(TEXTS, (1, 0), True)
REASON = "the ranks differ in tensor sizes: rank 0 against rank 1; launch order kept."
AGREED = Agreement(True, Verdict(agreed=True))
ALIKE = Agreement(False, Verdict(False, REASON, True, {"sizes": ((0,), (1,))}))
REPAIR = Agreement(False, Verdict(False, "the ranks differ in options.", True, {"options": ((0,), (1,))}))
OTHERS = Agreement(False, Verdict(False, "others launch otherwise.", False, {"sizes": ((0,), (1,))}))
LATE = Agreement(False, Verdict(False, "rank 1 did not publish", missing=(1,)))
SCHEDULED = schedule(EXAMPLE)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryStore]:
    """This rank, and another one that is not there."""
    here = Membership(MemoryStore(), 0, 2)
    monkeypatch.setattr(agreement, "_logs", {})
    monkeypatch.setattr(agreement, "membership_of", lambda *_: here)
    monkeypatch.setattr(agree, "several_ranks", lambda: True)
    monkeypatch.setattr(agree, "_compiled", agree._Compiled())
    clear_reports()
    yield here.store  # type: ignore[misc]
    torch._dynamo.reset()


class Sheet:
    """A graph whose plans launch as given, one after the other; ``None``: it stays as it was."""

    def __init__(self, plans: Any, original: Traffic | None = None) -> None:
        self.plans, self.original, self.preserved = list(plans), original, list[str]()

    def read(self, how: PlanRequest) -> LaunchFacts:
        return LaunchFacts("g", "key", (A, B), self.original, (A, B))

    def plan(self, how: PlanRequest, facts: LaunchFacts, schedule: ScheduleCall) -> tuple[Report, list[Any]]:
        self.preserved.append(how.settings.options.preserve_collective_order)
        found = self.plans.pop(0)
        if how.follows is None:
            schedule(EXAMPLE, how.settings.options)
        if isinstance(found, Exception):
            raise found
        return Report("g", SCHEDULED, changed=found is not None), [len(self.preserved), found]

    def traffic(self, order: Any) -> Traffic | None:
        return order[1] if isinstance(order[1], Traffic) else Traffic(order[1], {})


def decided(
    monkeypatch: pytest.MonkeyPatch,
    *plans: Any,
    answer: Agreement | None = None,
    settings: Settings | None = None,
    original: Traffic | None = None,
) -> tuple[OrderDraft, list[str]]:
    """What becomes of a graph, and what its plans have preserved; the others answer once, if at all."""
    answers = iter([answer] if answer else [])
    choose = agree.ask
    monkeypatch.setattr(agree, "ask", lambda mine, settings: next(answers, None) or choose(mine, settings))
    sheet = Sheet(plans, original)
    draft = decide(sheet, settings or Settings())
    assert sheet.plans == []
    return draft, sheet.preserved


def became(draft: OrderDraft) -> tuple[bool, str | None, str | None]:
    return draft.report.changed, draft.report.kept, draft.report.reason


def in_force() -> Entry | None:
    return agreement.sequence_in_force(TEXTS, agree.membership(Settings()))


def put(entry: Entry) -> None:
    assert agreement.sequence_in_force(entry.launches, agree.membership(Settings()), entry) == entry


ORIGINAL = Traffic((A, B), {"w": 1})
EARLY, LATER, MOVED = Traffic((A, B), {"w": 0}), Traffic((A, B), {"w": 2}), Traffic((B, A), {"w": 2})


class TestNothingInForce:
    def test_where_all_agree_nothing_is_planned_again(self, monkeypatch):
        draft, preserved = decided(monkeypatch, (B, A), answer=AGREED)
        assert (became(draft), preserved, in_force()) == ((True, None, None), ["none"], SWAPPED)
        assert draft.cached is not None
        assert (draft.cached.agreed, draft.cached.entry) == (True, SWAPPED)

    @pytest.mark.parametrize(
        ("answer", "plans", "preserved", "changed"),
        [
            (ALIKE, [(B, A), (A, B)], ["none", "all"], True),
            (ALIKE, [(A, B)], ["none"], True),
            (ALIKE, [(B, A), (B, A)], ["none", "all"], False),  # it moves launches all the same
            (ALIKE, [(B, A), KeyError("mm")], ["none", "all"], False),
            (REPAIR, [(A, B)], ["none"], True),
            (OTHERS, [LATER], ["none"], True),
            (OTHERS, [EARLY, LATER], ["none", "waits"], True),  # no wait may pass a launch that it followed
            (OTHERS, [MOVED, ORIGINAL], ["none", "waits"], True),
            (OTHERS, [EARLY, EARLY], ["none", "waits"], False),
            (OTHERS, [EARLY, KeyError("mm")], ["none", "waits"], False),
            (OTHERS, [(A, B), (A, B)], ["none", "waits"], False),  # its wait is gone
        ],
    )
    def test_what_is_planned_again(self, monkeypatch, recwarn, answer, plans, preserved, changed):
        """And where the ranks could repair it, or may launch anything, it is said."""
        verdict, alike = answer.verdict, answer.verdict.launches_alike
        draft, seen = decided(monkeypatch, *plans, answer=answer, original=ORIGINAL)
        assert (seen, draft.report.changed, draft.how.keeps) == (preserved, changed, alike)
        assert in_force() == replace(KEPT, together=alike)
        assert changed or draft.report.reason is not None
        if not (changed or alike):
            assert draft.report.kept is None
            assert "others launch otherwise" in str(draft.report.reason)
        assert len(recwarn) == (answer is not ALIKE) + (not changed)
        if changed:
            assert draft.report.kept == verdict.reason
            assert draft.traffic == (plans[-1] if isinstance(plans[-1], Traffic) else Traffic(plans[-1], {}))
            assert draft.cached is not None
            assert not draft.cached.agreed
            assert draft.cached.digest.order.startswith("launches kept: and waits: ") is not alike

    def test_strict_raises_where_a_second_plan_is_of_no_use(self, monkeypatch):
        with pytest.raises(VerificationError, match="an order moves what"):
            decided(monkeypatch, (B, A), (B, A), answer=ALIKE, settings=Settings(Options(strict=True)))

    def test_an_answer_that_is_not_known_stops_the_rank(self, monkeypatch):
        doubt = Agreement(False, Verdict(False, "the store failed"), in_doubt=True)
        with pytest.raises(SequenceError, match="the store failed"):
            decided(monkeypatch, (B, A), answer=doubt)

    def test_a_graph_whose_launches_nobody_can_name_stays(self, monkeypatch):
        """The ranks could not compare what they launch, nor follow each other."""
        monkeypatch.setattr(Sheet, "read", lambda sheet, how: LaunchFacts("g", "key"))
        draft, _ = decided(monkeypatch, (B, A))
        assert not draft.report.changed
        assert "not known" in str(draft.report.reason)
        monkeypatch.setattr(Sheet, "read", lambda sheet, how: LaunchFacts("g", "key", (), None, ()))
        assert decided(monkeypatch, ())[0].report.changed  # it launches nothing

    def test_a_rank_that_was_missing_may_be_running_anything(self, monkeypatch):
        late = Agreement(False, Verdict(False, "rank 1 did not publish", True, missing=(1,)))
        decided(monkeypatch, (A, B), answer=late)
        assert in_force() == replace(KEPT, together=False)

    def test_what_fails_once_all_have_agreed_leaves_the_new_order(self, monkeypatch):
        monkeypatch.setattr(agree, "note_launches", fails)
        with pytest.warns(OverlapSchedWarning, match="could not note"):
            draft, _ = decided(monkeypatch, (B, A), answer=AGREED)
        assert draft.report.changed
        put(SWAPPED)
        with pytest.raises(SequenceError, match="injected"):  # and one that follows others has no other order
            decided(monkeypatch, (B, A))


def fails(*_: Any) -> Any:
    raise ZeroDivisionError("injected")


NEGOTIABLE = Agreement(False, replace(ALIKE.verdict, negotiable=True))
PROPOSAL = Proposal(("collective a", "collective b"), (0, 1), (1, 0))


class TestChoosingASequence:
    @pytest.fixture
    def asked(self, monkeypatch):
        """What this rank has shown of its choice; the others agree, unless ``agrees`` is changed."""
        shown: list[Digest] = []

        def ask(mine: Digest, settings: Settings) -> Agreement:
            shown.append(mine)
            agreed = self.agrees and not mine.failure
            return Agreement(agreed, Verdict(agreed, None if agreed else "the store failed"), self.in_doubt)

        monkeypatch.setattr(agree, "ask", ask)
        return shown

    agrees, in_doubt = True, False

    def choose(self, monkeypatch, choice):
        def negotiate(*arguments: Any, **more: Any) -> LaunchChoice:
            if isinstance(choice, Exception):
                raise choice
            return choice

        monkeypatch.setattr(decision, "negotiate", negotiate)

    def test_all_launch_as_one_of_them(self, monkeypatch, asked):
        self.choose(monkeypatch, LaunchChoice(0, PROPOSAL))
        draft, preserved = decided(monkeypatch, (B, A), (A, B), (B, A), answer=NEGOTIABLE)
        assert preserved == ["none", "all", "none"]
        assert (draft.report.changed, draft.traffic, in_force()) == (True, Traffic((B, A), {}), SWAPPED)
        assert str(draft.report.kept).endswith("all launch as rank 0 does.")
        assert [one.order for one in asked] == ["launches of rank 0: [1, 0]"]
        assert draft.cached is None  # nothing would ask the ranks again

    @pytest.mark.parametrize(
        ("choice", "agrees", "last", "failure"),
        [
            (LaunchChoice(0, PROPOSAL), False, (B, A), ""),  # another rank has failed
            (LaunchChoice(0, PROPOSAL), True, KeyError("mm"), "KeyError: 'mm'"),  # this one has
            (KeyError("store"), True, None, "KeyError: 'store'"),
            (LaunchChoice(), True, None, ""),
        ],
    )
    def test_launches_are_kept_where_there_is_no_choice(self, monkeypatch, asked, choice, agrees, last, failure):
        self.choose(monkeypatch, choice)
        self.agrees = agrees
        draft, _ = decided(monkeypatch, (B, A), (A, B), *([] if last is None else [last]), answer=NEGOTIABLE)
        assert (became(draft), draft.order[0], in_force()) == ((True, REASON, None), 2, KEPT)
        assert [one.failure for one in asked] == [failure]

    @pytest.mark.parametrize("last", [(B, A), KeyError("mm")])
    def test_where_the_others_may_have_agreed_on_the_choice_the_rank_stops(self, monkeypatch, asked, last):
        """Unless it has told them that it has none."""
        self.choose(monkeypatch, LaunchChoice(0, PROPOSAL))
        self.agrees, self.in_doubt = False, True
        with pytest.raises(SequenceError, match="the store failed") if last == (B, A) else nullcontext():
            draft, _ = decided(monkeypatch, (B, A), (A, B), last, answer=NEGOTIABLE)
            assert draft.traffic == Traffic((A, B), {})

    def test_where_another_sequence_is_in_force_by_then_that_is_planned(self, monkeypatch, asked):
        self.choose(monkeypatch, LaunchChoice(0, PROPOSAL))
        monkeypatch.setattr(agree, "put_in_force", lambda entry, settings: KEPT)
        follows = list[object]()
        plan = Sheet.plan
        monkeypatch.setattr(
            Sheet, "plan", lambda sheet, how, *more: follows.append(how.follows) or plan(sheet, how, *more)
        )
        draft, preserved = decided(monkeypatch, (B, A), (A, B), (B, A), (A, B), answer=NEGOTIABLE)
        assert (became(draft), preserved[-1]) == ((True, FOLLOWS, None), "all")
        assert follows == [None, None, PROPOSAL, None]

    def test_where_launches_are_to_be_kept_nothing_is_chosen(self, monkeypatch, asked):
        self.choose(monkeypatch, LaunchChoice(0, PROPOSAL))
        group = Settings(Options(preserve_collective_order="group"))
        decided(monkeypatch, (A, B), answer=NEGOTIABLE, settings=group)
        assert asked == []


class TestSequencesInForce:
    @pytest.mark.parametrize("first", [(A, B), None])
    def test_who_compiles_later_follows_it_and_asks_nobody(self, monkeypatch, first):
        put(SWAPPED)
        draft, _ = decided(monkeypatch, first, (B, A))
        assert became(draft) == (True, FOLLOWS, None)
        assert draft.cached is None  # its digest would promise another order
        draft, _ = decided(monkeypatch, (B, A))
        assert draft.report.kept is None
        assert draft.cached is not None

    @pytest.mark.parametrize("second", [(A, B), None, KeyError("mm")])
    def test_who_cannot_follow_stops(self, monkeypatch, second):
        put(SWAPPED)
        with pytest.raises(SequenceError, match=r"Nothing of it was launched\. .*preserve_collective_order=\"waits\""):
            decided(monkeypatch, (A, B), second)

    def test_launches_kept_by_all_stay_so(self, monkeypatch):
        put(KEPT)
        draft, _ = decided(monkeypatch, (B, A), (A, B))
        assert became(draft) == (True, FOLLOWS, None)
        assert draft.cached is not None
        assert not draft.cached.agreed

    def test_launches_kept_by_one_alone_keep_their_waits_too(self, monkeypatch):
        put(replace(KEPT, together=False))
        draft, _ = decided(monkeypatch, (A, B))
        assert not draft.report.changed  # what other code may still do to its waits is not known

    def test_a_graph_that_others_have_rewritten_does_not_run(self, monkeypatch):
        put(Entry(TEXTS, (), True, "buckets"))
        with pytest.raises(SequenceError, match="they have rewritten its collectives"):
            decided(monkeypatch, (A, B))

    def test_a_part_of_what_others_run_is_refused(self, monkeypatch):
        put(Entry((*TEXTS, "c group 8"), (2, 0, 1), True))
        with pytest.warns(OverlapSchedWarning), pytest.raises(SequenceError, match="only a part"):
            decided(monkeypatch, (A, B), answer=LATE)

    @pytest.mark.parametrize("otherwise", [True, False])
    def test_what_may_be_a_part_is_refused_only_where_the_program_was_compiled_otherwise(self, monkeypatch, otherwise):
        put(Entry((*TEXTS, "c group 8"), (2, 0, 1), True))
        put(KEPT)
        monkeypatch.setattr(agree, "compiled_otherwise", lambda _: otherwise)
        with pytest.raises(SequenceError, match="only a part") if otherwise else nullcontext():
            assert decided(monkeypatch, (A, B))[0].report.kept is None

    def test_the_log_is_told_of_what_was_compiled_otherwise(self, monkeypatch):
        written: list[Any] = []
        monkeypatch.setattr(agree, "compiled_otherwise", lambda _: True)
        monkeypatch.setattr(agree, "sequence_in_force", lambda launches, here, entry: written.append(entry))
        assert agree.put_in_force(KEPT, Settings()) is None
        assert [entry.again for entry in written] == [True]

    def test_switched_off_it_follows_and_does_nothing_else(self, monkeypatch):
        off = Settings(follows=True)
        assert not decided(monkeypatch, (B, A), settings=off)[0].report.changed  # and nobody is asked
        assert in_force() is None
        put(SWAPPED)
        assert decided(monkeypatch, (A, B), (B, A), settings=off)[0].report.kept == FOLLOWS

    @pytest.mark.parametrize(("text", "kept"), [("_c10d_functional", "waits"), ("aten.mm", "none")])
    def test_no_launch_moves_beside_graphs_that_were_compiled_before(self, monkeypatch, tmp_path, text, kept):
        module = ModuleType("made")
        module.__file__ = str(tmp_path / "made.py")
        Path(module.__file__).write_text(text)
        monkeypatch.setattr(PyCodeCache, "modules", [module])
        agree.watch_functions()
        code = compile("1", "", "eval")
        convert_frame.output_codes.add(code)
        with overlap_sched.enabled():
            draft, _ = decided(monkeypatch, (A, B), answer=AGREED)
            assert draft.how.settings.options.preserve_collective_order == kept
        torch._dynamo.reset()
        assert not agree.runs_earlier_code()
        torch.compile(Net(), backend=Compiler())(torch.ones(2), 0)  # with us
        agree.note_earlier_code()
        assert not agree.runs_earlier_code()


def gathers(x: torch.Tensor) -> torch.Tensor:
    first, second = (C10D.wait_tensor(C10D.all_gather_into_tensor(one, 2, "0")) for one in (x, x[:2]))
    return first.sum() + second


def test_an_error_of_sequences_is_no_reason_to_fall_back() -> None:
    error = SequenceError("others launch otherwise")
    with pytest.raises(SequenceError):
        agree.report_failure(error, Settings(), "scheduling", "leaves")

    def stops(*_: Any) -> Any:
        raise error

    with pytest.raises(SequenceError):
        overlap_sched.schedule_graph(trace(gathers, (8, 4)), Options(rewrites=()), scheduler=stops)


def test_launches_are_followed_whatever_they_cost() -> None:
    big = (Storage(100), Storage(100), Storage(1))
    nodes = (
        Node("x", Kind.INPUT, alloc=(2,)),
        Node("first", Kind.COLLECTIVE, (0,), (0,), (), 1.0, "all_gather", "g"),
        Node("got", Kind.WAIT, (1,), (), (0,), collective=1),
        Node("use", Kind.COMPUTE, (2,), (), (0,), 1.0),
        Node("second", Kind.COLLECTIVE, (0,), (1,), (), 1.0, "all_gather", "g"),
        Node("also", Kind.WAIT, (4,), (), (1,), collective=4),
        Node("last", Kind.COMPUTE, (3, 5), (), (1,), 1.0),
        Node("end", Kind.OUTPUT, (6,)),
    )
    problem = Problem("two", nodes, big, {"g": overlap_sched.Group(2, True)})
    made = follow_launches(problem, [4, 1], Options())
    assert made is not None
    assert [v for v in made.order if v in (1, 4)] == [4, 1]
    assert made.scheduled.peak_bytes > made.budget_bytes
    chained = replace(problem, nodes=(*nodes[:4], nodes[4]._replace(deps=(0, 3)), *nodes[5:]))
    assert follow_launches(chained, [4, 1], Options()) is None


class Compiler:
    """A backend that notes, of each graph, what ``compiled_otherwise`` says of launches that the test gives."""

    def __init__(self) -> None:
        self.launches: tuple[str, ...] = ("a",)
        self.moves, self.otherwise = False, list[bool]()

    def __call__(self, gm: fx.GraphModule, _: Any) -> Any:
        agree.watch_functions()
        self.otherwise.append(agree.compiled_otherwise(self.launches))
        order = tuple(range(len(self.launches)))
        agree.note_launches(Entry(self.launches, order[::-1] if self.moves else order, True))
        return gm.forward


class Net(torch.nn.Module):
    def __init__(self, scale: int = 2) -> None:
        super().__init__()
        self.scale = scale

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def forward(self, x: torch.Tensor, flag: int) -> torch.Tensor:
        x = x * self.scale
        if flag == 2:
            torch._dynamo.graph_break()
            x = self.inner(x)
        return x + flag


def test_a_function_compiled_otherwise_is_known() -> None:
    compiler, x = Compiler(), torch.ones(2)
    agree.watch_functions()
    net, other = Net(), Net(3)
    compiled = torch.compile(net, backend=compiler, dynamic=False)
    compiled(x, 0)
    compiled(x, 1)  # again, and it launches the same
    assert compiler.otherwise == [False, False]
    compiler.launches = ("a", "b")
    torch.compile(other, backend=compiler, dynamic=False)(x, 0)  # another model of the same class
    assert compiler.otherwise[2:] == [False]
    compiled(x, 3)
    assert compiler.otherwise[3:] == [True]
    compiler.launches = ("c",)
    compiled(x, 2)  # and what goes on behind a graph break
    assert all(compiler.otherwise[4:])
    assert len(compiler.otherwise) > 5
    torch._dynamo.reset()
    compiled = torch.compile(net, backend=compiler, dynamic=False)
    compiled(x, 1)
    assert compiler.otherwise[-1] is False
    assert len(agree._compiled.launches) == 1  # numbers begin anew


@pytest.mark.parametrize("moves", [True, False])
def test_a_function_that_launches_anew_does_not_run_as_plain_python(moves: bool) -> None:
    def step(x: torch.Tensor, flag: bool) -> torch.Tensor:
        for _ in range(2):
            x = x * 2
            if flag:
                torch._dynamo.graph_break()
        return x

    compiler = Compiler()
    compiler.launches, compiler.moves = ("a", "b"), moves
    compiled = torch.compile(step, backend=compiler)
    compiled(torch.ones(2), False)
    said = r"'step' .*torch has given up compiling it"
    with pytest.raises(SequenceError, match=said) if moves else nullcontext():
        compiled(torch.ones(2), True)


def test_our_pass_stays_while_a_graph_launches_anew() -> None:
    before = config.reorder_for_compute_comm_overlap_passes
    with overlap_sched.enabled():
        agree._compiled.moved.add(0)
    (stays,) = [one for one in config.reorder_for_compute_comm_overlap_passes if isinstance(one, SchedulerPass)]
    assert stays.settings.options.preserve_collective_order == "waits"
    assert stays.settings.follows
    agree._compiled.moved.clear()
    with overlap_sched.enabled():
        pass
    assert config.reorder_for_compute_comm_overlap_passes == before


@pytest.mark.parametrize("late", [(1, 2), (2,)])
def test_a_rank_that_waits_says_once_for_whom(monkeypatch: pytest.MonkeyPatch, late: tuple[int, ...]) -> None:
    store, there = dist.HashStore(), Digest("", "", "", "", "", "k")
    for rank in {1, 2} - set(late):
        store.set(f"overlap_sched/agreement/all/k/0/{rank}", f"x {there.to_json()}")
    monkeypatch.setattr(agree, "LATE_S", 0.0)
    monkeypatch.setattr(agreement, "membership_of", lambda *_: Membership(store, 0, 3))
    remedy = r"ranks? [12-]+\. Call overlap_sched.enable\(\) on every rank"
    with pytest.warns(OverlapSchedWarning, match=remedy) as said:
        answer = agree.ask(there, Settings(timeout_s=0.3))
    assert answer is not None
    assert answer.verdict.missing == late
    assert len(said) == 1


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
    for graph in ("forward", "backward"):
        agree.warn_of_ranks(f"leaves {graph!r}", verdict, Settings())
    assert len(recwarn) == lines
