"""Ways in which dumps are saved and handed on, and what is damaged on the way."""

import random
import re
from pathlib import Path

import pytest
import torch

from overlap_sched import errors
from overlap_sched.dump.load import Dump, load_dump
from tests.support.dump_graphs import handwritten

BODY = """
gather = torch.ops._c10d_functional.all_gather_into_tensor.default(x, 64, '0');  x = None
wait_tensor = torch.ops._c10d_functional.wait_tensor.default(gather);  gather = None
split = torch.ops.aten.split.Tensor(wait_tensor, 128)
getitem = split[0];  split = None
full = torch.ops.aten.full.default([4, n], -inf, dtype = torch.bfloat16, device = device(type='cuda', index=0))
mm = torch.ops.aten.mm.default(getitem, full);  getitem = full = None
reduce = torch.ops._c10d_functional.reduce_scatter_tensor.default(mm, 'avg', 64, '0');  mm = None
wait_tensor_1 = torch.ops._c10d_functional.wait_tensor.default(reduce);  reduce = None
return (wait_tensor_1,)
"""
TEXT = handwritten(
    BODY,
    [("x", "bfloat16 4 4"), ("n", "reader.symint(None, expr='u0')  # n")],
    init="self.register_buffer('c', tensor([1., 2.]))",
    groups="{'0': {'size': 64, 'rank': 0}}",
)


def load(tmp_path: Path, data: str | bytes) -> Dump:
    path = tmp_path / "dump.py"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return load_dump(path)


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.replace("\n", "\r\n"),
        TEXT.replace("import os", "import os  # caf\u00e9", 1).encode("latin-1"),
        "V1120 19:32 [0/0] {\"artifact\": {\"name\": \"fx_graph_runnable\"}}\n" + TEXT,
        "torch.ops.load_library('//some:lib')\nx = <bound method f>\n" + TEXT + "\n```\n\0 ((( bytes after the end\n",
        TEXT.replace("storage(None", "storage('fd3f0a'").replace("is_leaf", "requires_grad=True, is_leaf"),
    ],
    ids=["bom", "crlf", "latin-1", "log line", "around", "hashes"],
)  # fmt: skip
def test_the_same_graph_however_it_was_saved(tmp_path: Path, data: str | bytes) -> None:
    dump = load(tmp_path, data)
    assert len(dump.gm.graph.nodes) == 11
    assert dump.groups == {"0": (64, None)}


def test_accelerators_that_this_torch_has_no_name_for(tmp_path: Path) -> None:
    text = TEXT.replace("type='cuda', index=0", "type='npu', index=3")
    dump = load(tmp_path, text)
    assert {node.meta["val"].device for node in dump.gm.graph.nodes if node.name in ("x", "full", "mm")} == {
        torch.device("cuda:3")
    }
    printed = (
        'class GraphModule(torch.nn.Module):\n    def forward(self, x: "f32[4][1]neuron:2"):\n        return (x,)\n'
    )
    assert next(iter(load(tmp_path, printed).gm.graph.nodes)).meta["val"].device == torch.device("cuda:2")
    with pytest.raises(errors.DumpError, match=r"this device is not understood: `reader\.storage"):
        load(tmp_path, TEXT.replace("device=device(type='cuda', index=0)", "device='8 GPUs'"))


def test_a_raw_log_is_told_from_a_dump(tmp_path: Path) -> None:
    log = "V1120 {}\n" + "".join(f"\t{line}\n" for line in TEXT.split("\n"))
    with pytest.raises(errors.DumpError) as caught:
        load(tmp_path, log)
    assert str(caught.value).endswith(
        "dump.py: this is a log that TORCH_TRACE wrote, with dumps in it. Run tlparse on it, and take one of the files "
        "`fx_graph_runnable` that it makes."
    )


TOKEN = re.compile(r"\w+|[^\w\s]")
ODD = ("*", "**", "(", ")", "[]", "()", "{}", "-1", "0", "1.5", "2j", ":=", "x", "u0", "self.c", "None", "...",
       "99999999999999999999", "1e400", '"s"', "\0", "torch.ops.a.b")  # fmt: skip


def damaged(text: str, chance: random.Random) -> str:
    """`text` with a line taken out, repeated, moved or cut, or a word replaced, a few times over."""
    lines = text.split("\n")
    start = lines.index("class Repro(torch.nn.Module):")
    for _ in range(chance.choice((1, 1, 2, 4))):
        i, j = chance.randrange(start, len(lines)), chance.randrange(start, len(lines))
        words = list(TOKEN.finditer(lines[i]))
        match chance.randrange(6):
            case 0:
                lines[i] = ""
            case 1:
                lines.insert(i, lines[j])
            case 2:
                lines[i], lines[j] = lines[j], lines[i]
            case 3:
                lines[i] = lines[i][: chance.randrange(len(lines[i]) + 1)]
            case _ if words:
                word = chance.choice(words)
                lines[i] = lines[i][: word.start()] + chance.choice([*ODD, ""]) + lines[i][word.end() :]
    return "\n".join(lines)


def outcome(tmp_path: Path, text: str) -> str:
    """How loading ends; an exception of any other kind fails the test."""
    try:
        load(tmp_path, text)
    except errors.DumpError as error:
        fine = str(error).startswith(str(tmp_path / "dump.py")) and "\n" not in str(error)
        return type(error).__name__ if fine else str(error)
    return "fine"


@pytest.mark.slow
@pytest.mark.private
def test_damaged_dumps_load_or_say_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    chance = random.Random(0)
    outcomes = {outcome(tmp_path, damaged(TEXT, chance)) for _ in range(150)}
    assert outcomes >= {"fine", "DumpError"}
    assert all(name == "fine" or name in vars(errors) for name in outcomes), outcomes
