"""What is said of files that are no traces."""

import gzip
import json
from pathlib import Path

import pytest

from overlap_sched.cost.profile import read_trace_file
from overlap_sched.errors import CostError, InputTooLargeError
from overlap_sched.problem.file import Limits
from tests.support.traces import event, write


def test_a_trace(tmp_path: Path) -> None:
    mark = {"ph": "i", "name": "marker", "ts": 3}
    path = write(
        tmp_path, [event("aten::mm", 5, 2.5, (4, 8)), mark, {"ph": "X", "name": "unfinished", "ts": 1}], rank=3
    )
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    file = read_trace_file(path)
    assert read_trace_file(packed) == file._replace(path=str(packed))
    assert (file.rank, file.world_size) == (3, 2)
    (only,) = file.events
    assert (only.name, only.category, only.start_us, only.end_us, only.thread) == (
        "aten::mm",
        "cpu_op",
        5.0,
        7.5,
        ("7", "1"),
    )


def test_a_trace_of_a_job_without_ranks(tmp_path: Path) -> None:
    file = read_trace_file(write(tmp_path, [], rank=None))
    assert (file.rank, file.world_size) == (None, None)


NO_EVENTS = (
    "has no list of traceEvents: it is not a trace of torch.profiler. Write one with profile.export_chrome_trace(PATH)."
)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "is not JSON ("),
        (b'{"traceEvents": [', "is not JSON ("),
        (b"\xff\xff", "is not JSON ("),
        (b"[" * 100_000, "is not JSON (maximum recursion depth exceeded"),
        (b"[]", NO_EVENTS),
        (b"{}", NO_EVENTS),
        (b'{"traceEvents": {}}', NO_EVENTS),
        (b'{"traceEvents": [3]}', "traceEvents[0] is 3; an event is a JSON object."),
        (
            b'{"traceEvents": [{"ph": "M"}, {"ph": "X", "name": 3, "ts": 1, "dur": 1}]}',
            "traceEvents[1] has name 3; it is a text.",
        ),
        (
            b'{"traceEvents": [{"ph": "X", "name": "mm", "ts": "now", "dur": 1}]}',
            "traceEvents[0] ('mm') has ts 'now' and dur 1; they are microseconds, and a duration is 0 or more.",
        ),
        (
            b'{"traceEvents": [{"ph": "X", "name": "mm", "ts": 1, "dur": -1}]}',
            "traceEvents[0] ('mm') has ts 1 and dur -1; they are microseconds, and a duration is 0 or more.",
        ),
        (
            b'{"traceEvents": [{"ph": "X", "name": "mm", "ts": NaN, "dur": 1}]}',
            "traceEvents[0] ('mm') has ts nan and dur 1; they are microseconds, and a duration is 0 or more.",
        ),
        (gzip.compress(b"{}" * 1000)[:20], "the gzip stream is cut short. Copy or download the file again."),
    ],
    ids=range(13),
)
def test_files_that_are_no_traces(content: bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(CostError) as error:
        read_trace_file(path)
    assert str(error.value).startswith(f"{path}: {text}")


def test_files_that_are_not_there_or_not_gzip(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    with pytest.raises(CostError) as error:
        read_trace_file(path)
    assert str(error.value) == f"{path}: cannot be read (No such file or directory). Check the path."
    path.write_text("{}")
    with pytest.raises(CostError) as error:
        read_trace_file(path)
    assert str(error.value) == (
        f"{path}: is named like gzip but is not (Not a gzipped file (b'{{}}')). Rename it to .json or "
        "compress it again."
    )


def test_limits(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{} for _ in range(31)]}))
    assert read_trace_file(path, Limits(nodes=3)).events == []  # 33 objects and lists
    with pytest.raises(InputTooLargeError) as error:
        read_trace_file(path, Limits(nodes=2))
    assert str(error.value) == (
        f"{path}: has 33 objects and lists, more than 16 for each of 2 nodes. "
        "Raise the limit (--max-nodes on the command line) if the file is meant to be that large."
    )
    with pytest.raises(InputTooLargeError, match="has more than 50 bytes, which is the limit"):
        read_trace_file(path, Limits(input_bytes=50))
