"""Peaks from a step's allocations, and why two of them differ; what runs a model is tried on the smallest."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from llama_repro.errors import FootprintError
from llama_repro.footprint.child import compiled
from llama_repro.footprint.entry import Entry
from llama_repro.footprint.events import KINDS, Event, Peak, events_of, peak_of
from llama_repro.footprint.models import ENTRIES
from llama_repro.footprint.modes import MEASURED
from llama_repro.footprint.rows import Row, explanation, measured, peak_from, steps, unlike_default
from llama_repro.footprint.table import markdown

MIB = 2**20
HELD, SAVED, GRADIENTS, FORWARD, BACKWARD = KINDS


def step() -> list[Event]:
    """Forward saves 4 and drops 2; backward makes 3 of scratch, keeps a gradient of 1, frees what was saved."""
    return [
        Event(1, 2 * MIB, False),
        Event(2, 4 * MIB, False),
        Event(1, -2 * MIB, False),
        Event(1, 3 * MIB, True),
        Event(3, MIB, True),
        Event(1, -3 * MIB, True),
        Event(9, -5 * MIB, True),  # was there before the step
        Event(2, -4 * MIB, True),
    ]


def test_the_peak_by_kind() -> None:
    found = peak_of(step(), 10 * MIB)
    assert (found.bytes, found.backward) == (18 * MIB, True)
    assert found.kinds == {HELD: 10 * MIB, SAVED: 4 * MIB, GRADIENTS: MIB, FORWARD: 0, BACKWARD: 3 * MIB}
    assert sum(found.kinds.values()) == found.bytes
    assert found.pool_bytes == 22 * MIB  # a segment of 20 MiB, and one of 2 MiB for requests of up to 1 MiB


def test_a_peak_in_forward() -> None:
    found = peak_of([Event(1, 8 * MIB, False), Event(2, MIB, False), Event(1, -8 * MIB, False), *step()[3:5]], 0)
    assert (found.bytes, found.backward) == (9 * MIB, False)
    assert found.kinds[FORWARD] == 8 * MIB
    assert peak_of([], 7).bytes == 7


def test_events_of_a_trace() -> None:
    def memory(ts: float, address: int, count: int, device: int = 0) -> dict[str, object]:
        args = {"Addr": address, "Bytes": count, "Device Type": device}
        return {"name": "[memory]", "ph": "i", "ts": ts, "args": args}

    marked = {"name": "mark", "ph": "X", "ts": 5.0, "dur": 9.0}
    fields = [memory(6.0, 1, -64), marked, memory(2.0, 1, 64), memory(3.0, 2, 8, device=1), memory(4.0, 3, 0)]
    assert events_of({"traceEvents": fields}, "mark") == [Event(1, 64, False), Event(1, -64, True)]


def peak(saved: int, scratch: int, backward: bool = True, pool: int = 0) -> Peak:
    kinds = dict.fromkeys(KINDS, 0) | {HELD: 10 * MIB, SAVED: saved * MIB, BACKWARD: scratch * MIB}
    return Peak(sum(kinds.values()), backward, kinds, pool * MIB)


def test_each_ratio_is_explained() -> None:
    row = Row("net", "a net", {"eager": peak(20, 10), "default": peak(8, 12, pool=24)}, {"dynamic": "it broke"})
    assert row.ratio("default") == pytest.approx(40 / 30)
    assert row.ratio("memory") is None
    assert explanation(row) == (
        "12.0 MiB less saved for backward (the partitioner recomputes pointwise operators instead); "
        "2.0 MiB more temporaries of backward (a whole graph frees later)"
    )
    assert explanation(row, "dynamic") == "it broke"
    assert explanation(Row("net", "", {"eager": peak(20, 10), "default": peak(20, 10)}, {})) == (
        "the same is live at both peaks"
    )
    moved = Row("net", "", {"eager": peak(20, 10), "default": peak(20, 10, backward=False)}, {})
    assert explanation(moved).startswith("the peak moves from backward to forward; ")


def test_modes_unlike_the_default_are_explained_beside_it() -> None:
    peaks = {"eager": peak(20, 10), "default": peak(8, 12), "dynamic": peak(9, 14), "max-autotune": peak(8, 12)}
    row = Row("net", "a net", {**peaks, "default+memory": peak(8, 9)}, {})
    assert unlike_default(row) == ["dynamic", "default+memory"]
    shown = markdown([row])
    assert "| default, ours, memory | 1.48 | beside default's: 3.0 MiB less temporaries of backward |" in shown
    assert explanation(row, "dynamic", "default") == (
        "2.0 MiB more temporaries of backward; 1.0 MiB more saved for backward"
    )
    assert unlike_default(Row("net", "", {"eager": peak(20, 10)}, {})) == []


def test_one_step_after_the_other() -> None:
    peaks = {"eager": peak(20, 10), "partitioned": peak(8, 14), "not donated": peak(8, 13), "default": peak(8, 12)}
    assert steps(Row("net", "", peaks, {})) == [-8 * MIB, -MIB, -MIB]
    del peaks["partitioned"]
    assert steps(Row("net", "", peaks, {})) is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch 2.13, of itself, when Inductor is first imported
def test_every_mode_is_known_to_the_child() -> None:
    model = torch.nn.Linear(2, 2)
    assert len(set(MEASURED)) == len(MEASURED) == 14
    assert compiled(model, "eager") is model
    for mode in MEASURED[1:]:
        if mode != "not donated":  # which is a switch of the process
            assert compiled(model, mode) is not model


def test_the_tables_mark_what_was_not_measured() -> None:
    row = Row("net", "a net", {"eager": peak(20, 10), "default": peak(8, 12, pool=24)}, {"dynamic": "it broke"})
    shown = markdown([row])
    tables = [part.splitlines() for part in shown.split("\n\n")[1::2]]
    assert [len({line.count("|") for line in table}) for table in tables] == [1] * 5
    assert tables[0][2] == "| net: a net | 40.0 MiB | 30.0 MiB (1.33) | failed | - |"
    assert tables[2][0].startswith(
        "| model | reduce-overhead | reduce-overhead, ours | reduce-overhead, ours, memory | "
    )
    assert tables[2][2].split(" | ")[1:3] == ["34.0 MiB (1.18)", "-"]
    assert tables[2][2].endswith(" | 4.0 MiB |")  # 24 MiB of pool, 20 of them live at the peak
    assert tables[3][2].startswith("| net | default | 1.33 | 12.0 MiB less saved")
    assert tables[4][2] == "| net | 40.0 MiB | - | - | - | 30.0 MiB |"
    assert "Predicted, with CUDA graphs (simulated):" in shown


@pytest.mark.nightly
def test_a_model_in_a_process_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    found = measured("gru", "eager", 120.0, str(tmp_path))
    made = peak_from(found)
    assert sum(made.kinds.values()) == made.bytes
    assert made.kinds[SAVED] > MIB
    assert made.pool_bytes > made.bytes - made.kinds[HELD]
    with pytest.raises(FootprintError, match=r"^no such model, eager: exit status 1: StopIteration"):
        measured("no such model", "eager", 60.0, str(tmp_path))


def test_a_model_whose_library_is_missing_says_how_to_get_it() -> None:
    entry = replace(ENTRIES[0], library="no_such_library")
    assert entry.missing == "no_such_library is not installed: pip install no_such_library"
    assert ENTRIES[0].missing == ""


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_model_has_a_loss_over_its_classes(entry: Entry) -> None:
    if entry.missing:
        pytest.skip(entry.missing)
    torch.manual_seed(0)
    *inputs, labels = entry.batch()
    with torch.no_grad():
        logits = entry.build()(*(x[:2] for x in inputs))
    assert logits.ndim == labels.ndim + 1
    assert 0 < float(torch.nn.functional.cross_entropy(logits, labels[:2])) < 20
