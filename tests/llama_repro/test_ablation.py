"""What stages earn: runs that are kept in a file, and the table of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from llama_repro.bench.ablation import Graph, Record, Row, Run, ablated
from llama_repro.bench.ablation_table import table
from overlap_sched import EXAMPLE, Options, schedule
from overlap_sched.problem.file import write_problem
from overlap_sched.scheduler.stages import ALL
from tests.scheduler.test_reserve import large_layers
from tests.support.modules import module_at

SCRIPT = Path(__file__).parents[2] / "scripts" / "ablation.py"
ALONE = Row("example", "x1", "none", EXAMPLE)
HELD = Row("layers", "x1", "plain", large_layers(8, 64))
WHOLE = Run("a", "", 0, 100.0, True, True, 0, 0, 2.0, {"relink": 1.0, "shift": 0.2, "repairs": 0.5}, ("shift",), True)


def test_a_run_of_all_stages_is_what_schedule_makes() -> None:
    for row in (ALONE, HELD):
        run = Graph(row).run("", 0)
        made = schedule(row.problem, Options(allocator=row.allocator))
        assert run.step_us == made.scheduled.step_us
        assert run.runs
        assert set(run.by_stage_s) <= set(ALL.names)


def test_only_what_may_matter_is_run_and_only_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    made = list(ablated(ALONE, Record(path), ALL.names, (0, 1)))
    assert [(run.without, run.seed) for run in made[:2]] == [("", 0), ("first run", 0)]
    assert all(not run.drew for run in made)  # so that one seed is enough
    assert not {run.without for run in made} & set(made[0].idle)
    with path.open("a") as file:
        file.write('{"row": "cut sho')
    again = Record(path)
    assert list(again.runs.values()) == made
    assert list(ablated(ALONE, again, ALL.names, (0, 1))) == []


def test_what_is_idle_is_known_without_a_run(tmp_path: Path) -> None:
    record = Record(tmp_path / "runs.jsonl")
    record.add(WHOLE)
    assert record.known("a", "", 1) is None
    assert record.known("a", "chains", 0) == replace(WHOLE, without="chains")  # it never ran
    assert record.known("a", "shift", 0) is None  # it is done inside of relink, which was not idle
    record.add(replace(WHOLE, without="relink", step_us=110.0, drew=False))
    assert record.known("a", "relink", 2) == replace(WHOLE, without="relink", step_us=110.0, drew=False, seed=2)


def test_the_table_says_what_was_earned(tmp_path: Path) -> None:
    record = Record(tmp_path / "runs.jsonl")
    for row, step_us, fits in (("a", 110.0, True), ("b", 99.0, False), ("c", 100.0, True)):
        record.add(replace(WHOLE, row=row))
        record.add(replace(WHOLE, row=row, without="relink", step_us=step_us, fits=fits))
    head, _, line, other = table(record, ["relink", "chains"], [0, 1]).splitlines()
    cells = dict(zip(head.strip("| ").split(" | "), line.strip("| ").split(" | "), strict=False))
    assert (cells["rows"], cells["touched"], cells["longer"], cells["shorter"]) == ("3", "2", "1", "1")
    assert (cells["mean"], cells["median"], cells["most longer"]) == ("+4.50 %", "+4.50 %", "+10.00 %")
    assert (cells["fit only with it"], cells["of the pass"], cells["of the pass, where it wins nothing"]) == (
        "1",
        "50 %",
        "50 %",
    )
    assert other.startswith("| chains | 0 | 0 |")
    assert record.stages == ("relink", "shift", "repairs")


def test_the_script_runs_a_part_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_problem(EXAMPLE, tmp_path / "example.json")
    command = [str(tmp_path / "example.json"), "--record", str(tmp_path / "runs.jsonl"), "--prices", "plain"]
    part = ["--rows", "x1, none", "--seeds", "0", "--stages"]
    assert module_at(SCRIPT).main([*command, *part, "first run"]) == 0
    assert "| first run | 1 |" in capsys.readouterr().out
    size = len((tmp_path / "runs.jsonl").read_text().splitlines())
    assert module_at(SCRIPT).main([*command, *part, "first run", "--show"]) == 0
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == size == 2


def test_a_stage_that_is_not_there_is_told() -> None:
    with pytest.raises(ValueError, match="no stage is called relnik; there are first run, "):
        ALL.without("relnik")
