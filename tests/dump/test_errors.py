"""What a dump must not hold is named with its line and a repair; and nothing in a dump is ever run."""

from pathlib import Path

import pytest
import torch.distributed as dist

from overlap_sched import errors
from overlap_sched.dump.load import load_dump
from tests.support.dump_graphs import handwritten


def message(tmp_path: Path, text: str | bytes, kind: type[errors.DumpError], **options: object) -> str:
    with pytest.raises(kind) as caught:
        load_dump(_written(tmp_path, text), **options)  # type: ignore[arg-type]
    assert type(caught.value) is kind
    return str(caught.value).replace(str(tmp_path) + "/", "")


def _written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "dump.py"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def in_body(statement: str, inputs: tuple[tuple[str, str], ...] = (("x", "float32 4 4"),)) -> str:
    return handwritten(statement + "\nreturn (x,)", inputs)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        errors.DumpError, match=r"none\.py: cannot be read \(No such file or directory\)\. Check the path"
    ):
        load_dump(tmp_path / "none.py")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            b"",
            "dump.py: there is no `class Repro` in it, so it is not a dump that torch wrote (it starts with 'nothing')",
        ),
        (
            b"Repro is not generated due to existence of BackwardState in graph input",
            "input'). Take `fx_graph_runnable` from tlparse (`fx_graph_readable` where torch made none), or write",
        ),
        (
            b"class Repro(torch.nn.Module):\n    pass\n",
            "dump.py, line 1: `class Repro` has no `def forward(`. Was the file cut short",
        ),
        (b"\x1f\x8b\x08\x00abc", "dump.py: the gzip data is cut short or damaged. Fetch the file again."),
        (b"\xff\x00\x00", "dump.py: is not text (byte 0 is not UTF-8)"),
        (b"\xff\xfe\x00", "dump.py: is not text (byte 0 is not UTF-8)"),
    ],
)
def test_files_that_are_no_dumps(tmp_path: Path, data: bytes, says: str) -> None:
    assert says in message(tmp_path, data, errors.DumpError)


def test_a_file_cut_short(tmp_path: Path) -> None:
    text = in_body("mm = torch.ops.aten.mm.default(x, x)")
    short = text[: text.index("default(x, x)") + 10]
    assert message(tmp_path, short, errors.DumpError) == (
        "dump.py, line 22: this is not Python ('(' was never closed): 'mm = torch.ops.aten.mm.default(x,'. "
        "Was the file cut short, or edited by hand?"
    )
    without_return = text[: text.index("        return")]
    assert "the graph ends without `return`; was the file cut short?" in message(
        tmp_path, without_return, errors.DumpError
    )
    without_inputs = text[: text.index("def load_args")]
    assert message(tmp_path, without_inputs, errors.DumpError) == (
        "dump.py: forward takes 1 inputs but load_args describes 0. Was the file cut short, or edited by hand?"
    )


def test_the_whole_message_for_a_statement(tmp_path: Path) -> None:
    text = in_body("mm = my_function(x, 3)")
    assert text.split("\n")[22 - 1].strip() == "mm = my_function(x, 3)"
    assert message(tmp_path, text, errors.DumpError) == (
        "dump.py, line 22: this call is not of an operator of torch.ops: `my_function(x, 3)`. Only torch.ops calls, "
        "constants, getitem and tensor metadata are read, as torch writes them; nothing in the file is run. "
        "Write the dump again with torch, or take this statement out."
    )


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
        ("for i in x: pass", "this is not understood"),
        ("x += 1", "this is not understood: `x += 1`"),
        ("x = torch.ops.aten.mm.default(x, x)", "'x' is already the name of a node"),
        ("mm = torch.ops.aten.mm.default(x, torch.hub)", "this is not understood: `torch.hub`"),
        ("mm = torch.ops.aten.full.default([2 ** 900], 1)", "this is not understood: `2 ** 900`"),
        (
            "mm = torch.ops.aten.full.default([1 // 0], 1)",
            "this cannot be computed (integer division or modulo by zero)",
        ),
    ],
)
def test_statements_that_are_not_understood(tmp_path: Path, statement: str, says: str) -> None:
    text = message(tmp_path, in_body(statement), errors.DumpError)
    assert says in text
    assert "line 22" in text


def test_shapes_that_cannot_be_found(tmp_path: Path) -> None:
    used = in_body("a = torch.ops.my_kernels.proj.default(x)\nmm = torch.ops.aten.mm.default(a, x)")
    assert message(tmp_path, used, errors.DumpError) == (
        "dump.py, line 22: node 'a' (`a = torch.ops.my_kernels.proj.default(x)`): the shape of its result cannot be "
        "found: this torch build does not know the operator my_kernels.proj.default. Import the package that registers "
        'it first (--import PACKAGE on the command line), or annotate it by hand (`a: "bf16[8, 4]" = ...`).'
    )
    text = message(
        tmp_path,
        in_body("a = torch.ops.aten.mm.default(x, z)", (("x", "float32 4 4"), ("z", "float32 5"))),
        errors.DumpError,
    )
    assert "line 22: node 'a'" in text
    text = message(
        tmp_path, in_body("s = self.s\na = torch.ops.higher_order.invoke_subgraph(s, 'n', x)"), errors.DumpError
    )
    assert (
        "the dump does not hold the body that this higher-order operator runs. Load the graph as tlparse prints it for "
        'reading, bodies included (aot_forward_graph), or annotate it by hand (`a: "bf16[8, 4]" = ...`).' in text
    )
    wrapped = "a = torch.ops.higher_order.with_effects(x, torch.ops.my_kernels.log.default, x)\nb = a[1]"
    text = message(tmp_path, in_body(wrapped), errors.DumpError)
    assert "this torch build does not know the operator my_kernels.log.default" in text
    assert "annotate each of its parts by hand (`b: " in text
    assert "the number does not fit" in message(tmp_path, in_body("a = 2 ** 63"), errors.DumpError)
    constant = in_body("n = self.missing\nmm = torch.ops.aten.mm.default(x, n)")
    advice = 'torch has not written self.missing: annotate it by hand (`missing: "i64[4]" = self.missing`).'
    assert message(tmp_path, constant, errors.DumpError).endswith(advice)
    load_dump(_written(tmp_path, constant.replace("n = self", "n: 'f32[4, 4]' = self")))  # it helps


@pytest.mark.parametrize(
    ("line", "kind", "says"),
    [
        ("reader.tensor(buf9, (4,))", errors.DumpError, "input 'x': its storage 'buf9' is not defined before it"),
        (
            "b = reader.storage(None, 8)\nreader.tensor(b, (4,), (-1,))",
            errors.DumpError,
            "do not fit its storage of 8 bytes",
        ),
        (
            "b = reader.storage(None, -8)\nreader.tensor(b, (4,))",
            errors.DumpError,
            "do not fit its storage of -8 bytes",
        ),
        (
            "b = reader.storage(None, 8)\nreader.tensor(b, (n,))",
            errors.DumpError,
            "the name 'n' is not defined",
        ),
        ("reader.symint('a')", errors.DumpError, "reader.symint takes a number"),
        ("reader.system('rm')", errors.DumpError, "this statement of load_args is not understood"),
        (
            "import os\nreader.symint(3)",
            errors.DumpError,
            "this statement of load_args is not understood: `import os`",
        ),
    ],
)
def test_inputs_that_are_not_understood(tmp_path: Path, line: str, kind: type[errors.DumpError], says: str) -> None:
    text = message(tmp_path, handwritten("return (x,)", [("x", line.replace("b = reader", "b = reader"))]), kind)
    assert says in text
    assert ", line 2" in text


def test_groups_that_disagree_or_are_unknown(tmp_path: Path) -> None:
    gather = in_body("a = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 64, '0')")
    assert message(tmp_path, gather, errors.DumpGroupError, groups={"0": 8}).endswith(
        "group '0' has 64 ranks here, but 8 elsewhere (as given by the caller). Give groups={'0': 64}, or leave it out."
    )
    reduce = in_body("a = torch.ops._c10d_functional.all_reduce.default(x, 'sum', '5')")
    assert message(tmp_path, reduce, errors.DumpGroupError).endswith(
        "the size of process group '5' is not known. Give it: groups={'5': 64} for 64 ranks "
        "(--group 5=64 on the command line)."
    )
    assert message(tmp_path, reduce, errors.DumpGroupError, groups={"5": [1, 1]}) == (
        "group '5' is given as [1, 1]: give its size, 1 or more, or its ranks, each once."
    )
    for size, text in (("0", "0"), ("-8", "-8"), ("2147483648", "2147483648"), ("10 ** 50", "2**166 or more")):
        assert message(tmp_path, gather.replace("x, 64", f"x, {size}"), errors.DumpGroupError).endswith(
            f"group '0' has {text} ranks here; it has 1 to 2147483647. Was the line edited?"
        )
    assert "given as 0" in message(tmp_path, reduce, errors.DumpGroupError, groups={"5": 0})
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
        with pytest.raises(errors.DumpError):
            load_dump(path)
    assert not marker.exists()


def test_a_failing_load_leaves_no_groups_behind(tmp_path: Path) -> None:
    calls = ("_dtensor.shard_dim_alltoall.default(x, 0, 1, 'left')", "no.such(x)", "aten.mm.default(b, b)")
    text = in_body("\n".join(f"{name} = torch.ops.{call}" for name, call in zip("abc", calls, strict=True)))
    message(tmp_path, text, errors.DumpError, groups={"left": 4})
    with pytest.raises((RuntimeError, ValueError), match="left"):
        dist.distributed_c10d._resolve_process_group("left")
