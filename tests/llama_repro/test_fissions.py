"""Files of fissions are read as they were written, and the kept one is of the kept step."""

from pathlib import Path

import pytest

from llama_repro.errors import RecordError
from llama_repro.titan.fissions import read_fissions, write_fissions
from llama_repro.titan.models import MODELS
from overlap_sched.cost import Roofline
from overlap_sched.fx import lift
from overlap_sched.fx.dimensions.candidates import expert_fissions
from overlap_sched.judge.validate import violation
from overlap_sched.problem.file import read_problem
from overlap_sched.transform.apply import apply
from overlap_sched.transform.prices import Prices
from tests.support.routed_graphs import traced

MODEL = MODELS["titan-deepseek3-16b-fsdp64-ep8"]


@pytest.mark.slow
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
