"""What communicates unseen keeps its place among the launches: custom operators, sub-graphs, collectives that block.

Graphs of two process groups, ``"0"`` and ``"1"``; ``D`` is something that communicates inside.

Several collectives waited for at once (``wait_tensors``, torch 2.15), and waits of waits.

Launch nodes: what launching takes of the compute stream, where a cost model knows it.
"""

import operator
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch._higher_order_ops.local_map  # registers it
from torch import Tensor, fx

import overlap_sched
from overlap_sched import EXAMPLE
from overlap_sched.cost import Collective, Roofline
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.model import LaunchingModel
from overlap_sched.errors import OptionsError
from overlap_sched.fx import lift, schedule_graph
from overlap_sched.fx.lifting import FINISH, LAUNCH, with_company
from overlap_sched.fx.operators import _declared, declare_operator
from overlap_sched.inductor.agree import traffic_in
from overlap_sched.inductor.caches import settings_key
from overlap_sched.inductor.settings import Settings
from overlap_sched.judge.replay import replay
from overlap_sched.judge.validate import launch_violation
from overlap_sched.options import Options
from overlap_sched.problem import PART, Group, Kind, Node, Problem
from overlap_sched.problem.precedence import Preserve, launch_pairs
from overlap_sched.report.words.schedule import collectives_text
from overlap_sched.scheduler.driver import schedule
from tests.fx.test_hazards import Builder
from tests.support.fx_graphs import ATEN, C10D, RANKS, gather, random_order, scatter, trace, wait, wait_for_all

HIGHER = torch.ops.higher_order
SCHEMAS = {
    "dispatch": "(Tensor x, str group_name) -> Tensor",
    "exchange": "(Tensor x, *, str? ep_group=None) -> Tensor",
    "both": "(Tensor x, str tp_group, str ep_group) -> Tensor",
    "norm": "(Tensor x) -> Tensor",
    "on": "(Tensor x, str where) -> Tensor",
    "conv": "(Tensor x, int groups, int group_size) -> Tensor",
}


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[Any]:
    made = torch.library.Library("deep", "DEF")
    for name, schema in SCHEMAS.items():
        made.define(name + schema)
    yield made
    made._destroy()


@pytest.fixture(autouse=True)
def _declarations() -> Iterator[None]:
    yield
    _declared.clear()
    overlap_sched.fx.operators.traits_of.cache_clear()


def deep(name: str) -> Any:
    return getattr(torch.ops.deep, name).default


def body(*targets: Sequence[Any]) -> fx.GraphModule:
    """A sub-graph: calls, one after the other."""
    b, x = Builder.of("x")
    for i, (target, *args) in enumerate(targets):
        x = b.call(f"inner{i}", target, x, *args, val=b.tensor(8, 4) if target is GATHER else None)
    return b.done(x)


GATHER, WAIT = C10D.all_gather_into_tensor.default, C10D.wait_tensor.default


def run(b: Builder, root: torch.nn.Module, kind: str, module: fx.GraphModule, x: fx.Node) -> fx.Node:
    """A node that runs a module: ``invoke_subgraph``, ``cond`` in one branch, or one of these inside the other."""
    if kind == "deep":
        outer, (inner, y) = torch.nn.Module(), Builder.of("y")
        run(inner, outer, "cond", module, y)
        return run(b, root, "invoke_subgraph", inner.done(y, root=outer), x)
    root.body, root.other = module, body((ATEN.sin.default,))
    if kind == "while_loop":
        loop = b.graph.get_attr("other"), b.graph.get_attr("body")
        return b.call("D", HIGHER.while_loop, *loop, (x,), (), val=(x.meta["val"],))
    if kind in ("local_map_hop", "tag_activation_checkpoint"):
        return b.call("D", getattr(HIGHER, kind), b.graph.get_attr("body"), x, val=(x.meta["val"],))
    if kind == "cond":
        flag = b.graph.placeholder("flag")
        flag.meta["val"] = b.tensor()
        branches = b.graph.get_attr("other"), b.graph.get_attr("body")
        return b.call("D", HIGHER.cond, flag, *branches, [x], val=(x.meta["val"],))
    return b.call("D", HIGHER.invoke_subgraph, b.graph.get_attr("body"), "body", x, val=(x.meta["val"],))


def graph(what: Any, *args: Any, shape: str = "gGDgG", **kwargs: Any) -> fx.GraphModule:
    """Launches on group ``"0"`` (``g``) and ``"1"`` (``G``), each of its own input, and ``D``; waits at the end."""
    root, launched, (b, *inputs) = torch.nn.Module(), [], Builder.of(*(f"x{i}" for i in range(len(shape))))
    for i, letter in enumerate(shape):
        b.call(f"mm{i}", ATEN.mm.default, inputs[i], inputs[i])
        if letter != "D":
            launched.append(b.call(f"{letter}{i}", GATHER, inputs[i], 2, "01"[letter == "G"], val=b.tensor(8, 4)))
        elif isinstance(what, str):
            run(b, root, what, args[0], inputs[i])
        else:
            b.call("D", what, inputs[i], *args, **kwargs)
    waits = [b.call(f"w{i}", WAIT, launch, val=b.tensor(8, 4)) for i, launch in enumerate(launched)]
    return b.done(*waits, root=root)


INNER = body((GATHER, 2, "0"), (WAIT,))
HIDDEN: dict[str, tuple[Any, ...]] = {
    "blocks": (torch.ops._dtensor.shard_dim_alltoall.default, 0, 1, "0"),
    "invoke_subgraph": ("invoke_subgraph", INNER),
    "cond": ("cond", INNER),
    "deep": ("deep", INNER),
}


def kept(gm: fx.GraphModule, preserve: Preserve) -> set[str]:
    """Which launches never pass ``D`` in random orders that the problem and the option allow."""
    problem = lift(gm).problem
    strict = problem.renumbered(problem.original_order, launch_pairs(problem, problem.original_order, preserve))
    nodes = problem.nodes
    (d,) = [v for v, node in enumerate(nodes) if node.name == "D"]
    stay, rng = set(problem.collectives), random.Random(0)
    for _ in range(150):
        order = random_order(strict, rng)
        at = {v: i for i, v in enumerate(order)}
        stay = {v for v in stay if (at[v] < at[d]) == (v < d)}
    return {nodes[v].name for v in stay}


EACH = {"g0", "G1", "g3", "G4"}


@pytest.mark.parametrize("hidden", HIDDEN)
def test_what_communicates_never_passes_launches_of_its_group(hidden: str) -> None:
    gm = graph(*HIDDEN[hidden])
    assert kept(gm, "none") == kept(gm, "group") == {"g0", "g3"}
    assert kept(gm, "all") == EACH


@pytest.mark.parametrize(
    ("name", "arguments", "named", "groups"),
    [
        ("dispatch", ("0",), {}, {"g0", "g3"}),
        ("exchange", (), {"ep_group": "1"}, {"G1", "G4"}),
        ("exchange", (), {}, EACH),
        ("both", ("0", "1"), {}, EACH),
        ("on", ("1",), {}, {"G1", "G4"}),  # a name that other launches have
    ],
)
def test_a_custom_operator_that_takes_a_group(name: str, arguments: Any, named: Any, groups: set[str]) -> None:
    assert kept(graph(deep(name), *arguments, **named), "none") == groups


@pytest.mark.parametrize(("name", "arguments"), [("norm", ()), ("conv", (2, 32)), ("on", ("left",))])
def test_any_other_custom_operator_keeps_its_place_where_launches_do(name: str, arguments: Any) -> None:
    gm = graph(deep(name), *arguments)
    assert kept(gm, "none") == set()
    assert kept(gm, "group") == kept(gm, "all") == EACH
    assert lift(gm).notes["custom_op"] == 1
    declare_operator(torch.ops.deep.norm, communicates=False)
    declare_operator("deep::*", communicates=False)
    assert kept(gm, "all") == set()
    assert "custom_op" not in lift(gm).notes


def test_declared_to_communicate_and_python_that_may() -> None:
    python = graph(lambda x: x)
    assert (kept(python, "none"), kept(python, "all")) == (set(), EACH)
    declare_operator(deep("norm"), communicates=True)
    assert kept(graph(deep("norm")), "none") == EACH
    declare_operator("deep::dispatch", communicates=False)
    assert kept(graph(deep("dispatch"), "0"), "all") == set()


@pytest.mark.parametrize("op", [deep, "deep", "deep::", "::norm", "deep::norm.default", 3, ATEN])
def test_what_is_no_operator(op: Any) -> None:
    with pytest.raises(OptionsError, match="is no operator"):
        declare_operator(op, communicates=False)


def test_without_launches_whatever_may_communicate_keeps_its_order() -> None:
    """Ranks ask each other about graphs with collectives alone."""
    b, x = Builder.of("x")
    b.call("one", deep("norm"), x)
    b.call("other", deep("dispatch"), x, "0")
    b.call("third", deep("norm"), x)
    problem = lift(b.done(x)).problem
    assert [problem.nodes[v].name for v in random_order(problem, random.Random(1))][1:4] == ["one", "other", "third"]


RUNS = ("invoke_subgraph", "local_map_hop", "tag_activation_checkpoint", "cond", "while_loop", "deep")


def node_of(problem: overlap_sched.Problem, name: str) -> Node:
    return next(node for node in problem.nodes if node.name == name)


@pytest.mark.parametrize("kind", RUNS)
def test_collectives_of_subgraphs_are_priced_counted_and_their_groups_are_known(kind: str) -> None:
    """As the flat graph says, but for what blocks: ``D`` is done when it returns."""
    inner = body((ATEN.sin.default,), (GATHER, 2, "0"), (WAIT,))
    given = {"0": Group(2, True, ranks=(0, 1)), "1": Group(2, True, ranks=(2, 3))}
    problem = lift(graph(kind, inner, shape="GD"), groups=given, model=Fixed()).problem
    assert (node_of(problem, "D").time_us, node_of(problem, "D").launches) == (7.0, ("0",))
    assert (problem.groups, collectives_text(problem)) == (given, "2 collectives (1 blocks compute)")
    report = schedule_graph(graph(kind, inner, shape="D"))
    assert report.reason == "the graph has no collectives to move: 1 collective (1 blocks compute)"


def test_of_branches_the_longest_counts_and_of_others_all_do() -> None:
    inside, (nested, y) = torch.nn.Module(), Builder.of("y")
    run(nested, inside, "invoke_subgraph", body((GATHER, 2, "0"), (WAIT,), (GATHER, 2, "0"), (WAIT,)), y)
    long = nested.done(y, root=inside)

    def sent_us(op: str) -> float:
        root, (b, x) = torch.nn.Module(), Builder.of("x")
        root.one, root.two = INNER, long
        bodies = [b.graph.get_attr("one"), b.graph.get_attr("two")]
        arguments = [x, *bodies, [x]] if op == "cond" else [*bodies, (x,), ()]
        b.call("D", getattr(HIGHER, op), *arguments, val=(x.meta["val"],))
        problem = lift(b.done(x, root=root), model=Fixed()).problem
        assert node_of(problem, "D").launches == ("0",) * 3
        return node_of(problem, "D").time_us

    assert (sent_us("cond"), sent_us("while_loop")) == (14.0, 21.0)


@dataclass(frozen=True)
class Fixed(Roofline):
    """A collective takes 7 us, compute always the same."""

    matmul_us: float = 0.0

    def collective_us(self, work: Any) -> float:
        return 7.0

    def compute_us(self, work: Any) -> float:
        return self.matmul_us


@pytest.mark.parametrize(("shape", "step_us"), [("gD", 14.0), ("GD", 7.0), ("gGgDg", 28.0), ("Dg", 14.0)])
@pytest.mark.parametrize("hidden", ["blocks", "invoke_subgraph", "deep"])
def test_what_communicates_stands_behind_what_its_group_has_in_flight(hidden: str, shape: str, step_us: float) -> None:
    """On one communicator, as the flat graph does; beside those of others."""
    problem = lift(graph(*HIDDEN[hidden], shape=shape), model=Fixed()).problem
    assert replay(problem, problem.original_order).step_us == step_us
    flat = lift(graph(None, shape=shape.replace("D", "g")), model=Fixed()).problem
    assert replay(flat, flat.original_order).step_us == step_us


@pytest.mark.parametrize(
    ("written", "step_us"), [("gmw", 7.0), ("gwm", 11.0), ("mgw", 11.0), ("gm", 7.0), ("gmmm", 12.0), ("ggmw", 14.0)]
)
def test_inside_of_a_subgraph_communication_and_compute_overlap_as_they_are_written(
    written: str, step_us: float
) -> None:
    """A collective takes 7 us, a matmul 4; what is not waited for has finished when the sub-graph returns."""
    b, x = Builder.of("x")
    for i, letter in enumerate(written):
        if letter == "g":
            launched = b.call(f"inner{i}", GATHER, x, 2, "0", val=b.tensor(8, 4))
        elif letter == "w":
            b.call(f"inner{i}", WAIT, launched, val=b.tensor(8, 4))
        else:
            b.call(f"inner{i}", ATEN.mm.default, x, x)
    problem = lift(graph("invoke_subgraph", b.done(x), shape="D"), model=Fixed(matmul_us=4.0)).problem
    assert node_of(problem, "D").time_us == step_us


def waiting(kind: str, outside: bool) -> fx.GraphModule:
    """``D`` waits in a sub-graph, for a launch of this graph or of an earlier one; launches stand around it."""
    root, (b, *inputs) = torch.nn.Module(), Builder.of(*(f"x{i}" for i in range(5)))
    launched = [b.call(f"g{i}", GATHER, inputs[i], 2, "01"[i % 2], val=b.tensor(8, 4)) for i in range(3)]
    run(b, root, kind, body((WAIT,)), inputs[4] if outside else launched[0])
    launched.append(b.call("g3", GATHER, inputs[3], 2, "0", val=b.tensor(8, 4)))
    waits = [b.call(f"w{i}", WAIT, launched[i], val=b.tensor(8, 4)) for i in range(1, 4)]
    return b.done(*waits, root=root)


@pytest.mark.parametrize("outside", [False, True], ids=["of this graph", "of an earlier one"])
@pytest.mark.parametrize("kind", RUNS)
def test_a_subgraph_that_only_waits_passes_no_launch_that_it_followed(kind: str, outside: bool) -> None:
    gm = waiting(kind, outside)
    lifted = lift(gm, cost=lambda node: 5.0 if node.name.startswith("g") else 0.0)
    problem, original = lifted.problem, traffic_in(gm.graph.nodes)
    passed = False
    for seed in range(60):
        order = random_order(problem, random.Random(seed))
        kept = launch_violation(problem, order, "waits") is None
        assert not kept or traffic_in(lifted.reordered(order)).keeps(original)
        passed = passed or not traffic_in(lifted.reordered(order)).keeps(original)
    assert passed
    (d,) = [v for v, node in enumerate(problem.nodes) if node.name == "D"]
    pairs = launch_pairs(problem, problem.original_order, "waits")
    assert all(u < v for u, v in pairs)
    assert "g2" in {problem.nodes[u].name for u, v in pairs if v in problem.predecessors[d]}
    report = schedule_graph(gm, Options(preserve_collective_order="waits", headroom="1GiB", rewrites=()))
    assert report.schedule is not None
    assert traffic_in(gm.graph.nodes).keeps(original)
    if not outside:  # it stands still there, and the collective is over behind it
        assert replay(problem, problem.original_order).at_us[d] == 5.0
        assert set(problem.nodes[problem.collectives[0]].use) <= set(problem.nodes[d].use)
        assert "collective_without_wait" not in lifted.notes


def test_a_subgraph_may_wait_for_one_launch_and_stand_behind_another() -> None:
    """It waits for what it is given, on group ``"0"``, and launches on group ``"1"``."""
    root, (b, *inputs) = torch.nn.Module(), Builder.of("x0", "x1")
    launched = [b.call(f"g{i}", GATHER, inputs[i], 2, str(i), val=b.tensor(8, 4)) for i in range(2)]
    run(b, root, "invoke_subgraph", body((WAIT,), (GATHER, 2, "1"), (WAIT,)), launched[0])
    problem = lift(b.done(b.call("w1", WAIT, launched[1], val=b.tensor(8, 4)), root=root), model=Fixed()).problem
    (d,) = [v for v, node in enumerate(problem.nodes) if node.name == "D"]
    assert {problem.nodes[u].name for u in problem.predecessors[d]} >= {"D.g0", "D.g1"}
    assert replay(problem, problem.original_order).step_us == 14.0


def test_the_report_says_what_was_taken_so_and_how_to_declare_it() -> None:
    assert schedule_graph(graph(deep("norm"))).on_undeclared is None
    for options in (Options(preserve_collective_order="all"), Options(concurrent_groups="disjoint")):
        found = str(schedule_graph(graph(deep("norm")), options).on_undeclared)
        assert re.fullmatch(r"deep::norm: may communicate, .*declare_operator\('deep::norm', .*False\)\.", found)
    report = schedule_graph(graph(deep("dispatch"), "0"))
    assert re.match("deep::dispatch: takes a process group, .*'deep::dispatch'", str(report.on_undeclared))
    assert f"  {report.on_undeclared}\n" in str(report)
    declare_operator("deep::*", communicates=True)
    assert schedule_graph(graph(deep("dispatch"), "0")).on_undeclared is None


def test_declarations_are_part_of_the_cache_key() -> None:
    before = settings_key(Settings())
    declare_operator("deep::norm", communicates=True)
    one = settings_key(Settings())
    declare_operator("deep::norm", communicates=False)
    assert len({before, one, settings_key(Settings())}) == 3


def test_operators_of_deepep_are_known_and_priced_on_the_group_that_they_share() -> None:
    with torch.library._scoped_library("deepep", "DEF") as made:
        made.define("dispatch(Tensor x, Tensor topk_idx) -> (Tensor, Tensor)")
        made.define("combine(Tensor x, Tensor handle_id) -> Tensor")
        b, x, y = Builder.of("x", "y")
        sent = b.call("dispatch", torch.ops.deepep.dispatch.default, x, y, val=(b.tensor(64, 4), b.tensor(8)))
        b.call("combine", torch.ops.deepep.combine.default, b.call("rows", operator.getitem, sent, 0), x)
        group = overlap_sched.problem.Group(16, False, 2)
        lifted = lift(b.done(x), groups={"deepep": group}, cluster="dgx-h800")
        found = {node.name: node for node in lifted.problem.nodes if node.launches == ("deepep",)}
        assert found["dispatch"].bytes == 64 * 4 * 4 + 8 * 4
        model = model_of(read_cluster("dgx-h800"))
        assert all(n.time_us == model.collective_us(Collective(op, n.bytes, group)) for op, n in found.items())


@pytest.mark.parametrize("declared", [None, True, False])
def test_collectives_of_vllm_are_known_unless_declared_otherwise(declared: bool | None) -> None:
    with torch.library._scoped_library("vllm", "DEF") as made:
        made.define("all_reduce(Tensor tensor, str group_name) -> Tensor")
        if declared is not None:
            declare_operator("vllm::all_reduce", communicates=declared)
        b, x, y = Builder.of("x", "y")
        b.call("gather", GATHER, y, 2, "tp:0", val=b.tensor(8, 4))
        b.call("reduce", torch.ops.vllm.all_reduce.default, x, "tp:0")
        lifted = lift(b.done(x), groups={"tp:0": Group(2, True)})
        node = node_of(lifted.problem, "reduce")
        assert node.launches == (() if declared is False else ("tp:0",))
        assert ("gather" in {lifted.problem.nodes[u].name for u in node.deps}) == (declared is not False)
        assert not lifted.undeclared
        assert "unknown_communication" not in lifted.notes


def two_outputs(x: Tensor, y: Tensor) -> Any:
    outs = wait_for_all(*C10D.all_gather_into_tensor_coalesced([x, y], RANKS, "0"))
    return outs[0] + 1, outs[1]


def two_groups(x: Tensor, y: Tensor) -> Any:
    outs = wait_for_all(gather(x * 2, "fast"), gather(y * 2, "slow"))
    z = x @ y
    return outs[0] @ z, outs[1]


def times(node: fx.Node) -> float:
    if node.target is C10D.all_gather_into_tensor.default:
        return {"fast": 10.0, "slow": 40.0}[str(node.args[2])]
    return 30.0 if node.target is ATEN.mm.default else 0.0


def test_one_collective_with_several_outputs_has_one_wait_that_holds_all_of_it() -> None:
    lifted = lift(trace(two_outputs, (4, 4), (4, 4)))
    (launch,) = lifted.problem.collectives
    (wait,) = lifted.problem.waits[launch]
    assert (lifted.problem.nodes[launch].alloc, set(lifted.problem.nodes[wait].use)) == ((2, 3), {0, 1, 2, 3})
    assert (lifted.nodes, lifted.notes) == (tuple(lifted.nodes[0].graph.nodes), {})


def test_a_wait_of_two_collectives_becomes_a_wait_of_each() -> None:
    gm = trace(two_groups, (4, 4), (4, 4))
    lifted = lift(gm, cost=times)
    nodes = lifted.problem.nodes
    fast, slow = lifted.problem.collectives
    ((first,), (last,)) = (lifted.problem.waits[launch] for launch in (fast, slow))
    assert (nodes[first].name, nodes[last].name) == ("wait_tensors.all_gather_into_tensor", "wait_tensors")
    assert first in nodes[last].deps
    assert (nodes[first].alloc, nodes[first].use) == ((), ())
    assert {*nodes[fast].use, *nodes[fast].alloc, *nodes[slow].use, *nodes[slow].alloc} <= set(nodes[last].use)
    assert lifted.nodes[first] is lifted.nodes[last]
    assert lifted.reordered(lifted.problem.original_order) == list(gm.graph.nodes)
    names = [node.name for node in nodes]
    order = [v for v in lifted.problem.original_order if v != names.index("mm")]
    order.insert(order.index(last), names.index("mm"))  # between the two: the program waits where the last of them is
    program = [node.name for node in lifted.reordered(order)]
    assert program.index("mm") == program.index("wait_tensors") - 1
    timeline = replay(lifted.problem, lifted.problem.original_order)
    assert sum(timeline.stall_us) == 40.0  # until the last of them has finished, not until one has
    assert timeline.step_us == 40.0 + 2 * 30.0


def test_what_has_been_waited_for_before_is_not_waited_for_again() -> None:
    def f(x: Tensor, y: Tensor) -> Any:
        one, other = gather(x * 2, "fast"), gather(y * 2, "slow")
        done = wait(other)
        return wait_for_all(one, done)

    problem = lift(trace(f, (4, 4), (4, 4))).problem
    fast, slow = problem.collectives
    assert [len(problem.waits[launch]) for launch in (fast, slow)] == [1, 1]
    (last,) = problem.waits[fast]
    assert not {*problem.nodes[slow].use} & {*problem.nodes[last].use}


def waited_for_twice(x: Tensor, y: Tensor) -> Any:
    a = wait(wait(gather(x)))
    b = wait(wait(gather(y)).view(-1))
    return a @ x.t(), b + 1


def test_a_wait_of_a_wait_costs_nothing_and_waits_for_nothing() -> None:
    lifted = lift(trace(waited_for_twice, (4, 4), (4, 4)))
    problem = lifted.problem
    assert [len(problem.waits[launch]) for launch in problem.collectives] == [1, 1]
    named = [node for node in problem.nodes if node.op == "_c10d_functional.wait_tensor.default"]
    (again, of_a_view) = (node for node in named if node.kind is not Kind.WAIT)
    for node, before in ((again, "wait_tensor"), (of_a_view, "view")):
        assert (node.kind, node.time_us, node.alloc) == (Kind.COMPUTE, 0.0, ())
        assert [problem.nodes[u].name for u in node.deps] == [before]
    assert lifted.notes == {}


def test_a_second_wait_of_a_launch_and_one_of_a_collective_on_what_was_waited_for_are_waits() -> None:
    def f(x: Tensor) -> Any:
        launched = gather(x)
        first, second = wait(launched), wait(launched)
        return wait(C10D.all_reduce_(first, "sum", "0")) + second

    problem = lift(trace(f, (4, 4))).problem
    assert [len(problem.waits[launch]) for launch in problem.collectives] == [2, 1]


def step(x, w):
    full = wait(gather(w))
    return wait(scatter(x @ full)), x * 2


class Launching(Roofline):
    """Gathers take the launching thread 7 us, other collectives nothing."""

    def launch_us(self, work: Collective) -> float:
        return 7.0 if work.op.startswith("all_gather") else 0.0


def test_a_launch_node_stands_before_its_collective():
    nodes, stands_for = with_company(EXAMPLE.nodes, {}, (), EXAMPLE.groups, Launching())
    assert [node.name for node in nodes[1:5]] == ["x", "gather.launch", "gather", "full"]
    assert stands_for == [0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9]
    launch, gather, wait = nodes[2:5]
    assert launch == Node("gather.launch", Kind.COMPUTE, (0,), time_us=7.0, op=LAUNCH)
    assert (gather.deps, wait.deps, wait.collective) == ((0, 2), (3,), 3)
    problem = Problem("example", nodes, EXAMPLE.storages, EXAMPLE.groups)  # is checked
    before, after = (replay(one, one.original_order) for one in (EXAMPLE, problem))
    assert after.step_us == before.step_us + 7.0
    assert with_company(EXAMPLE.nodes, {}, (), EXAMPLE.groups, Roofline()) == (EXAMPLE.nodes, list(range(10)))
    assert not isinstance(Roofline(), LaunchingModel)


class Finishing(Launching):
    """Waits for scatters copy what was summed up, 4 us."""

    def finish_us(self, work: Collective) -> float:
        return 4.0 if work.op.startswith("reduce_scatter") else 0.0


def test_a_part_takes_no_more_than_what_finishes_the_collective_does():
    """Of a collective whose only wait is a part that takes the time; else its own wait does."""
    part = Node("mm.gather", Kind.WAIT, (2,), op=PART, collective=2)
    gathers = {"finish_us": lambda self, work: 4.0, "launch_us": lambda self, work: 0.0}
    for last, timed in ((EXAMPLE.nodes[3]._replace(deps=(3,)), 4), (Node("full", Kind.COMPUTE, (3,)), 3)):
        model = type("Gathers", (Finishing,), gathers)()
        nodes, _ = with_company((*EXAMPLE.nodes[:3], part, last), {}, (), EXAMPLE.groups, model)
        assert [(v, node.time_us) for v, node in enumerate(nodes) if node.op == FINISH] == [(timed, 4.0)]


def test_a_finish_node_stands_before_its_wait():
    nodes, stands_for = with_company(EXAMPLE.nodes, {}, (), EXAMPLE.groups, Finishing())
    assert stands_for == [0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 8, 9]
    assert nodes[9] == Node("grad.finish", Kind.COMPUTE, nodes[9].deps, time_us=4.0, op=FINISH)
    assert (nodes[10].deps, nodes[10].collective) == ((8, 9), 8)
    launched_before = EXAMPLE.nodes[8]._replace(collective=None)  # by another graph: its size is not known here
    nodes, _ = with_company((*EXAMPLE.nodes[:8], launched_before), {}, (), EXAMPLE.groups, Finishing())
    assert [node.op for node in nodes if node.op in (LAUNCH, FINISH)] == [LAUNCH]


def test_a_lifted_graph_has_launches_and_comes_back_in_order():
    gm = trace(step, (8, 8), (4, 8))
    plain, lifted = lift(gm), lift(gm, model=Launching())
    launches = [v for v, node in enumerate(lifted.problem.nodes) if node.op == LAUNCH]
    gathers = [v for v in lifted.problem.collectives if lifted.problem.nodes[v].op.startswith("all_gather")]
    assert [v + 1 for v in launches] == gathers != []
    assert {(lifted.prices[v].time_us, lifted.prices[v].source) for v in launches} == {(7.0, "table")}
    others = [price.time_us for v, price in enumerate(lifted.prices) if v not in launches]
    assert others == [price.time_us for price in plain.prices]
    result = schedule(lifted.problem, Options())
    reordered = lifted.reordered(result.order)
    assert sorted(node.name for node in reordered) == sorted(node.name for node in gm.graph.nodes)
