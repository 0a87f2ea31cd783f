"""Orders with a low peak: proven by brute force on small graphs; windows; the integer program; what is live there."""

import itertools
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from overlap_sched.errors import MissingExtraError, OptionsError, UnreachableError
from overlap_sched.judge.validate import launch_violation, memory_profile, violation
from overlap_sched.options import Preserve
from overlap_sched.peak_memory import exact
from overlap_sched.peak_memory.best import MemoryPlan, best_order, judged, lower_to, lpmf, search
from overlap_sched.peak_memory.cut import least_live
from overlap_sched.peak_memory.exact import exact_order
from overlap_sched.peak_memory.memory_graph import Walk, lead_with_inputs, memory_graph_of
from overlap_sched.peak_memory.peak import explain_peak
from overlap_sched.problem import EXAMPLE, Kind, Node, Problem, Storage
from overlap_sched.simulate.ledger import LiveRanges
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.oracle import all_orders, peak_by_definition, random_order

SMALL = examples(60, settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]))
"""For those that try every order of a graph, and pass over graphs with too many."""
PRESERVES = st.sampled_from(("none", "group", "all", "waits"))


def allowed(problem: Problem, order: list[int], preserve: Preserve) -> bool:
    return violation(problem, order) is None and launch_violation(problem, order, preserve) is None


def few_orders(problem: Problem, preserve: Preserve = "none") -> list[list[int]]:
    """Every order, where there are at most 1,500 of them; else nothing to check."""
    orders = list(itertools.islice(all_orders(problem), 1501))
    assume(len(orders) <= 1500)
    return [order for order in orders if allowed(problem, order, preserve)]


def lowest_peak(problem: Problem, preserve: Preserve) -> int:
    return min(max(peak_by_definition(problem, order)) for order in few_orders(problem, preserve))


@given(problems(max_steps=20), PRESERVES, st.integers(0, 2))
def test_best_is_valid_and_never_above_the_original(problem: Problem, preserve: Preserve, effort: int) -> None:
    plan = best_order(problem, preserve, effort)
    assert allowed(problem, list(plan.order), preserve)
    peak = max(peak_by_definition(problem, list(plan.order)))
    original = max(peak_by_definition(problem, list(problem.original_order)))
    assert plan.bound_bytes <= peak <= original
    assert (plan.peak_bytes, plan.original_bytes) == (peak, original)
    if peak == original:
        assert plan.order == problem.original_order


@SMALL
@given(problems(max_steps=5), PRESERVES)
def test_small_graphs_are_solved_and_proven(problem: Problem, preserve: Preserve) -> None:
    lowest = lowest_peak(problem, preserve)
    plan = best_order(problem, preserve)
    assert (plan.peak_bytes, plan.bound_bytes) == (lowest, lowest)
    assert plan.optimal


@SMALL
@given(problems(max_steps=5), st.integers(-2, 2), st.integers(0, 2**16 - 1), st.integers(0, 4))
def test_search_of_the_whole_graph_is_exact(problem: Problem, above: int, pins: int, at_end: int) -> None:
    problem = with_kept_storages(problem, pins, at_end)
    graph = memory_graph_of(problem)
    assume(graph.rest)

    def highest_step(order: Sequence[int]) -> int:
        profile = dict(zip(order, peak_by_definition(problem, list(order)), strict=True))
        return max(profile[v] for v in graph.rest)

    lowest = min(map(highest_step, few_orders(problem)))
    found = search(graph, graph.rest, 0, len(graph.rest), lowest + above, 10**6)
    assert found.answer == ("found" if above >= 0 else "none")
    if found.answer == "found":
        assert highest_step(lead_with_inputs(graph, found.order)) <= lowest + above


@SMALL
@given(problems(max_steps=5), st.integers(0, 2**16 - 1), st.integers(0, 4))
def test_a_cut_is_the_least_at_each_node(problem: Problem, pins: int, at_end: int) -> None:
    """Of what stays to the end, too: made by a node and pinned, or made by an output that nobody reads."""
    problem = with_kept_storages(problem, pins, at_end)
    graph = memory_graph_of(problem)
    profiles = [dict(zip(order, peak_by_definition(problem, order), strict=True)) for order in few_orders(problem)]
    at_ends = least_live(graph, -1)
    assert at_ends <= min(max(profile.values()) for profile in profiles)
    for v in graph.rest:
        least = min(profile[v] for profile in profiles)
        assert least_live(graph, v) == max(least, at_ends)


def with_kept_storages(problem: Problem, pins: int, at_end: int) -> Problem:
    """Storages whose bit is set are pinned, whoever makes them; an output makes one more of so many bytes."""
    storages = [storage._replace(pinned=bool(pins >> s & 1)) for s, storage in enumerate(problem.storages)]
    nodes = list(problem.nodes)
    if nodes[-1].kind is Kind.OUTPUT:
        nodes[-1] = nodes[-1]._replace(alloc=(len(storages),))
        storages.append(Storage(at_end))
    return replace(problem, nodes=tuple(nodes), storages=tuple(storages))


@given(problems(max_steps=20), st.integers(0, 1000))
def test_walks_know_what_each_step_costs(problem: Problem, seed: int) -> None:
    graph = memory_graph_of(problem)
    order = [v for v in random_order(problem, seed) if v not in set(graph.first)]
    profile = dict(zip((*graph.first, *order), memory_profile(problem, lead_with_inputs(graph, order)), strict=True))
    walk = Walk(graph)
    for v in order:
        assert v in walk.ready
        before = (walk.live_bytes, list(walk.net), set(walk.ready))
        walk.run(v)
        walk.undo(v)
        assert (walk.live_bytes, list(walk.net), set(walk.ready)) == before
        assert walk.live_bytes + walk.rise[v] == profile[v]
        walk.run(v)


@given(problems(max_steps=20), PRESERVES)
def test_lpmf_picks_what_torch_would(problem: Problem, preserve: Preserve) -> None:
    """Every pick has the least key among all ready nodes, as torch compares them."""
    graph = memory_graph_of(problem, preserve)
    order = lpmf(graph)
    assert allowed(problem, list(lead_with_inputs(graph, order)), preserve)
    walk = Walk(graph)
    at_end = sum(size for s, size in enumerate(graph.size) if graph.to_end[s] or s in problem.nodes[-1].use)
    most = max(walk.live_bytes, at_end)
    for v in order:
        gap = most - walk.live_bytes
        keys = {w: (walk.rise[w] if walk.rise[w] > gap else 0, walk.net[w], w) for w in walk.ready}
        assert keys[v] == min(keys.values())
        most = max(most, walk.live_bytes + walk.rise[v])
        walk.run(v)


def chain_with_updates(layers: int) -> Problem:
    """A training step in small: forward keeps activations, backward makes gradients, updates come at the end."""
    nodes, storages = [Node("x", Kind.INPUT, (), (0,))], [Storage(8)]

    def add(name: str, needs: int, size: int, *used: int) -> int:
        """A node behind another one; the storage that it makes, if any, is the last."""
        alloc = (len(storages),) if size else ()
        storages.extend(Storage(size) for _ in alloc)
        nodes.append(Node(name, Kind.COMPUTE, (needs,), alloc, used))
        return len(nodes) - 1

    x = 0
    for k in range(layers):
        x = add(f"f{k}", x, 8, k)
    grad, grads, updates = x, layers, []
    for k in reversed(range(layers)):
        grad = add(f"b{k}", grad, 8, grads, k)
        made = len(storages) - 1
        updates.append((k, add(f"w{k}", grad, 64, grads, k), made + 1))
        grads = made
    for k, w, s in updates:
        add(f"u{k}", w, 0, s)
    return Problem("steps", (*nodes, Node("out", Kind.OUTPUT)), tuple(storages))


def test_updates_follow_their_gradients() -> None:
    problem = chain_with_updates(20)
    plan = best_order(problem)
    assert plan.optimal
    assert plan.original_bytes > 20 * 64
    assert plan.peak_bytes < 4 * 64 + 20 * 8


@pytest.mark.parametrize("wrong", [{"preserve_collective_order": "some"}, {"effort": -1}, {"effort": True}])
def test_arguments_that_cannot_be(wrong: dict[str, object]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(OptionsError, match=f"^{name} is {value!r}; it is "):
        best_order(EXAMPLE, **wrong)  # type: ignore[arg-type]


def test_where_nothing_is_gained_the_order_stays_byte_for_byte() -> None:
    """Inputs listed late would be free to move to the front: they are left where they are."""
    nodes = (
        Node("made", Kind.COMPUTE, (), (0,), ()),
        Node("late", Kind.INPUT, (), (1,), ()),
        Node("out", Kind.OUTPUT, (0, 1), (), (0, 1)),
    )
    plan = best_order(Problem("late", nodes, (Storage(4), Storage(2))))
    assert (plan.order, plan.found_by, plan.optimal) == ((0, 1, 2), "original", True)


@SMALL
@given(problems(max_steps=5), st.integers(-2, 2))
def test_a_limit_is_met_wherever_an_order_meets_it(problem: Problem, above: int) -> None:
    assume(len(problem.nodes) <= 8)
    graph = memory_graph_of(problem, "none")
    start = judged(graph, graph.rest)
    assume(start.peak_node >= 0)
    limit = min(max(peak_by_definition(problem, list(order))) for order in all_orders(problem)) + above
    assert above < 0 or not any(lower_to(graph, start, limit, steps, any_lower=True)[1] for steps in (1, 5, 20))
    found, proven = lower_to(graph, start, limit, 10**6)
    order = lead_with_inputs(graph, found.order)
    assert violation(problem, order) is None
    assert found.peak_bytes == max(peak_by_definition(problem, list(order)))
    assert (found.peak_bytes <= limit) == (above >= 0 or start.peak_bytes <= limit)
    assert proven == (found.peak_bytes > limit)


MIB = 2**20


@given(problems(max_steps=20), st.integers(0, 1000))
def test_what_is_live_adds_up_to_the_peak(problem: Problem, seed: int) -> None:
    order = random_order(problem, seed)
    peak = explain_peak(problem, order)
    profile = peak_by_definition(problem, order)
    assert (peak.bytes, peak.position) == (max(profile), profile.index(max(profile)))
    assert sum(peak.by_kind().values()) == peak.bytes == sum(storage.bytes for storage in peak.storages)
    for storage in peak.storages:
        users = [v for v, node in enumerate(problem.nodes) if storage.storage in node.use]
        assert sorted(storage.needed_by) == [v for v in users if order.index(v) >= peak.position]
        assert storage.storage in problem.nodes[storage.maker].alloc


def test_forced_is_what_every_order_has_there() -> None:
    peak, ranges = explain_peak(EXAMPLE, EXAMPLE.original_order), LiveRanges(EXAMPLE)
    live = [
        {span.storage for span in ranges.of(order) if span.first <= order.index(peak.node) <= span.last}
        for order in all_orders(EXAMPLE)
    ]
    assert {storage.storage for storage in peak.storages if storage.forced} == set.intersection(*live)


def test_collectives_in_flight() -> None:
    order = (0, 1, 4, 6, 7, 2, 3, 5, 8, 9)  # scatter flies while the gather does
    kinds = {storage.storage: storage.kind for storage in explain_peak(EXAMPLE, order).storages}
    assert EXAMPLE.nodes[explain_peak(EXAMPLE, order).node].name == "dgrad"
    assert kinds[5] == kinds[6] == "collectives in flight"  # dw, read by the scatter, and ds, made by it
    assert kinds[2] == "gathered parameters"  # waited for


def a_step() -> Problem:
    """A weight, its momentum, activations that wait, a gradient, an update in place."""
    rows: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [("weight", (0,), ()), ("weight_momentum", (1,), ())]
    rows += [("a", (2,), (0,)), *((f"busy{k}", (), ()) for k in range(12)), ("grad", (3,), ()), ("top", (4,), (3,))]
    rows += [*((f"more{k}", (), ()) for k in range(12)), ("update", (), (0, 1, 3)), ("use_a", (), (2,))]
    nodes = [
        Node(name, Kind.COMPUTE if v > 1 else Kind.INPUT, (v - 1,) if v > 1 else (), alloc, use)
        for v, (name, alloc, use) in enumerate(rows)
    ]
    return Problem("step", tuple(nodes), tuple(Storage(n * MIB, k < 2) for k, n in enumerate((4, 4, 2, 3, 5))))


def test_kinds_of_a_step() -> None:
    problem = a_step()
    peak = explain_peak(problem, problem.original_order)
    assert {kind: total // MIB for kind, total in peak.by_kind().items() if total} == {
        "parameters": 4, "optimizer": 4, "saved activations": 2, "gradients": 3, "temporaries": 5
    }  # fmt: skip
    told = explain_peak(problem, problem.original_order, kinds={4: "saved activations"})
    assert told.by_kind()["temporaries"] == 0


ortools = pytest.mark.skipif("not __import__('importlib').util.find_spec('ortools')", reason="needs ortools")


def unproven(problem: Problem, *_: object) -> MemoryPlan:
    """What a weaker search would hand over: the original order, and a bound that is far too low."""
    plan = best_order(problem)
    return replace(
        plan, order=problem.original_order, peak_bytes=plan.original_bytes, bound_bytes=0, found_by="original"
    )


@pytest.fixture
def weak(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The search leaves everything open."""
    monkeypatch.setattr(exact, "best_order", unproven)
    return monkeypatch


@pytest.mark.slow
@ortools
@examples(40, SMALL)
@given(problems(max_steps=5), st.integers(0, 2**16 - 1), st.integers(0, 4))
def test_program_of_the_whole_graph_is_exact(problem: Problem, pins: int, at_end: int) -> None:
    problem = with_kept_storages(problem, pins, at_end)
    lowest = lowest_peak(problem, "group")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "best_order", unproven)
        plan = exact_order(problem, "group")
    assert allowed(problem, list(plan.order), "group")
    assert max(peak_by_definition(problem, list(plan.order))) == plan.peak_bytes == lowest
    assert plan.bound_bytes == lowest


@pytest.mark.slow
@ortools
def test_larger_graphs_are_solved_window_by_window(weak: pytest.MonkeyPatch) -> None:
    problem = chain_with_updates(12)
    plan = exact_order(problem)
    assert plan.peak_bytes == best_order(problem).peak_bytes < plan.original_bytes
    assert plan.found_by == "cp-sat"
    assert allowed(problem, list(plan.order), "group")


def test_no_solver_is_needed_where_nothing_is_left_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    assert exact_order(EXAMPLE).optimal
    assert exact_order(EXAMPLE, "group", limit_bytes=21 * 2**20).peak_bytes == 21 * 2**20
    with pytest.raises(UnreachableError, match="fits into 10485760 bytes: whatever the order, 22020096 bytes are live"):
        exact_order(EXAMPLE, "group", limit_bytes=10 * 2**20)


def test_a_missing_solver(weak: pytest.MonkeyPatch) -> None:
    weak.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'overlap_sched\[exact\]'"):
        exact_order(chain_with_updates(4))


@pytest.mark.slow
@ortools
def test_limits_hit_without_a_solution(weak: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreachableError, match=r"within 500 bytes was found in 0\.5 s at effort 0, and none was ruled"):
        exact_order(chain_with_updates(40), limit_bytes=500, time_limit_s=0.5, effort=0)


@pytest.mark.parametrize(
    "wrong", [{"limit_bytes": -1}, {"limit_bytes": "1GiB"}, {"time_limit_s": 0}, {"time_limit_s": float("nan")}]
)
def test_arguments_of_the_exact_order_that_cannot_be(wrong: dict[str, object]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(OptionsError, match=f"^{name} is {value!r}; it is a "):
        exact_order(EXAMPLE, **wrong)  # type: ignore[arg-type]
