"""What stages earn: runs without each of them, and the table of them."""

from pathlib import Path

import pytest

from llama_repro.bench.ablation import Run, ablated, table
from overlap_sched import EXAMPLE, schedule
from overlap_sched.problem.file import write_problem
from overlap_sched.scheduler.driver import ALL
from tests.support.layers import large_layers
from tests.support.modules import module_at

SCRIPT = Path(__file__).parents[2] / "scripts" / "ablation.py"


def test_the_first_run_is_what_schedule_makes() -> None:
    problem = large_layers(8)
    whole, *others = ablated("layers x1", problem, ALL.names)
    assert whole.step_us == schedule(problem).scheduled.step_us
    assert list(whole.by_stage_s) == list(ALL.names)
    assert [one.without for one in others] == list(ALL.names)
    assert all(one.without not in one.by_stage_s for one in others)


def test_the_table_says_what_was_earned() -> None:
    steps = {"a": 110.0, "b": 99.0, "c": 100.0}
    runs = [Run(row, "", 100.0, 2.0, {"relink": 1.0, "shift": 0.2}) for row in steps]
    runs += [Run(row, "relink", us, 1.0, {"shift": 0.2}) for row, us in steps.items()]
    _, _, line = table(runs).splitlines()
    assert line == "| relink | 3 | 1 | 1 | +3.00 % | +10.00 % | -1.00 % | 50 % |"


def test_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_problem(EXAMPLE, tmp_path / "example.json")
    command = [str(tmp_path / "example.json"), "--comm-scale", "1", "--stages"]
    assert module_at(SCRIPT).main([*command, "first run", "relink+fill stalls"]) == 0
    assert "| first run | 1 |" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no stage is called relnik; there are first run, "):
        module_at(SCRIPT).main([*command, "relnik"])
