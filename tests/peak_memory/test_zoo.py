"""Tracing a whole step, and the tables made of it."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from llama_repro.zoo.models import ENTRIES, Entry  # noqa: E402
from llama_repro.zoo.rows import collective_row  # noqa: E402
from llama_repro.zoo.trace import parameter_count, step_problem, trace_step  # noqa: E402
from overlap_sched.peak_memory.best import best_order  # noqa: E402
from overlap_sched.peak_memory.peak import explain_peak  # noqa: E402
from overlap_sched.problem import EXAMPLE, Problem  # noqa: E402
from tests.support.modules import module_at  # noqa: E402

WIDTH, LAYERS, BATCH = 256, 4, 2


def network() -> "torch.nn.Module":
    layers = [layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH, bias=False), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers)


def batch(size: int = BATCH) -> "Sequence[torch.Tensor]":
    return torch.empty(size, WIDTH), torch.empty(size, dtype=torch.long)


@pytest.fixture(scope="module")
def step() -> Problem:
    return step_problem("mlp", network(), batch())


def test_a_step_is_forward_backward_and_updates_in_place() -> None:
    graph = trace_step(network(), batch())
    updates = [node for node in graph.graph.nodes if node.target is torch.ops.aten.add_.Tensor]
    assert len(updates) == LAYERS
    parameters = [node for node in graph.graph.nodes if node.op == "placeholder"][:LAYERS]
    assert [node.args[0] for node in updates] == parameters
    kept = trace_step(network(), batch(), update=False)
    assert not [node for node in kept.graph.nodes if node.target is torch.ops.aten.add_.Tensor]


def test_the_original_order_holds_all_gradients_and_ours_one(step: Problem) -> None:
    weight = 4 * WIDTH * WIDTH
    peak = explain_peak(step, step.original_order)
    assert peak.by_kind()["parameters"] // weight == LAYERS
    assert peak.by_kind()["gradients"] // weight == LAYERS
    plan = best_order(step)
    assert plan.optimal
    assert plan.original_bytes - plan.peak_bytes >= (LAYERS - 1.5) * weight


def test_figures_of_a_graph_with_collectives() -> None:
    row = collective_row(EXAMPLE)
    mib = 2**20
    assert (row.original_bytes, row.peak_bytes, row.bound_bytes) == (
        21 * mib,
        18 * mib,
        18 * mib,
    )  # scatter before gather
    assert (row.original_us, row.step_us, row.base_step_us, row.tight_step_us) == (190.0, 150.0, 150.0, 190.0)
    assert row.base_bytes == row.scheduled_bytes == 21 * mib


@pytest.fixture
def script() -> ModuleType:
    return module_at(Path(__file__).parents[2] / "scripts" / "memory_zoo.py")


def test_the_table_and_its_record(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = Entry("AlexNet", "torch", network, batch, LAYERS * WIDTH * WIDTH)
    wrong = Entry("Wrong", "torch", network, batch, 7, batches=(1,))
    monkeypatch.setattr(script, "ENTRIES", (mine, wrong))
    assert script.main(["AlexNet", "--json", str(tmp_path / "record.json")]) == 0
    shown = capsys.readouterr().out
    assert "| AlexNet, 32 | " in shown
    assert "| 1 | " in shown  # the averages
    record = json.loads((tmp_path / "record.json").read_text())
    assert [(row["batch"], row["fragmentation"]) for row in record["rows"]] == [(1, 0.0), (32, 0.0)]
    assert record["packages"]["torch"] == torch.__version__
    assert script.main(["Wrong"]) == 1
    assert "Wrong has 262,144 parameters, not 7" in capsys.readouterr().err


def test_a_model_whose_library_is_missing_is_left_out(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def build() -> "torch.nn.Module":
        raise ModuleNotFoundError("no", name="torchvision")

    monkeypatch.setattr(script, "ENTRIES", (Entry("AlexNet", "torchvision", build, batch, 1),))
    assert script.main([]) == 0
    assert "AlexNet is left out: it needs torchvision (pip install torchvision)" in capsys.readouterr().err


@pytest.mark.nightly
def test_alexnet_is_the_published_one() -> None:
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("needs torchvision")
    entry = next(entry for entry in ENTRIES if entry.name == "AlexNet")
    model = entry.build()
    assert parameter_count(model) == entry.parameters
    plan = best_order(step_problem("AlexNet", model, entry.batch(32)))
    assert plan.optimal
    assert plan.peak_bytes < 0.75 * plan.original_bytes
