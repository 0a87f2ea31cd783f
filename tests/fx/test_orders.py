"""Every order that a lifted problem allows gives bitwise the same results: mutation, random numbers and all.

Forward, loss and backward in one graph: what lives how long, and orders that keep the results.
"""

import importlib
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from overlap_sched.fx import Lifted, lift
from overlap_sched.judge.validate import peak_memory
from overlap_sched.problem import Kind
from tests.support.fx_graphs import (
    ATEN,
    C10D,
    RANKS,
    TIMINGS,
    Timing,
    gather,
    outcome,
    recomputed,
    reordered,
    same,
    scatter,
    trace,
    wait,
    wait_for_all,
    whole_step,
)


def write_after_read(x: Tensor, y: Tensor) -> Any:
    product = x @ y
    x.add_(1.0)
    return product, x * 2


def copy_to_an_input_at_the_end(x: Tensor, y: Tensor) -> Any:
    full = wait(gather(x))
    new = x + full[:4]
    x.copy_(new)
    return full, y


def view_before_the_write_read_after(x: Tensor, y: Tensor) -> Any:
    z = x + y
    view = z.view(-1)
    z.mul_(3.0)
    return view + 1, z.t() @ y


def random_numbers(x: Tensor, y: Tensor) -> Any:
    a = torch.rand_like(x)
    b = torch.rand_like(y)
    c = torch.randn_like(wait(gather(b)))
    return torch.bernoulli(a), b, c


def random_in_place(x: Tensor, y: Tensor) -> Any:
    x.uniform_()
    z = torch.rand_like(y) + x
    x.normal_()
    return z


def in_place_collective(x: Tensor, y: Tensor) -> Any:
    z = x * y
    early = z + 1
    waited = wait(C10D.all_reduce_(z, "sum", "0"))
    return early, waited + 1, z + 2  # z is the reduced buffer too


def out_variant(x: Tensor, y: Tensor) -> Any:
    buffer = torch.zeros(RANKS * 4, 4)
    wait(C10D.all_gather_into_tensor_out(x, RANKS, "0", out=buffer))
    first = buffer + 1
    wait(C10D.all_gather_into_tensor_out(y, RANKS, "0", out=buffer))
    return first, buffer + 1


def write_to_the_input_of_a_collective_after_its_wait(x: Tensor, y: Tensor) -> Any:
    z = x + y
    full = wait(gather(z))
    z.zero_()
    return full, z + 1


def write_to_the_input_of_a_collective_in_flight(x: Tensor, y: Tensor) -> Any:
    z = x + y
    launched = gather(z)
    z.add_(5.0)  # a race in the original: it must stay the same race
    return wait(launched) + 1, z


def one_wait_for_two_collectives(x: Tensor, y: Tensor) -> Any:
    buffer = torch.zeros(RANKS * 4, 4)
    z = x + y
    C10D.all_gather_into_tensor_out(z, RANKS, "0", out=buffer)
    second = C10D.all_reduce_(buffer, "sum", "1")
    full = wait(second)  # of one storage: all that was launched on it
    z.zero_()
    return full + 1, z


def view_of_an_output_before_its_wait(x: Tensor, y: Tensor) -> Any:
    launched = gather(x)
    view = launched.view(-1)
    wait(launched)
    return view + 1, y + 1


def older_names_of_an_output_behind_its_wait(x: Tensor, y: Tensor) -> Any:
    launched = gather(x)
    waited = wait(launched)  # completes the tensor in place, so its older name may be used, too
    first = launched * 2
    buffer = torch.zeros(RANKS * 4, 4)
    C10D.all_gather_into_tensor_out(y, RANKS, "0", out=buffer)
    wait(buffer)
    return waited, first, buffer + 1


def coalesced(x: Tensor, y: Tensor) -> Any:
    outs = C10D.all_gather_into_tensor_coalesced([x, y], RANKS, "0")
    a = wait(outs[0])
    z = a + 1
    return wait(outs[1]) * 2, z


def coalesced_with_one_wait(x: Tensor, y: Tensor) -> Any:
    z = x + y
    outs = wait_for_all(*C10D.all_gather_into_tensor_coalesced([z, y], RANKS, "0"))
    z.zero_()
    return outs[0] + 1, outs[1] * 2, z


def one_wait_for_two_groups(x: Tensor, y: Tensor) -> Any:
    z = x + y
    outs = wait_for_all(gather(z, "0"), gather(y * 2, "1"))
    z.zero_()
    return outs[0] + 1, outs[1] * 2, z


def lists_written(x: Tensor, y: Tensor) -> Any:
    a, b = x + 1, y + 1
    before = a * b
    torch._foreach_mul_([a, b], 2.0)
    after = a * b
    torch._foreach_copy_([x], [b])
    return before, after, x + 1


def out_of_aten(x: Tensor, y: Tensor) -> Any:
    buffer = torch.empty(4, 4)
    torch.add(x, y, out=buffer)
    first = buffer * 2
    torch.mul(x, y, out=buffer)
    return first, buffer + 0


GRAPHS: list[Callable[..., Any]] = [f for f in [*globals().values()] if getattr(f, "__module__", "") == __name__]
"""All of the above."""


@pytest.mark.private
@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("f", GRAPHS, ids=lambda f: f.__name__)
def test_every_allowed_order_gives_the_same_bits(f: Callable[..., Any], timing: Timing) -> None:
    gm = trace(f, (4, 4), (4, 4))
    expected = outcome(gm, timing)
    rng = random.Random(0)
    for _ in range(25):
        other = reordered(gm, rng)
        assert same(outcome(other, timing), expected), other.code


@pytest.mark.private
@pytest.mark.parametrize("f", GRAPHS, ids=lambda f: f.__name__)
def test_without_hazards_some_order_would_be_wrong(f: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The graphs above can fail: without the hazards' dependencies they do (save where data flow is all there is)."""
    if f in (coalesced, copy_to_an_input_at_the_end):
        pytest.skip("data flow alone orders it, or nothing reads what is written")
    monkeypatch.setattr(importlib.import_module("overlap_sched.fx.lifting"), "graph_hazards", lambda *_: {})
    gm = trace(f, (4, 4), (4, 4))
    expected = {timing: outcome(gm, timing) for timing in TIMINGS}
    rng = random.Random(0)
    others = [reordered(gm, rng) for _ in range(60)]
    assert any(not same(outcome(g, t), want) for g in others for t, want in expected.items())


def random_program(seed: int) -> Callable[..., Any]:
    """A random mix of all of it."""
    rng = random.Random(seed)
    script = [(rng.randrange(16), rng.random(), rng.random()) for _ in range(rng.randrange(6, 28))]

    def f(x: Tensor, y: Tensor) -> Any:
        values, in_flight, buffer = [x, y, x + y], [], torch.zeros(RANKS * 4, 4)
        for op, i, j in script:
            a, b = values[int(i * len(values))], values[int(j * len(values))]
            if op == 0:
                values.append(a * 0.5 + b)
            elif op == 1:
                a.add_(b * 0.25)
            elif op == 2:
                values.append(a.unsqueeze(0).squeeze(0))
            elif op == 3:
                values.append(a.t())
            elif op == 4:
                values.append(torch.rand_like(a))
            elif op == 5:
                values.append(ATEN.copy_.default(b, a * 1.5))
            elif op == 6:
                in_flight.append(gather(a.contiguous()))
            elif op == 7:
                in_flight.append(scatter(torch.cat([a, b]), "1"))
            elif op == 8:
                in_flight.append(C10D.all_reduce_(a + 0.0 if i < 0.5 else a, "sum", "0"))
            elif op == 9:
                in_flight += C10D.all_gather_into_tensor_coalesced([a, b], RANKS, "0")
            elif op == 10:
                in_flight.append(C10D.all_gather_into_tensor_out(a, RANKS, "1", out=buffer))
                values.append(buffer[4:])
            elif op == 11:
                torch._foreach_mul_([a, b], 0.5)
            elif op == 12 and in_flight:
                in_flight.append(in_flight[int(i * len(in_flight))].unsqueeze(0).squeeze(0))
            elif in_flight:
                values.append(wait(in_flight.pop(int(i * len(in_flight))))[:4])
        return [v + 1 for v in values], [wait(w) for w in in_flight]

    return f


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    gm = trace(random_program(seed), (4, 4), (4, 4))
    rng = random.Random(seed)
    others = [reordered(gm, rng) for _ in range(6)]
    for timing in TIMINGS:
        expected = outcome(gm, timing)
        for other in others:
            assert same(outcome(other, timing), expected), f"{gm.code}\n{other.code}"


def test_hazards_do_not_freeze_the_waits() -> None:
    """A wait moves past unrelated work, random numbers and mutation."""

    def f(x: Tensor, y: Tensor) -> Any:
        full = wait(gather(x))
        noise = torch.rand_like(y)
        y.add_(1.0)
        return full, noise

    problem = lift(trace(f, (4, 4), (4, 4))).problem
    names = [node.name for node in problem.nodes]
    for name in ("rand_like", "add_"):
        before = problem.predecessors[names.index(name)]
        assert names.index("wait_tensor") not in before


STEPS = (whole_step, recomputed)


def users(lifted: Lifted, maker: str) -> list[str]:
    """The nodes that use what a node allocates, in order."""
    nodes = lifted.problem.nodes
    (storage,) = next(node.alloc for node in nodes if node.name == maker)
    return [node.name for node in nodes if storage in node.use]


def test_what_lives_how_long() -> None:
    """A recomputed node carries the ``val`` of the first; it is another tensor all the same."""
    first, again = lift(whole_step()), lift(recomputed())
    assert users(first, "all_gather_into_tensor_1") == ["wait_tensor_1", "mm_1", "t_1", "mm_3"]
    for maker in ("sum_1", "reduce_scatter_tensor", "reduce_scatter_tensor_1"):
        assert users(first, maker)[-1] == "output"
    inputs = [s for node in first.problem.nodes if node.kind is Kind.INPUT for s in node.alloc]
    assert [first.problem.storages[s].pinned for s in inputs] == [True] * 3
    assert users(again, "all_gather_into_tensor_1") == ["wait_tensor_1", "mm_1"]
    assert users(again, "all_gather_into_tensor_1_again") == ["wait_tensor_1_again", "t_1", "mm_3"]
    assert users(again, "relu") == ["detach_2", "mm_1", "t", "mm_2"]
    assert users(again, "relu_again") == ["detach_2_again", "detach_4", "threshold_backward"]
    assert dict(again.notes) == {}
    nodes = again.problem.nodes
    launch_of = {n.name: nodes[n.collective].name for n in nodes if n.collective is not None}
    assert launch_of["wait_tensor_1"] == "all_gather_into_tensor_1"
    assert launch_of["wait_tensor_1_again"] == "all_gather_into_tensor_1_again"
    peaks = [peak_memory(one.problem, one.problem.original_order)[0] for one in (first, again)]
    assert peaks[1] < peaks[0]


def test_an_original_that_is_used_after_its_copy_is_itself() -> None:
    """Here the value of the first node is shown again, behind that of its copy."""
    gm = recomputed()
    nodes = {node.name: node for node in gm.graph.nodes}
    nodes["threshold_backward"].replace_input_with(nodes["detach_4"], nodes["relu"])
    view = nodes["detach_4"]
    view.replace_input_with(nodes["detach_2_again"], nodes["relu"])
    nodes["t_2"].append(view)
    nodes["output"].args = ([*nodes["output"].args[0], view],)
    gm.graph.lint()
    lifted = lift(gm)
    assert users(lifted, "relu_again") == ["detach_2_again"]
    assert users(lifted, "relu")[-2:] == ["detach_4", "output"]


@pytest.mark.slow
@pytest.mark.parametrize("timing", TIMINGS)
@pytest.mark.parametrize("make", STEPS)
def test_any_valid_order_of_a_step_gives_the_same_results(make: Callable[[], fx.GraphModule], timing: Timing) -> None:
    wanted = outcome(make(), "eager")
    for seed in range(20):
        assert same(outcome(reordered(make(), random.Random(seed)), timing), wanted)


def test_what_offloading_frees_is_read_before() -> None:
    """torch's wait for an offload frees what was copied, which its schema does not say."""
    offloading = pytest.importorskip("torch._functorch._activation_offloading.offload_ops")
    assert offloading is not None
    ao = torch.ops.ao

    def offloaded(x: Tensor) -> tuple[Tensor, Tensor]:
        kept = x + 1
        early = kept * 2
        on_host = ao.wait_tensor(ao.offload(kept), kept)
        return on_host, early * 3

    problem = lift(trace(offloaded, (4, 4))).problem
    index = {node.name: v for v, node in enumerate(problem.nodes)}
    freed = next(v for name, v in index.items() if name.startswith("wait_tensor"))
    assert index["mul"] in problem.nodes[freed].deps
