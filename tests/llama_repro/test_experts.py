"""Steps with experts in parts: the figures of `scripts/experts_bench.py`, and the files that it reads."""

from pathlib import Path

import pytest

from llama_repro.errors import RecordError
from llama_repro.titan.experts import expert_rows, read_fissions, write_fissions
from llama_repro.titan.models import MODELS
from overlap_sched.cost import Roofline
from overlap_sched.fx import lift
from overlap_sched.fx.dimensions.experts import expert_fissions
from overlap_sched.judge.validate import violation
from overlap_sched.problem.file import read_problem
from overlap_sched.transform.apply import apply
from overlap_sched.transform.prices import Prices
from tests.support.routed_graphs import traced

MODEL = MODELS["titan-deepseek3-16b-fsdp64-ep8"]


@pytest.mark.slow
def test_rows_are_the_step_whole_and_in_parts() -> None:
    lifted = lift(traced())
    fissions = expert_fissions(lifted, (2,))
    rows = list(expert_rows(lifted.problem, fissions, 3.0, within=True))
    wide, narrow = (f"2 parts of {len(one.nodes)} nodes" for one in fissions)
    assert [row.way.split(":")[0] for row in rows] == [
        *("original order", "best order", wide, narrow),
        *(f"fit within the peak, {way}" for way in (wide, narrow)),
    ]
    for row in rows:
        assert row.step_us >= row.compute_us + row.all_to_all_us + row.other_us - 1e-6
    original, best, *parts = rows
    assert best.step_us <= original.step_us
    assert 0 < best.all_to_all_us <= original.all_to_all_us
    assert best.peak_bytes <= original.peak_bytes
    assert all(row.nodes > original.nodes for row in parts[:2])
    assert all(row.peak_bytes <= original.peak_bytes for row in parts[2:])
    slower = sum(node.time_us for node in lifted.problem.nodes if node.group is not None)
    assert original.all_to_all_us <= 3.0 * slower


def test_files_of_fissions_are_read_as_they_were_written(tmp_path: Path) -> None:
    found, path = expert_fissions(lift(traced())), tmp_path / "fissions.json.gz"
    write_fissions(found, path)
    assert read_fissions(path) == found
    once = path.read_bytes()
    write_fissions(found, path)
    assert path.read_bytes() == once


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "FileNotFoundError: [Errno 2] No such file or directory: '{path}'."),
        (b"[]", "BadGzipFile: Not a gzipped file (b'[]')."),
    ],
)
def test_what_is_no_file_of_fissions_is_said(content: bytes | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "fissions.json.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordError) as error:
        read_fissions(path)
    assert str(error.value) == f"{path} is no file of fissions: {why.format(path=path)}"


@pytest.mark.slow
def test_the_kept_fissions_are_of_the_kept_step() -> None:
    problem = read_problem(MODEL.problem_file)
    exchanges = sum("all_to_all" in problem.nodes[v].op for v in problem.collectives)
    one = min(read_fissions(MODEL.fissions_file), key=lambda one: len(one.nodes) * one.parts)
    after = apply(problem, [one], Prices(Roofline()))
    assert violation(after, after.original_order) is None
    assert sum("all_to_all" in after.nodes[v].op for v in after.collectives) == one.parts * exchanges
