"""schedule_graph: what it changes, what it leaves, what it says; and real runs before and after.

What the model's code says of its nodes: modules, and pins of a block.
"""

import importlib
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx

from overlap_sched import pinned
from overlap_sched.cost import Compute, Roofline
from overlap_sched.cost.model import price_of
from overlap_sched.errors import CostError, OptionsError, OverlapSchedWarning, ProblemError, VerificationError
from overlap_sched.fx import Report, lift, reorder, schedule_graph
from overlap_sched.fx.fitting import fit_graph
from overlap_sched.fx.graphs import MARK, marks_of, module_of
from overlap_sched.judge.validate import pin_violation
from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE
from tests.support.fx_graphs import C10D, gather, on_gpu, reordered, same, tensors, trace, wait

APPLY = importlib.import_module("overlap_sched.fx.apply")


def hidable(w: Tensor, x: Tensor) -> Any:
    """Two gathers right before their use, and compute to hide them under."""
    a = wait(gather(w))
    y = x @ x
    z = (y @ y).sin()
    b = wait(gather(w * 2))
    return a @ z, b @ z


def slow(node: fx.Node) -> float | None:
    """Times that make it worth while: a matmul takes longer than a gather."""
    return 100.0 if node.target is torch.ops.aten.mm.default else None


def names(gm: fx.GraphModule) -> list[str]:
    return [node.name for node in gm.graph.nodes]


@pytest.mark.parametrize("memory_model", ["runtime", "tracker"])
def test_a_graph_is_reordered_in_place_within_its_peak(memory_model: Any) -> None:
    gm = trace(hidable, (2, 4), (4, 4))
    before = names(gm)
    report = schedule_graph(gm, Options(memory_model=memory_model, headroom="1MiB"), cost=slow, name="hidable")
    plan = report.schedule
    assert report.changed
    assert report.reason is None
    assert plan is not None
    assert names(gm) == plan.problem.names(plan.order) != before
    assert plan.scheduled.step_us < plan.original.step_us
    assert plan.scheduled.peak_bytes <= plan.budget_bytes
    assert plan.problem.memory_model == memory_model
    gm.graph.lint()
    assert "def forward(self, w_1, x_1)" in gm.code


@pytest.mark.parametrize(
    ("given", "said"),
    [(torch.nn.Linear(2, 2), "Linear.* enable"), (hidable, "function.* enable"), (EXAMPLE, "Problem"), ("x.py", "str")],
)
def test_what_is_no_graph_is_refused(given: Any, said: str) -> None:
    for take in (schedule_graph, lift, lambda gm: reorder(gm, []), lambda gm: fit_graph(gm, memory_limit="1GiB")):
        with pytest.raises(OptionsError, match=f"^gm is a {said}"):
            take(given)
    gm = trace(hidable, (2, 4), (4, 4))
    for call in (schedule_graph, lambda *given: fit_graph(*given, memory_limit="1GiB")):
        with pytest.raises(OptionsError, match=r"^options is '1GiB'; .*Options\(headroom='1GiB'\)"):
            call(gm, "1GiB")


class Fails(Roofline):
    """A cost model with a slip in it."""

    def compute_us(self, work: Any) -> Any:
        return {}[work.op]

    def collective_us(self, work: Any) -> Any:
        return None


def fails(node: fx.Node) -> float:
    raise ValueError(f"no {node.name}")


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"model": Fails()}, r"Fails\.collective_us raised TypeError: .*, of Collective\(op='all_gather_into"),
        ({"cost": fails}, r"fails raised ValueError: no (.*), of \1\. Return microseconds\."),
    ],
)
def test_costs_that_raise_are_named(how: dict[str, Any], said: str) -> None:
    gm = trace(hidable, (2, 4), (4, 4))
    with pytest.raises(CostError, match=f"^{said}"):
        lift(gm, **how)
    with pytest.warns(OverlapSchedWarning, match=f"as it was: CostError: {said}"):
        assert not schedule_graph(gm, **how).changed
    with pytest.raises(CostError, match=r"^Fails\.compute_us raised KeyError: 'mm', of Compute\(op='mm'"):
        price_of(Fails(), Compute("mm", 1, 2))


def test_a_graph_without_collectives_is_untouched() -> None:
    gm = trace(lambda x: (x @ x,), (4, 4))
    before, code = names(gm), gm.code
    report = schedule_graph(gm)
    assert report == Report(report.name, reason="the graph has no collectives", lift_s=report.lift_s)
    assert (names(gm), gm.code) == (before, code)
    assert str(report).endswith("left as it was: the graph has no collectives")


def test_a_graph_without_collectives_is_ordered_for_its_peak_where_memory_is_the_base() -> None:
    def large_then_small(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        large = x @ y
        return (large.t() @ ((x @ y[:, :16]) @ y[:16, :1]),)

    gm = trace(large_then_small, (64, 64), (64, 64))
    report = schedule_graph(gm, Options(base="memory", strict=True))
    assert report.changed
    assert report.schedule is not None
    assert report.schedule.scheduled.peak_bytes < report.schedule.original.peak_bytes
    assert [name for name in names(gm) if name.startswith("mm")] == ["mm_1", "mm_2", "mm", "mm_3"]
    assert not APPLY.stays(report.schedule)
    original = report.schedule.original
    for peak_bytes, stays in ((int(0.98 * original.peak_bytes), False), (int(0.985 * original.peak_bytes), True)):
        figures = replace(report.schedule.scheduled, peak_bytes=peak_bytes)
        assert APPLY.stays(replace(report.schedule, scheduled=figures)) == stays
    again = schedule_graph(gm, Options(base="memory", strict=True))
    assert (again.changed, again.reason) == (False, "no order with a clearly lower peak was found")


def test_nothing_to_gain() -> None:
    report = schedule_graph(trace(lambda x: (wait(gather(x)),), (4, 4)))
    assert (report.changed, report.schedule is None) == (False, False)
    assert re.match("no better order was found: 12.0 us stay exposed because", str(report.reason))


def test_reserved_memory_is_looked_at_on_a_gpu() -> None:
    held = schedule_graph(on_gpu(trace(hidable, (2, 4), (4, 4))), Options(headroom="1MiB"), cost=slow)
    assert held.schedule is not None
    assert held.schedule.options.allocator == "environment"
    assert str(held).splitlines()[4] == "  reserved, plain segments 2.0 -> 2.0 MiB (+0.0 %)"
    free = schedule_graph(trace(hidable, (2, 4), (4, 4)), Options(headroom="1MiB"), cost=slow)
    assert free.schedule is not None
    assert free.schedule.options.allocator == "none"


def test_a_memory_limit_that_is_too_small_is_warned_of() -> None:
    gm = on_gpu(trace(hidable, (2, 4), (4, 4)))
    with pytest.warns(OverlapSchedWarning, match="runs in the memory_limit of 1.0 KiB: this one needs 2.0 MiB more"):
        report = schedule_graph(gm, Options(headroom="1MiB", memory_limit=1024), cost=slow)
    assert report.schedule is not None
    assert report.schedule.short_bytes == 2 * 2**20 - 1024
    assert "memory_limit" in str(report)


def failing(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("by zero")


@pytest.mark.parametrize("where", ["lift", "schedule", "reorder"])
def test_where_anything_fails_the_graph_is_as_it_was(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gm = trace(hidable, (2, 4), (4, 4))
    before, code = names(gm), gm.code
    monkeypatch.setattr(APPLY, where, failing)
    with pytest.warns(OverlapSchedWarning) as caught:
        report = schedule_graph(gm, Options(rewrites=(), headroom="1MiB"), cost=slow, name="hidable")
    assert str(caught[0].message) == "overlap_sched leaves 'hidable' as it was: ZeroDivisionError: by zero"
    assert caught[0].filename == __file__
    assert (report.changed, report.reason) == (False, "ZeroDivisionError: by zero")
    assert (names(gm), gm.code) == (before, code)
    with pytest.raises(VerificationError, match=r"^scheduling 'hidable' failed: ZeroDivisionError: by zero$"):
        schedule_graph(gm, Options(rewrites=(), headroom="1MiB", strict=True), cost=slow, name="hidable")


def test_a_failure_half_way_through_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    gm = trace(hidable, (2, 4), (4, 4))
    before = names(gm)

    def half_way(graph_module: fx.GraphModule, nodes: list[fx.Node]) -> None:
        monkeypatch.undo()
        reorder(graph_module, nodes)
        raise ZeroDivisionError

    monkeypatch.setattr(APPLY, "reorder", half_way)
    with pytest.warns(OverlapSchedWarning):
        schedule_graph(gm, Options(headroom="1MiB"), cost=slow)
    assert names(gm) == before


def test_reordering_keeps_inputs_in_front_and_refuses_other_nodes() -> None:
    gm = trace(hidable, (2, 4), (4, 4))
    nodes = list(gm.graph.nodes)
    assert lift(gm).problem == lift(gm).problem  # which only reads
    reorder(gm, [nodes[-1], *nodes[2:-1], nodes[1], nodes[0]])
    assert list(gm.graph.nodes) == nodes
    with pytest.raises(ProblemError, match=r"13 nodes \(12 different\)"):
        reorder(gm, [*nodes[:-1], nodes[0]])
    assert list(gm.graph.nodes) == nodes
    assert schedule_graph(gm.graph, Options(headroom="1MiB"), cost=slow).changed  # what torch's custom passes are given
    gm.graph.lint()


# --- real runs: a world of one, gloo -----------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> Iterator[list[str]]:
    """Names of two process groups of one rank each."""
    path = tmp_path / "store"
    dist.init_process_group("gloo", store=dist.FileStore(str(path), 1), rank=0, world_size=1)
    try:
        yield [dist.new_group([0]).group_name, dist.new_group([0]).group_name]
    finally:
        dist.destroy_process_group()


def training_step(groups: list[str]) -> Callable[..., Any]:
    """Everything at once: gathers and scatters on two groups, mutation, random numbers, copies to inputs."""
    one, two = groups

    def f(w1: Tensor, w2: Tensor, x: Tensor, state: Tensor) -> Any:
        full1 = wait(C10D.all_reduce(w1, "sum", one))
        h = x @ full1
        h = h * torch.bernoulli(torch.full_like(h, 0.5))
        buffer = torch.empty_like(w2)
        full2 = wait(C10D.all_gather_into_tensor_out(w2, 1, two, out=buffer))
        state.mul_(0.9)
        y = (h @ full2).sin() + torch.rand_like(h)
        g1 = wait(C10D.reduce_scatter_tensor(h.t() @ y, "sum", 1, one))
        y.add_(buffer)
        wait(C10D.all_reduce_(y, "sum", two))
        g2 = wait(C10D.reduce_scatter_tensor(y @ h, "avg", 1, two))
        state.add_(g1)
        w1.copy_(w1 - 0.1 * g1)
        w2.copy_(w2 - 0.1 * g2)
        return y.sum(), state * 2, torch.rand(3)

    return f


def run(gm: fx.GraphModule) -> list[Tensor]:
    inputs = tensors(gm)
    torch.manual_seed(3)
    results = gm(*inputs)
    return [*torch.utils._pytree.tree_leaves(results), *inputs]


def test_real_runs_before_and_after_are_bitwise_equal(world: list[str]) -> None:
    gm = trace(training_step(world), *[(8, 8)] * 4)
    expected = run(gm)
    assert same(run(gm), expected)  # the test itself is repeatable
    report = schedule_graph(gm, Options(headroom="1MiB"), cost=slow)
    assert report.changed
    assert same(run(gm), expected)


@pytest.mark.private
def test_real_runs_of_random_orders_are_bitwise_equal(world: list[str]) -> None:
    gm = trace(training_step(world), *[(8, 8)] * 4)
    expected, rng = run(gm), random.Random(1)
    for _ in range(40):
        assert same(run(reordered(gm, rng)), expected)


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("L['self'].layers.0.attention", "layers.0.attention"),
        ("L['self']._modules['layers']._modules['0']", "layers.0"),
        ("L['model'].layers[3].w", "layers.3.w"),
        ("L__self___layers", "layers"),
        ("G['model'].layers.0", "layers.0"),
        ("L['self']", ""),
        ("", ""),
    ],
)
def test_the_module_of_a_node(path: str, module: str) -> None:
    for key in ("nn_module_stack", "fwd_nn_module_stack"):
        assert module_of({key: {"outer": ("L['self']", object), "inner": (path, object)}}) == module
    assert module_of({"nn_module_stack": {"inner": path}}) == module


def test_what_is_no_stack_is_no_module_and_no_pin() -> None:
    assert module_of({}) == module_of({"nn_module_stack": None}) == module_of({"nn_module_stack": "x"}) == ""
    assert marks_of({}) == marks_of({"custom": None}) == marks_of({"custom": {"EP": "dispatch", 3: 4}}) == ()
    assert marks_of({"custom": {MARK + "together": True, MARK + "apart": 1, "EP": 0}}) == ("apart", "together")


def test_marks_of_nodes_are_kept() -> None:
    gm = trace(hidable, (2, 4), (4, 4))
    free = schedule_graph(trace(hidable, (2, 4), (4, 4)), Options(headroom="1MiB"), cost=slow).schedule
    for node in gm.graph.nodes:
        if "all_gather" in node.name:
            node.meta["custom"] = {MARK + "apart": True}
    problem = lift(gm).problem
    kept = schedule_graph(gm, Options(headroom="1MiB"), cost=slow).schedule
    assert kept is not None
    assert free is not None
    assert pin_violation(problem, kept.order, ()) is None
    assert pin_violation(problem, free.order, ()) is not None


def test_a_pin_about_nothing_is_noted_and_a_bad_one_leaves_the_graph() -> None:
    options = Options(headroom="1MiB", pins=("apart: all_to_all*", "apart: all_gather*"))
    assert schedule_graph(trace(hidable, (2, 4), (4, 4)), options, cost=slow).notes["pins_about_nothing"] == 1
    gm = trace(hidable, (2, 4), (4, 4))
    before = [node.name for node in gm.graph.nodes]
    next(node for node in gm.graph.nodes if "all_gather" in node.name).meta["custom"] = {MARK + "beside": True}
    with pytest.warns(OverlapSchedWarning, match="pin 'beside' is none"):
        report = schedule_graph(gm, Options(), cost=slow)
    assert not report.changed
    assert [node.name for node in gm.graph.nodes] == before


def test_a_block_takes_one_pin_without_nodes() -> None:
    for pin, said in (("near", "pin 'near' is none"), ("apart: all_gather*", "names nodes; inside of a block")):
        with pytest.raises(OptionsError, match=said):
            pinned(pin)
    with pinned("apart"):
        pass
