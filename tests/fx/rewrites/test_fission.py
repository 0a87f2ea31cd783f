"""What runs in parts gives what it gave whole, on all ranks, and problem and graph agree; whole steps train alike."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from overlap_sched.cost import Collective, Roofline
from overlap_sched.errors import RewriteError
from overlap_sched.fit.planner import FitSearch, Start
from overlap_sched.fx import lift
from overlap_sched.fx.dimensions import region_from
from overlap_sched.fx.dimensions.candidates import fission_of
from overlap_sched.fx.fitting import batch_fissions
from overlap_sched.fx.rewrites import prepare, rerunnable, rewrite_graph
from overlap_sched.judge.validate import peak_memory, violation
from overlap_sched.options import Options
from overlap_sched.scheduler.driver import schedule
from overlap_sched.transform.apply import apply
from overlap_sched.transform.dimension_graph import Cut, range_cut
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Fission, Leave, Recompute, Slice
from tests.support.examples import at_night
from tests.support.fx_graphs import reordered, tensors, trace
from tests.support.rewrite_graphs import (
    BATCH,
    EXAMPLES,
    by_name,
    check_equal,
    described,
    fissions,
    problem_of,
    refusal,
    run,
    traced,
    with_times_of,
)
from tests.support.traced_step import TINY, TINY_IMAGES, Workload, joint_graph, run_step, tiny_inputs, with_updates


class OnHost(Roofline):
    """Launches and waits take time of the thread that computes, whatever they move."""

    def launch_us(self, work: Collective) -> float:
        return 7.0

    def finish_us(self, work: Collective) -> float:
        return 3.0


MODELS = {"device": Roofline(), "host": OnHost()}


def check_results(before: fx.GraphModule, after: fx.GraphModule, bitwise: bool = True) -> None:
    for want, got in zip(run(before), run(after), strict=True):
        for a, b in zip(want, got, strict=True):
            assert torch.equal(a, b) if bitwise else torch.allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parts"), [*((name, 2) for name in EXAMPLES), ("experts", 4), at_night("backward", 4)]
)
def test_results_stay(name: str, parts: int) -> None:
    """From every dimension of every input: batches, tokens, columns of weights.

    Bitwise where rows are cut and no sum is split: a product of some columns may be rounded otherwise by its library.
    """
    rows = 0
    for sums in (True, False):
        for (x, cut), one in fissions(traced(name), parts, sums=sums).items():
            gm = traced(name)
            before, said = described(gm.graph), refusal(gm, [one]) or ""
            assert described(gm.graph) == before
            if "view size is not compatible" in said:
                continue  # the CPU's attention lays a batch of one out in another way
            rewrite_graph(gm, [one])
            gm.graph.lint()
            rows += (bitwise := one.exact and cut.dim == 0 and x in ("x_1", "g_1"))
            check_results(traced(name), gm, bitwise)
    assert rows


@pytest.mark.slow
@pytest.mark.parametrize("sums", [False, True])
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("model", [at_night("device"), "host"])
def test_the_problem_of_the_rewritten_graph_is_the_rewritten_problem(model: str, name: str, sums: bool) -> None:
    for one in fissions(traced(name), 2, sums=sums).values():
        gm = traced(name)
        want = apply(problem_of(gm, MODELS[model]), [one], Prices(MODELS[model]))
        assert violation(want, want.original_order) is None
        rewrite_graph(gm, [one])
        expected = by_name(want)
        check_equal(with_times_of(by_name(problem_of(gm, MODELS[model])), expected), expected, [one])


def batch(gm: fx.GraphModule) -> Fission:
    seed = next(iter(gm.graph.nodes))
    one = fission_of(region_from(gm.graph, {seed: range_cut(tuple(seed.meta["val"].shape), 0, 2)}, 2))
    assert one is not None
    return one


def test_an_order_of_the_problem_is_an_order_of_the_graph() -> None:
    gm = traced("layer")
    one = batch(gm)
    after = apply(problem_of(gm), [one], Prices(Roofline()))
    order = schedule(after).order
    prepare(gm, [one], after.names(order)).commit()
    gm.graph.lint()
    assert [n.name for n in gm.graph.nodes] == after.names(order)
    check_results(traced("layer"), gm)


def test_parts_of_parts() -> None:
    """Batches, then tokens between the attentions of the first."""
    gm = traced("layer")
    rewrite_graph(gm, [batch(gm)])
    shard = next(n for n in gm.graph.nodes if n.name.endswith("_in_0"))
    nested = fission_of(region_from(gm.graph, {shard: range_cut(tuple(shard.meta["val"].shape), 1, 2)}, 2))
    assert nested is not None
    rewrite_graph(gm, [nested])
    assert any(n.name.startswith("fission_fission_") and "reduce_scatter" in n.name for n in gm.graph.nodes)
    check_results(traced("layer"), gm)


@pytest.mark.private
def test_what_is_refused_and_why() -> None:
    gm = traced("layer")
    one = batch(gm)
    name = one.nodes[0]
    for wrong, text in (
        (Fission(one.nodes, 2, one.slices), "'output' uses 'mm_2', which runs in parts and does not leave"),
        (Fission(one.nodes, 1, one.slices, one.leaves), f"'fission_{name}_1' has 1 parts"),
        (Fission(one.nodes, 3, one.slices, one.leaves), "'x_1' of shape (4, 4, 16) cannot be cut as"),
        (Fission(one.nodes, 2, (), one.leaves), f"'{name}' cannot run in 2 parts: none of its inputs is cut"),
    ):
        assert text in str(refusal(gm, [wrong]))


def written_before(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What is added is what ``y`` is by then."""
    z = x * 2
    y.copy_(z)
    return z + y


def written_behind(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What is added is what ``y`` was."""
    z = x * 2 + y
    y.copy_(z)
    return z


def read_by_its_old_name(gm: fx.GraphModule) -> None:
    """The addition takes the input, and not what the copy gives, which is the same memory."""
    _, y = gm.graph.find_nodes(op="placeholder")
    (write,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    for user in list(write.users):
        user.replace_input_with(write, y)
    gm.recompile()


def written_inside(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """A view of what is written to is returned."""
    z = x * 2
    w = z.add_(1)
    return [w.view(-1), torch.relu(w) * y.sum()]


@pytest.mark.parametrize("program", [written_before, written_behind])
def test_what_is_written_to_outside_is_read_as_it_was(program: Callable[..., torch.Tensor]) -> None:
    gm = trace(program, (BATCH, 4), (BATCH, 4))
    x = next(iter(gm.graph.nodes))
    one = fission_of(region_from(gm.graph, {x: Cut(0, 1, 2)}, 2))
    assert one is not None
    assert {"mul", "add"} <= set(one.nodes)
    rewrite_graph(gm, [one])
    check_runs_as(gm, program)


def check_runs_as(gm: fx.GraphModule, program: Callable[..., Tensor]) -> None:
    """In any order, and writes to its inputs alike."""
    for seed in range(4):
        (a, b), (c, d) = ([v.clone() for v in tensors(gm, seed)] for _ in range(2))
        assert torch.equal(reordered(gm, random.Random(seed))(a, b), program(c, d))
        assert torch.equal(b, d)


def test_a_copy_of_what_is_written_to_would_be_made_too_early() -> None:
    """A view is read when the part reads it: behind the write."""
    cut = Cut(0, 1, 2)
    for free in (True, False):
        gm = trace(written_before, (BATCH, 4), (BATCH, 4))
        read_by_its_old_name(gm)
        slices = tuple(Slice(name, cut, 64, free, name) for name in ("x_1", "y_1"))
        leaves = tuple(Leave(name, "cat", cut, 64, name) for name in ("mul", "add"))
        one = Fission(("mul", "add"), 2, slices, leaves)
        if not free:
            assert "'y_1' is written to before 'add' reads it" in str(refusal(gm, [one]))
            continue
        rewrite_graph(gm, [one])
        check_runs_as(gm, written_before)


def test_what_is_written_to_is_seen_in_its_part_alone() -> None:
    gm, cut = trace(written_inside, (BATCH, 4), (BATCH, 4)), Cut(0, 1, 2)
    before = described(gm.graph)
    leaves = tuple(Leave(name, "cat", cut, 64, maker) for name, maker in (("relu", "relu"), ("add_", "mul")))
    one = Fission(("mul", "add_", "relu"), 2, (Slice("x_1", cut, 64, True, "x_1"),), leaves)
    assert "'mul' is written to, and 'view', which does not run in parts" in str(refusal(gm, [one]))
    assert described(gm.graph) == before


def ordered_by_memory(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What is written inside, and what is read inside and written outside."""
    z = (x * 2).add_(1)
    w = torch.relu(z) + y
    y.copy_(x)
    return w


def misplaced(gm: fx.GraphModule, one: Fission, names: list[str], late: str, early: str) -> str:
    """What is said of an order in which one node comes just before another."""
    wrong = [name for name in names if name != late]
    wrong.insert(wrong.index(early), late)
    with pytest.raises(RewriteError) as caught:
        prepare(gm, [one], wrong)
    return str(caught.value)


def test_orders_of_memory_hold_in_each_part() -> None:
    cut = Cut(0, 1, 2)
    slices = tuple(Slice(name, cut, 64, True, name) for name in ("x_1", "y_1"))
    one = Fission(("mul", "add_", "relu", "add"), 2, slices, (Leave("add", "cat", cut, 64, "add"),))

    def graph() -> fx.GraphModule:
        gm = trace(ordered_by_memory, (BATCH, 4), (BATCH, 4))
        mul, write, relu = (next(n for n in gm.graph.nodes if n.name == name) for name in ("mul", "add_", "relu"))
        relu.replace_input_with(write, mul)
        return gm

    gm = graph()
    rewrite_graph(gm, [one])
    names = [node.name for node in gm.graph.nodes]
    for p in range(2):
        relu, write, add = (one.part(name, p) for name in ("relu", "add_", "add"))
        assert f"'{relu}' before '{write}', which it needs" in misplaced(graph(), one, names, relu, write)
        assert "'copy_' before 'fission_mul_2_add_" in misplaced(graph(), one, names, "copy_", add)
    check_runs_as(gm, ordered_by_memory)


STEPS = {one.name: one for one in (TINY, TINY_IMAGES)}


def step_of(workload: Workload) -> fx.GraphModule:
    return with_updates(joint_graph(workload))


def trained(gm: fx.GraphModule, workload: Workload) -> list[Tensor]:
    weights, batch = tiny_inputs(workload)
    return [run_step(gm, weights, batch), *weights]


def check_trains_alike(after: fx.GraphModule, workload: Workload) -> None:
    for got, want in zip(trained(after, workload), trained(step_of(workload), workload), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
def test_steps_in_parts_train_what_they_train_whole(name: str) -> None:
    workload = STEPS[name]
    gm = step_of(workload)
    found = batch_fissions(lift(gm))
    assert [one.parts for one in found] == [2, 4]  # a batch of 4
    for one in found:
        gm = step_of(workload)
        problem = lift(gm).problem
        want = apply(problem, [one], Prices(Roofline()))
        assert violation(want, want.original_order) is None
        rewrite_graph(gm, [one])
        gm.graph.lint()
        got = lift(gm).problem
        assert with_times_of(by_name(got), by_name(want)) == by_name(want)
        whole, parts = (peak_memory(p, p.original_order)[0] for p in (problem, got))
        assert parts < whole
        check_trains_alike(gm, workload)


@pytest.mark.slow
def test_values_of_parts_run_again_and_the_step_is_done_to_the_graph() -> None:
    gm = step_of(TINY)
    lifted = lift(gm)
    (two,) = batch_fissions(lifted, (2,))
    search = FitSearch(lifted.problem, Prices(lifted.model), Options(), ("recompute",), rerunnable(gm), effort=0)
    begun = search.begin_with((two,))
    found = Start(search, begun).at(int(0.9 * begun.peak_bytes))
    assert found is not None
    first, *others = found.rewrites
    assert first == two
    assert any(name.startswith(two.name) for one in others if isinstance(one, Recompute) for name in one.nodes)
    prepare(gm, found.rewrites, found.problem.names(found.order)).commit()
    check_trains_alike(gm, TINY)


def noisy(x: Tensor, w: Tensor) -> Tensor:
    """Noise is drawn for the whole batch at once: it is not drawn in parts."""
    return ((x @ w).relu() * torch.rand_like(x)) @ w


@pytest.mark.slow
def test_random_numbers_are_drawn_whole() -> None:
    gm = trace(noisy, (64, 64), (64, 64))
    for one in batch_fissions(lift(gm)):
        assert not any("rand" in name for name in one.nodes)


@pytest.mark.slow
def test_a_graph_without_a_batch_has_none() -> None:
    gm = trace(lambda x: x.cumsum(0) @ x.cumsum(0).t(), (7, 7))
    assert batch_fissions(lift(gm)) == []
