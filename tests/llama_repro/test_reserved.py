"""The command that says what the allocator needs for our orders, on a graph of which all figures are known."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llama_repro.capture.configs import CONFIGS, LlamaConfig
from llama_repro.generate import unseen
from llama_repro.generate.unseen import LATER, UNSEEN
from overlap_sched.peak_memory.allocator.reserved import reserved_change
from overlap_sched.problem import Problem
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
    def sizes(configs: Iterable[LlamaConfig]) -> set[tuple[int, ...]]:
        return {(config.hidden, config.layers, config.fsdp, config.tp) for config in configs}

    known, tabled, later = map(sizes, (CONFIGS.values(), UNSEEN.values(), LATER.values()))
    assert not known & tabled
    assert not later & (known | tabled)


@pytest.mark.slow
def test_later_graphs_are_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = list[str]()

    def traced(config: LlamaConfig, tell: object) -> Iterator[Problem]:
        asked.append(config.name)
        yield replace(large_layers(8), name=f"{config.name} forward")

    monkeypatch.setattr(unseen, "unseen_problems", traced)
    assert module_at(SCRIPT).main(["--later", "--comm-scale", "1", "--allocator", "plain", "--markdown"]) == 0
    assert asked == list(LATER)
    assert "| 7b-8 forward x1 |" in capsys.readouterr().out
    assert module_at(SCRIPT).main(["--later", "graph.json"]) != 0
    told = "--later is for graphs that are traced, not for problem files; leave one of them out."
    assert told in " ".join(capsys.readouterr().err.split())
