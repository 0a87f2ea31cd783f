"""What real dumps hold and a CPU cannot trace: CUDA tensors, their attention, Triton kernels, unknown operators.

And sizes of experts that contradict each other in one file: what is taken instead.
"""
# ruff: noqa: E501 - the text of dumps has long lines

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from overlap_sched.cost.placement import Facts
from overlap_sched.dump import sizes_to_give
from overlap_sched.dump.graph import UnknownOp
from overlap_sched.dump.groups import stand_ins
from overlap_sched.dump.load import Dump, load_dump
from overlap_sched.dump.values import Opaque
from overlap_sched.errors import DumpError
from overlap_sched.fx.lifting import carried_facts, lift
from overlap_sched.report.words.graph import AssumedSize
from tests.support.dump_graphs import handwritten, loaded, values


def read(folder: Path, text: str, **options: Any) -> tuple[Dump, dict[str, Any]]:
    """A dump of this text, and its values."""
    dump = loaded(folder, text, **options)
    return dump, values(dump)


def test_tensors_stay_on_the_device_of_the_dump_and_views_share_storages(tmp_path: Path) -> None:
    body = """
t = torch.ops.aten.t.default(x)
view = torch.ops.aten.view.default(t, [4, 2, 4])
mul = torch.ops.aten.mul_.Tensor(x, 2)
_to_copy = torch.ops.aten._to_copy.default(x, device = device(type='cpu'))
seeds = torch.ops.prims.inductor_seeds.default(2, device(type='cuda', index=0))
seed = torch.ops.prims.inductor_lookup_seed.default(seeds, 1)
random = torch.ops.prims.inductor_random.default([3, 2], seed, 'rand')
index = torch.ops.aten.index.Tensor(x, [mask]);  mask = None
return (view, mul, _to_copy, random, index)
"""
    dump, val = read(tmp_path, handwritten(body, [("x", "bfloat16 4 8"), ("mask", "bool 4")]))
    assert {str(v.device) for name, v in val.items() if isinstance(v, torch.Tensor)} == {"cuda:0", "cpu"}
    assert val["_to_copy"].device.type == "cpu"
    assert val["random"].device == val["seed"].device == torch.device("cuda:0")
    storage = val["x"].untyped_storage()._cdata
    same = {name for name in ("t", "mul", "_to_copy", "index") if val[name].untyped_storage()._cdata == storage}
    assert same == {"t", "mul"}
    assert val["index"].shape[1] == 8
    assert set(dump.notes) == {"data-dependent sizes, taken as 8192"}


@pytest.mark.parametrize(
    "call",
    [
        "_scaled_dot_product_flash_attention.default(q, q, q, 0.0, True, scale = 0.125)",
        "_scaled_dot_product_cudnn_attention.default(q, q, q, None, True, 0.0, True)",
        "_scaled_dot_product_efficient_attention.default(q, q, q, None, True, 0.0, True)",
    ],
)
def test_attention_of_a_gpu(tmp_path: Path, call: str) -> None:
    body = f"attention = torch.ops.aten.{call}\ngetitem = attention[0]\nreturn (getitem,)"
    _, val = read(tmp_path, handwritten(body, [("q", "bfloat16 2 8 128 64")]))
    assert (val["getitem"].shape, val["getitem"].device) == ((2, 8, 128, 64), torch.device("cuda:0"))


FLEX = """
score = self.score
mask = self.mask
flex_attention = torch.ops.higher_order.flex_attention(q, k, v, score, (64, 64, b, b, None, None, 128, 128, mask), 0.1, {'BACKEND': 'AUTO', 'WRITE_DQ': True}, (bias,), ());  score = None
out = flex_attention[0]
lse = flex_attention[1];  flex_attention = None
fw_graph0 = self.fw_graph0
joint_graph0 = self.joint_graph0
back = torch.ops.higher_order.flex_attention_backward(q, k, v, out, lse, out, None, fw_graph0, joint_graph0, (64, 64, b, b, None, None, 128, 128, mask), 0.1, {'BACKEND': 'AUTO'}, (bias,), ())
dq = back[0]
dk = back[1]
dv = back[2]
captured = back[3];  back = None
dbias = captured[0];  captured = None
return (out, lse, dq, dk, dv, dbias)
"""


def test_flex_attention_with_opaque_submodules(tmp_path: Path) -> None:
    init = "self.score = <lambda>()\nself.mask = lambda b, h, m, n, *args: True\nself.fw_graph0 = GraphModule(\n  (x): <lambda>()\n)\n"
    shapes = ("bfloat16 2 4 64 24", "bfloat16 2 2 64 24", "bfloat16 2 2 64 16", "int32 1", "float32 4")
    inputs = list(zip(("q", "k", "v", "b", "bias"), shapes, strict=True))
    dump, val = read(tmp_path, handwritten(FLEX, inputs, init=init))
    shapes = [tuple(val[name].shape) for name in ("out", "lse", "dq", "dk", "dv", "dbias")]
    assert shapes == [(2, 4, 64, 16), (2, 4, 64), (2, 4, 64, 24), (2, 2, 64, 24), (2, 2, 64, 16), (4,)]
    assert val["lse"].dtype == torch.float32
    assert all(isinstance(one, Opaque) for one in (dump.gm.score, dump.gm.joint_graph0))
    assert val["score"] is None


def test_triton_kernels_return_what_they_are_given(tmp_path: Path) -> None:
    body = """
t = torch.ops.aten.t.default(x)
proxy = torch.ops.higher_order.triton_kernel_wrapper_functional(kernel_idx = 0, constant_args_idx = 0, grid = [(8, 1, 1)], tma_descriptor_metadata = {}, kwargs = {'in_ptr': x, 'out_ptr': t}, tensors_to_clone = ['out_ptr'])
getitem = proxy['out_ptr'];  proxy = None
mutation = torch.ops.higher_order.triton_kernel_wrapper_mutation(kernel_idx = 0, constant_args_idx = 0, grid = [(8, 1, 1)], tma_descriptor_metadata = {}, kwargs = {'in_ptr': x, 'out_ptr': getitem});  mutation = None
return (getitem,)
"""
    val = values(loaded(tmp_path, handwritten(body, [("x", "float32 4 8")])))
    assert (val["getitem"].shape, val["getitem"].stride()) == ((8, 4), (1, 8))
    assert val["getitem"].untyped_storage()._cdata != val["x"].untyped_storage()._cdata
    assert val["mutation"] is None


def test_backward_of_experts_with_sizes_that_have_no_hint(tmp_path: Path) -> None:
    rows = "8*((u0 + u1 + 15)//8)"
    inputs = [
        ("u_a", "reader.symint(None, expr='u0')"),
        ("u_b", "reader.symint(None, expr='u1')"),
        ("old", "reader.symint(None)  # torch 2.11 writes no name"),
        (
            "saved",
            f"buf2 = reader.storage(None, 32*(({rows})), device=device(type='cuda', index=0))\nreader.tensor(buf2, ({rows}, 8), is_leaf=True)",
        ),
        ("grad", "float32 96 8"),
        ("which", "int64 96"),
    ]
    body = """
index = torch.ops.aten.index.Tensor(grad, [which])
all_to_all_single = torch.ops._c10d_functional.all_to_all_single.default(index, [u_b, u_a], [u_a, old], '7')
wait_tensor = torch.ops._c10d_functional.wait_tensor.default(all_to_all_single)
add = u_a + u_b
slice_1 = torch.ops.aten.slice.Tensor(saved, 0, 0, add)
mul = torch.ops.aten.mul.Tensor(slice_1, wait_tensor)
return (mul, None, saved)
"""
    dump, val = read(tmp_path, handwritten(body, inputs))
    assert val["u_a"] == val["old"] == 48
    assert val["saved"].shape == (8 * (111 // 8), 8)
    assert val["mul"].shape == (96, 8)
    assert dump.groups == {"7": (2, None)}
    assert set(dump.notes) == {"data-dependent sizes, taken as 48"}
    told = load_dump(tmp_path / "dump.py", sizes={"u0": 40, "u1": 56, "old": 56})
    assert values(told)["saved"].shape == (8 * (111 // 8), 8)
    assert told.notes == ()


def test_a_guessed_size_that_does_not_fit_is_noted_and_not_fatal(tmp_path: Path) -> None:
    body = """
item = torch.ops.aten._local_scalar_dense.default(n)
ge = item >= 10000
_assert_scalar = torch.ops.aten._assert_scalar.default(ge, "no");  ge = _assert_scalar = None
empty = torch.ops.aten.empty.memory_format([item, 4], device = device(type='cuda', index=0))
add = torch.ops.aten.add.Tensor(empty, x)
view = torch.ops.aten.view.default(add, [5, 4])
return (add, view)
"""
    dump = loaded(tmp_path, handwritten(body, [("x", "float32 7 4"), ("n", "int64 1")]))
    assert (values(dump)["add"].shape, values(dump)["view"].shape) == ((10_000, 4), (5, 4))
    assert set(dump.notes) == {
        "results that did not fit a data-dependent size: shaped like their largest input",
        "data-dependent sizes, taken as 10000",
    }


def test_operators_unknown_to_this_torch_follow_their_annotations(tmp_path: Path) -> None:
    body = """
proj: "bf16[16, 4][1, 16]cuda:0" = torch.ops.my_kernels.proj.default(x, 3);  x = None
set_ = torch.ops.my_kernels.set_.default(proj);  set_ = None
pair = torch.ops.my_kernels.pair.default(proj)
left: "f32[2, 2]" = pair[0]
right: "f32[s0]" = pair[1];  pair = None
return [left, right, proj]
"""
    dump, val = read(
        tmp_path, handwritten(body, [("x", "bfloat16 8 4")], head="s0 = 6\n"), sizes={"pair": 6, "right": 6}
    )
    assert (val["proj"].shape, val["proj"].stride(), val["proj"].dtype) == ((16, 4), (1, 16), torch.bfloat16)
    assert val["right"].shape == (6,)
    assert val["left"].device == torch.device("cuda:0")
    target = next(node.target for node in dump.gm.graph.nodes if node.name == "proj")
    assert isinstance(target, UnknownOp)
    assert target.__name__ == "my_kernels.proj.default"
    assert set(dump.notes) == {"results whose shape was taken from the printed annotation"}


def test_where_this_torch_gives_another_shape_or_type_the_file_is_right(tmp_path: Path) -> None:
    """torch's own bucketing operators take other arguments in 2.15 than in 2.13: a dump is of the torch that wrote it."""
    with torch.library._scoped_library("overlap_sched_test", "FRAGMENT") as library:
        library.define("twin(Tensor x) -> Tensor")
        library.impl("twin", torch.empty_like, "Meta")
        body = """
same: "bf16[8, 4]cpu" = torch.ops.overlap_sched_test.twin.default(x)
wider: "f32[8, 4]cpu" = torch.ops.overlap_sched_test.twin.default(x)
longer: "bf16[16, 4]cpu" = torch.ops.overlap_sched_test.twin.default(x);  x = None
return [same, wider, longer]
"""
        dump, val = read(tmp_path, handwritten(body, [("x", "bfloat16 8 4")]))
    assert (val["wider"].dtype, val["longer"].shape) == (torch.float32, (16, 4))
    assert (val["same"].dtype, val["same"].shape) == (torch.bfloat16, (8, 4))
    assert set(dump.notes) == {"results whose shape is another in this torch: taken from the printed annotation"}


def test_a_wait_of_several_is_one_whatever_torch_reads_it(tmp_path: Path) -> None:
    """``wait_tensors`` is new in torch 2.15; dumps that hold it are read by all versions."""
    body = """
gather = torch.ops._c10d_functional.all_gather_into_tensor_coalesced.default([x, y], 2, '7')
one = gather[0]
other = gather[1];  gather = None
wait = torch.ops._c10d_functional.wait_tensors.default([one, other]);  one = other = None
left = wait[0]
right = wait[1];  wait = None
mm = torch.ops.aten.mm.default(left, right)
return (mm,)
"""
    dump = loaded(tmp_path, handwritten(body, [("x", "float32 8 16"), ("y", "float32 8 8")]))
    assert values(dump)["left"].shape == (16, 16)
    lifted = lift(dump.gm)
    found = {node.name: node for node in lifted.problem.nodes}
    assert (found["wait"].kind, found["wait"].collective) == ("wait", lifted.problem.collectives[0])
    assert found["left"].use == found["gather"].alloc  # the collective's own storages
    assert lifted.notes == {}


def test_collectives_in_bodies_have_groups_shapes_and_prices(tmp_path: Path) -> None:
    """In every branch, in a loop, and in a region of local shards."""
    nested = "".join(
        f"""
class {name}(torch.nn.Module):
    def forward(self, a: "f32[4, 4]"):
        all_reduce = torch.ops._c10d_functional.all_reduce.default(a, 'sum', '{group}')
        wait_tensor = torch.ops._c10d_functional.wait_tensor.default(all_reduce);  all_reduce = None
        return (wait_tensor,)
"""
        for name, group in (("one", "1"), ("two", "2"), ("three", "3"), ("four", "4"))
    )
    body = """
one = self.one;  two = self.two;  three = self.three;  four = self.four
branch = torch.ops.higher_order.cond(flag, one, two, [x])
got: "f32[4, 4]" = branch[0]
region = torch.ops.higher_order.local_map_hop(three, got)
more: "f32[4, 4]" = region[0]
loop = torch.ops.higher_order.while_loop(four, four, (more,), ())
last = loop[0]
return (last,)
""".replace(";  ", "\n")
    text = handwritten(body, [("x", "float32 4 4"), ("flag", "bool")], nested=nested)
    with pytest.raises(DumpError, match="Its groups are '1', '2', '3', '4'"):
        loaded(tmp_path, text, groups={"5": 8})
    dump = loaded(tmp_path, text, groups=dict.fromkeys("1234", 8))
    nodes = {node.name: node for node in lift(dump.gm).problem.nodes}
    alone = {"branch": ("1", "2"), "region": ("3",), "loop": ("4",)}
    assert {name: nodes[name].launches for name in alone} == alone
    assert min(nodes[name].time_us for name in alone) > 10.0
    assert {group.size for group in lift(dump.gm).problem.groups.values()} == {8}
    inner = [node for module in dump.gm.children() for node in module.graph.nodes]
    assert len(inner) == 16
    assert all("val" in node.meta for node in inner if node.op != "output")


def test_constants_of_every_printed_form(tmp_path: Path) -> None:
    init = """
self.register_buffer('a', tensor([[1., 2.],
        [3., nan]], device='cuda:0', dtype=torch.float16))
self.register_buffer('b', torch.randn([8, 2], dtype=torch.bfloat16).to("cuda:0"))
self.register_buffer('c', torch.randint(1, size=[3], dtype=torch.int64))
self.d = torch.nn.Parameter(torch.randn([4], dtype=torch.float32, device="cuda:0"))
self.register_buffer('e', tensor(True))
self._tensor_constant0 = torch.empty([2, 2], dtype=torch.int32)
self.register_buffer('f', tensor([], size=(0, 3)))
"""
    names = ["a", "b", "c", "d", "e", "_tensor_constant0", "f"]
    body = "\n".join(f"n{i} = self.{name}" for i, name in enumerate(names)) + "\nreturn (n0,)"
    val = values(loaded(tmp_path, handwritten(body, [], init=init)))
    found = [val[f"n{i}"] for i in range(7)]
    assert [tuple(one.shape) for one in found] == [(2, 2), (8, 2), (3,), (4,), (), (2, 2), (0, 3)]
    types = ["float16", "bfloat16", "int64", "float32", "bool", "int32", "float32"]
    assert [str(one.dtype) for one in found] == [f"torch.{name}" for name in types]
    assert [one.device.type for one in found] == ["cuda", "cuda", "cpu", "cuda", "cpu", "cpu", "cpu"]


def test_groups_come_from_the_caller_the_file_or_the_call(tmp_path: Path) -> None:
    body = """
a = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 64, '0')
b = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '513')
c = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '7')
d = torch.ops._dtensor.shard_dim_alltoall.default(x, 0, 1, '513')
return (a, b, c, d)
"""
    named = "{'0': {'size': 64, 'rank': 3}, '513': {'size': 8, 'rank': 0}}"
    text = handwritten(body, [("x", "float32 8 8")], groups=named)
    with patch("overlap_sched.dump.load.stand_ins", wraps=stand_ins) as found_by_name:
        dump = loaded(tmp_path, text, groups={"7": [1, 9, 17]})
    assert list(found_by_name.call_args.args[0]) == ["513"]  # of the others, fake kernels need none
    assert dump.groups == {"0": (64, None), "513": (8, None), "7": (3, (1, 9, 17))}
    assert values(dump)["d"].shape == (64, 1)
    facts = {"0": Facts(64), "513": Facts(8), "7": Facts(3, (1, 9, 17))}
    assert carried_facts(dump.gm.graph) == facts
    guessed = load_dump(tmp_path / "dump.py")
    assert guessed.groups["7"] == (64, None)
    assert set(guessed.notes) == {"process group '7': size not known, taken as 64, the largest one named"}


def test_a_storage_that_the_job_has_freed_stays_empty(tmp_path: Path) -> None:
    line = "buf0 = reader.storage(None, 0, device=device(type='cuda', index=0))\nreader.tensor(buf0, (4, 4))"
    val = values(loaded(tmp_path, handwritten("return (x,)", [("x", line)])))
    assert val["x"].shape == (4, 4)
    assert val["x"].untyped_storage().nbytes() == 0


def test_sizes_that_a_person_has_filled_in_and_groups_in_a_function(tmp_path: Path) -> None:
    """As in the public dumps of meta-pytorch/autoparallel: torch knew no hint, and the main block is gone."""
    body = """
all_to_all_single = torch.ops._c10d_functional.all_to_all_single.default(x, [a, b], [b, a], '521')
wait_tensor = torch.ops._c10d_functional.wait_tensor.default(all_to_all_single);  all_to_all_single = None
all_reduce = torch.ops._c10d_functional.all_reduce.default(saved, 'sum', '513')
return (wait_tensor, all_reduce)
"""
    saved = "buf1 = reader.storage(None, 64*((u8 + u9 + s0)//8))\nreader.tensor(buf1, (8*((u8 + u9 + s0)//8), 2))"
    inputs = [
        ("a", "# tokens of each expert\nu8 = u9 = 512\nreader.symint(512)  # a"),
        ("b", "reader.symint(512)"),
        ("x", "float32 1024 2"),
        ("saved", saved),
    ]
    config = "\ndef get_pg_config():\n    return {'521': {'size': 2, 'rank': 0}, '513': {'size': 8}}\n"
    dump, val = read(tmp_path, handwritten(body, inputs, head="s0 = s1 = 71\n") + config)
    assert val["saved"].shape == val["all_reduce"].shape == (8 * (1095 // 8), 2)
    assert val["wait_tensor"].shape == (1024, 2)
    assert dump.groups == {"521": (2, None), "513": (8, None)}
    assert dump.notes == ()


def test_integers_without_their_symbols(tmp_path: Path) -> None:
    """As torch wrote them up to 2.11: in front of the first tensor that has the symbol."""
    body = "add = torch.ops.aten.add.Tensor(x, b)\nreturn (add,)"
    inputs = [
        ("a", "reader.symint(3)"),
        ("b", "reader.symint(500)"),
        ("x", "buf0 = reader.storage(None, 4*s0*s27)\nreader.tensor(buf0, (s0, 1, s27))"),
        ("c", "reader.symint(7)"),
        ("y", "buf1 = reader.storage(None, 16*s4*s0)\nreader.tensor(buf1, (s4, 4, s0))"),
    ]
    dump = loaded(tmp_path, handwritten(body, inputs))
    assert (values(dump)["x"].shape, values(dump)["y"].shape) == ((3, 1, 500), (7, 4, 3))
    assert set(dump.notes) == {"symbols that the file does not define, taken from its inputs' integers, in order"}


@pytest.mark.parametrize(
    ("rest", "body_of_rest", "taken", "sizes"),
    [
        ("sub, 4", "sub = sym_size - item", 0, {"part": (0, 4), "rest": (64, 4)}),
        ("item, 4", "sub = sym_size + item", 64, {"part": (64, 4), "rest": (64, 4)}),
    ],
    ids=["what is left is largest without a part", "two parts"],
)
def test_a_size_is_what_asserts_admit_and_makes_most_bytes(
    tmp_path: Path, rest: str, body_of_rest: str, taken: int, sizes: dict[str, tuple[int, ...]]
) -> None:
    body = f"""
item = torch.ops.aten._local_scalar_dense.default(n)
ge = item >= 0
_assert_scalar = torch.ops.aten._assert_scalar.default(ge, "no");  ge = _assert_scalar = None
sym_size = torch.ops.aten.sym_size.int(x, 0)
le = item <= sym_size
_assert_scalar_1 = torch.ops.aten._assert_scalar.default(le, "no");  le = _assert_scalar_1 = None
{body_of_rest}
part = torch.ops.aten.empty.memory_format([item, 4], device = device(type='cuda', index=0))
rest = torch.ops.aten.empty.memory_format([{rest}], device = device(type='cuda', index=0))
wide = torch.ops.aten.cat.default([rest, rest])
return (part, rest, wide)
"""
    dump = loaded(tmp_path, handwritten(body, [("x", "float32 64 4"), ("n", "int64 1")]))
    assert {name: values(dump)[name].shape for name in sizes} == sizes
    assert set(dump.notes) == {f"data-dependent sizes, taken as {taken}"}
    assert lift(dump.gm).sizes == (AssumedSize("item", "", taken, False),)
    given = load_dump(tmp_path / "dump.py", sizes={"item": 16})
    assert values(given)["part"].shape == (16, 4)
    assert lift(given.gm).sizes == ()


def test_sizes_that_are_asserted_together_fit_together(tmp_path: Path) -> None:
    body = """
first = torch.ops.aten._local_scalar_dense.default(n)
second = torch.ops.aten._local_scalar_dense.default(n)
third = torch.ops.aten._local_scalar_dense.default(n)
sym_constrain_range_for_size = torch.ops.aten.sym_constrain_range_for_size.default(first);  sym_constrain_range_for_size = None
sym_constrain_range = torch.ops.aten.sym_constrain_range.default(second, min = 2, max = 40);  sym_constrain_range = None
add = first + second
eq = add == 64
_assert_scalar = torch.ops.aten._assert_scalar.default(eq, "no");  eq = _assert_scalar = None
split = torch.ops.aten.split_with_sizes.default(x, [first, second])
getitem = split[0];  split = None
empty = torch.ops.aten.empty.memory_format([third, 4], device = device(type='cpu'))
return (getitem, empty)
"""
    _, val = read(tmp_path, handwritten(body, [("x", "float32 64 4"), ("n", "int64 1")]))
    assert val["first"] + val["second"] == 64
    assert 2 <= val["second"] <= 40
    assert val["third"] == 8192  # nothing limits it


def test_asserts_on_sizes_among_the_inputs(tmp_path: Path) -> None:
    body = """
le = u_a <= 100
_assert_scalar = torch.ops.aten._assert_scalar.default(le, "no");  le = _assert_scalar = None
sym_size = torch.ops.aten.sym_size.int(x, 1)
ge = old >= sym_size
_assert_scalar_1 = torch.ops.aten._assert_scalar.default(ge, "no");  ge = _assert_scalar_1 = None
empty = torch.ops.aten.empty.memory_format([u_a, old], device = device(type='cpu'))
return (empty,)
"""
    inputs = [("u_a", "reader.symint(None, expr='u0')"), ("old", "reader.symint(None)"), ("x", "float32 4 10000")]
    dump = loaded(tmp_path, handwritten(body, inputs))
    assert values(dump)["empty"].shape == (100, 10_000)
    assert dump.guessed == {"u0": 100, "old": 10_000}


EXCHANGES = """
index = torch.ops.aten.index.Tensor(grad, [which])
there = torch.ops._c10d_functional.all_to_all_single.default(index, [a, b], [c, d], '7')
wait_tensor = torch.ops._c10d_functional.wait_tensor.default(there);  there = None
full = torch.ops.aten.full.default([rows, 8], 0, dtype = torch.float32, device = device(type='cpu'))
index_put = torch.ops.aten.index_put.default(full, [which], wait_tensor, True)
slice_1 = torch.ops.aten.slice.Tensor(index_put, 0, 0, some)
back = torch.ops._c10d_functional.all_to_all_single.default(slice_1, [c, d], [a, b], '7')
wait_tensor_1 = torch.ops._c10d_functional.wait_tensor.default(back);  back = None
return (wait_tensor_1, saved)
"""
FITTING = EXCHANGES.replace("[rows, 8]", "[96, 8]").replace(", some)", ", 96)")
CONFIG = "\ndef get_pg_config():\n    return {'7': {'size': 2, 'rank': 0}}\n"


def experts_of(hint: int, body: str = EXCHANGES) -> str:
    """A backward graph of two ranks whose all_to_all sends 96 rows; every size in the file is ``hint``."""
    saved = "buf9 = reader.storage(None, 32*(u0 + u1))\nreader.tensor(buf9, (u0 + u1, 8))"
    inputs = [
        ("a", f"u0 = u1 = {hint}\nreader.symint({hint})"),
        *((name, f"reader.symint({hint})") for name in ("b", "c", "d", "rows", "some")),
        *(("grad", "float32 96 8"), ("which", "int64 96"), ("saved", saved)),
    ]
    return handwritten(body, inputs) + CONFIG


def test_experts_are_balanced_where_the_file_contradicts_itself(tmp_path: Path) -> None:
    dump, val = read(tmp_path, experts_of(hint=4))
    assert {val[name] for name in "abcd"} == {48}
    assert (val["rows"], val["some"]) == (96, 96)  # what is sent back, and what it is cut from
    assert val["there"].shape == val["slice_1"].shape == val["back"].shape == (96, 8)
    assert val["saved"].shape == (96, 8)  # the symbols in other inputs mean the same
    assert "to give your own: --size u0=48 and so on for u1" in dump.notes[0]
    assert dump.notes[1:] == tuple(f"data-dependent sizes, taken as {n}" for n in (48, 96))
    assert sizes_to_give(dump.guessed)[0].endswith("--size u0=48 (also u1, a, b and 4 more)")


def test_sizes_that_fit_are_left_alone(tmp_path: Path) -> None:
    dump = loaded(tmp_path, experts_of(48, FITTING))
    assert (dump.notes, dump.guessed, sizes_to_give(dump.guessed)) == ((), {}, [])


def test_sizes_of_the_caller_count_more_than_those_of_the_file(tmp_path: Path) -> None:
    given = {"a": 40, "b": 56, "c": 40, "d": 56, "rows": 97, "some": 96, "u0": 40, "u1": 56}
    dump, val = read(tmp_path, experts_of(hint=4), sizes=given)
    assert [val[name] for name in ("a", "b", "rows", "some")] == [40, 56, 97, 96]
    assert (val["full"].shape, val["there"].shape, val["saved"].shape) == ((97, 8), (96, 8), (96, 8))
    assert dump.notes == ()


def test_sizes_of_the_caller_that_contradict_each_other_are_said_and_kept(tmp_path: Path) -> None:
    dump, val = read(tmp_path, experts_of(48, FITTING), sizes=dict.fromkeys("abcd", 1))
    assert val["there"].shape == (2, 8)
    assert set(dump.notes) == {
        "all_to_all whose splits do not add to its rows (there: splits add to 2 of 96 rows); spread evenly: "
        "--size u0=48 and so on for u1"
    }
