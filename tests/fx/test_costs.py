"""Operations, bytes and times of nodes; process groups; what the user's callable may say.

Predicted kernels of real graphs: which operators are loops, what is looked through, who pays.

Recorded traces of two gloo ranks, matched against the graphs that ran.
"""

import importlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._higher_order_ops.effects import with_effects
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.distributed.fake_pg import FakeStore

from overlap_sched import cost
from overlap_sched.cost import A100, Compute, Price, Roofline
from overlap_sched.cost.profile import read_traces
from overlap_sched.dump import load_dump
from overlap_sched.errors import CostError, OptionsError, OverlapSchedWarning
from overlap_sched.fx import lift
from overlap_sched.fx.lifting import Lifted
from overlap_sched.fx.operators import traits_of
from overlap_sched.fx.profile import ProfileCost, lifted_with_profile, shapes_of
from overlap_sched.inductor.caches import settings_key
from overlap_sched.inductor.settings import Settings
from overlap_sched.problem import Group, Kind, Node
from overlap_sched.scheduler.restrictions import clashes
from tests.fx.test_hazards import Builder
from tests.support.fx_graphs import ATEN, C10D, gather, on_gpu, scatter, trace, wait
from tests.support.traces import GRAPHS, TRACES, event, write


def nodes(gm: torch.fx.GraphModule, **arguments: Any) -> dict[str, Node]:
    return {node.name: node for node in lift(gm, **arguments).problem.nodes}


def test_matmul_and_pointwise_and_views() -> None:
    def f(x: Tensor, y: Tensor) -> Any:
        product = (x.t() @ y).view(-1)
        return product * product, x.expand(3, 8, 16).clone(), torch.empty(5)

    found = nodes(trace(f, (8, 16), (8, 32)))
    assert (found["mm"].flops, found["mm"].bytes) == (2 * 16 * 8 * 32, 4 * (8 * 16 + 8 * 32 + 16 * 32))
    assert (found["mul"].flops, found["mul"].bytes) == (0, 4 * 2 * 512)  # one tensor, read once
    assert found["clone"].bytes == 4 * 2 * 3 * 8 * 16  # an expanded tensor is read as often as it is long
    for free in ("t", "view", "expand", "empty"):
        assert (found[free].bytes, found[free].time_us) == (0, 0.0)
    assert found["mul"].time_us == 2.0


def test_what_is_overwritten_is_not_read() -> None:
    def f(x: Tensor, y: Tensor) -> Any:
        x.copy_(y)
        y.add_(x)
        torch._foreach_add_([x], 1.0)
        return x

    found = nodes(trace(f, (8,), (8,)))
    assert [found[name].bytes for name in ("copy_", "add_", "_foreach_add_")] == [2 * 32, 3 * 32, 32]


ATTENTION = 4 * 2 * 8 * 64 * 64 * 16  # b h s s d, two matmuls of 2 operations each
QKV = [(2, 8, 64, 16)] * 3


@pytest.mark.parametrize(
    ("op", "shapes", "flops"),
    [
        (ATEN._scaled_dot_product_flash_attention, QKV, ATTENTION),
        (ATEN._scaled_dot_product_flash_attention_for_cpu, QKV, ATTENTION),
        (ATEN._scaled_dot_product_flash_attention_backward, [*QKV, QKV[0]], ATTENTION * 5 // 2),
        (ATEN._scaled_dot_product_flash_attention_for_cpu_backward, [*QKV, QKV[0]], ATTENTION * 5 // 2),
        (ATEN._grouped_mm, [(4160, 2048), (8, 2048, 1408)], 23991418880),  # the shared dsv3 graph's
        (ATEN._grouped_mm, [(8, 2048, 16), (16, 100)], 2 * 2048 * 16 * 100),
        (ATEN._grouped_mm, [(8, 4, 16), (8, 16, 32)], 2 * 8 * 4 * 16 * 32),
        (ATEN.bmm, [(4, 4), (4, 4)], None),  # 2-d: torch's formula cannot unpack it
    ],
    ids=str,
)
def test_operations(op: Any, shapes: list[tuple[int, ...]], flops: int | None) -> None:
    b = Builder()
    inputs = [b.input(f"x{i}", *shape) for i, shape in enumerate(shapes)]
    b.call("op", op.default, *inputs, val=b.tensor(*shapes[0]))
    lifted = lift(b.done(inputs[0]))
    assert lifted.problem.nodes[len(shapes)].flops == (flops or 0)
    assert lifted.notes.get("flops_failed", 0) == (flops is None)


def test_a_model_is_told_of_kinds_and_shapes() -> None:
    told: dict[str, Compute] = {}

    class Model(Roofline):
        def compute_us(self, work: Compute) -> float:
            told[f"{work.op.split('.')[1]} {work.bytes}"] = work
            return 1.0

    def f(x: Tensor, y: Tensor, q: Tensor) -> Any:
        product = torch.addmm(x[0], x, y.t())
        attended = ATEN._scaled_dot_product_flash_attention_for_cpu(q, q, q, 0.0, True)[0]
        return product, x.t().clone(memory_format=torch.contiguous_format), y.clone(), x + x[0], attended, x.softmax(-1)

    gm = trace(f, (16, 16), (16, 16), (2, 4, 32, 8))
    lift(gm, model=Model())
    kinds = {name.split()[0]: (work.kind, work.shape) for name, work in told.items()}
    assert kinds["addmm"] == ("gemm", (1, 16, 16, 16))
    assert kinds["_scaled_dot_product_flash_attention_for_cpu"] == ("causal", (8, 32, 32, 8))
    assert kinds["_softmax"] == ("softmax", (1, 16, 0, 16))
    assert [work.kind for name, work in told.items() if name.startswith("clone")] == ["other"]  # the last
    assert kinds["add"][0] == "strided"  # broadcast
    eager_us, compiled_us = (nodes(gm, fusion=fusion)["clone"].time_us for fusion in ("none", "inductor"))
    assert eager_us > compiled_us


def test_convolution_flags_are_part_of_its_shape() -> None:
    def f(x: Tensor, w: Tensor) -> Any:
        return [ATEN.convolution.default(x, w, None, [s, s], [0, 0], [1, 1], False, [0, 0], 1) for s in (1, 2)]

    found = nodes(trace(f, (1, 3, 9, 9), (4, 3, 3, 3)))
    assert found["convolution"].flops == 2 * 4 * 3 * 9 * 7 * 7
    assert found["convolution_1"].flops == 2 * 4 * 3 * 9 * 4 * 4


def test_symbolic_sizes_count_by_their_hints_and_those_that_depend_on_data_by_a_default() -> None:
    lifted = lift(make_fx(lambda x: (x @ x.t()) * 2, tracing_mode="symbolic")(torch.ones(6, 5)))
    mm = next(n for n in lifted.problem.nodes if n.op == "aten.mm.default")
    assert (mm.flops, mm.bytes) == (2 * 6 * 5 * 6, 4 * (30 + 30 + 36))
    assert lifted.problem.storages[0].bytes == 120
    with torch._subclasses.FakeTensorMode(shape_env=ShapeEnv(allow_dynamic_output_shape_ops=True)):
        lifted = lift(make_fx(lambda x: x.nonzero() * 2, tracing_mode="symbolic")(torch.empty(10)))
    assert lifted.notes["size_without_hint"] > 0
    assert 80 <= lifted.problem.storages[-1].bytes <= 8192 * 8  # newer torch knows that it is 10 rows at most


def test_the_users_times_go_first() -> None:
    gm = trace(lambda x: (wait(gather(x @ x)) * 2,), (4, 4))
    plain = nodes(gm)
    mine = nodes(gm, cost=lambda node: 123.0 if node.name in ("mm", "all_gather_into_tensor") else None)
    assert mine["mm"].time_us == mine["all_gather_into_tensor"].time_us == 123.0
    assert mine["mul"] == plain["mul"]


@pytest.mark.parametrize("time", [-1.0, float("nan"), float("inf"), "fast", True])
def test_what_is_no_time(time: Any) -> None:
    with pytest.raises(CostError, match=f"{time!r} for node 'mm'"):
        lift(trace(lambda x: (x @ x,), (4, 4)), cost=lambda node: time)


def test_another_model() -> None:
    gm = trace(lambda x: (wait(gather(x)) @ x.t(),), (512, 4))
    slow = cost.Network(cost.Link(12.0, 1e9), cost.Link(30.0, 1e9))
    found = nodes(gm, model=cost.Roofline(cost.XEON_8480, slow))
    assert found["all_gather_into_tensor"].time_us == 12.0 + 2 * 512 * 4 * 4 / 2 / 1e9 * 1e6
    assert found["mm"].time_us > nodes(gm)["mm"].time_us


def test_names_that_are_no_inputs() -> None:
    with pytest.raises(OptionsError, match=r"parameters names 'y', .*did you mean 'y_1'"):
        lift(trace(lambda x, y: (x @ y,), (4, 4), (4, 4)), parameters=["x_1", "y"])


def reductions(group: str) -> Any:
    def f(x: Tensor) -> Any:
        a = C10D.all_gather_into_tensor(x, 8, group)
        return wait(a), wait(C10D.all_reduce(x, "sum", group)), wait(C10D.all_reduce(x, "sum", "alone"))

    return f


def test_group_sizes_from_arguments_and_by_guess() -> None:
    lifted = lift(trace(reductions("tp"), (4, 4)))
    assert lifted.problem.groups == {"tp": Group(8, False, 8), "alone": Group(8, True)}
    assert lifted.notes["group_size_guessed"] == 1
    assert lift(trace(reductions("tp"), (4, 4)), ranks_per_node=4).problem.groups["tp"] == Group(8, False, 8)
    given = {"alone": Group(64, False), "tp": Group(8, False)}
    lifted = lift(trace(reductions("tp"), (4, 4)), groups=given)
    assert lifted.problem.groups == given
    assert "group_size_guessed" not in lifted.notes


def test_a_loaded_dump_carries_its_groups() -> None:
    gm = trace(reductions("tp"), (4, 4))
    ranks = tuple(range(0, 64, 8))
    gm.meta["overlap_sched_groups"] = {"alone": (16, None), "tp": (8, ranks)}
    assert lift(gm).problem.groups == {"tp": Group(8, False, 8, ranks), "alone": Group(16, False, 2)}
    assert lift(gm.graph, groups={"alone": Group(4, True)}).problem.groups["alone"] == Group(4, True)


def test_groups_that_operators_name_in_other_ways() -> None:
    importlib.import_module("torch.distributed._symmetric_memory")  # registers an operator, in some versions
    group = type("ProcessGroup", (), {"group_name": "dp"})
    for op, arguments, found in (
        # by values alone
        (torch.ops.symm_mem._low_contention_all_gather.default, ("ring",), {"ring": Group(4, True)}),
        # by ranks: one on each node
        (
            torch.ops.c10d_functional.all_reduce.default,
            ("sum", "", [0, 8, 16, 24], 4),
            {":[0, 8, 16, 24]": Group(4, False, 4, (0, 8, 16, 24))},
        ),
        # by a node that looks it up
        (C10D.all_gather_into_tensor.default, (4, group), {"dp": Group(4, True)}),
    ):
        b, x, looked_up = Builder.of("x", "group")
        looked_up.meta["val"] = group()
        given = [looked_up if one is group else one for one in arguments]
        b.call("collective", op, x, *given, val=b.tensor(16, 4))
        problem = lift(b.done(x)).problem
        assert problem.groups == found
        assert [problem.nodes[2].group] == list(found)


def test_live_groups_tell_whether_they_are_inside_a_node() -> None:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=64)
    try:
        near, far, everyone = (dist.new_group(list(ranks)) for ranks in (range(8), range(0, 64, 8), range(64)))

        def f(x: Tensor) -> Any:
            gathered = [C10D.all_gather_into_tensor(x, 8, group.group_name) for group in (near, far)]
            return [wait(g) for g in gathered], wait(C10D.all_reduce(x, "sum", everyone.group_name))

        problem = lift(trace(f, (4, 4))).problem
        assert problem.groups == {
            near.group_name: Group(8, True, ranks=tuple(range(8))),
            far.group_name: Group(8, False, 8, tuple(range(0, 64, 8))),
            everyone.group_name: Group(64, False, 8, tuple(range(64))),
        }
        both, world = clashes(problem, "disjoint", as_originally=False), problem.collectives[2]
        assert not both(*problem.collectives[:2])  # near and far share one rank
        assert all(both(v, world) for v in problem.collectives[:2])
    finally:
        dist.destroy_process_group()


def test_a_blocking_collective_holds_the_compute_stream() -> None:
    b, x = Builder.of("x")
    b.call("shuffle", torch.ops._dtensor.shard_dim_alltoall.default, x, 0, 1, "tp")
    node = lift(b.done(x), groups={"tp": Group(2, True)}).problem.nodes[1]
    assert (node.kind, node.group) == ("compute", None)
    assert node.time_us == 12.0 + 64 / 2 / 370e9 * 1e6


@pytest.fixture
def configured() -> Iterator[Any]:
    """A collective of the family that we do not know, as later versions of torch will have them."""
    library = torch.library.Library("_c10d_functional", "FRAGMENT")
    library.define("all_reduce_configured(Tensor input, str reduce_op, str group_name, int ctas) -> Tensor")
    yield torch.ops._c10d_functional.all_reduce_configured.default
    library._destroy()


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_collective_that_is_not_known_is_one_that_blocks(configured: Any, wrapped: bool) -> None:
    b, token, x = Builder.of("token", "x")
    token.meta["val"] = b.tensor(0)
    call, val = ((with_effects, token, configured), (b.tensor(0), b.tensor(4, 4))) if wrapped else ((configured,), None)
    b.call("reduce", *call, x, "sum", "tp", 4, val=val)
    b.call("print", ATEN._print.default, "hello", val=())
    lifted = lift(b.done(x), groups={"tp": Group(2, True)})
    node = lifted.problem.nodes[2]
    assert (node.kind, node.group, node.bytes) == ("compute", None, 64)
    assert node.time_us == 12.0 + 2 * 64 / 2 / 370e9 * 1e6
    assert 2 in lifted.problem.nodes[3].deps
    assert lifted.notes["unknown_communication"] == 1
    traits_of.cache_clear()


def test_larger_side_of_a_collective() -> None:
    found = nodes(trace(lambda x: (wait(gather(x)), wait(scatter(x))), (4, 4)))
    assert found["all_gather_into_tensor"].bytes == 2 * 64
    assert found["reduce_scatter_tensor"].bytes == 64
    assert found["reduce_scatter_tensor"].op == "reduce_scatter_tensor"


@pytest.mark.parametrize(
    ("op", "args", "out", "nbytes"),
    [
        (ATEN.embedding.default, ("table", "tokens"), (8, 16), 2 * 512 + 64),
        (ATEN.index_select.default, ("table", 0, "tokens"), (8, 16), 2 * 512 + 64),
        (ATEN.index.Tensor, ("table", ["tokens"]), (8, 16), 2 * 512 + 64),
        (ATEN.gather.default, ("table", 0, "tokens"), (8, 16), 2 * 512 + 64),
        # never more than the whole table
        (ATEN.embedding.default, ("table", "tokens"), (4000, 16), 64 * 1000 + 64 + 64 * 4000),
        # all of it is written: zeros
        (ATEN.embedding_dense_backward.default, ("values", "tokens", 1000, -1, False), (1000, 16), 512 + 64 + 64000),
        (ATEN.index_put_.default, ("table", ["tokens"], "values"), None, 512 + 64 + 512),
        (ATEN.index_put_.default, ("table", ["tokens"], "values", True), None, 512 + 64 + 2 * 512),
        (ATEN.index_copy_.default, ("table", 0, "tokens", "values"), None, 512 + 64 + 512),
        (ATEN.index_add_.default, ("table", 0, "tokens", "values"), None, 512 + 64 + 2 * 512),
        (ATEN.scatter_.src, ("table", 0, "tokens", "values"), None, 512 + 64 + 512),
        (ATEN.scatter_add_.default, ("table", 0, "tokens", "values"), None, 512 + 64 + 2 * 512),
        # one number, for nobody knows how many rows
        (ATEN.index_put_.default, ("table", ["tokens"], "number"), None, 2 * 64000 + 64 + 4),
    ],
    ids=str,
)
def test_lookups_and_scatters_in_place_touch_rows(op: Any, args: Any, out: Any, nbytes: int) -> None:
    b, shapes = Builder(), {"table": (1000, 16), "tokens": (8,), "values": (8, 16), "number": ()}
    values = {name: b.input(name, *shape) for name, shape in shapes.items()}
    values["tokens"].meta["val"], values["number"].meta["val"] = b.tensor(8).long(), b.tensor()
    args = [[values[a[0]]] if isinstance(a, list) else values.get(a, a) for a in args]
    b.call("op", op, *args, val=b.tensor(*out) if out else values["table"].meta["val"])
    assert nodes(b.done(values["table"]))["op"].bytes == nbytes


ROWS, WIDTH = 256, 512
FULL = 4 * ROWS * WIDTH


def fused(f: Callable[..., Any], *shapes: tuple[int, ...], device: str = "cuda", **options: Any) -> Lifted:
    gm = trace(f, *shapes)
    if device == "cuda":
        on_gpu(gm)
    return lift(gm, fusion="inductor", **options)


def kernels(lifted: Lifted) -> dict[str, int]:
    """Bytes of every kernel, by the node that names it."""
    found: dict[str, int] = {}
    for node, price in zip(lifted.problem.nodes, lifted.prices, strict=True):
        if node.kind is Kind.COMPUTE and price.source != "free":
            name = price.part_of or node.name
            found[name] = found.get(name, 0) + node.bytes
    return found


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def test_a_norm_is_one_kernel() -> None:
    lifted = fused(norm, (ROWS, WIDTH), (WIDTH,))
    assert kernels(lifted) == {"mul_1": 2 * FULL + 4 * WIDTH}
    plain = lift(trace(norm, (ROWS, WIDTH), (WIDTH,)))
    assert sum(node.bytes for node in plain.problem.nodes) > 3 * sum(node.bytes for node in lifted.problem.nodes)
    assert {price.source for price in plain.prices} == {"free", "roofline"}


def test_the_graph_stays_one_of_single_nodes() -> None:
    gm = trace(norm, (ROWS, WIDTH), (WIDTH,))
    plain, priced = lift(gm), lift(gm, fusion="inductor")
    assert plain.nodes == priced.nodes
    first, second = ([n._replace(time_us=0.0, bytes=0) for n in one.problem.nodes] for one in (plain, priced))
    assert first == second
    assert [node.time_us for node in priced.problem.nodes] == [price.time_us for price in priced.prices]


def softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def softmax_backward(x: Tensor, y: Tensor) -> Tensor:
    return ATEN._softmax_backward_data.default(x, y, -1, torch.float32).sum(-1)


def transposed(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.relu(x)
    return y, y.t() * 2


def halves(x: Tensor) -> Tensor:
    left, right = x.split(WIDTH // 2, 1)
    return left * right


def around_a_collective(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y * wait(gather(y))[:ROWS], y


X = (ROWS, WIDTH)
KERNELS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], dict[str, int]]] = {
    "softmax, decomposed": (softmax, [X], {"div": 2 * FULL}),
    "softmax": (lambda x: ATEN._softmax.default(x * 2, -1, False) + 1, [X], {"add": 2 * FULL}),
    "softmax backward": (softmax_backward, [X, X], {"sum_1": 2 * FULL + 4 * ROWS}),
    "views": (lambda x: ((x + 1).view(-1) * 2).view(WIDTH, ROWS).unsqueeze(0).exp(), [X], {"exp": 2 * FULL}),
    "results in another order stay apart": (transposed, [X], {"relu": 2 * FULL, "mul": 2 * FULL}),
    "parts are read as parts": (halves, [X], {"mul": FULL + FULL // 2}),
    "a slice is read as a part": (lambda x: x[:, :8] * 2, [X], {"mul": 2 * 4 * ROWS * 8}),
    "broadcast values are read once": (lambda x: x.expand(ROWS, WIDTH) + 1, [(WIDTH,)], {"add": FULL + 4 * WIDTH}),
    "what is written back is written": (lambda x, y: x.copy_(y * 2), [X, X], {"copy_": 2 * FULL}),
    "no kernel spans a collective": (around_a_collective, [X], {"mul": 2 * FULL, "mul_1": 3 * FULL}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str) -> None:
    f, shapes, found = KERNELS[name]
    assert kernels(fused(f, *shapes)) == found


def test_matmuls_stay_alone_and_what_they_read_is_stored() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(torch.relu(x + 1) @ y) * 2

    found = fused(f, (ROWS, WIDTH), (WIDTH, WIDTH))
    assert kernels(found) == {"relu": 2 * FULL, "mm": 2 * FULL + 4 * WIDTH * WIDTH, "mul": 2 * FULL}
    by_name = dict(zip([node.name for node in found.problem.nodes], found.prices, strict=True))
    assert (by_name["mm"].source, by_name["relu_1"].part_of, by_name["relu_1"].time_us) == ("roofline", "mul", 0.0)


def test_what_is_read_in_copies_and_in_parts() -> None:
    found = kernels(fused(lambda x, y: x.expand(ROWS, WIDTH) @ y, (1, 1), (WIDTH, WIDTH)))
    assert found["expand"] == FULL + 4  # matmuls read broadcast values from copies
    found = kernels(fused(lambda table, x: table[x.argmax(1)] * 2, (10_000, WIDTH), (ROWS, 7)))
    assert found["mul"] == 2 * FULL + 4 * 7 * ROWS  # lookups read the rows that they pick
    found = kernels(fused(lambda x, y: torch.cat([x * 2, y * 3]) + 1, (ROWS, WIDTH), (ROWS, WIDTH)))
    assert sum(found.values()) == 4 * FULL  # the sum joins: nobody else reads the concatenation


def test_masks_pick_what_only_the_data_knows() -> None:
    env = ShapeEnv(allow_dynamic_output_shape_ops=True)
    with torch._subclasses.FakeTensorMode(shape_env=env):
        x = torch.empty(ROWS, WIDTH)
        gm = make_fx(lambda x: x[x > 0] * 2)(x)
    assert set(kernels(lift(gm, fusion="inductor"))) == {"gt", "index", "mul"}


def scattered(x: Tensor, at: Tensor, values: Tensor) -> Tensor:
    return (x * 2).scatter_add(1, at.long(), values)


@pytest.mark.parametrize(
    ("device", "found"),
    [
        ("cuda", {"scatter_add": 2 * FULL + (4 + 4 + 4) * ROWS}),
        ("cpu", {"mul": 2 * FULL, "_to_copy": 12 * ROWS, "scatter_add": 2 * FULL + 12 * ROWS}),
    ],
)
def test_scatters_copy_what_they_write_into(device: str, found: dict[str, int]) -> None:
    shapes = (ROWS, WIDTH), (ROWS, 1), (ROWS, 1)
    assert kernels(fused(scattered, *shapes, device=device)) == found
    doubled_after = fused(lambda *given: scattered(*given) * 2, *shapes, device=device)
    assert kernels(doubled_after) == {**found, "mul_1": 2 * FULL}  # all has to be written before it is read


def test_complex_numbers_and_unknown_operators_stay_alone() -> None:
    def f(x: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.view(ROWS, -1, 2)) * 1j
        return torch.view_as_real(turned * 1j) + 1

    assert set(kernels(fused(f, (ROWS, WIDTH)))) == {"mul", "mul_1", "add"}
    assert set(kernels(fused(lambda x: (x * 2).sort(1)[0] * 2, (ROWS, WIDTH)))) == {"mul", "sort", "mul_1"}


def test_times_of_the_user_are_kept_and_are_all_that_a_kernel_takes() -> None:
    gm_times = {"pow_1": 7.0, "mul_1": 2.0}
    lifted = fused(norm, (ROWS, WIDTH), (WIDTH,), cost=lambda node: gm_times.get(node.name))
    assert {node.name: node.time_us for node in lifted.problem.nodes if node.time_us} == gm_times
    sources = {node.name: price.source for node, price in zip(lifted.problem.nodes, lifted.prices, strict=True)}
    assert (sources["pow_1"], sources["mean"]) == ("user", "fusion")


@pytest.mark.parametrize(
    "reduction",
    [
        lambda x: x.sum(),
        lambda x: x.sum(0),
        lambda x: x.mean([-1]),
        lambda x: x.amax((0, 1)),
        lambda x: torch.linalg.vector_norm(x, 2.0, 1),
        lambda x: x.max(1)[0],
    ],
)
def test_reductions_name_their_dimensions_in_many_ways(reduction: Callable[[Tensor], Tensor]) -> None:
    for more in (0, 1):  # what follows joins only where there is one of it for each point
        assert len(kernels(fused(lambda x: reduction(x) * 2, (ROWS + more, WIDTH + more)))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("fusion", ["none", "inductor"])
@pytest.mark.parametrize(("graph", "collectives", "products"), [(GRAPHS[0], 21, 15), (GRAPHS[1], 41, 30)])
def test_all_of_a_real_graph_is_found(graph: Path, collectives: int, products: int, fusion: Any) -> None:
    before = lift(load_dump(graph).gm, fusion=fusion)
    after, profile = lifted_with_profile(before, read_traces(TRACES))
    assert (profile.runs, profile.ranks) == (2, 2)
    assert profile.share() == pytest.approx(1.0)
    found = Counter((node.name, m.how) for node, m in zip(profile.sought, profile.measured, strict=True) if m)
    by_order = Counter(name.split("::")[0] for (name, how), n in found.items() for _ in range(n) if how == "order")
    assert by_order["_c10d_functional"] == collectives
    assert found["aten::mm", "order"] == products
    assert {how for _, how in found} == {"order", "names"}
    assert profile.skew_us is not None
    assert profile.skew_us > 0
    fused = sum(m.us for m in profile.measured if m is not None and m.how == "names")
    assert fused == pytest.approx(profile.fused_us)
    sources = {price.source for node, price in zip(after.problem.nodes, after.prices, strict=True) if node.time_us}
    assert sources == {"profile"}
    assert [n._replace(time_us=0) for n in after.problem.nodes] == [n._replace(time_us=0) for n in before.problem.nodes]
    assert [price.time_us for price in after.prices] == [node.time_us for node in after.problem.nodes]


@pytest.mark.private
def test_without_skew_no_collective_is_longer_than_on_any_rank() -> None:
    lifted = lift(load_dump(GRAPHS[1]).gm)
    both, *alone = (lifted_with_profile(lifted, read_traces(paths))[0] for paths in (TRACES, TRACES[:1], TRACES[1:]))
    shorter = 0
    for v in both.problem.collectives:
        us, apart = both.problem.nodes[v].time_us, [one.problem.nodes[v].time_us for one in alone]
        assert us <= min(apart) + 1e-6
        shorter += us < max(apart)
    assert shorter == 41


@pytest.mark.private
def test_a_cost_of_traces_for_whoever_takes_one() -> None:
    graph = load_dump(GRAPHS[0]).gm
    cost = ProfileCost(*TRACES)
    with_cost, (with_profile, _) = lift(graph, cost=cost), lifted_with_profile(lift(graph), read_traces(TRACES))
    assert with_cost.problem == with_profile.problem
    assert with_cost.prices == with_profile.prices
    assert len(cost.profiles) == 1  # asked node by node, matched once


def test_nodes_predicted_to_be_in_the_kernel_of_another_are_found_where_they_run_apart(tmp_path: Path) -> None:
    b, x = Builder.of("x")
    relu = b.call("relu", ATEN.relu.default, b.call("exp", ATEN.exp.default, x))
    lifted = lift(b.done(relu))
    exp, last = 1, 2
    nodes = list(lifted.problem.nodes)
    nodes[exp] = nodes[exp]._replace(time_us=0.0)
    prices = list(lifted.prices)
    prices[exp], prices[last] = Price(0.0, "fusion", part_of="relu"), Price(2.0, "fusion", "kernel", "relu")
    lifted = replace(lifted, problem=replace(lifted.problem, nodes=tuple(nodes)), prices=tuple(prices))
    apart = [event("aten::exp", 0, 5, (4, 4)), event("aten::relu", 10, 7, (4, 4))]
    after, _ = lifted_with_profile(lifted, read_traces([write(tmp_path, apart)]))
    assert after.prices[exp : last + 1] == (Price(5.0, "profile"), Price(7.0, "profile"))
    together = [event("aten::relu", 0, 0.5, (9, 9)), event("triton_poi_fused_exp_relu_0", 10, 7)]
    together.append(event("aten::exp", 20, 1, (9, 9)))
    with pytest.raises(CostError):  # kernels alone do not tell which graph they are of
        lifted_with_profile(lifted, read_traces([write(tmp_path, together)]))


@pytest.mark.slow
def test_other_traces_are_another_entry_in_the_caches_of_torch() -> None:
    keys = [settings_key(Settings(cost=ProfileCost(*paths))) for paths in (TRACES, TRACES[:1], TRACES)]
    assert None not in keys
    assert keys[0] == keys[2] != keys[1]

    assert settings_key(Settings(cost=ProfileCost(TRACES[0], model=Roofline(A100)))) not in (None, keys[1])
    plain: Any = SimpleNamespace(compute_us=lambda work: 1.0, collective_us=lambda work: 1.0)
    assert settings_key(Settings(cost=ProfileCost(TRACES[0], model=plain))) is None


def test_a_graph_of_which_the_traces_have_nothing(tmp_path: Path) -> None:
    b, x = Builder.of("x")
    b.call("mm", ATEN.mm.default, x, x)
    gm = b.done(x)
    cost = ProfileCost(write(tmp_path, [event("aten::add", 0, 1, (4, 4), (4, 4))]))
    with pytest.warns(OverlapSchedWarning, match="a graph keeps its predicted times: "):
        lifted = lift(gm, cost=cost)
    assert lifted.problem == lift(gm).problem
    assert {price.source for price in lifted.prices} == {"roofline", "free"}
    assert cost.profiles == []


def test_shapes_of_lists_numbers_and_keywords() -> None:
    b, x, number = Builder.of("x", "number")
    number.meta["val"] = b.tensor()
    cat = b.call("cat", ATEN.cat.default, [x, x], 1)
    add = b.call("add", ATEN.add.Tensor, x, number)
    rand = b.call("sum", ATEN.sum.dim_IntList, add, [0], dtype=torch.float32)
    # the profiler writes a tensor without dimensions like a number
    assert [shapes_of(one) for one in (cat, add, rand, x)] == [((4, 4), (4, 4)), ((4, 4),), ((4, 4),), ()]
    kinds = {node.kind for node in lift(b.done(cat)).problem.nodes}
    assert kinds == {Kind.INPUT, Kind.COMPUTE, Kind.OUTPUT}
