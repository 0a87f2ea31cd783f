"""Launch sequences in force, on one rank: who follows, who is refused, what is known of functions compiled again."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo import convert_frame
from torch._inductor import config
from torch._inductor.codecache import PyCodeCache
from torch.fx.experimental.proxy_tensor import make_fx

import overlap_sched
from overlap_sched import EXAMPLE, Options, schedule
from overlap_sched.distributed import Agreement, Digest, Verdict, agreement
from overlap_sched.distributed.agreement import Membership
from overlap_sched.distributed.sequences import Entry
from overlap_sched.errors import OverlapSchedWarning, SequenceError
from overlap_sched.fx.apply import Report
from overlap_sched.inductor import agree, attempt, cached_orders, in_force
from overlap_sched.inductor.agree import Traffic, launch_texts
from overlap_sched.inductor.caches import CachedOrder, may_load, may_load_both
from overlap_sched.inductor.reporting import forget_warnings
from overlap_sched.inductor.scheduler_pass import SchedulerPass
from overlap_sched.inductor.settings import Settings
from overlap_sched.problem import Kind, Node, Problem, Storage
from overlap_sched.scheduler.pipeline import follow_launches
from tests.support.agreement_examples import MemoryStore
from tests.support.fx_graphs import C10D, trace

A, B = (fx.Graph().placeholder(name) for name in "ab")
TEXTS = launch_texts((A, B))
KEPT, SWAPPED = Entry(TEXTS, (0, 1), True), Entry(TEXTS, (1, 0), True)
ALIKE = Agreement(True, Verdict(True))
DIFFER = Agreement(False, Verdict(False, "the ranks differ", True, {"sizes": ((0,), (1,))}))
MINE = Digest("p", "s", "o", "c", "r", "key", launches="l", name="backward 0/0", nodes=7)


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This rank, and another one that is not there."""
    here = Membership(MemoryStore(), 0, 2)
    monkeypatch.setattr(agreement, "_logs", [])
    monkeypatch.setattr(agreement, "membership_of", lambda *_: here)
    monkeypatch.setattr(agree, "several_ranks", lambda: True)
    monkeypatch.setattr(in_force, "several_ranks", lambda: True)
    monkeypatch.setattr(in_force, "_compiled", in_force._Compiled())
    monkeypatch.setattr(in_force, "_earlier", set())
    forget_warnings()
    yield
    torch._dynamo.reset()


def put(entry: Entry) -> None:
    assert agreement.settle_sequence(entry) == entry


def decided(
    monkeypatch: pytest.MonkeyPatch, *plans: Any, answer: Agreement | None = None, settings: Settings | None = None
) -> tuple[Report, Attempt]:
    """What becomes of a graph whose plans launch as given, one after the other; ``None``: it stays as it was."""
    asked = iter([answer] if answer else [])
    monkeypatch.setattr(attempt, "decided", lambda mine, settings: next(asked))  # nobody else is asked
    monkeypatch.setattr(attempt, "shown", lambda *_: MINE)
    made, left = Attempt(settings or Settings()), iter(plans)

    def plan(known: Attempt) -> Report:
        known.key, known.problem, known.launches, known.asked = "key", EXAMPLE, (A, B), Options()
        known.standing = (A, B)
        found = next(left)
        if isinstance(found, Exception):
            raise found
        known.planned = found if isinstance(found, Traffic) else None if found is None else Traffic(found, {})
        return Report("g", schedule(EXAMPLE), changed=found is not None)

    return made.decided(plan), made


def test_what_all_agree_on_is_in_force(monkeypatch: pytest.MonkeyPatch) -> None:
    report, made = decided(monkeypatch, (B, A), answer=ALIKE)
    assert (report.changed, report.kept) == (True, None)
    assert agreement.find_sequence(TEXTS) == SWAPPED
    assert made.cached is not None
    assert made.cached.entry == SWAPPED


@pytest.mark.parametrize("first", [(A, B), None])
def test_who_compiles_later_follows_it_and_asks_nobody(monkeypatch: pytest.MonkeyPatch, first: Any) -> None:
    put(SWAPPED)
    report, made = decided(monkeypatch, first, (B, A))
    assert (report.changed, report.kept) == (True, attempt.FOLLOWS)
    assert made.cached is None  # its digest would promise another order
    report, made = decided(monkeypatch, (B, A))
    assert report.kept is None
    assert made.cached is not None


@pytest.mark.parametrize("second", [(A, B), None, KeyError("mm")])
def test_who_cannot_follow_stops(monkeypatch: pytest.MonkeyPatch, second: Any) -> None:
    put(SWAPPED)
    with pytest.raises(SequenceError, match=r"Nothing of it was launched\. .*preserve_collective_order=\"waits\""):
        decided(monkeypatch, (A, B), second)


def test_launches_kept_by_all_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    put(KEPT)
    report, made = decided(monkeypatch, (B, A), (A, B))
    assert (report.changed, report.kept) == (True, attempt.FOLLOWS)
    assert made.cached is not None
    assert not made.cached.agreed


def test_launches_kept_by_one_alone_keep_their_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    put(replace(KEPT, together=False))
    report, _ = decided(monkeypatch, (A, B))
    assert not report.changed  # what other code may still do to its waits is not known


def test_a_graph_that_others_have_rewritten_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    put(Entry(TEXTS, (), True, "buckets"))
    with pytest.raises(SequenceError, match="they have rewritten its collectives"):
        decided(monkeypatch, (A, B))


def test_an_answer_that_is_not_known_stops_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    doubt = Agreement(False, Verdict(False, "the store failed"), in_doubt=True)
    with pytest.raises(SequenceError, match="the store failed"):
        decided(monkeypatch, (B, A), answer=doubt)


def test_a_part_of_what_others_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    put(Entry((*TEXTS, "c group 8"), (2, 0, 1), True))
    late = Agreement(False, Verdict(False, "rank 1 did not publish", missing=(1,)))
    with pytest.warns(OverlapSchedWarning), pytest.raises(SequenceError, match="only a part"):
        decided(monkeypatch, (A, B), answer=late)


@pytest.mark.parametrize("otherwise", [True, False])
def test_what_may_be_a_part_is_refused_only_where_the_program_was_compiled_otherwise(
    monkeypatch: pytest.MonkeyPatch, otherwise: bool
) -> None:
    put(Entry((*TEXTS, "c group 8"), (2, 0, 1), True))
    put(KEPT)
    monkeypatch.setattr(in_force, "compiled_otherwise", lambda _: otherwise)
    if otherwise:
        with pytest.raises(SequenceError, match="only a part"):
            decided(monkeypatch, (A, B))
    else:
        assert decided(monkeypatch, (A, B))[0].kept is None


def test_a_rank_that_was_missing_may_be_running_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[Entry] = []
    monkeypatch.setattr(attempt, "note_launches", noted.append)
    late = Agreement(False, Verdict(False, "rank 1 did not publish", True, missing=(1,)))
    decided(monkeypatch, (A, B), answer=late)
    assert noted == [replace(KEPT, together=False)]


def test_an_error_of_sequences_is_no_reason_to_fall_back() -> None:
    error = SequenceError("others launch otherwise")
    with pytest.raises(SequenceError):
        agree.given_up(error, Settings(), "scheduling", "leaves")

    def fails(*_: Any) -> Any:
        raise error

    with pytest.raises(SequenceError):
        overlap_sched.schedule_graph(trace(gathers, (8, 4)), Options(rewrites=()), scheduler=fails)


def gathers(x: torch.Tensor) -> torch.Tensor:
    return C10D.wait_tensor(C10D.all_gather_into_tensor(x, 2, "0")).sum() + C10D.wait_tensor(
        C10D.all_gather_into_tensor(x[:2], 2, "0")
    )


def test_launches_are_known_by_their_bytes() -> None:
    nodes = [node for node in trace(gathers, (8, 4)).graph.nodes if "all_gather" in node.name]
    first, second = launch_texts(tuple(nodes))
    assert (first.split()[-1], second.split()[-1]) == ("128", "32")
    assert first.rsplit(" ", 1)[0] == second.rsplit(" ", 1)[0]
    symbolic = make_fx(gathers, tracing_mode="symbolic")(torch.ones(8, 4))
    nodes = [node for node in symbolic.graph.nodes if "all_gather" in node.name]
    assert [text.split()[-1] for text in launch_texts(tuple(nodes))] == ["*", "*"]


def test_switched_off_it_follows_and_does_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    off = Settings(follows=True)
    assert not decided(monkeypatch, (B, A), settings=off)[0].changed  # and nobody is asked
    assert agreement.find_sequence(TEXTS) is None
    put(SWAPPED)
    assert decided(monkeypatch, (A, B), (B, A), settings=off)[0].kept == attempt.FOLLOWS


def cached(entry: Entry, agreed: bool = True) -> str:
    order = CachedOrder(MINE, agreed, entry=entry)
    return f"# {order.line}\ntorch.ops._c10d_functional.wait_tensor.default(buf0)\n"


@pytest.mark.parametrize(("entry", "use"), [(SWAPPED, True), (KEPT, False)])
def test_code_from_a_cache_is_used_where_it_launches_as_is_in_force(
    monkeypatch: pytest.MonkeyPatch, entry: Entry, use: bool
) -> None:
    put(SWAPPED)
    monkeypatch.setattr(cached_orders, "ask", None)  # nobody is asked
    assert may_load(Settings(), cached(entry)) == (use, not use)
    assert may_load_both(Settings(), [cached(entry), cached(entry)]) == (use, False)


@pytest.mark.parametrize("answer", [ALIKE, DIFFER])
def test_code_from_a_cache_puts_its_sequence_in_force(monkeypatch: pytest.MonkeyPatch, answer: Agreement) -> None:
    monkeypatch.setattr(cached_orders, "ask", lambda *_: answer)
    assert may_load(Settings(), cached(KEPT, answer.agreed)) == (True, False)
    assert agreement.find_sequence(TEXTS) == KEPT


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
    """A backend that notes, of each graph, what :func:`compiled_otherwise` says of launches that the test gives."""

    def __init__(self) -> None:
        self.launches: tuple[str, ...] = ("a",)
        self.moves, self.otherwise = False, list[bool]()

    def __call__(self, gm: fx.GraphModule, _: Any) -> Any:
        in_force.watch_functions()
        self.otherwise.append(in_force.compiled_otherwise(self.launches))
        order = tuple(range(len(self.launches)))
        in_force.note_launches(Entry(self.launches, order[::-1] if self.moves else order, True))
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
    in_force.watch_functions()
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
    assert len(in_force._compiled.launches) == 1  # numbers begin anew


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
    if moves:
        with pytest.raises(SequenceError, match=r"'step' .*torch has given up compiling it"):
            compiled(torch.ones(2), True)
    else:
        compiled(torch.ones(2), True)


def test_our_pass_stays_while_a_graph_launches_anew() -> None:
    before = config.reorder_for_compute_comm_overlap_passes
    with overlap_sched.enabled():
        in_force._compiled.moved.add(0)
    (stays,) = [one for one in config.reorder_for_compute_comm_overlap_passes if isinstance(one, SchedulerPass)]
    assert stays.settings.options.preserve_collective_order == "waits"
    assert stays.settings.follows
    in_force._compiled.moved.clear()
    with overlap_sched.enabled():
        pass
    assert config.reorder_for_compute_comm_overlap_passes == before


@pytest.mark.parametrize(("text", "kept"), [("_c10d_functional", "waits"), ("aten.mm", "none")])
def test_no_launch_moves_beside_graphs_that_were_compiled_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, kept: str
) -> None:
    module = ModuleType("made")
    module.__file__ = str(tmp_path / "made.py")
    Path(module.__file__).write_text(text)
    monkeypatch.setattr(PyCodeCache, "modules", [module])
    code = compile("1", "", "eval")
    convert_frame.output_codes.add(code)
    with overlap_sched.enabled():
        _, made = decided(monkeypatch, (A, B), answer=ALIKE)
        assert made.settings.options.preserve_collective_order == kept
    torch._dynamo.reset()
    assert not in_force.runs_earlier_code()
    torch.compile(Net(), backend=Compiler())(torch.ones(2), 0)  # with us
    in_force.note_earlier_code()
    assert not in_force.runs_earlier_code()
