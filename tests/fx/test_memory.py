"""Both memory models: the tracker's against torch's own MemoryTracker, the runtime's against hand-made tables.

Sizes that only the data knows: within what the graph asserts, never below zero, the largest for memory.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor.fx_passes.memory_estimator import MemoryTracker
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from overlap_sched import Options
from overlap_sched.fx import Lifted, lift, schedule_graph
from overlap_sched.fx.operators import traits_of
from overlap_sched.fx.reading import read_graph
from overlap_sched.fx.sizes import Sizes
from overlap_sched.judge.validate import memory_profile, peak_memory
from overlap_sched.problem import Order, Problem
from overlap_sched.report.words.graph import AssumedSize
from tests.fx.test_orders import GRAPHS, random_program
from tests.support.fx_graphs import C10D, RANKS, gather, random_order, scatter, trace, wait


def two_layers(primals_1: Tensor, primals_2: Tensor, x: Tensor, tangents_1: Tensor) -> Any:
    """Like a backward graph: gathers, matmuls, an unused result, scatters; names say what is what."""
    a = wait(gather(primals_1))
    b = wait(gather(primals_2))
    h = x @ a.t()
    values, _indices = torch.max(h, 1)  # the indices are never used
    dh = tangents_1 @ b
    da = wait(scatter(dh.t() @ x))
    return da, wait(scatter(h.t() @ tangents_1)) + values.sum()


def dead(x: Tensor, y: Tensor) -> Any:
    x @ y  # nobody wants it
    full = gather(x)  # never waited for
    return y + 1, full


def live_after(problem: Problem, order: Order) -> list[int]:
    """Bytes live after each node has run and what is dead is freed: what torch's tracker reports."""
    left = [0] * len(problem.storages)
    for node in problem.nodes:
        for s in node.use:
            left[s] += 1
    live = sum(problem.storages[s].bytes for n in problem.nodes if n.kind == "input" for s in n.alloc)
    result = []
    for v in order:
        node = problem.nodes[v]
        live += sum(problem.storages[s].bytes for s in node.alloc if node.kind != "input")
        for s in node.use:
            left[s] -= 1
            if not left[s] and not problem.storages[s].pinned and node.kind != "output":
                live -= problem.storages[s].bytes
        result.append(live)
    return result


def check_against_torch(gm: fx.GraphModule, lifted: Lifted, order: Order) -> None:
    tracker = MemoryTracker(gm.graph, device_filter=lambda device: True)
    torchs = []
    last = {lifted.nodes[v]: at for at, v in enumerate(order)}  # a wait of several collectives has several ids
    for at, v in enumerate(order):
        if last[lifted.nodes[v]] == at:
            tracker.schedule_node(lifted.nodes[v])
        torchs.append(tracker.get_current_memory_bytes())
    assert live_after(lifted.problem, order) == torchs
    assert peak_memory(lifted.problem, order)[0] == tracker.peak_memory


@pytest.mark.parametrize("f", [two_layers, dead, *GRAPHS], ids=lambda f: f.__name__)
def test_the_tracker_model_is_torchs_tracker(f: Callable[..., Any]) -> None:
    gm = trace(f, *[(4, 4)] * (3 if f is two_layers else 2), *[(4, 8)] * (f is two_layers))
    lifted = lift(gm, memory_model="tracker")
    rng = random.Random(0)
    for order in (lifted.problem.original_order, *(random_order(lifted.problem, rng) for _ in range(10))):
        check_against_torch(gm, lifted, order)


@pytest.mark.private
@pytest.mark.parametrize("seed", range(10))
def test_the_tracker_model_on_random_programs(seed: int) -> None:
    gm = trace(random_program(seed), (4, 4), (4, 4))
    lifted = lift(gm, memory_model="tracker")
    check_against_torch(gm, lifted, lifted.problem.original_order)


def table(lifted: Lifted) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    return {node.name: (node.alloc, node.use) for node in lifted.problem.nodes}


def test_a_wait_returns_its_collectives_storage_and_holds_its_input() -> None:
    lifted = lift(trace(lambda x: (wait(gather(x * 2)).view(-1) + 1,), (4, 4)))
    assert table(lifted) == {
        "x_1": ((0,), ()),
        "mul": ((1,), (0,)),
        "all_gather_into_tensor": ((2,), (1,)),
        "wait_tensor": ((), (1, 2)),
        "view": ((), (2,)),
        "add": ((3,), (2,)),
        "output": ((), (3,)),
    }
    assert memory_profile(lifted.problem, lifted.problem.original_order) == [64, 128, 256, 256, 192, 320, 192]


def test_coalesced_one_collective_several_waits() -> None:
    def f(x: Tensor, y: Tensor) -> Any:
        outs = C10D.all_gather_into_tensor_coalesced([x, y], RANKS, "0")
        return wait(outs[0]), wait(outs[1])

    problem = lift(trace(f, (4, 4), (4, 4))).problem
    waits = [(node.collective, node.use) for node in problem.nodes if node.kind == "wait"]
    assert waits == [(2, (0, 1, 2)), (2, (0, 1, 3))]
    assert problem.nodes[2].alloc == (2, 3)


def test_out_variant_and_in_place_have_their_buffers_storage() -> None:
    def f(x: Tensor, buffer: Tensor) -> Any:
        full = wait(C10D.all_gather_into_tensor_out(x, RANKS, "0", out=buffer))
        return wait(C10D.all_reduce_(full, "sum", "0")) + 1

    problem = lift(trace(f, (4, 4), (8, 4))).problem
    assert [node.use for node in problem.nodes[2:6]] == [(0, 1), (0, 1), (1,), (1,)]
    assert not any(node.alloc for node in problem.nodes[2:6])
    assert problem.nodes[2].bytes == 128  # the larger side; the buffer is not read


def test_a_wait_for_a_collective_of_another_graph() -> None:
    lifted = lift(trace(lambda x: (wait(x) + 1,), (4, 4)))
    node = lifted.problem.nodes[1]
    assert (node.kind, node.collective, node.use) == ("wait", None, (0,))
    assert lifted.notes["wait_outside"] == 1


def test_a_collective_without_a_wait_holds_its_buffers_to_the_end() -> None:
    def f(x: Tensor) -> Any:
        gather(x * 2)
        return x + 1

    lifted = lift(trace(f, (4, 4)))
    assert lifted.notes["collective_without_wait"] == 1
    assert lifted.problem.nodes[-1].use == (3, 1, 2)  # its result, then what is in flight


def test_only_devices_that_are_asked_for_count() -> None:
    def f(x: Tensor) -> Any:
        return x * 2, torch.empty(1000, device="meta") + 1

    # not the CPU's where another device is there
    for function, sizes in ((f, [4000, 4000]), (lambda x: (x * 2,), [64, 64])):
        assert [s.bytes for s in lift(trace(function, (4, 4))).problem.storages] == sizes


def pinned(lifted: Lifted) -> list[str]:
    storages = lifted.problem.storages
    return [n.name for n in lifted.problem.nodes if n.kind == "input" and any(storages[s].pinned for s in n.alloc)]


def named(*names: str) -> fx.GraphModule:
    """A graph with inputs of these names, one of which it writes if it is called ``written``."""
    args = ", ".join(names)
    write = "    written.add_(1)\n" if "written" in names else ""
    scope: dict[str, Any] = {}
    exec(f"def f({args}):\n{write}    return {names[0]} + 1", scope)
    gm = trace(scope["f"], *[(4, 4)] * len(names))
    for node, name in zip(gm.graph.find_nodes(op="placeholder"), names, strict=True):
        node.target = node.name = name
    return gm


def test_which_inputs_stay() -> None:
    forward, backward = named("primals_1", "primals_2"), named("primals_1", "mm", "tangents_1")
    assert pinned(lift(forward)) == ["primals_1", "primals_2"]
    assert pinned(lift(backward)) == ["primals_1"]
    assert pinned(lift(backward, memory_model="tracker")) == ["primals_1"]
    assert pinned(lift(named("a", "b"))) == ["a", "b"]
    assert pinned(lift(named("a", "b"), memory_model="tracker")) == []
    assert pinned(lift(named("a", "b"), donated=["b"])) == ["a"]
    assert pinned(lift(named("a", "b"), donated=lambda node: True, parameters=["b"])) == ["b"]
    assert pinned(lift(backward, parameters=lambda node: node.name == "mm")) == ["primals_1", "mm"]
    assert pinned(lift(named("a", "written", "tangents_1"))) == ["written"]


def test_a_view_has_the_storage_of_what_it_looks_at_whatever_its_value_shows() -> None:
    """A pass that joins gathers leaves the values of views as they were: on storages that no other node shows."""

    def program(x: Tensor) -> Any:
        y = x + 1
        return y.t() + 1, [part + 1 for part in y.split(4)]

    assert traits_of(torch.ops.aten.t.default).returns
    assert not traits_of(torch.ops.aten.reshape.default).returns  # it may copy
    gm = trace(program, (8, 4))
    before = lift(gm).problem
    for node in gm.graph.nodes:
        if node.target is torch.ops.aten.split.Tensor:
            parts = node.meta["val"] = [torch.empty_like(part) for part in node.meta["val"]]
            for user in node.users:
                user.meta["val"] = parts[user.args[1]]
        elif node.target is torch.ops.aten.t.default:
            node.meta["val"] = torch.empty_like(node.meta["val"])
    after = lift(gm).problem
    assert [(n.alloc, n.time_us) for n in after.nodes] == [(n.alloc, n.time_us) for n in before.nodes]
    assert after.storages == before.storages


ROWS, WIDTH = 64, 16


@pytest.fixture
def env() -> ShapeEnv:
    return ShapeEnv()


def unbacked(env: ShapeEnv, count: int) -> list[torch.SymInt]:
    return [env.create_unbacked_symint() for _ in range(count)]


def asserted(env: ShapeEnv, condition: torch.SymBool | bool) -> None:
    if not isinstance(condition, bool):
        env.guard_or_defer_runtime_assert(condition.node.expr, "asserted by the test")


def limits(low: float = 0, high: float = ROWS) -> Callable[..., list[Any]]:
    return lambda *sizes: [one for size in sizes for one in (size >= low, size <= high)]


@pytest.mark.parametrize(
    ("asserts", "sizes", "largest", "hints"),
    [
        # a difference is at most the whole, and never below zero
        (
            lambda u: limits()(u[0]),
            lambda u: (u[0], ROWS - u[0], 4 * (ROWS - u[0]), -5 - u[0]),
            [ROWS, ROWS, 4 * ROWS, 0],
            [ROWS // 2, ROWS // 2, 2 * ROWS, 0],
        ),
        # parts that add up to a whole
        (
            lambda u: [*(one >= 0 for one in u[:3]), u[0] + u[1] + u[2] <= ROWS],
            lambda u: (*u[:3], u[0] + u[1] + u[2], u[0] + u[1], 2 * u[0] + u[1]),
            [*[ROWS] * 5, 2 * ROWS],
            [32, 16, 8, 56, 48, 80],
        ),
        # without a limit it is a guess; the largest 32-bit number is none
        (
            lambda u: [u[1] >= 10_000, u[2] <= 2 * u[0], u[3] <= 2**31 - 1],
            lambda u: u,
            [8192, 10_000, 16_384, 8192],
            [8192, 10_000, 8192, 8192],
        ),
        # what is not linear is bounded, too
        (
            lambda u: limits(0, 9)(*u[:2]),
            lambda u: (u[0] * u[1], u[0] // 2, torch.sym_max(u[0], 20)),
            [81, 4, 20],
            [16, 2, 20],
        ),
    ],
)
def test_sizes_within_what_is_asserted(env: ShapeEnv, asserts: Any, sizes: Any, largest: Any, hints: Any) -> None:
    symbols = unbacked(env, 4)
    for condition in asserts(symbols):
        asserted(env, condition)
    found = Sizes((), env)
    assert [found.largest(size) for size in sizes(symbols)] == largest
    assert [found.hint(size) for size in sizes(symbols)] == hints
    for one in found.assumed:
        assert one == AssumedSize(one.name, "", found.largest(symbols[int(one.name[1:])]), largest[0] != 8192)


def test_a_hint_of_the_user_is_taken_within_the_limits(env: ShapeEnv) -> None:
    u0, u1 = unbacked(env, 2)
    for condition in limits()(u0):
        asserted(env, condition)
    for size in (u0, u1):
        env.var_to_hint_override[size.node.expr] = 100
    sizes = Sizes((), env)
    assert [sizes.hint(size) for size in (u0, u1)] == [sizes.largest(size) for size in (u0, u1)] == [ROWS, 100]


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
