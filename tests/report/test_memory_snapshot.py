"""Predicted allocations for torch's memory viewer: what the events say is what the judges and the replay say."""

import base64
import importlib
import pickle
import pickletools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from overlap_sched.errors import OptionsError
from overlap_sched.judge.validate import memory_profile
from overlap_sched.options import Options
from overlap_sched.peak_memory import replay_allocator
from overlap_sched.problem import Problem
from overlap_sched.report.memory_snapshot import memory_snapshot, write_memory_snapshot
from overlap_sched.scheduler.driver import Schedule, schedule
from tests.support.examples import examples, run
from tests.support.graphs import problems

# opcodes that the script of the viewer knows (torch/utils/viz/MemoryViz.js, unpickle)
KNOWN = (
    *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET"),
    *("EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS", "SHORT_BINUNICODE", "BINUNICODE"),
    *("BININT", "BININT1", "BININT2", "LONG1", "NEWTRUE", "NEWFALSE", "NONE"),
)


NEW = "new order, simulated"


def simulated(entries: list[dict[str, Any]]) -> tuple[list[int], int]:
    """Live bytes after each allocation and free, and the bytes of segments; no two blocks may overlap."""
    live: dict[int, int] = {}
    segments: list[tuple[int, int]] = []
    found = []
    for entry in entries:
        begin, end = entry["addr"], entry["addr"] + entry["size"]
        if entry["action"] == "segment_alloc":
            segments.append((begin, end))
        elif entry["action"] == "alloc":
            assert all(end <= at or at + size <= begin for at, size in live.items())
            assert any(first <= begin and end <= last for first, last in segments)
            live[begin] = entry["size"]
        elif entry["action"] == "free_completed":
            assert live.pop(begin) == entry["size"]
        found.append(sum(live.values()))
    return found, sum(last - first for first, last in segments)


def check(found: Schedule) -> dict[str, Any]:
    problem, made = found.problem, memory_snapshot(found)
    for device, order in enumerate((problem.original_order, found.order)):
        entries = made["device_traces"][device]
        live, reserved = simulated(entries)
        assert max(live, default=0) == max(memory_profile(problem, order))
        assert reserved == replay_allocator(problem, order).reserved_bytes
        mine = [segment for segment in made["segments"] if segment["device"] == device]
        assert sum(segment["total_size"] for segment in mine) == reserved
        for segment in mine:
            assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        at_end = sum(segment["requested_size"] for segment in mine)
        assert at_end == (live[-1] if live else 0)
    return made


def test_the_example(reordered: Schedule) -> None:
    entries = check(reordered)["device_traces"][1]
    assert [entry["action"] for entry in entries[:4]] == ["segment_alloc", "alloc", "segment_alloc", "alloc"]
    assert entries[0]["category"] == "unknown"
    alloc = next(entry for entry in entries if entry["frames"][0]["filename"] == "gather")
    assert alloc == {
        "action": "alloc",
        "addr": alloc["addr"],
        "size": 8 * 2**20,
        "stream": 0,
        "time_us": 0,
        "frames": [
            {
                "filename": "gather",
                "line": 2,
                "name": "all_gather_into_tensor, gathered parameters, new order, simulated",
            }
        ],
        "category": "gathered parameters",
    }
    freed = [e["time_us"] for e in entries if e["action"] == "free_completed" and e["addr"] == alloc["addr"]]
    assert freed[0] == 110  # dgrad, its last user, runs from 80 to 110


@given(problem=problems())
@examples(40)
def test_random_graphs(problem: Problem) -> None:
    if problem.memory_model == "runtime":
        check(schedule(problem, Options(headroom="10%")))


def test_the_other_memory_model_is_refused(reordered: Schedule) -> None:
    other = replace(reordered, problem=replace(reordered.problem, memory_model="tracker"))
    with pytest.raises(OptionsError) as caught:
        memory_snapshot(other)
    assert str(caught.value) == (
        "a memory snapshot replays torch's allocator, which is not done in the tracker memory model: it frees what a "
        "collective in flight still holds. Capture the graph in the runtime model."
    )


def test_the_viewers_script_can_read_the_file(reordered: Schedule, tmp_path: Path) -> None:
    write_memory_snapshot(reordered, tmp_path / "out.pickle")
    data = (tmp_path / "out.pickle").read_bytes()
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= set(KNOWN)
    made = memory_snapshot(reordered)
    assert "unknown" in {entry["category"] for trace in made["device_traces"] for entry in trace}
    assert "Nothing was measured" in made["simulated"]


def test_torchs_own_reader(problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    viewer = importlib.import_module("torch.cuda._memory_viz")
    out = tmp_path / "out.pickle"
    assert run("plan", problem, "--headroom", "5MiB", "--memory-snapshot", str(out)) == 0
    capsys.readouterr()
    data = pickle.loads(out.read_bytes())  # ours, of this very test
    told = viewer.trace(data)
    assert told.count("Device 0 -----") == told.count("Device 1 -----") == 1
    assert told.count("cudaMalloc(") == len(data["segments"])
    assert "MEM[" not in told, "a block lies in no segment"
    assert "{" not in told, "an entry that the reader does not know"
    assert "total_reserved" in viewer.segsum(data).lower() or "MiB" in viewer.segsum(data)
    lines = viewer.memory(data, format_flamegraph=lambda text: text)
    assert sum(int(line.rpartition(" ")[2]) for line in lines.splitlines()) >= sum(
        segment["total_size"] for segment in data["segments"]
    )
    for page in (viewer.trace_plot(data), viewer.segment_plot(data)):
        (embedded,) = re.findall(r'"base64": "([^"]*)"', page)
        assert pickle.loads(base64.b64decode(embedded)) == data
