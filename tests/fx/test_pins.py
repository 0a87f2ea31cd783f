"""What the model's code says of its nodes: modules, and pins of a block."""

from typing import Any

import pytest

pytest.importorskip("torch")

from torch import Tensor

from overlap_sched import pinned, schedule_graph
from overlap_sched.errors import OptionsError, OverlapSchedWarning
from overlap_sched.fx import lift
from overlap_sched.fx.graphs import MARK, marks_of, module_of
from overlap_sched.judge.validate import pin_violation
from overlap_sched.options import Options
from tests.support.fx_graphs import gather, trace, wait


def step(w: Tensor, x: Tensor) -> Any:
    a = wait(gather(w))
    y = x @ x
    b = wait(gather(w * 2))
    return a @ (y @ y), b


def slow(node: Any) -> float | None:
    return 100.0 if "mm" in str(node.name) else None


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
    gm = trace(step, (2, 4), (4, 4))
    free = schedule_graph(trace(step, (2, 4), (4, 4)), Options(headroom="1MiB"), cost=slow).schedule
    for node in gm.graph.nodes:
        if "all_gather" in node.name:
            node.meta["custom"] = {MARK + "apart": True}
    problem = lift(gm).problem
    assert [node.marks for node in problem.nodes if node.op.startswith("all_gather")] == [("apart",)] * 2
    report = schedule_graph(gm, Options(headroom="1MiB"), cost=slow)
    assert report.changed
    assert report.schedule is not None
    assert free is not None
    assert pin_violation(problem, report.schedule.order, ()) is None
    assert pin_violation(problem, free.order, ()) is not None


def test_a_pin_about_nothing_is_noted_and_a_bad_one_leaves_the_graph() -> None:
    options = Options(headroom="1MiB", pins=("apart: all_to_all*", "apart: all_gather*"))
    assert schedule_graph(trace(step, (2, 4), (4, 4)), options, cost=slow).notes["pins_about_nothing"] == 1
    gm = trace(step, (2, 4), (4, 4))
    before = [node.name for node in gm.graph.nodes]
    next(node for node in gm.graph.nodes if "all_gather" in node.name).meta["custom"] = {MARK + "beside": True}
    with pytest.warns(OverlapSchedWarning, match="pin 'beside' is none"):
        report = schedule_graph(gm, Options(), cost=slow)
    assert not report.changed
    assert [node.name for node in gm.graph.nodes] == before


def test_a_block_takes_one_pin_without_nodes() -> None:
    with pytest.raises(OptionsError, match="pin 'near' is none"):
        pinned("near")
    with pytest.raises(OptionsError) as told:
        pinned("apart: all_gather*")
    assert str(told.value) == (
        "pin 'apart: all_gather*' names nodes; inside of a block it is about all of them. Write 'apart'."
    )
    with pinned("apart"):
        pass


def test_a_marked_graph_is_not_rewritten() -> None:
    def gathers(a: Tensor, b: Tensor) -> Any:
        return wait(gather(a)), wait(gather(b))

    def rewritten(pin: str) -> bool:
        gm = trace(gathers, (64, 64), (64, 64))
        for node in gm.graph.nodes:
            node.meta["custom"] = {pin: True}
        return bool(schedule_graph(gm, Options(headroom="10MiB")).rewrites)

    assert rewritten("EP")
    assert not rewritten(MARK + "in flight 1GiB")
