"""Operations, bytes and times of nodes; process groups; what the user's callable may say."""

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch._higher_order_ops.effects import with_effects
from torch.testing._internal.distributed.fake_pg import FakeStore

from overlap_sched import cost
from overlap_sched.errors import CostError, OptionsError
from overlap_sched.fx import lift
from overlap_sched.fx.operators import traits_of
from overlap_sched.problem import Group, Node
from overlap_sched.scheduler.restrictions import clashes
from tests.fx.test_fx_hazards import Builder
from tests.support.fx_graphs import ATEN, C10D, gather, scatter, trace, wait


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
    assert found["copy_"].bytes == 32 + 32
    assert found["add_"].bytes == 32 + 32 + 32
    assert found["_foreach_add_"].bytes == 32


ATTENTION = 4 * 2 * 8 * 64 * 64 * 16  # b h s s d, two matmuls of 2 operations each


@pytest.mark.parametrize(
    ("op", "args", "flops"),
    [
        (ATEN._scaled_dot_product_flash_attention.default, "qkv", ATTENTION),
        (ATEN._scaled_dot_product_efficient_attention.default, "qkv", ATTENTION),
        (ATEN._scaled_dot_product_cudnn_attention.default, "qkv", ATTENTION),
        (ATEN._scaled_dot_product_flash_attention_for_cpu.default, "qkv", ATTENTION),
        (ATEN._scaled_dot_product_flash_attention_backward.default, "gqkv", ATTENTION * 5 // 2),
        (ATEN._scaled_dot_product_flash_attention_for_cpu_backward.default, "gqkv", ATTENTION * 5 // 2),
        (ATEN._scaled_dot_product_cudnn_attention_backward.default, "gqkv", ATTENTION * 5 // 2),
    ],
    ids=lambda p: getattr(p, "__name__", str(p)),
)
def test_attention(op: Any, args: str, flops: int) -> None:
    b = Builder()
    inputs = [b.input(name) for name in args]
    for node in inputs:
        node.meta["val"] = b.tensor(2, 8, 64, 16)
    b.call("attention", op, *inputs, val=b.tensor(2, 8, 64, 16))
    assert nodes(b.done(inputs[0]))["attention"].flops == flops


@pytest.mark.parametrize(
    ("a", "b", "flops"),
    [
        ((4160, 2048), (8, 2048, 1408), 23991418880),  # the shared dsv3 graph's
        ((2048, 4160), (4160, 1408), 23991418880),
        ((8, 2048, 16), (16, 100), 2 * 2048 * 16 * 100),
        ((8, 4, 16), (8, 16, 32), 2 * 8 * 4 * 16 * 32),
    ],
)
def test_grouped_matmul(a: tuple[int, ...], b: tuple[int, ...], flops: int) -> None:
    builder = Builder()
    x, y = builder.input("x"), builder.input("y")
    x.meta["val"], y.meta["val"] = builder.tensor(*a), builder.tensor(*b)
    builder.call("mm", ATEN._grouped_mm.default, x, y)
    assert nodes(builder.done(x))["mm"].flops == flops


def test_a_formula_that_fails_counts_nothing_and_is_noted() -> None:
    b = Builder()
    x = b.input("x")
    b.call("wrong", ATEN.bmm.default, x, x)  # 2-d: torch's formula cannot unpack it
    lifted = lift(b.done(x))
    assert lifted.notes["flops_failed"] == 1
    assert lifted.problem.nodes[1].flops == 0


def test_convolution_flags_are_part_of_its_shape() -> None:
    def f(x: Tensor, w: Tensor) -> Any:
        conv = torch.ops.aten.convolution.default
        one = conv(x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        two = conv(x, w, None, [2, 2], [0, 0], [1, 1], False, [0, 0], 1)
        return one, two

    found = nodes(trace(f, (1, 3, 9, 9), (4, 3, 3, 3)))
    assert found["convolution"].flops == 2 * 4 * 3 * 9 * 7 * 7
    assert found["convolution_1"].flops == 2 * 4 * 3 * 9 * 4 * 4


def test_symbolic_sizes_count_by_their_hints() -> None:
    gm = torch.fx.experimental.proxy_tensor.make_fx(lambda x: (x @ x.t()) * 2, tracing_mode="symbolic")(
        torch.ones(6, 5)
    )
    mm = next(n for n in lift(gm).problem.nodes if n.op == "aten.mm.default")
    assert (mm.flops, mm.bytes) == (2 * 6 * 5 * 6, 4 * (30 + 30 + 36))
    assert lift(gm).problem.storages[0].bytes == 120


def test_sizes_that_depend_on_data_have_a_default() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    env = ShapeEnv(allow_dynamic_output_shape_ops=True)
    with torch._subclasses.FakeTensorMode(shape_env=env):
        x = torch.empty(10)
        gm = torch.fx.experimental.proxy_tensor.make_fx(lambda x: x.nonzero() * 2, tracing_mode="symbolic")(x)
    lifted = lift(gm)
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
    gm = trace(lambda x: (x @ x,), (4, 4))
    with pytest.raises(CostError) as error:
        lift(gm, cost=lambda node: time)
    assert str(error.value) == (
        f"cost() returned {time!r} for node 'mm'. Return microseconds, 0 or more, or None to use the cost model."
    )


def test_another_model() -> None:
    gm = trace(lambda x: (wait(gather(x)) @ x.t(),), (512, 4))
    slow = cost.Network(cost.Link(12.0, 1e9), cost.Link(30.0, 1e9))
    found = nodes(gm, model=cost.Roofline(cost.XEON_8480, slow))
    assert found["all_gather_into_tensor"].time_us == 12.0 + 2 * 512 * 4 * 4 / 2 / 1e9 * 1e6
    assert found["mm"].time_us > nodes(gm)["mm"].time_us


def test_names_that_are_no_inputs() -> None:
    gm = trace(lambda x, y: (x @ y,), (4, 4), (4, 4))
    with pytest.raises(OptionsError) as error:
        lift(gm, parameters=["x_1", "y"])
    assert str(error.value) == (
        "parameters names 'y', which is not an input of the graph (did you mean 'y_1'?). "
        "Give names of placeholder nodes, or a function of them."
    )


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
    gm.meta["overlap_sched_groups"] = {"alone": (16, None), "tp": (8, (0, 8, 16, 24, 32, 40, 48, 56))}
    ranks = (0, 8, 16, 24, 32, 40, 48, 56)
    assert lift(gm).problem.groups == {"tp": Group(8, False, 8, ranks), "alone": Group(16, False, 2)}
    assert lift(gm.graph, groups={"alone": Group(4, True)}).problem.groups["alone"] == Group(4, True)


def test_group_sizes_from_values_where_the_operator_does_not_say() -> None:
    importlib.import_module("torch.distributed._symmetric_memory")  # registers the operator, in some versions
    b = Builder()
    x = b.input("x")
    op = torch.ops.symm_mem._low_contention_all_gather.default
    b.call("gather", op, x, "ring", val=b.tensor(16, 4))
    assert lift(b.done(x)).problem.groups == {"ring": Group(4, True)}


def test_collectives_of_the_older_namespace_name_their_ranks() -> None:
    b = Builder()
    x = b.input("x")
    op = torch.ops.c10d_functional.all_reduce.default
    b.call("reduce", op, x, "sum", "", [0, 8, 16, 24], 4)
    problem = lift(b.done(x)).problem
    assert problem.groups == {":[0, 8, 16, 24]": Group(4, False, 4, (0, 8, 16, 24))}  # one rank on each node


def test_a_group_that_the_graph_looks_up() -> None:
    class ProcessGroup:
        group_name = "dp"

    b = Builder()
    x, group = b.input("x"), b.input("group")
    group.meta["val"] = ProcessGroup()
    b.call("gather", C10D.all_gather_into_tensor.default, x, 4, group, val=b.tensor(16, 4))
    problem = lift(b.done(x)).problem
    assert problem.nodes[2].group == "dp"
    assert problem.groups == {"dp": Group(4, True)}


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
    b = Builder()
    x = b.input("x")
    b.call("shuffle", torch.ops._dtensor.shard_dim_alltoall.default, x, 0, 1, "tp")
    node = lift(b.done(x), groups={"tp": Group(2, True)}).problem.nodes[1]
    assert (node.kind, node.group) == ("compute", None)
    assert node.time_us == 12.0 + 64 / 2 / 370e9 * 1e6


CE_MULTICAST = "_low_contention_all_gather_ce_multicast"


@pytest.mark.parametrize("name", [CE_MULTICAST, f"{CE_MULTICAST}_out"])
def test_copies_by_multicast_run_on_the_stream_that_calls_them(name: str) -> None:
    importlib.import_module("torch.distributed._symmetric_memory")
    if not hasattr(torch.ops.symm_mem, name):
        pytest.skip(f"torch {torch.__version__} has no symm_mem.{name}")
    b = Builder()
    x, out = b.input("x"), b.input("out")
    out.meta["val"] = b.tensor(16, 4)
    with_out = name.endswith("_out")
    arguments = (x, "ring", out) if with_out else (x, "ring")
    b.call("gather", getattr(torch.ops.symm_mem, name).default, *arguments, val=out.meta["val"] if with_out else None)
    b.call("print", ATEN._print.default, "hello", val=())
    lifted = lift(b.done(x), groups={"ring": Group(4, True)})
    node = lifted.problem.nodes[2]
    nbytes = 4 * 16 * 4 if with_out else 4 * 16
    assert (node.kind, node.group, node.bytes) == ("compute", None, nbytes)
    assert node.time_us == pytest.approx(12.0 + nbytes * 3 / 4 / 370e9 * 1e6)
    assert 2 in lifted.problem.nodes[3].deps  # it writes into other ranks' memory: an effect


@pytest.fixture
def configured() -> Iterator[Any]:
    """A collective of the family that we do not know, as later versions of torch will have them."""
    library = torch.library.Library("_c10d_functional", "FRAGMENT")
    library.define("all_reduce_configured(Tensor input, str reduce_op, str group_name, int ctas) -> Tensor")
    yield torch.ops._c10d_functional.all_reduce_configured.default
    library._destroy()


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_collective_that_is_not_known_is_one_that_blocks(configured: Any, wrapped: bool) -> None:
    b = Builder()
    token, x = b.input("token"), b.input("x")
    token.meta["val"] = b.tensor(0)
    if wrapped:
        val = (b.tensor(0), b.tensor(4, 4))
        b.call("reduce", with_effects, token, configured, x, "sum", "tp", 4, val=val)
    else:
        b.call("reduce", configured, x, "sum", "tp", 4)
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


def test_embeddings_and_gathers_read_the_rows_that_they_give() -> None:
    builder = Builder()
    table, tokens = builder.input("table"), builder.input("tokens")
    table.meta["val"] = builder.tensor(1000, 16)
    tokens.meta["val"] = builder.tensor(2, 4).long()
    rows = 4 * 8 * 16
    for name, op, args in (
        ("embedding", ATEN.embedding.default, (table, tokens)),
        ("index_select", ATEN.index_select.default, (table, 0, tokens)),
        ("index", ATEN.index.Tensor, (table, [tokens])),
        ("gather", ATEN.gather.default, (table, 0, tokens)),
    ):
        builder.call(name, op, *args, val=builder.tensor(2, 4, 16))
    few = builder.call("few", ATEN.embedding.default, table, tokens, val=builder.tensor(4000, 16))
    gradient = builder.call(
        "gradient", ATEN.embedding_dense_backward.default, few, tokens, 1000, -1, False, val=builder.tensor(1000, 16)
    )
    found = nodes(builder.done(gradient))
    for name in ("embedding", "index_select", "index", "gather"):
        assert found[name].bytes == 2 * rows + 64, name
    assert found["few"].bytes == 4 * 1000 * 16 + 64 + 4 * 4000 * 16  # never more than the whole table
    assert found["gradient"].bytes == 4 * 4000 * 16 + 64 + 4 * 1000 * 16  # all of it is written: zeros


@pytest.mark.parametrize(
    ("op", "args", "touched"),
    [
        (ATEN.index_put_.default, ("table", ["tokens"], "values"), 1),
        (ATEN.index_put_.default, ("table", ["tokens"], "values", True), 2),
        (ATEN.index_copy_.default, ("table", 0, "tokens", "values"), 1),
        (ATEN.index_add_.default, ("table", 0, "tokens", "values"), 2),
        (ATEN.scatter_.src, ("table", 0, "tokens", "values"), 1),
        (ATEN.scatter_add_.default, ("table", 0, "tokens", "values"), 2),
        (ATEN.index_put_.default, ("table", ["tokens"], "number"), None),
    ],
    ids=lambda p: str(p) if isinstance(p, int) or p is None else None,
)
def test_scatters_in_place_touch_the_rows_that_they_write(op: Any, args: Any, touched: int | None) -> None:
    builder = Builder()
    values = {name: builder.input(name) for name in ("table", "tokens", "values", "number")}
    values["table"].meta["val"] = builder.tensor(1000, 16)
    values["tokens"].meta["val"] = builder.tensor(8).long()
    values["values"].meta["val"] = builder.tensor(8, 16)
    values["number"].meta["val"] = builder.tensor()
    args = [[values[a[0]]] if isinstance(a, list) else values.get(a, a) for a in args]
    builder.call("put", op, *args, val=values["table"].meta["val"])
    found = nodes(builder.done(values["table"]))["put"]
    if touched is None:  # one number, for nobody knows how many rows
        assert found.bytes == 2 * 64000 + 64 + 4
    else:
        assert found.bytes == 512 + 64 + touched * 512
