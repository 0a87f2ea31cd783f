"""Groups and sizes given by names that do not occur are errors that list those which do."""

from pathlib import Path

import pytest

from overlap_sched.dump.load import load_dump
from overlap_sched.errors import DumpError
from tests.support.dump_graphs import handwritten

GATHERS = """
a = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 64, '0')
b = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 8, '513')
return (a, b)
"""


def said(path: Path, text: str, **options: object) -> str:
    path.write_text(text)
    with pytest.raises(DumpError) as caught:
        load_dump(path, **options)  # type: ignore[arg-type]
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_group_that_the_dump_does_not_name(tmp_path: Path) -> None:
    text = handwritten(GATHERS, [("x", "float32 4 4")])
    assert said(tmp_path / "d.py", text, groups={"0": 64, "fsdp": 64}) == (
        "process group 'fsdp' is given (--group fsdp=64 on the command line), but the dump does not name it. "
        "Its groups are '0', '513'. Correct the name, or leave it out."
    )
    alone = handwritten("neg = torch.ops.aten.neg.default(x)\nreturn (neg,)", [("x", "float32 4 4")])
    assert said(tmp_path / "d.py", alone, groups={"fsdp": [0, 1]}) == (
        "process group 'fsdp' is given (--group fsdp=2 on the command line), but the dump does not name it. "
        "It names no group. Correct the name, or leave it out."
    )


def test_a_group_that_only_the_main_block_names_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "d.py"
    path.write_text(handwritten(GATHERS, [("x", "float32 4 4")], groups="{'7': {'size': 2, 'rank': 0}}"))
    assert list(load_dump(path, groups={"7": 2}).groups) == ["0", "513"]


SIZES = handwritten(
    "item = torch.ops.aten._local_scalar_dense.default(n)\nadd = item + u_in\nreturn (add,)",
    [("u_in", "reader.symint(None, expr='u0')"), ("n", "int64 1"), ("old", "reader.symint(None)")],
)


def test_a_size_that_does_not_occur(tmp_path: Path) -> None:
    assert said(tmp_path / "d.py", SIZES, sizes={"u1": 8}) == (
        "a size is given for 'u1' (--size u1=8 on the command line), but no symbol or node has that name. "
        "Its symbols are 'u0'. Correct the name, or leave it out."
    )
    assert said(tmp_path / "d.py", SIZES, sizes={"items": 8}) == (
        "a size is given for 'items' (--size items=8 on the command line), but no symbol or node has that name. "
        "Its symbols are 'u0'; of its nodes, 'item' may be meant. Correct the name, or leave it out."
    )
    none = handwritten("neg = torch.ops.aten.neg.default(x)\nreturn (neg,)", [("x", "float32 4 4")])
    assert said(tmp_path / "d.py", none, sizes={"u0": 8}) == (
        "a size is given for 'u0' (--size u0=8 on the command line), but no symbol or node has that name. "
        "It has no symbols. Correct the name, or leave it out."
    )


@pytest.mark.parametrize("name", ["u0", "item", "old"])
def test_symbols_and_nodes_may_be_given(tmp_path: Path, name: str) -> None:
    path = tmp_path / "d.py"
    path.write_text(SIZES)
    assert load_dump(path, sizes={name: 8}).notes.get("data-dependent sizes, taken as 8192") == 2


def test_symbols_of_annotations(tmp_path: Path) -> None:
    head = "class GraphModule(torch.nn.Module):\n    def forward(self, x: "
    path = tmp_path / "d.py"
    path.write_text(f'{head}"f32[s0, 8*u3][8*u3, 1]cuda:0"):\n        return (x,)\n')
    assert load_dump(path, sizes={"s0": 2, "u3": 4}).notes.keys() == {
        "inputs whose storage the file does not say, each taken to have its own"
    }
    path.write_text(f'{head}"f32[s0, 8*u3][8*u3, 1]cuda:0"):\n        return (x,)\n')
    with pytest.raises(DumpError, match=r"Its symbols are 's0', 'u3'\. Correct"):
        load_dump(path, sizes={"f32": 2})


def test_empty_lists_of_splits_do_not_tell_the_size_of_a_group(tmp_path: Path) -> None:
    body = "a = torch.ops._c10d_functional.all_to_all_single.default(x, [], [], '0')\nreturn (a,)"
    path = tmp_path / "d.py"
    path.write_text(handwritten(body, [("x", "float32 4 4")]))
    assert load_dump(path, groups={"0": 4}).groups == {"0": (4, None)}
