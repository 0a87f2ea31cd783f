"""Graphs as torch prints them for reading (tlparse: ``aot_forward_graph`` and its like): no load_args, annotations."""
# ruff: noqa: E501 - the text of dumps has long lines

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from overlap_sched import errors
from overlap_sched.dump.graph import UnknownOp
from overlap_sched.dump.load import Dump
from overlap_sched.fx.lifting import lift
from tests.support.dump_graphs import (
    RANKS,
    fake_world,
    forward_and_backward,
    layer_arguments,
    loaded,
    sharded_layer,
    values,
)

OWN_STORAGE = "inputs whose storage the file does not say, each taken to have its own"
HEAD = """class GraphModule(torch.nn.Module):
    def forward(
        self,
"""


def load(tmp_path: Path, text: str, **options: Any) -> Dump:
    return loaded(tmp_path, text, "aot_forward_graph_3.txt", **options)


@pytest.mark.private
def test_a_printed_graph_is_the_graph(tmp_path: Path) -> None:
    with fake_world() as world:
        forward, backward = forward_and_backward(sharded_layer(*world), *layer_arguments(requires_grad=True))
        for gm, _ in (forward, backward):
            text = gm.print_readable(print_output=False, include_stride=True, include_device=True)
            dump = load(tmp_path, text, groups={"1": 8})
            assert set(dump.notes) == {OWN_STORAGE}
            assert (dump.name, dump.groups["0"].size) == ("aot_forward_graph_3", RANKS)
            ours = lift(dump.gm, name="it").problem
            theirs = lift(gm, name="it", groups=lift(dump.gm).problem.groups).problem
            assert [(n.name, n.deps, n.time_us) for n in ours.nodes] == [
                (n.name, n.deps, n.time_us) for n in theirs.nodes
            ]
            if gm is forward[0]:  # what it saves for backward may be views of one storage: that is not printed
                assert ours == theirs


def test_comments_name_modules(tmp_path: Path) -> None:
    """As torch prints parameters, and torchtitan annotates; up to the next comment."""
    body = """
        w: "f32[4]",  # ParamAOTInput(target='layers.3.norm.weight')
    ):
        #  Annotation: {'module_fqn': 'layers.3.norm'} File: model.py:1 in forward
        sin: "f32[4]" = torch.ops.aten.sin.default(w)
        cos: "f32[4]" = torch.ops.aten.cos.default(sin)
        # File: model.py:2 in forward, code: return x
        tan: "f32[4]" = torch.ops.aten.tan.default(cos)
        return (tan,)
"""
    nodes = lift(load(tmp_path, HEAD + body[1:]).gm).problem.nodes
    assert [node.module for node in nodes] == ["layers.3.norm.weight", "layers.3.norm", "layers.3.norm", "", ""]


def test_symbolic_sizes_bodies_constants_and_inputs_that_are_no_tensors(tmp_path: Path) -> None:
    body = """
        x: "f32[s0, Max(1, s0//2)][Max(1, s0//2), 1]cuda:0",  # PlainAOTInput(idx=0)
        mesh,  # SubclassGetAttrAOTInput(attr='device_mesh')
        n: "Sym(2*s0)",
    ):
        # File: model.py:3 in f, code: return x
        constant: "i64[3][1]cuda:0" = self.constant
        body_0 = self.body_0
        invoke = torch.ops.higher_order.invoke_subgraph(body_0, 'body_0', x);  body_0 = None
        getitem: "f32[s0][1]cuda:0" = invoke[0];  invoke = None
        return (getitem, n, constant)

    class body_0(torch.nn.Module):
        def forward(self, arg0: "f32[s0, Max(1, s0//2)]"):
            sum_1: "f32[s0]" = torch.ops.aten.sum.dim_IntList(arg0, [1])
            return (sum_1,)
"""
    dump = load(tmp_path, HEAD + body.strip("\n"), sizes={"s0": 6})
    val = values(dump)
    assert (val["x"].shape, val["n"], val["mesh"]) == ((6, 3), 12, None)
    assert (val["constant"].shape, val["constant"].device) == ((3,), torch.device("cuda:0"))
    assert val["getitem"].shape == (6,)
    assert isinstance(dump.gm.body_0, fx.GraphModule)
    assert set(dump.notes) == {OWN_STORAGE}


def test_the_size_of_a_symbol_is_found_where_the_default_does_not_fit(tmp_path: Path) -> None:
    body = """
        x: "f32[s0, 4][4, 1]cpu",
        mesh,
        y: "f32[12, 4][4, 1]cpu",
    ):
        add: "f32[s0, 4][4, 1]cpu" = torch.ops.aten.add.Tensor(x, y)
        return (add,)
"""
    dump = load(tmp_path, HEAD + body.strip("\n"))
    assert values(dump)["x"].shape == (12, 4)
    assert set(dump.notes) == {"data-dependent sizes, taken as 12", OWN_STORAGE}


def test_inputs_that_a_joint_graph_unpacks(tmp_path: Path) -> None:
    text = """class inner_f(torch.nn.Module):
    def forward(
        self,
        primals,
        tangents,
    ):
        primals_1: "f32[4, 2][2, 1]cpu"  # PlainAOTInput(idx=0)
        tangents_1: "f32[4, 2][2, 1]cpu"
        primals_1, tangents_1, = fx_pytree.tree_flatten_spec([primals, tangents], self._in_spec)
        mul: "f32[4, 2][2, 1]cpu" = torch.ops.aten.mul.Tensor(primals_1, tangents_1)
        return pytree.tree_unflatten([mul], self._out_spec)
"""
    dump = load(tmp_path, text)
    assert [(node.name, node.op) for node in dump.gm.graph.nodes][:2] == [
        ("primals_1", "placeholder"),
        ("tangents_1", "placeholder"),
    ]
    assert values(dump)["mul"].shape == (4, 2)


def test_unknown_operators_inside_wrappers(tmp_path: Path) -> None:
    body = """
        x: "f32[4, 2][2, 1]cpu",
    ):
        auto_functionalized_v2 = torch.ops.higher_order.auto_functionalized_v2(torch.ops.my_kernels.scale_.default, s = 3.0, _x_base_index = 0, _all_bases = [x])
        getitem_1 = auto_functionalized_v2[1];  auto_functionalized_v2 = None
        token: "f32[0][1]cpu" = torch.ops.prims._make_token.default()
        with_effects = torch.ops.higher_order.with_effects(token, torch.ops.my_kernels.log.default, x)
        getitem: "f32[0][1]cpu" = with_effects[0]
        getitem_2: "f32[4][1]cpu" = with_effects[1];  with_effects = None
        return (getitem_1, getitem, getitem_2)
"""
    dump = load(tmp_path, HEAD + body.strip("\n"))
    val = values(dump)
    assert val["getitem_1"].shape == (4, 2)
    assert val["getitem_1"].untyped_storage()._cdata != val["x"].untyped_storage()._cdata
    assert val["getitem_2"].shape == (4,)
    wrapper = next(node for node in dump.gm.graph.nodes if node.name == "with_effects")
    assert isinstance(wrapper.args[1], UnknownOp)
    assert "torch.ops.my_kernels.log.default" in dump.gm.code
    assert lift(dump.gm).notes["unknown_op"] == 2


def test_loops_and_operators_printed_without_their_overload(tmp_path: Path) -> None:
    body = """
        x: "f32[4, 4][4, 1]cpu",
    ):
        i: "i64[][]cpu" = torch.ops.aten.full.default([], 0, dtype = torch.int64)
        cond_0 = self.cond_0
        body_0 = self.body_0
        while_loop = torch.ops.higher_order.while_loop(cond_0, body_0, (i, x), ())
        getitem_1 = while_loop[1]
        wait_tensor = torch.ops._c10d_functional.wait_tensor(x)
        return (getitem_1, wait_tensor)
"""
    dump = load(tmp_path, HEAD + body.strip("\n"))
    assert values(dump)["getitem_1"].shape == (4, 4)
    wait = next(node for node in dump.gm.graph.nodes if node.name == "wait_tensor")
    assert wait.target is torch.ops._c10d_functional.wait_tensor.default


def test_constants_whose_shape_stands_with_their_copy_or_their_user(tmp_path: Path) -> None:
    body = """
        x: "f32[4, 4]",
    ):
        _tensor_constant0 = self._tensor_constant0
        lift_fresh_copy: "i64[2]" = torch.ops.aten.lift_fresh_copy.default(_tensor_constant0);  _tensor_constant0 = None
        _tensor_constant1 = self._tensor_constant1
        index: "f32[2, 4]" = torch.ops.aten.index.Tensor(x, [_tensor_constant1]);  _tensor_constant1 = None
        add: "f32[2, 4]" = torch.ops.aten.add.Tensor(index, lift_fresh_copy)
        return (add,)
"""
    dump = load(tmp_path, HEAD + body.strip("\n"))
    val = values(dump)
    assert (val["_tensor_constant0"].shape, val["_tensor_constant0"].dtype) == ((2,), torch.int64)
    assert (val["index"].shape, val.get("_tensor_constant1")) == ((2, 4), None)
    assert "no_val" not in lift(dump.gm).notes
    unprinted = body.replace('index: "f32[2, 4]"', "index")
    with pytest.raises(errors.DumpError, match=r"annotate it by hand .`_tensor_constant1: "):
        load(tmp_path, HEAD + unprinted.strip("\n"))


def test_process_groups_among_the_attributes_are_asked_for_by_name(tmp_path: Path) -> None:
    body = """
        x: "f32[4]",
        w: "f32[4, 4]",
    ):
        clone: "f32[4]" = torch.ops.aten.clone.default(x);  x = None
        _torchbind_obj0 = self._torchbind_obj0
        _torchbind_obj1 = self._torchbind_obj1
        broadcast_ = torch.ops.c10d.broadcast_.default([clone], _torchbind_obj0, 0, 0, False)
        reduce_ = torch.ops.c10d.allreduce_.default([clone], _torchbind_obj0, _torchbind_obj1, None, False);  clone = None
        getitem = reduce_[0]
        getitem_1: "f32[4]" = getitem[0];  getitem = None
        getitem_2 = reduce_[1];  reduce_ = getitem_2 = None
        empty: "f32[32]" = torch.ops.aten.empty.memory_format([32], device = device(type='cpu'), pin_memory = False)
        _allgather_base_ = torch.ops.c10d._allgather_base_.default(empty, getitem_1, _torchbind_obj0, False)
        getitem_3: "f32[32]" = _allgather_base_[0];  _allgather_base_ = None
        mm: "f32[4, 4]" = torch.ops.aten.mm.default(w, w);  w = None
        return (getitem_1, getitem_3, mm)
"""
    text = HEAD + body.strip("\n")
    with pytest.raises(
        errors.DumpGroupError, match=r"group '_torchbind_obj0' is not known. .*--group _torchbind_obj0=64"
    ):
        load(tmp_path, text)
    dump = load(tmp_path, text, groups={"_torchbind_obj0": 8})
    val = values(dump)
    assert val["getitem_1"] is val["clone"]
    assert val["getitem_3"] is val["empty"]
    lifted = lift(dump.gm)
    communicating = [node for node in lifted.problem.nodes if node.launches]
    assert [(node.name, node.launches) for node in communicating] == [
        (name, ("_torchbind_obj0",)) for name in ("broadcast_", "reduce_", "_allgather_base_")
    ]
    assert all(node.time_us > 0 for node in communicating)
    assert lifted.problem.groups == {} or lifted.problem.groups["_torchbind_obj0"].size == 8


@pytest.mark.parametrize("dynamic", [False, True])
def test_collectives_of_vllm(tmp_path: Path, dynamic: bool) -> None:
    body = """
        n: "Sym(s18)",
        x: "bf16[s18, 64][64, 1]cuda:0",
        w: "bf16[64, 64][64, 1]cuda:0",
    ):
        mm: "bf16[s18, 64][64, 1]cuda:0" = torch.ops.aten.mm.default(x, w)
        all_reduce: "bf16[s18, 64][64, 1]cuda:0" = torch.ops.vllm.all_reduce.default(mm, 'tp:0');  mm = None
        rs = torch.ops.vllm.reduce_scatter.default(all_reduce, dim = 0, world_size = 8, group_name = 'tp:0')
        ag = torch.ops.vllm.all_gather.default(rs, 0, 8, 'tp:0');  rs = None
        mm_1: "bf16[64, 64][64, 1]cuda:0" = torch.ops.aten.mm.default(w, w)
        return (ag, mm_1)
"""
    text = HEAD + (body if dynamic else body.replace("s18", "32")).strip("\n")
    dump = load(tmp_path, text, sizes={"s18": 32} if dynamic else None)
    assert dump.groups == {"tp:0": (8, None)}  # as two of them say
    assert [tuple(values(dump)[name].shape) for name in ("all_reduce", "rs", "ag")] == [(32, 64), (4, 64), (32, 64)]
    lifted = lift(dump.gm)
    told = {node.name: (node.launches, node.time_us > 0) for node in lifted.problem.nodes if node.launches}
    assert told == dict.fromkeys(("all_reduce", "rs", "ag"), (("tp:0",), True))
    assert not lifted.undeclared
    assert not {"unknown_op", "custom_op", "unknown_communication"} & set(lifted.notes)
