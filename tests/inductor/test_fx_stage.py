"""PlanRequest FX graphs are priced, by what runs them."""

import warnings
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import fx
from torch._inductor.utils import run_and_get_code

import overlap_sched
from overlap_sched import Options
from overlap_sched.distributed import Agreement, Digest, Verdict
from overlap_sched.errors import OverlapSchedWarning, SequenceError
from overlap_sched.fx import Lifted
from overlap_sched.fx.apply import Report
from overlap_sched.fx.rewrites import facts
from overlap_sched.fx.rewrites.apply import may_rewrite
from overlap_sched.inductor import agree, fx_stage
from overlap_sched.inductor.agree import launches_in
from overlap_sched.inductor.caches import CachedOrder, with_rewrites
from overlap_sched.inductor.decision import OrderDraft, decide
from overlap_sched.inductor.fx_stage import RewriteChoice, rewrite_fx
from overlap_sched.inductor.reporting import Stage, clear_reports, reports
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import SchedulerPass, WatchPass
from overlap_sched.transform.rewrites import Bucket, Rewrite
from tests.inductor.conftest import Compiled, compiled_step
from tests.support.fx_graphs import C10D, trace, wait
from tests.support.inductor.models import RANKS, gathered
from tests.support.ranks import found_once
from tests.support.rewrite_graphs import GRAPHS, described, reduce


@pytest.mark.parametrize("communicates", [True, False])
def test_a_rank_that_fails_asks_only_about_graphs_that_others_ask_about(communicates: bool) -> None:
    """It would wait for its whole limit: no other rank comes to speak of a graph without collectives."""

    def step(x: Any) -> Any:
        return wait(C10D.all_reduce(x, "sum", "0")) if communicates else x + 1

    with (
        mock.patch.object(agree, "asks", return_value=True),
        mock.patch("overlap_sched.fx.apply.lift", side_effect=ZeroDivisionError("injected")),
        mock.patch.object(agree, "ask", return_value=None) as asked,
        pytest.warns(OverlapSchedWarning, match="as it was: ZeroDivisionError: injected$"),
    ):
        fx_stage.schedule_fx(trace(step, (4, 4)), Settings(stage="titan"))
    assert asked.called is communicates


@pytest.mark.parametrize(
    ("stage", "region", "known"),
    [
        ("backend", False, True),
        ("titan", False, True),
        ("titan", True, False),
        ("post_grad", False, False),
        ("deepspeed", False, False),
    ],
)
def test_waits_are_known_only_where_the_graph_runs_as_it_is(stage: Stage, region: bool, known: bool) -> None:
    """Inductor, which lowers the others, keeps launches in order and moves waits; so do regions that it compiles."""
    gm = trace(lambda x: wait(C10D.all_reduce(x, "sum", "0")), (4, 4))
    if region:
        list(gm.graph.nodes)[1].meta["custom"] = {"compile_with_inductor": {"inductor_region": 0}}
    made: list[OrderDraft] = []

    def noted(*given: Any) -> OrderDraft:
        made.append(decide(*given))
        return made[-1]

    with mock.patch.object(agree, "asks", return_value=True), mock.patch.object(fx_stage, "decide", noted):
        fx_stage.schedule_fx(gm, Settings(stage=stage))
    assert (made[0].facts.original is not None) is known


@pytest.fixture(scope="module", autouse=True)
def as_over_gloo() -> None:
    """Not here: gathers are coalesced."""


GATHERS = Bucket(("all_gather_into_tensor", "all_gather_into_tensor_1"))


def neighbours(lifted: Lifted, settings: Settings, alike: Mapping[str, str]) -> RewriteChoice:
    """Neighbouring gathers two by two, as far as they do not need each other; in the graph's order."""
    nodes = lifted.problem.nodes
    ready = [n.name for n in nodes if alike.get(n.name) == "float32" and n.op == "all_gather_into_tensor"]
    inputs = {v for v, n in enumerate(nodes) if n.kind == "input"}
    free = [name for name in ready if all(u in inputs for n in nodes if n.name == name for u in n.deps)]
    return RewriteChoice([Bucket(pair) for pair in zip(free[::2], free[1::2], strict=False)])


def chosen(*rewrites: Rewrite) -> Any:
    return lambda lifted, settings, alike: RewriteChoice(rewrites)


def asked(answer: Agreement) -> Any:
    """Several ranks, of which the others answer so."""
    shown: list[Digest] = []

    def ask(mine: Digest, settings: Settings) -> Agreement:
        shown.append(mine)
        return answer

    others = ExitStack()
    others.enter_context(mock.patch.object(agree, "ask", ask))
    others.enter_context(mock.patch.object(agree, "asks", return_value=True))
    return others, shown


def test_done_where_nobody_is_to_be_asked_or_all_agree() -> None:
    gm = GRAPHS["whole"]()
    assert rewrite_fx(gm, Settings(stage="backend"), chosen(GATHERS)) == (GATHERS,)
    assert "bucket_all_gather_into_tensor_2" in [node.name for node in gm.graph.nodes]
    assert "bucket_all_gather_into_tensor_2" in gm.code  # recompiled
    others, shown = asked(Agreement(True, Verdict(True)))
    with others:
        for rewrites in ((GATHERS,), (), (GATHERS,)):
            assert rewrite_fx(GRAPHS["whole"](), Settings(stage="backend"), chosen(*rewrites)) == rewrites
    assert shown[0] == shown[2]
    assert shown[0].order.startswith("rewrites: ")
    assert shown[0].order != shown[1].order
    assert (shown[0].key, shown[0].launches) == (shown[1].key, shown[1].launches)
    assert shown[0].launches


WRONG = Bucket(("all_gather_into_tensor", "reduce_scatter_tensor"))
DIFFER, FAILED = Verdict(False, "the ranks differ in order"), Verdict(False, "rank 0 could not", True)


@pytest.mark.parametrize(
    ("answer", "rewrites", "earlier", "shows", "said"),
    [
        (Agreement(False, DIFFER), (GATHERS,), False, "", "rewrites no collective of 'inference.*': the ranks differ"),
        (Agreement(False, DIFFER, in_doubt=True), (GATHERS,), False, "", None),  # the others may do it
        (
            Agreement(False, DIFFER, in_doubt=True),
            (),
            False,
            "",
            "rewrites no collective",
        ),  # nobody does
        (Agreement(False, FAILED), (GATHERS,), True, "compiled without overlap_sched", ""),
        (Agreement(False, FAILED), (WRONG,), False, "a bucket has one", "RewriteError: 'reduce_scatter_tensor' has"),
    ],
)
def test_undone_where_they_do_not(
    answer: Agreement,
    rewrites: tuple[Rewrite, ...],
    earlier: bool,
    shows: str,
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the rank stops; beside graphs that were compiled before, and where it fails, it says so to the others."""
    clear_reports()
    gm = GRAPHS["whole"]()
    before = described(gm.graph)
    monkeypatch.setattr(agree, "runs_earlier_code", lambda: earlier)
    others, shown = asked(answer)
    stops = nullcontext() if said is not None else pytest.raises(SequenceError, match="the ranks differ")
    with others, stops, pytest.warns(match=said) if said else nullcontext():
        assert rewrite_fx(gm, Settings(stage="backend"), chosen(*rewrites)) == ()
    assert shows in shown[0].failure
    assert bool(shown[0].failure) == bool(shows)
    assert shown[0].key
    assert described(gm.graph) == before


def test_graphs_without_anything_to_rewrite_ask_nobody() -> None:
    """Two gathers in one group at least: known by the launches, before anything is lifted."""
    choose = mock.Mock(return_value=RewriteChoice())
    others, shown = asked(Agreement(True, Verdict(True)))
    default, buckets = Settings(stage="backend"), Settings(Options(rewrites=("bucket",)), stage="backend")
    with others:
        with mock.patch.object(facts, "over_gloo", return_value=True):
            coalescing = replace(default, options=Options(rewrites=("coalesce_gathers",)))
            rewrite_fx(GRAPHS["whole"](), coalescing, choose)  # which gloo cannot do
            assert (shown, choose.call_count) == ([], 0)
            rewrite_fx(GRAPHS["whole"](), default, choose)
            rewrite_fx(GRAPHS["whole"](), buckets, choose)
        assert (len(shown), choose.call_count) == (2, 2)
        gm = GRAPHS["whole"]()
        gathers = [node for node in launches_in(gm.graph.nodes) if "all_gather" in node.name]
        others_left = [node for node in launches_in(gm.graph.nodes) if node not in gathers]
        assert may_rewrite(gathers[:2], default.options)
        assert not may_rewrite([*gathers[:1], *others_left], default.options)
        assert may_rewrite([*gathers[:1], *others_left], buckets.options)
        assert not may_rewrite(gathers, replace(default.options, budget="profile"))
        assert may_rewrite(gathers[:1], Options(rewrites=("stream",)))


def test_code_carries_what_the_ranks_were_asked_about_rewrites() -> None:
    """Not what may have gone wrong for a moment."""
    order = CachedOrder(Digest("p", "s", "o", "c", "r", "key"), agreed=True)
    yes, no = Agreement(True, Verdict(True)), Verdict(False, "sizes", True, {"sizes": ((0,), (1,))})
    late = Verdict(False, "rank 1 did not publish", missing=(1,))
    for answer, agreed in ((yes, True), (Agreement(False, no), False), (Agreement(False, late), None)):
        gm = GRAPHS["whole"]()
        others, shown = asked(answer)
        with others, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rewrite_fx(gm, Settings(stage="backend"), chosen(GATHERS))
        carried = with_rewrites(order, gm.graph)
        if agreed is None:
            assert carried is None
            continue
        assert carried is not None
        assert carried.rewrites is not None
        assert carried.rewrites.agreed is agreed
        assert (carried.rewrites.digest == shown[0]) is agreed  # else it promises no rewrites
        assert carried.rewrites.digest.key == shown[0].key
    assert with_rewrites(order, GRAPHS["whole"]().graph) is order  # nobody was asked


def before_lowering(choose: Any) -> Any:
    """Settings of Inductor: rewrite graphs before they are lowered, and set their order behind fusion."""
    settings = Settings(Options(strict=True))
    return torch._inductor.config.patch(
        post_grad_custom_post_pass=WatchPass(settings, choose=choose),
        reorder_for_compute_comm_overlap=True,
        reorder_for_compute_comm_overlap_passes=[SchedulerPass(settings)],
        fx_graph_cache=False,
    )


@pytest.fixture(scope="module")
def rewritten(ranks: None) -> Compiled:
    """Compiled by Inductor with gathers merged before lowering."""
    with before_lowering(neighbours):
        return compiled_step(own_functions=True)


def gathers_in(code: str) -> int:
    """PlanRequest many all_gathers generated code launches."""
    return sum(" = torch.ops._c10d_functional.all_gather" in line for line in code.splitlines())


@pytest.mark.private
def test_code_of_inductor_has_fewer_collectives_and_the_same_results(plain: Compiled, rewritten: Compiled) -> None:
    for graph in (0, 1):
        assert gathers_in(rewritten.code[graph]) < gathers_in(plain.code[graph]), graph
    assert all(map(torch.equal, plain.results, rewritten.results))


def normed(table: torch.Tensor, weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """An embedding and its norm, both gathered: Inductor makes one kernel of them, with a sum over the table's rows."""
    group = torch.distributed.group.WORLD.group_name
    rows = gathered(table, group, RANKS)[index]
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-5) * gathered(weight, group, RANKS)


@pytest.mark.private
def test_sums_over_what_a_bucket_gathers_round_as_they_did(ranks: None) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(64, 128), torch.randn(64), torch.randint(0, 128, (64, 2)))
    found, code = {}, {}
    for name, choose in {"plain": chosen(), "bucket": neighbours}.items():
        torch._dynamo.reset()
        with before_lowering(choose):
            found[name], (code[name],) = run_and_get_code(torch.compile(normed), *inputs)
    assert gathers_in(code["bucket"]) == 1 < gathers_in(code["plain"])
    copies = [line for line in code["bucket"].splitlines() if "aten.clone.default(" in line and " = " in line]
    assert len(copies) == 2  # its kernels read tensors of their own, not the bucket
    assert torch.equal(found["plain"], found["bucket"])


ROOMY = Options(headroom="100%", rewrites=("bucket",), strict=True)


@pytest.mark.private
def test_asked_for_by_an_option(plain: Compiled, ranks: None) -> None:
    done = compiled_step(own_functions=True, options=overlap_sched.inductor_options(ROOMY))
    assert all(map(torch.equal, plain.results, done.results))
    fewer = [gathers_in(done.code[graph]) < gathers_in(plain.code[graph]) for graph in (0, 1)]
    assert any(fewer)
    assert [one.report.made is not None for one in done.reports] == fewer
    made = next(one.report.made for one in done.reports if one.report.made is not None)
    assert any(isinstance(one, Bucket) for one in made.rewrites)


def test_what_is_not_rewritten_is_in_the_report_also_where_times_are_given() -> None:
    gm = trace(reductions, (64, 64), (64, 64), (64, 64))
    settings = Settings(Options(rewrites=("bucket",)), stage="backend", cost=lambda node: 100.0)
    clear_reports()
    fx_stage.rewrite_and_schedule(gm, settings)
    (report,) = reports()
    (why,) = report.report.refused
    assert why.startswith("'all_reduce' is a sum of float32 on ranks of an unknown number (all_reduce): where an ")
    assert why.endswith(" so a rewrite would change bits. (The same of 1 more.)")
    assert f"  not rewritten: {why}" in str(report)


def reductions(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> list[torch.Tensor]:
    """Two sums of floats, of a group whose size nobody knows."""
    return [wait(reduce(a, "elsewhere", "sum")) + 1, wait(reduce(b, "elsewhere", "sum")) + 1, c @ c]


def test_what_was_rewritten_may_grow_no_more() -> None:
    used: list[Options] = []

    def schedule_graph(gm: fx.GraphModule, options: Options, **more: object) -> Report:
        used.append(options)
        return Report("", reason="seen")

    with (
        mock.patch.object(fx_stage, "rewrite_fx", return_value=(GATHERS,)) as rewrites,
        mock.patch.object(fx_stage, "schedule_graph", schedule_graph),
    ):
        for options in (ROOMY, replace(ROOMY, rewrites=())):
            fx_stage.rewrite_and_schedule(fx.Graph(), Settings(options), "backward")
        assert rewrites.call_count == 1
        rewrites.return_value = ()
        fx_stage.rewrite_and_schedule(fx.Graph(), Settings(ROOMY), "backward")
    plain = replace(ROOMY, rewrites=())
    assert used == [replace(plain, headroom=0), plain, plain]


def test_not_where_torch_runs_no_pass_behind_fusion() -> None:
    gm = GRAPHS["whole"]()
    before = described(gm.graph)
    ours = {"reorder_for_compute_comm_overlap_passes": [SchedulerPass(Settings())]}
    for theirs in ({"deterministic": True}, {"reorder_for_compute_comm_overlap": False}):
        with torch._inductor.config.patch({"reorder_for_compute_comm_overlap": True, **ours, **theirs}):
            WatchPass(Settings(), choose=chosen(GATHERS))(gm.graph)
        assert described(gm.graph) == before
    with torch._inductor.config.patch({"reorder_for_compute_comm_overlap": True, **ours}):
        WatchPass(Settings(), choose=chosen(GATHERS))(gm.graph)
    assert described(gm.graph) != before


@pytest.fixture(scope="module")
def on_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return found_once(tmp_path_factory, "rewriting", "tests.support.inductor.rewriting")


@pytest.mark.private
@pytest.mark.parametrize("name", ["float32", "bfloat16", "tied", "cast", "computed"])
def test_bitwise_on_real_ranks(on_ranks: list[dict[str, Any]], name: str) -> None:
    for alone, ours, rewrites, _ in (rank[name] for rank in on_ranks):
        assert all(map(torch.equal, alone, ours))
        assert bool(rewrites) == (name not in ("cast", "computed"))


@pytest.mark.private
def test_what_is_gathered_twice_is_kept_on_real_ranks(on_ranks: list[dict[str, Any]]) -> None:
    """Over gloo, which coalesces no gathers: to keep one needs nothing of a backend."""
    for rank in on_ranks:
        assert rank["tied"][2] == ["Keep(first='all_gather_into_tensor', again='all_gather_into_tensor_4')"]


@pytest.mark.private
@pytest.mark.parametrize("way", ["cast", "computed"])
def test_ranks_that_cast_otherwise_leave_the_graph_and_wait_for_nobody(
    on_ranks: list[dict[str, Any]], way: str
) -> None:
    """One rank gathers the same twice and the other does not: both ask about rewrites, the order, then the launches."""
    for rank in on_ranks:
        *differ, choice = rank[way][3]
        assert len(differ) == 2
        assert all("the ranks differ in operators" in str(reason) for reason in differ)
        assert choice is None
