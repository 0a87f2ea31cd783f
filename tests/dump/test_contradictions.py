"""Sizes of experts that contradict each other in one file: what is said, and what is taken instead."""

from pathlib import Path

import pytest

from overlap_sched.dump import load_dump, sizes_to_give
from tests.support.dump_graphs import handwritten, loaded, values

BODY = """
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
FITTING = BODY.replace("[rows, 8]", "[96, 8]").replace(", some)", ", 96)")
CONFIG = "\ndef get_pg_config():\n    return {'7': {'size': 2, 'rank': 0}}\n"
ALL = (
    "all_to_all whose splits, by the sizes in the file, do not add to its rows (there: splits add to 8 of 96 rows); "
    "these sizes are left out and experts taken as balanced, 48 rows a split; to give your own: --size u0=48 and so "
    "on for u1"
)


def text(hint: int, body: str = BODY) -> str:
    """A backward graph of two ranks whose all_to_all sends 96 rows; every size in the file is ``hint``."""
    saved = "buf9 = reader.storage(None, 32*(u0 + u1))\nreader.tensor(buf9, (u0 + u1, 8))"
    inputs = [
        ("a", f"u0 = u1 = {hint}\nreader.symint({hint})"),
        *((name, f"reader.symint({hint})") for name in ("b", "c", "d", "rows", "some")),
        ("grad", "float32 96 8"),
        ("which", "int64 96"),
        ("saved", saved),
    ]
    return handwritten(body, inputs) + CONFIG


def test_experts_are_balanced_where_the_file_contradicts_itself(tmp_path: Path) -> None:
    dump = loaded(tmp_path, text(hint=4))
    val = values(dump)
    assert {val[name] for name in "abcd"} == {48}
    assert (val["rows"], val["some"]) == (96, 96)  # what is sent back, and what it is cut from
    assert val["there"].shape == val["slice_1"].shape == val["back"].shape == (96, 8)
    assert val["saved"].shape == (96, 8)  # the symbols in other inputs mean the same
    assert dump.notes == {
        ALL: 2,
        "data-dependent sizes, taken as 48": 6,
        "data-dependent sizes, taken as 96": 2,
    }
    assert sizes_to_give(dump.guessed) == [
        "data-dependent sizes were guessed, and peak memory rests on them; "
        "to give one: --size u0=48 (also u1, a, b and 4 more)"
    ]


def test_sizes_that_fit_are_left_alone(tmp_path: Path) -> None:
    dump = loaded(tmp_path, text(48, FITTING))
    assert dump.notes == {}
    assert dump.guessed == {}
    assert sizes_to_give(dump.guessed) == []


def test_sizes_of_the_caller_count_more_than_those_of_the_file(tmp_path: Path) -> None:
    given = {"a": 40, "b": 56, "c": 40, "d": 56, "rows": 97, "some": 96, "u0": 40, "u1": 56}
    (tmp_path / "dump.py").write_text(text(hint=4))
    dump = load_dump(tmp_path / "dump.py", sizes=given)
    val = values(dump)
    assert {name: val[name] for name in ("a", "b", "rows", "some")} == {"a": 40, "b": 56, "rows": 97, "some": 96}
    assert (val["full"].shape, val["there"].shape, val["saved"].shape) == ((97, 8), (96, 8), (96, 8))
    assert dump.notes == {}


def test_sizes_of_the_caller_that_contradict_each_other_are_said_and_kept(tmp_path: Path) -> None:
    (tmp_path / "dump.py").write_text(text(48, FITTING))
    dump = load_dump(tmp_path / "dump.py", sizes=dict.fromkeys(("a", "b", "c", "d"), 1))
    assert values(dump)["there"].shape == (2, 8)
    assert dump.notes == {
        "all_to_all whose splits do not add to its rows (there: splits add to 2 of 96 rows); spread evenly: "
        "--size u0=48 and so on for u1": 2
    }


@pytest.mark.parametrize(("names", "text"), [(("u0",), "--size u0=1"), (("add_3", "u0"), "--size u0=1 (also add_3)")])
def test_symbols_are_suggested_first(names: tuple[str, ...], text: str) -> None:
    note = f"data-dependent sizes were guessed, and peak memory rests on them; to give one: {text}"
    assert sizes_to_give(dict.fromkeys(names, 1)) == [note]
