"""Both memory models: the tracker's against torch's own MemoryTracker, the runtime's against hand-made tables."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._inductor.fx_passes.memory_estimator import MemoryTracker

from llama_repro.capture.configs import find_config
from llama_repro.capture.trace import captured
from overlap_sched.fx import Lifted, lift, schedule_graph
from overlap_sched.fx.operators import traits_of
from overlap_sched.judge.validate import memory_profile, peak_memory
from overlap_sched.problem import Order, Problem
from tests.fx.test_fx_orders import GRAPHS, random_program
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


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("seed", range(10))
def test_the_tracker_model_on_random_programs(seed: int) -> None:
    gm = trace(random_program(seed), (4, 4), (4, 4))
    lifted = lift(gm, memory_model="tracker")
    check_against_torch(gm, lifted, lifted.problem.original_order)


@pytest.mark.slow
def test_the_tracker_model_on_a_real_model() -> None:
    """Forward and backward of a small Llama, on fake CUDA tensors: torch's own default filter."""
    with captured(find_config("tiny")) as graphs:
        for gm in (graphs.forward, graphs.backward):
            lifted = lift(gm, memory_model="tracker")
            order = random_order(lifted.problem, random.Random(0))
            tracker = MemoryTracker(gm.graph)
            for v in order:
                tracker.schedule_node(lifted.nodes[v])
            assert peak_memory(lifted.problem, order)[0] == tracker.peak_memory
            report = schedule_graph(gm)
            assert report.schedule is not None
            assert report.notes == {}
            gm.graph.lint()


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

    lifted = lift(trace(f, (4, 4), (4, 4)))
    problem = lifted.problem
    waits = [node for node in problem.nodes if node.kind == "wait"]
    assert [node.collective for node in waits] == [2, 2]
    assert [node.use for node in waits] == [(0, 1, 2), (0, 1, 3)]
    assert problem.nodes[2].alloc == (2, 3)


def test_out_variant_and_in_place_have_their_buffers_storage() -> None:
    def f(x: Tensor, buffer: Tensor) -> Any:
        full = wait(C10D.all_gather_into_tensor_out(x, RANKS, "0", out=buffer))
        return wait(C10D.all_reduce_(full, "sum", "0")) + 1

    problem = lift(trace(f, (4, 4), (8, 4))).problem
    assert [(node.kind, node.alloc, node.use) for node in problem.nodes[2:6]] == [
        ("collective", (), (0, 1)),
        ("wait", (), (0, 1)),
        ("collective", (), (1,)),
        ("wait", (), (1,)),
    ]
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

    gm = trace(f, (4, 4))

    def sizes(lifted: Lifted) -> list[int]:
        return sorted(s.bytes for s in lifted.problem.storages)

    assert sizes(lift(gm)) == [4000, 4000]  # not the CPU's, since another device is there
    assert sizes(lift(trace(lambda x: (x * 2,), (4, 4)))) == [64, 64]


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
