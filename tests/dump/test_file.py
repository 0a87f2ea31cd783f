"""Ways in which dumps are saved and handed on, and what is damaged on the way.

Texts of graphs as users have them: logs of ``TORCH_LOGS``, coloured prints, ``str(graph)``, several in one file.

``tests/data/torch_logs_*.log.gz`` is what two gloo ranks of torch 2.13.0 and 2.15.0 wrote into one terminal with
``TORCH_LOGS=aot_graphs,post_grad_graphs,graph_code,aot_joint_graph``; paths are shortened.
"""

import random
import re
from pathlib import Path

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from overlap_sched import errors
from overlap_sched.dump.load import Dump, load_dump
from overlap_sched.fx.lifting import lift
from tests.support.dump_graphs import handwritten, loaded, values
from tests.support.fx_graphs import gather, wait

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
    with pytest.raises(errors.DumpError, match=r"a number of bytes and a device: `reader\.storage.*8 GPUs"):
        load(tmp_path, TEXT.replace("device=device(type='cuda', index=0)", "device='8 GPUs'"))


def test_a_raw_log_is_told_from_a_dump(tmp_path: Path) -> None:
    log = "V1120 {}\n" + "".join(f"\t{line}\n" for line in TEXT.split("\n"))
    with pytest.raises(errors.DumpError, match="Run tlparse on it"):
        load(tmp_path, log)


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


@pytest.mark.private
def test_damaged_dumps_load_or_say_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    chance = random.Random(0)
    outcomes = {outcome(tmp_path, damaged(TEXT, chance)) for _ in range(150)}
    assert outcomes >= {"fine", "DumpError"}
    assert all(name == "fine" or name in vars(errors) for name in outcomes), outcomes


LOGS = Path(__file__).parent.parent / "data"
PREFIX = "[rank0]:V1126 10:00:00.000000 17 torch/_functorch/aot.py:5] [0/0] [__aot_graphs] "


@pytest.fixture(scope="module")
def graph() -> fx.GraphModule:
    def step(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        full = wait(gather(w))
        made = torch.ops.aten.empty.memory_format([2, 3], dtype=torch.bfloat16, device="cpu")
        return [(x * 2) @ full, torch.ops.aten.split.Tensor(full, 4, 1)[0].relu(), made]

    with FakeTensorMode():
        return make_fx(step, tracing_mode="fake")(torch.empty(3, 8), torch.empty(4, 8))


def printed(gm: fx.GraphModule, **how: bool) -> str:
    return gm.print_readable(print_output=False, include_stride=True, include_device=True, **how)


def nodes_of(gm: fx.GraphModule) -> list[tuple[str, str, str]]:
    return [(node.name, str(node.target), str(node.args)) for node in gm.graph.nodes]


def test_colours_and_prefixes_change_nothing(graph: fx.GraphModule, tmp_path: Path) -> None:
    coloured, plain = printed(graph, colored=True), printed(graph)
    assert "\x1b[" in coloured
    logged = "\n".join(PREFIX + line for line in plain.splitlines())
    texts = [coloured, coloured.replace("\x1b", "^["), logged, logged.replace("[rank0]:", ""), "[default0]:" + logged]
    want = lift(loaded(tmp_path, plain).gm).problem
    for text in texts:
        dump = loaded(tmp_path, text)
        assert lift(dump.gm).problem == want
        assert dump.choice == ""


def test_a_list_of_nodes_has_no_shapes(graph: fx.GraphModule, tmp_path: Path) -> None:
    with pytest.raises(errors.DumpError, match=r"gm.print_readable\(.*str\(graph\) has no shapes"):
        loaded(tmp_path, str(graph.graph))


def test_modes_are_kept_and_not_switched(graph: fx.GraphModule, tmp_path: Path) -> None:
    fence = "        fence = torch._C._set_grad_enabled(False);  fence = None\n        mul: "
    assert torch.is_grad_enabled()
    dump = loaded(tmp_path, printed(graph).replace("        mul: ", fence))
    assert torch.is_grad_enabled()
    assert values(dump)["fence"] is None
    assert [n.name for n in dump.gm.graph.nodes if n.name != "fence"] == [n.name for n in graph.graph.nodes]


@pytest.mark.parametrize("version", ["2.13", "2.15"])
def test_each_of_several_graphs_can_be_taken(version: str) -> None:
    path = LOGS / f"torch_logs_{version}.log.gz"
    first = load_dump(path)
    joint, forward, backward = (load_dump(path, graph=number) for number in (3, 5, 6))
    assert nodes_of(first.gm) == nodes_of(joint.gm)
    kinds = [len(lift(dump.gm).problem.collectives) for dump in (joint, forward, backward)]
    assert kinds == [2, 1, 1]
    ranks = "1" if version == "2.13" else "0"
    assert first.choice.startswith("12 graphs are in the file, graph 3 was read; --graph N (in Python graph=N) takes ")
    assert f"3 Joint graph 0 (rank {ranks}, line 61), 4 Joint graph 0 (rank " in first.choice
    with pytest.raises(errors.DumpError) as error:
        load_dump(path, graph=13)
    assert str(error.value).startswith(f"{path}: there is no graph 13: its graphs are 1 __compiled_fn_1_")


def test_lines_that_other_ranks_write_in_between_are_left_out(graph: fx.GraphModule, tmp_path: Path) -> None:
    lines = printed(graph).splitlines()
    mixed = [
        prefix + line for line in lines for prefix in (PREFIX, PREFIX.replace("rank0", "rank1").replace(" 17", " 18"))
    ]
    mixed.insert(7, "Traceback of something else")
    dump = loaded(tmp_path, "\n".join(mixed))
    assert nodes_of(dump.gm) == nodes_of(graph)
    assert dump.choice.endswith(": 1 step (rank 0, line 1), 2 step (rank 1, line 2)")
    nameless = loaded(tmp_path, "\n".join(mixed).replace("[rank0]:", "").replace("[rank1]:", ""))
    assert nodes_of(nameless.gm) == nodes_of(graph)
    assert nameless.choice.endswith(": 1 step (line 1), 2 step (line 2)")
