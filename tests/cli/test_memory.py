"""The command ``memory``, and ``explain --peak``."""

import json
from pathlib import Path

import pytest

from overlap_sched.cli.command import main
from overlap_sched.judge.validate import violation
from overlap_sched.peak_memory.addresses import address_violation
from overlap_sched.problem.file import write_problem
from tests.peak_memory.test_orders import chain_with_updates
from tests.support.examples import Command


@pytest.fixture
def step(tmp_path: Path) -> str:
    write_problem(chain_with_updates(6), tmp_path / "step.json")
    return str(tmp_path / "step.json")


def test_figures_orders_and_addresses(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, addresses = tmp_path / "order.json", tmp_path / "addresses.json"
    assert main(["memory", step, "--json", "--out", str(out), "--addresses", str(addresses), "--align", "8"]) == 0
    problem = chain_with_updates(6)
    found = json.loads(capsys.readouterr().out)
    assert found["original_peak_bytes"] == max(found["tried"].values())
    assert found["peak_bytes"] == found["bound_bytes"] == found["arena_bytes"] < found["original_peak_bytes"]
    assert (found["optimal"], found["fragmentation"]) == (True, 0.0)
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    order = [ids[name] for name in json.loads(out.read_text())]
    assert violation(problem, order) is None
    written = json.loads(addresses.read_text())
    assert (written["format"], written["align_bytes"]) == ("overlap-addresses/1", 8)
    offsets = {entry["storage"]: entry["offset"] for entry in written["storages"]}
    assert address_violation(problem, order, offsets, 8) is None


def test_the_table(step: str, cli: Command) -> None:
    shown = cli.words("memory", step, "--exact", "--limit", "1KiB")
    assert "optimal: no order has a lower peak" in shown
    assert "peak 400 B 128 B -68.0 % 128 B" in shown


def test_peak_in_words(problem: str, cli: Command) -> None:
    assert "example: peak 18.0 MiB, first at dgrad, step 9 of 10" in cli.out("memory", problem, "--peak")
    assert "gathered parameters" in cli.out("explain", problem, "--peak")


def test_a_picture(problem: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert main(["memory", problem, "--plot", str(tmp_path / "memory.svg")]) == 0
    assert "<svg" in (tmp_path / "memory.svg").read_text()
