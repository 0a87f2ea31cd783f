"""A graph that torch wrote to a file comes back node by node: names, targets, arguments, values, aliases.

A forward and a backward graph, dumped apart, as one step.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from overlap_sched.dump.load import Dump, load_dump
from overlap_sched.dump.values import Results, fake_execution, tensors_in
from overlap_sched.errors import DumpError
from overlap_sched.fx.lifting import lift
from overlap_sched.problem import MemoryModel
from overlap_sched.simulate.ledger import LiveRanges
from tests.support.dump_graphs import (
    RANKS,
    fake_world,
    forward_and_backward,
    handwritten,
    layer_arguments,
    sharded_layer,
    traced,
    values,
    written,
)


@pytest.fixture
def world() -> Iterator[tuple[str, str]]:
    with fake_world() as groups:
        yield groups


def number(value: Any) -> Any:
    return value.node.hint if isinstance(value, torch.SymInt) else value


def described(value: Any) -> Any:
    """What must be equal of a node's value."""
    if isinstance(value, torch.Tensor):
        shape = [number(n) for n in value.shape]
        stride = [number(n) for n in value.stride()]
        return shape, stride, value.dtype, value.device, number(value.storage_offset())
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    if isinstance(value, dict):
        return {key: described(item) for key, item in value.items()}
    return number(value)


def arguments(node: fx.Node) -> Any:
    def one(item: Any) -> Any:
        return ("node", item.name) if isinstance(item, fx.Node) else item

    return fx.node.map_aggregate((node.args, node.kwargs), one)


def aliases(gm: fx.GraphModule, inputs: Sequence[Any] = ()) -> list[int]:
    """For each tensor node, the first node on the same storage."""
    first: dict[int, int] = {}
    given = dict(zip([n for n in gm.graph.nodes if n.op == "placeholder"], inputs, strict=False))
    values = [given.get(node, node.meta.get("val")) for node in gm.graph.nodes]
    return [
        first.setdefault(value.untyped_storage()._cdata, i) if isinstance(value, torch.Tensor) else -1
        for i, value in enumerate(values)
    ]


def assert_same(dump: Dump, gm: fx.GraphModule, inputs: Sequence[Any] = ()) -> None:
    theirs, ours = list(gm.graph.nodes), list(dump.gm.graph.nodes)
    assert [node.name for node in ours] == [node.name for node in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.op, mine.target) == (other.op, other.target) or mine.op == "placeholder"
        assert str(arguments(mine)) == str(arguments(other))
        if other.op not in ("output", "get_attr"):
            assert described(mine.meta.get("val")) == described(other.meta.get("val")), mine.name
    assert aliases(dump.gm) == aliases(gm, inputs)


def test_forward_of_a_sharded_layer(world: tuple[str, str], tmp_path: Path) -> None:
    gm, inputs = traced(sharded_layer(world[0]), *layer_arguments())
    dump = load_dump(written(gm, inputs, tmp_path / "layer.py"))
    assert_same(dump, gm)
    assert dump.name == "layer"
    assert dump.notes == ()
    assert dump.groups == {"0": (RANKS, None)}
    assert dump.gm.meta["overlap_sched_groups"] == {"0": (RANKS, None)}
    assert len(lift(dump.gm).problem.collectives) == 4


@pytest.mark.private
def test_partitioned_graphs_and_their_problems_on_two_mesh_dimensions(world: tuple[str, str], tmp_path: Path) -> None:
    graphs = forward_and_backward(sharded_layer(*world), *layer_arguments(requires_grad=True))
    assert len(graphs) == 2
    for gm, inputs in graphs:
        dump = load_dump(written(gm, inputs, tmp_path / "graph.py"))
        assert_same(dump, gm, inputs)
        assert {name: group.size for name, group in dump.groups.items()} == {"0": RANKS, "1": 8}
        groups = lift(dump.gm).problem.groups
        for model in get_args(MemoryModel):
            from_dump = lift(dump.gm, memory_model=model, name="it")
            from_graph = lift(gm, memory_model=model, groups=groups, name="it")
            assert from_dump.problem.nodes == from_graph.problem.nodes
            assert from_dump.problem == from_graph.problem
            assert from_dump.notes == from_graph.notes


def test_mutation_constants_and_random_numbers(tmp_path: Path) -> None:
    def function(x: torch.Tensor, state: torch.Tensor) -> list[torch.Tensor]:
        y = x.t().reshape(-1)[3:]
        y.mul_(2)
        state.copy_(x * torch.inf + torch.tensor([1.0, 2.0, 3.0]).sum() + torch.tensor(list(range(9))).sum())
        mask = torch.rand_like(x) > 0.5
        flat = x.view(-1).as_strided((2, 2), (3, 1), 1)
        return [torch.where(mask, x, -x), flat, x.unsqueeze(0).squeeze_(0), torch.full((2, 3), float("nan"))]

    gm, inputs = traced(function, torch.zeros(4, 3), torch.zeros(4, 3))
    dump = load_dump(written(gm, inputs, tmp_path / "d.py"))
    assert_same(dump, gm)
    assert {name: tuple(buffer.shape) for name, buffer in dump.gm.named_buffers()} == {
        "_tensor_constant0": (3,),
        "_tensor_constant1": (9,),
    }


def test_inputs_that_share_a_storage(tmp_path: Path) -> None:
    base = FakeTensorMode().from_tensor(torch.zeros(6, 4))
    gm = fx.GraphModule({}, graph := fx.Graph())
    a, b = graph.placeholder("a"), graph.placeholder("b")
    graph.output((graph.call_function(torch.ops.aten.add.Tensor, (a, b)),))
    gm.recompile()
    dump = load_dump(written(gm, [base[1:3], base.t()[:2, 2:6]], tmp_path / "d.py"))
    one, two, three = [n.meta["val"] for n in dump.gm.graph.nodes if n.op != "output"]
    assert one.untyped_storage()._cdata == two.untyped_storage()._cdata
    assert one.untyped_storage().nbytes() == 96
    assert (one.storage_offset(), two.storage_offset(), two.stride()) == (4, 8, (1, 4))
    assert three.untyped_storage()._cdata != one.untyped_storage()._cdata


def test_dynamic_shapes_take_their_hints(tmp_path: Path) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n = x.shape[0]
        return (torch.cat([x, y]).view(n + y.shape[0], -1) * (n // 2)).reshape(-1)[: 3 * n].sum()

    gm, inputs = traced(function, torch.zeros(10, 6), torch.zeros(5, 6), mode="symbolic")
    dump = load_dump(written(gm, inputs, tmp_path / "d.py"))
    assert_same(dump, gm)
    assert 15 in [value for node in dump.gm.graph.nodes if isinstance(value := node.meta.get("val"), int)]


def moe(group: str, ranks: int):
    ops = torch.ops._c10d_functional

    def function(x: torch.Tensor, counts: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        received = ops.wait_tensor(ops.all_to_all_single(counts, [1] * ranks, [1] * ranks, group))
        send, receive = counts.tolist(), received.tolist()
        for size in (*send, *receive):
            torch._check(size >= 0)
        tokens = ops.wait_tensor(ops.all_to_all_single(x, receive, send, group))
        return ops.wait_tensor(ops.all_to_all_single(tokens @ weight, send, receive, group)).relu()

    return function


def test_mixture_of_experts_splits_evenly(world: tuple[str, str], tmp_path: Path) -> None:
    env = ShapeEnv()
    with FakeTensorMode(shape_env=env):
        given = [torch.zeros(96, 8), torch.zeros(8, dtype=torch.int64), torch.zeros(8, 8)]
    gm, inputs = traced(moe(world[1], 8), *given, mode="fake")
    dump = load_dump(written(gm, inputs, tmp_path / "d.py"))
    assert [node.name for node in dump.gm.graph.nodes] == [node.name for node in gm.graph.nodes]
    by_name = {node.name: node.meta.get("val") for node in dump.gm.graph.nodes}
    assert by_name["_local_scalar_dense"] == 96 // 8
    assert by_name["relu"].shape == (96, 8)
    assert set(dump.notes) == {"data-dependent sizes, taken as 12"}
    told = load_dump(tmp_path / "d.py", sizes={f"_local_scalar_dense_{i}": 5 for i in range(8, 16)})
    assert {n.name: n.meta.get("val") for n in told.gm.graph.nodes}["mm"].shape == (40, 8)


def test_nothing_is_left_behind(world: tuple[str, str], tmp_path: Path) -> None:
    gm, inputs = traced(sharded_layer(world[0]), *layer_arguments())
    path = written(gm, inputs, tmp_path / "d.py")
    before = dist.get_world_size()
    load_dump(path)
    assert dist.get_world_size() == before
    dist.destroy_process_group()
    load_dump(path)
    assert not dist.is_initialized()
    dist.init_process_group("fake", rank=0, world_size=1, store=dist.HashStore())


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
    calls = [[n for n in one.gm.graph.nodes if n.op == "call_function"] for one in (first, second, step)]
    made = [[(node.target, _shape(node)) for node in of] for of in calls]
    assert made[2] == made[0] + made[1]
    problem = lift(step.gm, name="step").problem
    ends = LiveRanges(problem).profile(problem.original_order)[-1]
    saved = max(LiveRanges(lift(first.gm).problem).profile(lift(first.gm).problem.original_order))
    assert ends < saved  # they die in backward


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


@pytest.mark.parametrize("init", ["self.c = {}", "self.register_buffer('c', {})"])
def test_constants_that_both_have(tmp_path: Path, init: str) -> None:
    for name, size, tangents in (("forward", 4, []), ("backward", 8, [("tangents_1", "float32 8")])):
        body = f"n = self.c\nmul_{name} = torch.ops.aten.mul.Tensor(n, 2)\nreturn (mul_{name}, x)"
        text = init.format(f"torch.empty([{size}], dtype=torch.float32)")
        (tmp_path / f"{name}.py").write_text(handwritten(body, [("x", "float32 4"), *tangents], init=text))
    val = values(load_dump(tmp_path / "forward.py", backward=tmp_path / "backward.py"))
    assert (val["mul_forward"].shape, val["mul_backward"].shape) == ((4,), (8,))


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
    by_name, by_place = (load_dump(halves[0], backward=b) for b in (halves[1], tmp_path / "backward.py"))
    assert str(by_place.gm.graph) == str(by_name.gm.graph)


def test_graphs_that_are_not_of_one_step(halves: tuple[Path, Path], tmp_path: Path) -> None:
    forward, backward = halves
    for first, second in ((backward, forward), (forward, forward), (backward, backward)):
        with pytest.raises(DumpError, match=r"Give the forward graph first"):
            load_dump(first, backward=second)
    text = forward.read_text()
    (tmp_path / "other.py").write_text(re.sub(r"return \(.*\)", "return (primals_1,)", text))
    with pytest.raises(DumpError, match=r"is no result of .*other.py. Give the two "):
        load_dump(tmp_path / "other.py", backward=backward)


def test_an_operator_that_was_run_before_gives_new_tensors_of_its_own() -> None:
    aten = torch.ops.aten
    with fake_execution():
        results = Results()
        plain, turned, part = torch.empty(4, 4), torch.empty(4, 4).t(), torch.empty(9, 4)[5:]
        calls = [
            (aten.neg.default, (plain,)),
            (aten.neg.default, (turned,)),
            (aten.neg.default, (plain.to(torch.float64),)),
            (aten.add.Scalar, (plain, 1)),
            (aten.add.Scalar, (plain, 1.5)),
            (aten._unsafe_view.default, (plain, [16])),  # its schema does not say that it is a view
            (aten.t.default, (plain,)),
            (aten.t.default, (part,)),
            (aten.slice.Tensor, (part, 0, 1, 3)),
            (aten.as_strided.default, (part, [2], [3], 1)),
            (aten.cat.default, ([plain, part],)),
            (aten.sum.dim_IntList, (plain, [0], True)),
        ]
        for target, args in calls:
            first, again = (results.run(target, args, {}, tensors_in(args)) for _ in range(2))
            direct, given = target(*args), storage(tensors_in(args)[0])
            for made in (first, again):
                assert described(made) == described(direct)
                assert made.untyped_storage().nbytes() == direct.untyped_storage().nbytes()
                assert (storage(made) == given) == (storage(direct) == given)
            assert storage(first) != storage(again) or storage(direct) == given
        assert len(results._known) == len(calls)


def storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
