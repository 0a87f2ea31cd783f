"""Sizes that only the data knows: within what the graph asserts, never below zero, the largest for memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from overlap_sched import Options, schedule_graph
from overlap_sched.fx.lifting import lift
from overlap_sched.fx.reading import read_graph
from overlap_sched.fx.sizes import Sizes
from overlap_sched.judge.validate import peak_memory
from overlap_sched.report.words.graph import AssumedSize, sizes_assumed
from tests.support.fx_graphs import C10D, gather, wait

ROWS, WIDTH = 64, 16


@pytest.fixture
def env() -> ShapeEnv:
    return ShapeEnv()


def unbacked(env: ShapeEnv, count: int) -> list[torch.SymInt]:
    return [env.create_unbacked_symint() for _ in range(count)]


def asserted(env: ShapeEnv, condition: torch.SymBool | bool) -> None:
    if not isinstance(condition, bool):
        env.guard_or_defer_runtime_assert(condition.node.expr, "asserted by the test")


def test_a_difference_is_at_most_the_whole_and_never_below_zero(env: ShapeEnv) -> None:
    (u0,) = unbacked(env, 1)
    asserted(env, u0 >= 0)
    asserted(env, u0 <= ROWS)
    sizes = Sizes((), env)
    assert [sizes.largest(size) for size in (u0, ROWS - u0, 4 * (ROWS - u0))] == [ROWS, ROWS, 4 * ROWS]
    assert [sizes.hint(size) for size in (u0, ROWS - u0)] == [ROWS // 2, ROWS // 2]
    assert (sizes.largest(-5 - u0), sizes.hint(-5 - u0)) == (0, 0)
    assert sizes.assumed == (AssumedSize("u0", "", ROWS, True),)


def test_parts_that_add_up_to_a_whole(env: ShapeEnv) -> None:
    u0, u1, u2 = parts = unbacked(env, 3)
    for part in parts:
        asserted(env, part >= 0)
    asserted(env, u0 + u1 + u2 <= ROWS)
    sizes = Sizes((), env)
    assert [sizes.largest(part) for part in parts] == [ROWS] * 3
    assert sizes.largest(u0 + u1 + u2) == sizes.largest(u0 + u1) == ROWS
    assert sizes.largest(2 * u0 + u1) == 2 * ROWS
    assert [sizes.hint(part) for part in parts] == [32, 16, 8]


def test_without_a_limit_it_is_a_guess(env: ShapeEnv) -> None:
    u0, u1, u2, u3 = unbacked(env, 4)
    asserted(env, u1 >= 10_000)
    asserted(env, u2 <= 2 * u0)
    asserted(env, u3 <= 2**31 - 1)  # says nothing: the largest 32-bit number
    sizes = Sizes((), env)
    assert [sizes.largest(size) for size in (u0, u1, u2, u3)] == [8192, 10_000, 16_384, 8192]
    assert [sizes.hint(size) for size in (u0, u1, u2, u3)] == [8192, 10_000, 8192, 8192]
    assert [(one.name, one.limited) for one in sizes.assumed] == [(f"u{i}", False) for i in range(4)]


def test_what_is_not_linear_is_bounded_too(env: ShapeEnv) -> None:
    u0, u1 = unbacked(env, 2)
    for size in (u0, u1):
        asserted(env, size >= 0)
        asserted(env, size <= 9)
    sizes = Sizes((), env)
    assert [sizes.largest(size) for size in (u0 * u1, u0 // 2, torch.sym_max(u0, 20))] == [81, 4, 20]
    assert sizes.hint(u0 * u1) == 16


def test_a_hint_of_the_user_is_taken_within_the_limits(env: ShapeEnv) -> None:
    u0, u1 = unbacked(env, 2)
    asserted(env, u0 >= 0)
    asserted(env, u0 <= ROWS)
    for size in (u0, u1):
        env.var_to_hint_override[size.node.expr] = 100
    sizes = Sizes((), env)
    assert [sizes.hint(size) for size in (u0, u1)] == [ROWS, 100]
    assert [sizes.largest(size) for size in (u0, u1)] == [ROWS, 100]


def test_a_gather_of_an_unbacked_number_of_rows_is_read(env: ShapeEnv) -> None:
    graph = torch.fx.Graph()
    with FakeTensorMode(shape_env=env):
        (rows,) = unbacked(env, 1)
        sent, gathered = torch.empty(rows, 4), torch.empty(2 * rows, 4)
    x = graph.placeholder("x")
    launch = graph.call_function(C10D.all_gather_into_tensor.default, (x, 2, "0"))
    waited = graph.call_function(C10D.wait_tensor.default, (launch,))
    x.meta["val"], launch.meta["val"], waited.meta["val"] = sent, gathered, gathered
    graph.output((waited,))
    assert read_graph(graph).launch_of == {2: 1}


def splits(x: torch.Tensor, w: torch.Tensor, n: torch.Tensor) -> Any:
    """The rows behind the first ``n``, in a buffer eight times as large; gathers beside that."""
    u = n.item()
    torch._check(u >= 0)
    torch._check(u <= x.shape[0])
    _, rest = torch.split(x, [u, x.shape[0] - u])
    total = x.sum()
    for i in range(3):
        gathered = gather(w)
        dense = w.t() @ w
        wide = torch.cat([torch.exp(rest * (i + 1.0))] * 8, 1)
        total = total + (wide[:, :WIDTH] @ wait(gathered).t()).sum() + wide.sum() + dense.sum()
    return total


def traced(function: Callable[..., Any] = splits) -> torch.fx.GraphModule:
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    tensors = [torch.empty(ROWS, WIDTH), torch.empty(32, WIDTH), torch.tensor(5)]
    with mode:
        return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(
            *[mode.from_tensor(tensor) for tensor in tensors]
        )


def peaks(gm: torch.fx.GraphModule, orders: list[list[str]], rows: int) -> list[int]:
    """Per order its peak where the data asks for so many rows, by substitution."""

    def exact(_: Sizes, size: torch.SymInt) -> int:
        expr = size.node.expr.xreplace(size.node.shape_env.backed_var_to_val)
        return int(expr.subs(dict.fromkeys(expr.free_symbols, rows)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sizes, "largest", exact)
        problem = lift(gm).problem
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    return [peak_memory(problem, [ids[name] for name in order])[0] for order in orders]


@pytest.mark.slow
@pytest.mark.private
def test_no_number_of_rows_needs_more_than_the_report_says() -> None:
    gm = traced()
    before = [node.name for node in gm.graph.nodes]
    report = schedule_graph(gm, Options(rewrites=(), strict=True))
    plan = report.schedule
    assert report.changed
    assert plan is not None
    orders = [before, [node.name for node in gm.graph.nodes]]
    seen = [peaks(gm, orders, rows) for rows in (0, 1, ROWS // 2, ROWS)]
    assert max(was for was, _ in seen) == plan.original.peak_bytes == seen[0][0]
    assert max(now for _, now in seen) <= plan.scheduled.peak_bytes == plan.original.peak_bytes
    (node,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten._local_scalar_dense.default)
    assert report.sizes == (AssumedSize("u0", node.name, ROWS, True),)
    assert f"  peak rests on guessed sizes: u0 ({node.name}) <= 64 as asserted" in str(report).splitlines()


@pytest.mark.slow
@pytest.mark.private
def test_asserts_in_the_graph_alone_are_enough() -> None:
    gm = traced()
    env = next(n.meta["val"] for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.SymInt)).node.shape_env
    graph, aten = gm.graph, torch.ops.aten
    (item,) = graph.find_nodes(op="call_function", target=aten._local_scalar_dense.default)
    with graph.inserting_after(item):
        most = graph.call_function(aten._assert_scalar.default, (fits := graph.call_function(lambda a: a), "too many"))
        ranged = graph.call_function(aten.sym_constrain_range.default, (item,), {"min": 3, "max": None})
        item.append(fits)
    fits.meta["val"] = item.meta["val"] <= 40
    most.meta["val"] = ranged.meta["val"] = None
    env.deferred_runtime_asserts.clear()
    sizes = Sizes(list(graph.nodes), env)
    assert (sizes.largest(item.meta["val"]), sizes.largest(ROWS - item.meta["val"])) == (40, ROWS - 3)
    assert sizes.hint(item.meta["val"]) == 21


def test_a_shape_says_that_it_is_not_below_zero() -> None:
    def drops(x: torch.Tensor, w: torch.Tensor, n: torch.Tensor) -> Any:
        u = n.item()
        return x.new_empty([u + ROWS]), x.new_empty([ROWS - u])

    gm = traced(drops)
    (item,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten._local_scalar_dense.default)
    size = item.meta["val"]
    size.node.shape_env.deferred_runtime_asserts.clear()
    sizes = Sizes(list(gm.graph.nodes), size.node.shape_env)
    assert (sizes.largest(size), sizes.largest(ROWS - size)) == (ROWS, 2 * ROWS)  # from -ROWS to ROWS


def test_words() -> None:
    sizes = [AssumedSize("u0", "item", 4096, True), AssumedSize("u1", "", 8192, False)]
    assert sizes_assumed([]) == ""
    assert sizes_assumed(sizes) == "peak rests on guessed sizes: u1 = 8,192, u0 (item) <= 4,096 as asserted"
    many = [AssumedSize(f"u{i}", "", 8192, False) for i in range(6)]
    assert sizes_assumed(many).endswith("u3 = 8,192 and 2 more")
