"""Graphs with more in them than matmuls: lifted without a doubt, and right in any order that the problem allows."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._inductor.utils import run_and_get_code
from torch.utils._pytree import tree_leaves

import overlap_sched
from overlap_sched import Options
from overlap_sched.errors import OverlapSchedWarning
from overlap_sched.inductor.reporting import GraphReport, Stage
from overlap_sched.problem import PART, Kind, Problem
from overlap_sched.scheduler.driver import schedule
from tests.support.inductor.generated import events, matmuls_under_way
from tests.support.inductor.models import RANKS, SIMPLE_OVERLAP
from tests.support.oracle import random_order

comm = torch.ops._c10d_functional
Function = Callable[[torch.Tensor, torch.Tensor], Any]


def group() -> str:
    return dist.group.WORLD.group_name


def gather(x: torch.Tensor) -> torch.Tensor:
    return comm.wait_tensor(comm.all_gather_into_tensor(x, RANKS, group()))


def reduces(x: torch.Tensor, w: torch.Tensor) -> Any:
    reduced = comm.wait_tensor(comm.all_reduce(x @ w, "sum", group()))
    return reduced + torch.sin(x) @ w, (x * 2) @ w


def gathers_several_at_once(x: torch.Tensor, w: torch.Tensor) -> Any:
    a, b = comm.all_gather_into_tensor_coalesced([x, w], RANKS, group())
    other = torch.sin(x) @ w
    return comm.wait_tensor(a).sum() + other.sum(), comm.wait_tensor(b) @ w[:, :8]


def waits_for_several_at_once(x: torch.Tensor, w: torch.Tensor) -> Any:
    a, b = comm.wait_tensors(comm.all_gather_into_tensor_coalesced([x, w], RANKS, group()))
    return a.sum() + (torch.sin(x) @ w).sum(), b @ w[:, :8]


def waits_for_two_collectives(x: torch.Tensor, w: torch.Tensor) -> Any:
    launched = [comm.all_gather_into_tensor(x, RANKS, group()), comm.reduce_scatter_tensor(w, "sum", RANKS, group())]
    a, b = comm.wait_tensors(launched)
    return a @ w, b @ torch.sin(x) @ w


def writes_its_input(x: torch.Tensor, w: torch.Tensor) -> Any:
    full = gather(x)
    before = x @ w
    x.mul_(2.0)
    return full @ w, before, torch.cos(x) @ w


def writes_a_view(x: torch.Tensor, w: torch.Tensor) -> Any:
    part = x.view(-1)[:32]
    full = gather(w)
    part.add_(1.0)
    return full[: w.shape[0]] @ x.t(), x @ w


def gathers_into_a_buffer(x: torch.Tensor, w: torch.Tensor) -> Any:
    out = torch.empty(x.shape[0] * RANKS, x.shape[1])
    full = comm.wait_tensor(comm.all_gather_into_tensor_out(x, RANKS, group(), out=out))
    return x @ w, full @ w


def draws_random_numbers(x: torch.Tensor, w: torch.Tensor) -> Any:
    full = gather(torch.nn.functional.dropout(x, 0.5))
    return torch.nn.functional.dropout(full @ w, 0.3), torch.rand_like(x) @ w


def concatenates(x: torch.Tensor, w: torch.Tensor) -> Any:
    full = gather(x)
    both = torch.cat([torch.sin(x) @ w, torch.cos(x) @ w], 0)
    return both.relu() + 1, full @ w, both


def falls_back(x: torch.Tensor, w: torch.Tensor) -> Any:
    full = gather(x)
    scattered = comm.wait_tensor(comm.reduce_scatter_tensor(full @ w, "sum", RANKS, group()))
    halves = [x.shape[0] // 2] * RANKS
    swapped = comm.wait_tensor(comm.all_to_all_single(scattered, halves, halves, group()))
    return swapped @ w, torch.sort(x)[0] @ w, torch.topk(x, 3)


def goes_over_lists(x: torch.Tensor, w: torch.Tensor) -> Any:
    full = gather(x)
    lists = torch._foreach_mul(torch._foreach_add([x, w, x + 1], 1.0), 2.0)
    return full @ w, *lists


def waits_for_an_input(x: torch.Tensor, w: torch.Tensor) -> Any:
    rows = x.view(-1)
    results = comm.wait_tensor(x) @ w, gather(w), torch.sin(w) @ w, rows.cos()
    w.mul_(2.0)  # perhaps what the collective reads
    return results


def branches(x: torch.Tensor, w: torch.Tensor) -> Any:
    full = gather(x)
    chosen = torch.cond(x.sum() > 0, lambda a: a.sin(), lambda a: a.cos(), (x,))
    return full @ w, chosen @ w


def communicates_in_a_branch(x: torch.Tensor, w: torch.Tensor) -> Any:
    launched = comm.all_gather_into_tensor(x, RANKS, group())
    chosen = torch.cond(x.sum() > 0, lambda a: gather(a).sum(0), lambda a: a.cos().sum(0), (w,))
    return comm.wait_tensor(launched) @ w, chosen, torch.sin(x) @ w


def waits_in_a_branch(x: torch.Tensor, w: torch.Tensor) -> Any:
    launched, other = (comm.all_gather_into_tensor(one, RANKS, group()) for one in (x, w))
    twice, thrice = (lambda a, k=k: comm.wait_tensor(a) * k for k in (2.0, 3.0))
    return torch.cond(x.sum() > 0, twice, thrice, (launched,)) @ w, comm.wait_tensor(other) @ w, torch.sin(x) @ w


def drops_rows(x: torch.Tensor, w: torch.Tensor) -> Any:
    n = x[0, 0].abs().int().item()
    torch._check(n >= 0)
    torch._check(n <= 12)
    rest = x.new_ones([16 - n, 16])
    full = gather(x)
    wide = torch.cat([rest @ w] * 8, 1)
    return full @ w, torch.sin(wide) @ torch.cat([w] * 8, 0), wide.sum()


def has_no_elements(x: torch.Tensor, w: torch.Tensor) -> Any:
    """Shards and results without rows."""
    none = x[:0] * 2
    full, nothing = gather(x), gather(none)
    return full @ w, nothing @ w, torch.cat([none + 1, w * 2]), w[:, :0] @ none, none.sum(0), none.t().contiguous()


FUNCTIONS: tuple[Function, ...] = (
    reduces,
    gathers_several_at_once,
    writes_its_input,
    writes_a_view,
    gathers_into_a_buffer,
    draws_random_numbers,
    concatenates,
    falls_back,
    goes_over_lists,
    waits_for_an_input,
    branches,
    communicates_in_a_branch,
    waits_in_a_branch,
    has_no_elements,
)
if hasattr(comm, "wait_tensors"):  # torch 2.15
    FUNCTIONS = (*FUNCTIONS, waits_for_several_at_once, waits_for_two_collectives)
each = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
pytestmark = pytest.mark.usefixtures("clean")


def run(function: Function, settings: dict[str, Any], dynamic: bool = False) -> tuple[list[Any], str]:
    """Results and inputs after a call, and the code of it."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, w = torch.randn(16, 16), torch.randn(16, 16)
    with torch.no_grad():
        compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, options=settings)
        results, code = run_and_get_code(compiled, x, w)
    return [*tree_leaves(results), x, w], code[-1]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def main_report() -> GraphReport:
    """Of the graph itself, not of its sub-graphs."""
    return [one for one in overlap_sched.reports() if "_graph_" not in one.name][-1]


def problem_of(function: Function, cluster: str | None = None) -> Problem:
    run(function, overlap_sched.inductor_options(Options(strict=True), cluster=cluster))
    plan = main_report().report.schedule
    assert plan is not None
    return plan.problem


@cache
def without_us(function: Function, dynamic: bool = False) -> tuple[list[Any], str]:
    return run(function, {}, dynamic)


DYNAMIC = (gathers_several_at_once, writes_a_view, falls_back, has_no_elements)


@pytest.mark.parametrize(
    ("function", "dynamic"),
    [*((f, False) for f in FUNCTIONS), *((f, True) for f in DYNAMIC)],
    ids=lambda value: getattr(value, "__name__", "dynamic" if value else "static"),
)
@pytest.mark.slow
def test_scheduled_it_gives_the_same(function: Function, dynamic: bool) -> None:
    expected, alone = without_us(function, dynamic)
    results, code = run(function, overlap_sched.inductor_options(Options(strict=True, headroom="50%")), dynamic)
    assert main_report().report.schedule is not None
    assert same(results, expected)
    assert matmuls_under_way([code]) >= matmuls_under_way([alone])


@each
@pytest.mark.slow
def test_any_order_that_the_problem_allows_gives_the_same(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler is replaced by dice; its validator, and the budget, are out of the way."""
    expected, _ = without_us(function)

    def dice(problem: Problem, options: Options) -> Any:
        return replace(schedule(problem, options), order=tuple(random_order(problem, 1)))

    monkeypatch.setattr("overlap_sched.inductor.decision.schedule", dice)
    results, _ = run(function, overlap_sched.inductor_options(Options(strict=True)))
    assert same(results, expected)


def test_a_wait_ends_the_collective_that_made_its_buffer() -> None:
    problem = problem_of(falls_back)
    waits = [node for node in problem.nodes if node.kind is Kind.WAIT]
    launched = [problem.nodes[node.collective].op for node in waits if node.collective is not None]
    assert launched == ["all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single"]
    for wait in waits:
        assert wait.collective is not None
        launch = problem.nodes[wait.collective]
        assert {*launch.use, *launch.alloc} <= set(wait.use)  # in flight, both its sides are held
        assert wait.alloc == ()


def test_several_gathered_at_once_have_one_launch_and_a_wait_each() -> None:
    problem = problem_of(gathers_several_at_once)
    (launch,) = problem.collectives
    assert len(problem.waits[launch]) == 2
    assert sorted(problem.storages[s].bytes for s in problem.nodes[launch].alloc) == [2048, 2048]


@pytest.mark.skipif(not hasattr(comm, "wait_tensors"), reason="torch has wait_tensors from 2.15 on")
def test_one_wait_of_two_collectives_is_a_wait_of_each() -> None:
    problem = problem_of(waits_for_two_collectives)
    waits = [problem.waits[launch] for launch in problem.collectives]
    assert [len(of_one) for of_one in waits] == [1, 1]
    last = max(v for (v,) in waits)
    for launch in problem.collectives:
        assert {*problem.nodes[launch].use, *problem.nodes[launch].alloc} <= set(problem.nodes[last].use)
    assert main_report().report.notes.get("collective_without_wait") is None


@pytest.mark.slow
@pytest.mark.parametrize("function", [communicates_in_a_branch, waits_in_a_branch], ids=lambda f: f.__name__)
@pytest.mark.parametrize("stage", ["inductor", "post_grad"])
def test_a_branch_stands_behind_what_its_group_has_in_flight(function: Function, stage: Stage) -> None:
    run(function, overlap_sched.inductor_options(Options(strict=True), stage=stage))
    plan = main_report().report.schedule
    assert plan is not None
    nodes = plan.problem.nodes
    (part,) = [v for v, node in enumerate(nodes) if node.op == PART]
    (branch,) = [node for node in nodes if part in node.deps]
    assert "cond" in branch.op
    assert branch.launches == ((group(),) if function is communicates_in_a_branch else ())
    in_flight = nodes[nodes[part].collective or 0]
    assert (branch.time_us > in_flight.time_us) == (function is communicates_in_a_branch)


def test_a_concatenation_is_one_storage() -> None:
    problem = problem_of(concatenates)
    matmuls = [node for node in problem.nodes if "mm" in node.op]
    first, second = (node for node in matmuls if "sin" in node.op or "cos" in node.op)
    assert [problem.storages[s].bytes for s in first.alloc] == [2 * 16 * 16 * 4]
    assert second.alloc == ()
    assert set(first.alloc) <= set(second.use)


@pytest.mark.parametrize("stage", ["inductor", "post_grad"])
def test_tensors_without_elements_have_no_bytes(stage: Any) -> None:
    run(has_no_elements, overlap_sched.inductor_options(Options(strict=True), stage=stage))
    plan = main_report().report.schedule
    assert plan is not None
    made = [plan.problem.nodes[launch].alloc for launch in plan.problem.collectives]
    assert sorted(plan.problem.storages[s].bytes for (s,) in made) == [0, RANKS * 16 * 16 * 4]


def test_a_wait_for_an_input_waits_for_nothing_in_the_graph() -> None:
    problem = problem_of(waits_for_an_input)
    outside = [node for node in problem.nodes if node.kind is Kind.WAIT and node.collective is None]
    assert len(outside) == 1
    assert main_report().report.notes["wait_outside"] == 1
    wait = problem.nodes.index(outside[0])
    for op in ("cos", "mul"):
        (later,) = [node for node in problem.nodes if op in node.op]
        assert wait in later.deps


@pytest.mark.private
def test_sizes_that_only_the_data_knows_are_as_large_as_the_graph_asserts() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        problem = problem_of(drops_rows, "gloo")  # so slow that a better order is found
    assert max(storage.bytes for storage in problem.storages) == 16 * 8 * 16 * 4
    report = main_report()
    (size,) = report.report.sizes
    assert (size.taken, size.limited) == (12, True)
    words = f"peak rests on guessed sizes: {size.name} ({size.node}) <= 12 as asserted"
    assert all(words in text for text in (str(report), report.line))


def grouped(snodes: list[Any], at: int) -> list[Any]:
    """Two nodes, one behind the other, stay together."""
    from torch._inductor.scheduler import GroupedSchedulerNode

    return [*snodes[:at], GroupedSchedulerNode.create(snodes[at : at + 2]), *snodes[at + 2 :]]


def grouping(snodes: list[Any]) -> list[Any]:
    """Somebody else's pass: the first collective and what stands behind it become one node."""
    from torch._inductor.utils import contains_collective

    return grouped(snodes, next(i for i, snode in enumerate(snodes) if contains_collective(snode)))


def theirs(somebodys: Callable[[list[Any]], list[Any]]) -> dict[str, Any]:
    """Settings with that pass; torch's own pass, where there is one, does not know such groups."""
    known = torch._inductor.config.get_config_copy()
    return {
        "reorder_for_compute_comm_overlap": True,
        "reorder_for_compute_comm_overlap_passes": [somebodys],
        **({SIMPLE_OVERLAP: False} if SIMPLE_OVERLAP in known else {}),
    }


@pytest.mark.private
def test_communication_in_a_group_of_nodes_is_left_alone_and_reported() -> None:
    expected, code = run(reduces, theirs(grouping))
    with torch._inductor.config.patch(theirs(grouping)):
        settings = overlap_sched.inductor_options()
        with pytest.warns(OverlapSchedWarning) as warned:
            results, ours = run(reduces, settings)
    assert same(results, expected)
    assert events(ours) == events(code)
    assert main_report().settings == ("grouping runs before this pass",)
    said = [str(w.message) for w in warned if issubclass(w.category, OverlapSchedWarning)]
    assert ["groups communication with other nodes" in one for one in said] == [True]
