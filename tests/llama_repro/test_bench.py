"""What stages earn: runs without each of them, and the table of them.

The benchmark: its figures by hand on the example, its records, and their comparison.
"""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from llama_repro import CLUSTER
from llama_repro.bench import rows, scale
from llama_repro.bench.ablation import ablated
from llama_repro.bench.cases import on_cluster
from llama_repro.bench.tables import markdown, scale_markdown
from llama_repro.errors import TorchPassError
from llama_repro.harness.judge import DEFAULT_CAPS, NO_CAPS, TorchOrder, tail_us
from overlap_sched.judge.replay import replay
from overlap_sched.problem import EXAMPLE
from overlap_sched.problem.file import write_problem
from overlap_sched.scheduler.driver import ALL, schedule
from tests.support.examples import module_at
from tests.support.layers import large_layers

SCRIPT = Path(__file__).parents[2] / "scripts" / "ablation.py"


def test_the_first_run_is_what_schedule_makes() -> None:
    problem = large_layers(8)
    whole, *others = ablated("layers x1", problem, ALL.names)
    assert whole.step_us == schedule(problem).scheduled.step_us
    assert list(whole.by_stage_s) == list(ALL.names)
    assert [one.without for one in others] == list(ALL.names)
    assert all(one.without not in one.by_stage_s for one in others)


def test_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_problem(EXAMPLE, tmp_path / "example.json")
    command = [str(tmp_path / "example.json"), "--comm-scale", "1", "--stages"]
    assert module_at(SCRIPT).main([*command, "first run", "relink+fill stalls"]) == 0
    assert "| first run | 1 |" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no stage is called relnik; there are without contention, first run, "):
        module_at(SCRIPT).main([*command, "relnik"])


HIDDEN = (0, 1, 2, 4, 3, 6, 7, 5, 8, 9)
"""The order of the example at 5 MiB of headroom: 120 us, peak 26 MiB."""


TORCHS = {DEFAULT_CAPS: TorchOrder(HIDDEN, 2.0), NO_CAPS: "no pass"}


def bench():
    return module_at(Path(__file__).parents[2] / "scripts" / "bench.py")


def measured():
    return {row.by: row for row in rows.measured(EXAMPLE, "x1", TORCHS, effort=2, repeats=1)}


def test_figures_of_the_example():
    mine = measured()
    theirs = {"original": 190.0, "torch, default caps": 120.0, "torch, caps 0": 190.0}
    ours = {"headroom 0": 150.0, "headroom 5%": 150.0, "no limit": 120.0, "torch's peak": 120.0}
    steps = {by: row.step_us for by, row in mine.items()}
    assert steps == theirs | {f"ours, {name}": step_us for name, step_us in ours.items()}
    assert mine["torch, default caps"].peak_percent == pytest.approx(100 * 5 / 21)
    assert mine["torch, caps 0"].remark == "no pass"
    at_peak = mine["ours, torch's peak"]
    assert (at_peak.headroom_bytes, at_peak.remark) == (5 * 2**20, None)
    assert mine["ours, headroom 0"].work["runs"] > 0
    assert all(row.broken is None for row in mine.values())
    assert mine["ours, headroom 0"].budget_bound_us >= mine["ours, headroom 0"].bound_us


def test_prices_with_contention_are_of_the_cluster_and_leave_compute_as_it_is():
    true = on_cluster(EXAMPLE, CLUSTER)
    times = [node.time_us for node in true.nodes]
    assert times == pytest.approx([0, 0, 51.666, 0, 50, 30, 30, 51.666, 0, 0], abs=1e-3)
    assert dict(true.contention.slowdown) == {"": 1.189}


def test_the_tail_is_what_stands_still_after_the_last_long_reduce_scatter():
    for order, tail in ((EXAMPLE.original_order, 40.0), (HIDDEN, 10.0)):
        assert tail_us(EXAMPLE, order, replay(EXAMPLE, order)) == tail
    nodes = list(EXAMPLE.nodes)
    nodes[7] = nodes[7]._replace(op="all_gather_into_tensor")
    without = replace(EXAMPLE, nodes=tuple(nodes))
    assert tail_us(without, HIDDEN, replay(without, HIDDEN)) == 0.0


def test_broken_promises_are_found(monkeypatch):
    over = replace(schedule(EXAMPLE), order=HIDDEN)
    monkeypatch.setattr(rows, "schedule", lambda problem, options: over)
    assert measured()["ours, headroom 0"].broken == "peak 5242880 bytes above the original peak and the headroom"
    slow = replace(over, order=(0, 2, 3, 1, 4, 5, 6, 7, 8, 9), fell_back="why")
    monkeypatch.setattr(rows, "schedule", lambda problem, options: slow)
    assert measured()["ours, headroom 0"].broken == "why"


def test_torch_that_fails_is_told_and_not_measured(monkeypatch):
    pytest.importorskip("torch")
    from llama_repro.harness.torch_pass import torch_orders

    def failing(problem, caps):
        raise TorchPassError(f"{caps} does not work")

    monkeypatch.setattr("llama_repro.harness.torch_pass.torch_order", failing)
    made = torch_orders(EXAMPLE)
    assert made == {caps: f"{caps} does not work" for caps in (DEFAULT_CAPS, NO_CAPS)}
    lines = markdown(list(rows.measured(EXAMPLE, "x1", made, effort=1, repeats=1)))
    assert lines.splitlines()[-1].startswith("| `example` x1 | 0.1 ms | 0.2 ms, 21.0 MiB | - | - | **0.1 ms (25.00 %)")


def test_slower_networks_slow_collectives_only():
    slow = EXAMPLE.with_comm_scale(4)
    assert [node.time_us for node in slow.nodes] == [0, 0, 160, 0, 50, 30, 30, 160, 0, 0]


@pytest.mark.slow
def test_a_size_is_measured_in_a_process_of_its_own(tmp_path):
    write_problem(EXAMPLE, tmp_path / "example.json")
    one = scale._in_a_process(tmp_path / "example.json", 2, 1.0)
    assert (one.nodes, one.step_us, one.gap_percent, one.fell_back) == (10, 150.0, 25.0, None)
    assert 10 < one.resident_mib < 150  # its own: not that of this process, which has torch
    assert "| `example` | 10 | 2 | x1 | 2 |" in scale_markdown([one], {})


def test_a_run_writes_a_record_that_can_be_compared(tmp_path, capsys):
    write_problem(EXAMPLE, tmp_path / "example.json")
    command = [str(tmp_path / "example.json"), "--no-torch", "--comm-scale", "1"]
    assert bench().main([*command, "--record", str(tmp_path / "record")]) == 0
    assert "ours, headroom 5%" in capsys.readouterr().out
    data = json.loads((tmp_path / f"record-{date.today()}.json").read_text())
    assert data["machine"].keys() >= {"cpu", "cores", "memory_gib", "load"}
    assert data["packages"].keys() == {"torch", "numpy", "sortedcontainers"}
    text = (tmp_path / f"record-{date.today()}.md").read_text()
    assert "| `example` x1 | 0.1 ms | 0.2 ms, 21.0 MiB |" in text
    assert "| `example` x1, contention | 0.1 ms | 0.2 ms, 21.0 MiB |" in text
