"""A forward and a backward graph, dumped apart, as one step."""

import re
from pathlib import Path

import pytest
import torch
from torch import fx

from overlap_sched.dump.load import load_dump
from overlap_sched.errors import DumpError
from overlap_sched.fx.lifting import lift
from overlap_sched.simulate.ledger import LiveRanges
from tests.support.dump_graphs import fake_world, forward_and_backward, layer_arguments, sharded_layer, written


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A layer's forward and backward graph, as torch writes them."""
    folder = tmp_path_factory.mktemp("halves")
    with fake_world() as world:
        forward, backward = forward_and_backward(sharded_layer(*world), *layer_arguments(requires_grad=True))
        return written(*forward, folder / "forward.py"), written(*backward, folder / "backward.py")


def test_what_forward_saves_is_made_and_used_in_one_graph(halves: tuple[Path, Path]) -> None:
    first, second, step = (load_dump(halves[0]), load_dump(halves[1]), load_dump(halves[0], backward=halves[1]))
    inputs = [node.name for node in step.gm.graph.nodes if node.op == "placeholder"]
    old = [node.name for node in first.gm.graph.nodes if node.op == "placeholder"]
    tangents = [node.name for node in second.gm.graph.nodes if node.name.startswith("tangents")]
    assert inputs == old + tangents
    calls = [
        [node.target for node in one.gm.graph.nodes if node.op == "call_function"] for one in (first, second, step)
    ]
    assert calls[2] == calls[0] + calls[1]
    problem = lift(step.gm, name="step").problem
    ends = LiveRanges(problem).profile(problem.original_order)[-1]
    saved = max(LiveRanges(lift(first.gm).problem).profile(lift(first.gm).problem.original_order))
    assert ends < saved  # they die in backward
    shapes = [
        [_shape(node) for node in one.gm.graph.nodes if node.op == "call_function"] for one in (first, second, step)
    ]
    assert shapes[2] == shapes[0] + shapes[1]


def _shape(node: fx.Node) -> object:
    value = node.meta["val"]
    return value.shape if isinstance(value, torch.Tensor) else None


def test_names_that_both_have(halves: tuple[Path, Path], tmp_path: Path) -> None:
    """Backward calls its own values as forward calls others: they get another name."""
    forward, backward = (path.read_text() for path in halves)
    own = re.findall(r"^        (\w+) = torch", backward, re.M)[-1]
    of_forward = re.findall(r"^        (\w+) = torch", forward, re.M)
    other = next(name for name in of_forward if not re.search(rf"\b{name}\b", backward))
    (tmp_path / "backward.py").write_text(re.sub(rf"\b{own}\b", other, backward))
    step = load_dump(halves[0], backward=tmp_path / "backward.py")
    names = [node.name for node in step.gm.graph.nodes]
    assert other in names
    assert f"{other}_backward" in names


@pytest.mark.slow
@pytest.mark.private
def test_saved_values_by_their_places(halves: tuple[Path, Path], tmp_path: Path) -> None:
    """Backward's inputs have other names: they are the last results of forward, in order."""
    backward = re.sub(r"\b(?!tangents)(\w+)(?=[,)])", r"\1", halves[1].read_text())
    signature = re.search(r"def forward\(self, (.*)\):", backward)
    assert signature is not None
    for name in (name.strip() for name in signature[1].split(",")):
        if not name.startswith("tangents"):
            backward = re.sub(rf"\b{name}\b(?!\()", f"saved_{name}", backward)
    (tmp_path / "backward.py").write_text(backward)
    by_name, by_place = (
        load_dump(halves[0], backward=halves[1]),
        load_dump(halves[0], backward=tmp_path / "backward.py"),
    )
    assert str(by_place.gm.graph) == str(by_name.gm.graph)


def test_graphs_that_are_not_of_one_step(halves: tuple[Path, Path], tmp_path: Path) -> None:
    forward, backward = halves
    for first, second in ((backward, forward), (forward, forward), (backward, backward)):
        with pytest.raises(DumpError) as raised:
            load_dump(first, backward=second)
        assert str(raised.value) == (
            f"{first} and {second} are not the forward and the backward graph of one step: the second must have inputs "
            "that are called tangents_1 and so on, the first must not. Give the forward graph first."
        )
    text = forward.read_text()
    (tmp_path / "other.py").write_text(re.sub(r"return \(.*\)", "return (primals_1,)", text))
    with pytest.raises(DumpError, match=r"is no result of .*other.py, so the two are not of one step. Give the two "):
        load_dump(tmp_path / "other.py", backward=backward)
