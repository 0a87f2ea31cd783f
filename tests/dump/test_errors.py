"""What a dump must not hold is named with its line and a repair; and nothing in a dump is ever run.

Groups and sizes given by names that do not occur are errors that list those which do.

A short dump may ask for ten million values: it is refused before they are made.
"""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from overlap_sched.dump.load import load_dump
from overlap_sched.dump.values import parts_made, run_operator
from overlap_sched.errors import DumpError, DumpGroupError, InputTooLargeError
from overlap_sched.problem.file import Limits
from tests.support.dump_graphs import handwritten


def _written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "dump.py"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def message(tmp_path: Path, text: str | bytes, kind: type[Exception] = DumpError, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        load_dump(_written(tmp_path, text), **options)
    assert type(caught.value) is kind
    return str(caught.value).replace(f"{tmp_path}/", "")


def in_body(statement: str, inputs: tuple[tuple[str, str], ...] = (("x", "float32 4 4"),)) -> str:
    return handwritten(statement + "\nreturn (x,)", inputs)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"none\.py: cannot be read"):
        load_dump(tmp_path / "none.py")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "there is no `class Repro` in it"),
        (b"Repro is not generated due to existence of BackwardState", "Take `fx_graph_runnable` from tlparse"),
        (b"class Repro(torch.nn.Module):\n    pass\n", "line 1: `class Repro` has no `def forward(`"),
        (b"\x1f\x8b\x08\x00abc", "gzip"),
        (b"\xff\xfe\x00", "byte 0 is not UTF-8"),
    ],
)
def test_files_that_are_no_dumps(tmp_path: Path, data: bytes, says: str) -> None:
    assert says in message(tmp_path, data)


def test_a_file_cut_short(tmp_path: Path) -> None:
    text = in_body("mm = torch.ops.aten.mm.default(x, x)")
    short = text[: text.index("default(x, x)") + 10]
    assert "line 22: this is not Python" in message(tmp_path, short)
    without_return = text[: text.index("        return")]
    assert "ends without `return`" in message(tmp_path, without_return)
    without_inputs = text[: text.index("def load_args")]
    assert "forward takes 1 inputs but load_args describes 0" in message(tmp_path, without_inputs)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("mm = x.mm(x)", "this call is not of an operator of torch.ops: `x.mm(x)`"),
        ("mm = torch.ops.aten.mm.default(x, y)", "the name 'y' is not defined before this line: `y`"),
        ("mm = torch.ops.aten.mm.default(*x)", "this is not understood: `*x`"),
        ("mm = torch.ops.aten.mm.default(x, **{'mat2': x})", "a call with `**` is not understood"),
        ("mm = torch.ops.aten.mm.default(x, [y for y in x])", "this is not understood"),
        ("mm = torch.ops.aten.mm.default(x, f'{x}')", "this is not understood"),
        ("mm = torch.ops.aten.mm.default(x, {x: 1})", "this is not understood"),
        ("mm = torch.ops.load_library('evil.so')", "this is not an operator"),
        ("mm = torch.ops.__class__.__base__.x(x)", "this is not an operator"),
        ("mm = torch.load('evil.pt')", "this call is not of an operator"),
        ("x.y = torch.ops.aten.mm.default(x, x)", "this is not understood: `x.y = torch.ops.aten.mm.default(x, x)`"),
        ("import os", "this is not understood: `import os`"),
        ("x = torch.ops.aten.mm.default(x, x)", "'x' is already the name of a node"),
        ("mm = torch.ops.aten.mm.default(x, torch.hub)", "this is not understood: `torch.hub`"),
        ("mm = torch.ops.aten.full.default([2 ** 900], 1)", "this is not understood: `2 ** 900`"),
        ("mm = torch.ops.aten.full.default([1 // 0], 1)", "this cannot be computed"),
        (f"mm = torch.ops.aten.full.default([{'(' * 6}2 ** 63 ** 1{') ** 64' * 6}], 1)", "this is not understood"),
        ("many = [x] * 1000000000", "an operator on a list"),
    ],
)
def test_statements_that_are_not_understood(tmp_path: Path, statement: str, says: str) -> None:
    text = message(tmp_path, in_body(statement))
    assert says in text
    assert "line 22" in text


def test_shapes_that_cannot_be_found(tmp_path: Path) -> None:
    used = in_body("a = torch.ops.my_kernels.proj.default(x)\nmm = torch.ops.aten.mm.default(a, x)")
    text = message(tmp_path, used)
    assert "line 22: node 'a'" in text
    assert "does not know the operator my_kernels.proj.default" in text
    assert "--import PACKAGE" in text
    misfit = in_body("a = torch.ops.aten.mm.default(x, z)", (("x", "float32 4 4"), ("z", "float32 5")))
    assert "line 22: node 'a'" in message(tmp_path, misfit)
    bodiless = in_body("s = self.s\na = torch.ops.higher_order.invoke_subgraph(s, 'n', x)")
    assert "bodies included (aot_forward_graph)" in message(tmp_path, bodiless)
    wrapped = "a = torch.ops.higher_order.with_effects(x, torch.ops.my_kernels.log.default, x)\nb = a[1]"
    text = message(tmp_path, in_body(wrapped))
    assert "does not know the operator my_kernels.log.default" in text
    assert "annotate each of its parts by hand (`b: " in text
    assert "the number does not fit" in message(tmp_path, in_body("a = 2 ** 63"))
    constant = in_body("n = self.missing\nmm = torch.ops.aten.mm.default(x, n)")
    advice = 'torch has not written self.missing: annotate it by hand (`missing: "i64[4]" = self.missing`).'
    assert message(tmp_path, constant).endswith(advice)
    load_dump(_written(tmp_path, constant.replace("n = self", "n: 'f32[4, 4]' = self")))  # it helps


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("reader.tensor(buf9, (4,))", "its storage 'buf9' is not defined before it"),
        ("b = reader.storage(None, 8)\nreader.tensor(b, (4,), (-1,))", "do not fit its storage of 8 bytes"),
        ("b = reader.storage(None, -8)\nreader.tensor(b, (4,))", "do not fit its storage of -8 bytes"),
        ("b = reader.storage(None, 8)\nreader.tensor(b, (n,))", "the name 'n' is not defined"),
        ("reader.symint('a')", "reader.symint takes a number"),
        ("reader.system('rm')", "this statement of load_args is not understood"),
        ("import os\nreader.symint(3)", "this statement of load_args is not understood: `import os`"),
    ],
)
def test_inputs_that_are_not_understood(tmp_path: Path, line: str, says: str) -> None:
    text = message(tmp_path, handwritten("return (x,)", [("x", line)]))
    assert says in text
    assert ", line 2" in text


def test_groups_that_disagree_or_are_unknown(tmp_path: Path) -> None:
    gather = in_body("a = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 64, '0')")
    assert "Give groups={'0': 64}" in message(tmp_path, gather, DumpGroupError, groups={"0": 8})
    reduce = in_body("a = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '5')")
    assert "--group 5=64" in message(tmp_path, reduce, DumpGroupError)
    assert "given as [1, 1]" in message(tmp_path, reduce, DumpGroupError, groups={"5": [1, 1]})
    for size, text in (("0", "0"), ("-8", "-8"), ("2147483648", "2147483648"), ("10 ** 50", "2**166 or more")):
        found = message(tmp_path, gather.replace("x, 64", f"x, {size}"), DumpGroupError)
        assert f"group '0' has {text} ranks here; it has 1 to 2147483647" in found
    assert "given as 0" in message(tmp_path, reduce, DumpGroupError, groups={"5": 0})
    assert not dist.is_initialized()


def test_nothing_in_a_dump_is_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    evil = f"__import__('pathlib').Path({str(marker)!r}).write_text('x')"
    body = "mul = torch.ops.aten.mul.Tensor(x, 2)\nreturn (mul,)"
    harmless_places = handwritten(
        body,
        [("x", "float32 2")],
        head=f"{evil}\nimport evil_module\nraise SystemExit\n",
        init=f"self.a = {evil}\nself.b = (lambda: {evil})()",
        nested=f"class C(torch.nn.Module):\n    def forward(self, x):\n        return x\n    {evil}",
        groups="{'0': {'size': 2}}",
    )
    path = tmp_path / "dump.py"
    path.write_text(harmless_places + f"\n{evil}\n")
    assert len(load_dump(path).gm.graph.nodes) == 3
    for text in (
        handwritten(f"a = {evil}\nreturn (x,)", [("x", "float32 2")]),
        handwritten(f"a = torch.ops.aten.mul.Tensor(x, {evil})\nreturn (x,)", [("x", "float32 2")]),
        handwritten(f"return {evil}", [("x", "float32 2")]),
        handwritten(body, [("x", f"reader.symint({evil})")]),
        handwritten(body, [("x", f"reader.symint(None, expr={evil})")]),
        handwritten(body, [("x", "float32 2")], groups=evil),
        handwritten(body, [("x", "float32 2")], init=f"self.register_buffer('a', {evil})").replace("x, 2", "x, self.a"),
        handwritten(f"a = torch.ops.aten.save.default(x, {str(marker)!r})\nreturn (a,)", [("x", "float32 2")]),
        handwritten(
            f"a = torch.ops.aten.from_file.default({str(marker)!r}, True, 8)\nreturn (a,)", [("x", "float32 2")]
        ),
    ):
        path.write_text(text)
        with pytest.raises(DumpError):
            load_dump(path)
    assert not marker.exists()


GATHERS = """
a = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 64, '0')
b = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 8, '513')
return (a, b)
"""


def test_a_group_that_the_dump_does_not_name(tmp_path: Path) -> None:
    text = handwritten(GATHERS, [("x", "float32 4 4")])
    assert "'fsdp'" in (found := message(tmp_path, text, groups={"0": 64, "fsdp": 64}))
    assert "Its groups are '0', '513'" in found
    alone = handwritten("neg = torch.ops.aten.neg.default(x)\nreturn (neg,)", [("x", "float32 4 4")])
    assert "It names no group" in message(tmp_path, alone, groups={"fsdp": [0, 1]})


def test_a_group_that_only_the_main_block_names_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "d.py"
    path.write_text(handwritten(GATHERS, [("x", "float32 4 4")], groups="{'7': {'size': 2, 'rank': 0}}"))
    assert list(load_dump(path, groups={"7": 2}).groups) == ["0", "513"]


SIZES = handwritten(
    "item = torch.ops.aten._local_scalar_dense.default(n)\nadd = item + u_in\nreturn (add,)",
    [("u_in", "reader.symint(None, expr='u0')"), ("n", "int64 1"), ("old", "reader.symint(None)")],
)


def test_a_size_that_does_not_occur(tmp_path: Path) -> None:
    assert "for 'u1' (--size u1=8 " in (found := message(tmp_path, SIZES, sizes={"u1": 8}))
    assert "Its symbols are 'u0'." in found
    assert "symbols are 'u0'; of its nodes, 'item' may be meant" in message(tmp_path, SIZES, sizes={"items": 8})


@pytest.mark.parametrize("name", ["u0", "item", "old"])
def test_symbols_and_nodes_may_be_given(tmp_path: Path, name: str) -> None:
    path = tmp_path / "d.py"
    path.write_text(SIZES)
    assert "data-dependent sizes, taken as 8192" in load_dump(path, sizes={name: 8}).notes


def test_symbols_of_annotations(tmp_path: Path) -> None:
    head = "class GraphModule(torch.nn.Module):\n    def forward(self, x: "
    text = f'{head}"f32[s0, 8*u3][8*u3, 1]cuda:0"):\n        return (x,)\n'
    assert not load_dump(_written(tmp_path, text), sizes={"s0": 2, "u3": 4}).guessed
    assert "Its symbols are 's0', 'u3'. Correct" in message(tmp_path, text, sizes={"f32": 2})


def test_empty_lists_of_splits_do_not_tell_the_size_of_a_group(tmp_path: Path) -> None:
    body = "a = torch.ops._c10d_functional.all_to_all_single.default(x, [], [], '0')\nreturn (a,)"
    path = tmp_path / "d.py"
    path.write_text(handwritten(body, [("x", "float32 4 4")]))
    assert load_dump(path, groups={"0": 4}).groups == {"0": (4, None)}


MANY = "full = torch.ops.aten.full.default([10000000], 1)\nparts = torch.ops.aten.unbind.int(full)"


def within(folder: Path, body: str, limit: int, nested: str = "") -> Any:
    """How many nodes are loaded, or the error."""
    text = handwritten(f"{body}\nreturn (x,)", [("x", "float32 4 4")], nested=nested)
    try:
        return len(load_dump(_written(folder, text), limits=Limits(nodes=limit)).gm.graph.nodes)
    except InputTooLargeError as error:
        return str(error).replace(f"{folder}/", "")


def test_parts_are_counted_before_they_are_made(tmp_path: Path) -> None:
    with patch("overlap_sched.dump.values.run_operator", wraps=run_operator) as ran:
        text = within(tmp_path, MANY, 2_000_000)
    assert text.startswith("dump.py, line 23: node 'parts' (`parts =")
    assert "more than 2,000,000 nodes, which is the limit. Raise the limit (--max-nodes on" in text
    assert [call.args[0] for call in ran.call_args_list] == [torch.ops.aten.full.default]


def test_nodes_and_parts_count_alike(tmp_path: Path) -> None:
    body = "parts = torch.ops.aten.split.Tensor(x, 2)\none = parts[0]\nneg = torch.ops.aten.neg.default(one)"
    assert within(tmp_path, body, 6) == 5  # x, two parts, one, neg, and the output's list of one
    assert within(tmp_path, body, 4).startswith("dump.py, line 24: node 'neg'")


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        *(("unbind.int(t, 1)", 8), ("unbind.int(t, dim=-1)", 8), ("split.Tensor(t, 4, dim=1)", 2)),
        *(("split.Tensor(t, split_size=1)", 6), ("split_copy.Tensor(t, 5)", 2), ("chunk.default(t, 4)", 4)),
        *(("unsafe_chunk.default(t, chunks=100)", 6), ("tensor_split.sections(t, 5)", 5)),
        *(("neg.default(t)", 0), ("split.sizes(t, [1, 2, 3])", 0)),  # as many as the file lists
    ],
)
def test_parts_of_each_operator(call: str, parts: int) -> None:
    name, _, arguments = call.rstrip(")").partition("(")
    packet, overload = name.split(".")
    target = getattr(getattr(torch.ops.aten, packet), overload)
    given = eval(f"(lambda *args, **kwargs: (args, kwargs))({arguments})", {"t": torch.empty(6, 8)})
    found = parts_made(target, *given)
    assert found == parts
    if parts and (packet, parts) != ("unsafe_chunk", 6):
        made = len(target(*given[0], **given[1]))
        assert made in (parts, parts - 1)  # a chunk may give one less


def test_a_body_counts_each_time_that_it_is_run(tmp_path: Path) -> None:
    steps = "".join(f"        n{k} = torch.ops.aten.neg.default(x)\n" for k in range(10))
    nested = f"class body(torch.nn.Module):\n    def forward(self, x):\n{steps}        return (n9,)\n"
    calls = "".join(f"c{k} = torch.ops.higher_order.invoke_subgraph(b, 'n', x)\n" for k in range(20))
    body = f"b = self.body\n{calls}".rstrip()
    assert within(tmp_path, body, 300, nested) == 23
    assert "more than 200 nodes" in within(tmp_path, body, 200, nested)
