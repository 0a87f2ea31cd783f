"""The command that says what the allocator needs for our orders, on a graph of which all figures are known."""

from pathlib import Path

import pytest

from llama_repro.generate.unseen import UNSEEN
from overlap_sched.peak_memory.allocator.reserved import reserved_change
from overlap_sched.problem.file import write_problem
from overlap_sched.report.units import size
from tests.scheduler.test_reserve import large_layers
from tests.support.modules import module_at

SCRIPT = Path(__file__).parents[2] / "scripts" / "reserved.py"


def test_a_row_has_the_figures_of_both_orders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = large_layers(8)
    write_problem(problem, tmp_path / "layers.json")
    arguments = [str(tmp_path / "layers.json"), "--comm-scale", "1", "--allocator", "plain", "--markdown"]
    assert module_at(SCRIPT).main(arguments) == 0
    *_, row, _, verdict = capsys.readouterr().out.strip().split("\n")
    cells = row.strip("| ").split(" | ")
    original = reserved_change(problem, problem.original_order, problem.original_order)
    assert cells[:2] == [f"{problem.name} x1", "plain"]
    assert cells[6] == size(original.original_bytes)
    assert cells[8] == size(original.original_capacity_bytes)
    assert (cells[11], verdict) == ("yes", "1 of 1 kept to.")


def test_what_an_order_breaks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    script, problem = module_at(SCRIPT), large_layers(8, 64)
    loose = script.schedule(problem, script.Options(headroom="100%", allocator="none"))
    monkeypatch.setattr(script, "schedule", lambda problem, options: loose)
    ((*_, held, _),) = script.figures(problem, "x1", ["plain"])
    assert held == "no"


def test_the_graphs_are_others_than_those_of_the_benchmark() -> None:
    from llama_repro.capture.configs import CONFIGS

    sizes = {(config.hidden, config.layers, config.fsdp, config.tp) for config in CONFIGS.values()}
    assert not sizes & {(config.hidden, config.layers, config.fsdp, config.tp) for config in UNSEEN.values()}
