"""What a day with a GPU runs, without one: each part dry, and the allocator's history written by hand."""

import json
import subprocess
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from llama_repro.capture.configs import find_config  # noqa: E402
from llama_repro.gpu import day as gpu_day  # noqa: E402
from llama_repro.gpu.day import PARTS, Said, allocator, day, kernels, main, prices  # noqa: E402
from llama_repro.gpu.history import Replayed, replayed  # noqa: E402
from overlap_sched.cli.arguments import command_parser  # noqa: E402
from tests.support.simulated_gpu import simulate  # noqa: E402

CPU = torch.device("cpu")
ONE_LAYER = replace(find_config("tiny"), layers=1)
MIB = 2**20


def event(action: str, addr: int, size: int, stream: int = 0) -> dict[str, object]:
    return {"action": action, "addr": addr, "size": size, "stream": stream}


HISTORY = [
    event("free_completed", 1, 512),  # from before
    event("segment_alloc", 0, 2 * MIB),
    event("alloc", 100, 1000),
    event("segment_alloc", 4 * MIB, 20 * MIB),
    event("alloc", 200, 3 * MIB),
    event("alloc", 300, 4 * MIB),
    event("segment_alloc", 40 * MIB, 14 * MIB),
    event("alloc", 400, 13 * MIB + 1),
    event("free_requested", 300, 4 * MIB),
    event("free_completed", 300, 4 * MIB),
    event("alloc", 500, 4 * MIB),
    event("segment_alloc", 80 * MIB, 20 * MIB, 7),
    event("alloc", 600, 2 * MIB, 7),
    event("free_completed", 200, 3 * MIB),
    event("segment_free", 80 * MIB, 20 * MIB, 7),
]
"""Small blocks have segments of 2 MiB, those up to 10 MiB of 20, larger ones their own; a stream has its own pool."""


def test_the_replay_reserves_what_torch_did() -> None:
    found = replayed(HISTORY)
    assert found == Replayed(6, 1, 56 * MIB, 56 * MIB, 4, 4)
    assert found.same


def test_what_torch_reserved_besides_is_seen() -> None:
    found = replayed([*HISTORY, event("segment_alloc", 200 * MIB, 20 * MIB), event("alloc", 700, 4 * MIB)])
    assert not found.same
    assert (found.torch_segments, found.our_segments) == (5, 4)


def test_a_part_that_fails_and_one_too_late_say_so() -> None:
    def fails(*_: object) -> Said:
        raise ValueError("broken")

    told = dict(day(CPU, ONE_LAYER, {"one": fails, "two": lambda *_: Said(3, "three")}))
    assert told["one"]["failed"] == "ValueError: broken"
    assert (told["two"]["figures"], told["two"]["text"]) == (3, "three")
    late = dict(day(CPU, ONE_LAYER, {"one": fails}, limit_s=-1.0))
    assert late["one"]["failed"] == "not begun: -1 s are over"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == "no GPU: nothing measured (--device cpu is a dry run without one)\n"


def calibrated(monkeypatch, status: int = 0) -> None:
    """In place of processes that calibrate: their command line is read, and a file is written."""

    real = subprocess.run

    def run(command: list[str], **more: object) -> subprocess.CompletedProcess[str]:
        if "calibrate" not in command:
            return real(command, **more)  # type: ignore[call-overload]
        assert command[1:5] == ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
        asked = command_parser().parse_args(command[command.index("calibrate") :])
        with open(asked.out, "w") as file:
            file.write("name = 'here'")
        return subprocess.CompletedProcess(command, status, "measured", "no more memory")

    monkeypatch.setattr(gpu_day.subprocess, "run", run)


def test_kernels_are_those_of_calibrate(monkeypatch) -> None:
    calibrated(monkeypatch)
    assert kernels(CPU, ONE_LAYER) == Said({"cluster": "name = 'here'"}, "measured")
    calibrated(monkeypatch, status=1)
    with pytest.raises(RuntimeError, match="no more memory"):
        kernels(CPU, ONE_LAYER)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # of its own, while it compiles
def test_a_dry_run_of_every_part(tmp_path, capsys, monkeypatch) -> None:
    calibrated(monkeypatch)
    out = tmp_path / "dry.json"
    assert main(["--device", "cpu", "--out", str(out)]) == 0
    record, text = json.loads(out.read_text()), out.with_suffix(".txt").read_text()
    assert capsys.readouterr().out == text
    assert list(record["parts"]) == list(PARTS)
    assert all("failed" not in part and f"## {name} (" in text for name, part in record["parts"].items())
    assert [row["name"] for row in record["parts"]["orders"]["figures"]] == ["original", "ours", "torch"]
    assert record["parts"]["plug-in"]["figures"]["same_results"] is True
    assert "nothing was recorded: there is no GPU" in text


@pytest.mark.slow
def test_prices_and_history_on_a_gpu_that_only_keeps_time(monkeypatch) -> None:
    simulate(monkeypatch, {torch.ops.aten.mm.default: 7.0})
    monkeypatch.setattr(gpu_day, "has_streams", lambda device: True)
    recorded: list[object] = []
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda *given, **_: recorded.append(given))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"device_traces": [HISTORY]})
    count, predicted, measured = prices(CPU, ONE_LAYER).figures["aten.mm.default"]
    assert measured == pytest.approx(7.0 * count)
    assert predicted > 0
    said = allocator(CPU, ONE_LAYER)
    assert recorded == [("all",), (None,)]  # on, and off again
    assert said.text == (
        "6 requests: the replay reserves as much: 58,720,256 bytes in 4 segments, torch 58,720,256 in 4"
    )
