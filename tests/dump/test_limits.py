"""A short dump may ask for ten million values: it is refused before they are made."""

import gzip
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from overlap_sched.dump.counting import parts_made
from overlap_sched.dump.load import load_dump
from overlap_sched.dump.values import run_operator
from overlap_sched.errors import DumpError, InputTooLargeError
from overlap_sched.problem.file import Limits
from tests.support.dump_graphs import handwritten

MANY = "full = torch.ops.aten.full.default([10000000], 1)\nparts = torch.ops.aten.unbind.int(full)\nreturn (x,)"
REPAIR = "Raise the limit (--max-nodes on the command line) if the graph is meant to be that large."


def load(folder: Path, body: str, limit: int, nested: str = "") -> int:
    path = folder / "dump.py"
    path.write_text(handwritten(body, [("x", "float32 4 4")], nested=nested))
    return len(load_dump(path, limits=Limits(nodes=limit)).gm.graph.nodes)


def refused(folder: Path, body: str, limit: int, nested: str = "") -> str:
    with pytest.raises(InputTooLargeError) as caught:
        load(folder, body, limit, nested)
    return str(caught.value).replace(f"{folder}/", "")


def test_parts_are_counted_before_they_are_made(tmp_path: Path) -> None:
    with patch("overlap_sched.dump.values.run_operator", wraps=run_operator) as ran:
        assert refused(tmp_path, MANY, 2_000_000) == (
            "dump.py, line 23: node 'parts' (`parts = torch.ops.aten.unbind.int(full)`): its result has 10,000,000 "
            f"parts; with them the graph has more than 2,000,000 nodes, which is the limit. {REPAIR}"
        )
    assert [call.args[0] for call in ran.call_args_list] == [torch.ops.aten.full.default]


def test_nodes_and_parts_count_alike(tmp_path: Path) -> None:
    body = (
        "parts = torch.ops.aten.split.Tensor(x, 2)\none = parts[0]\n"
        "neg = torch.ops.aten.neg.default(one)\nreturn (neg,)"
    )
    assert load(tmp_path, body, 6) == 5  # x, two parts, one, neg, and the output's list of one
    assert refused(tmp_path, body, 4) == (
        f"dump.py, line 24: node 'neg' (`neg = torch.ops.aten.neg.default(one)`): with this node the graph has more "
        f"than 4 nodes, which is the limit. {REPAIR}"
    )


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        ("unbind.int(t)", 6),
        ("unbind.int(t, 1)", 8),
        ("unbind.int(t, dim=-1)", 8),
        ("split.Tensor(t, 4)", 2),
        ("split.Tensor(t, 4, dim=1)", 2),
        ("split.Tensor(t, split_size=1)", 6),
        ("split_copy.Tensor(t, 5)", 2),
        ("unsafe_split.Tensor(t, 3)", 2),
        ("split.sizes(t, [1, 2, 3])", 3),
        ("chunk.default(t, 4)", 4),
        ("unsafe_chunk.default(t, chunks=100)", 6),
        ("tensor_split.sections(t, 5)", 5),
        ("neg.default(t)", 0),
        ("add.Tensor(t, t)", 0),
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
    body = f"b = self.body\n{calls}return (x,)"
    assert load(tmp_path, body, 300, nested) == 23
    assert refused(tmp_path, body, 200, nested).endswith(
        f"the graph has more than 200 nodes, which is the limit. {REPAIR}"
    )


def test_a_body_that_runs_another_one_is_told_not_a_crash(tmp_path: Path) -> None:
    nested = (
        "class inner(torch.nn.Module):\n    def forward(self, x):\n        return (x,)\n"
        "class outer(torch.nn.Module):\n    def forward(self, x):\n        b = self.inner\n"
        "        y = torch.ops.higher_order.invoke_subgraph(b, 'n', x)\n        return (y,)\n"
    )
    with pytest.raises(DumpError, match="the dump does not hold the body that this higher-order operator runs"):
        load(
            tmp_path, "b = self.outer\nout = torch.ops.higher_order.invoke_subgraph(b, 'n', x)\nreturn (x,)", 99, nested
        )


def test_lists_are_not_multiplied(tmp_path: Path) -> None:
    body = "parts = torch.ops.aten.split.Tensor(x, 2)\nmany = parts * 1000000000\nreturn (x,)"
    with pytest.raises(DumpError, match="an operator on a list"):
        load(tmp_path, body, 100)


def test_powers_of_powers_are_not_computed(tmp_path: Path) -> None:
    power = "2 ** 63 ** 1"
    for _ in range(6):
        power = f"({power}) ** 64"
    with pytest.raises(Exception, match="this is not understood"):
        load(tmp_path, f"a = torch.ops.aten.full.default([{power}], 1)\nreturn (x,)", 100)


def test_a_small_file_that_unpacks_to_a_huge_one(tmp_path: Path) -> None:
    path = tmp_path / "dump.py.gz"
    path.write_bytes(gzip.compress(b"\n" * 2**22))
    with pytest.raises(InputTooLargeError) as caught:
        load_dump(path, limits=Limits(input_bytes=2**20))
    assert str(caught.value) == (
        f"{path}: has more than 1,048,576 bytes once decompressed, which is the limit. "
        "Raise the limit (--max-input-bytes on the command line) if the file is meant to be that large."
    )
