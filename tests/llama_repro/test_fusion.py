"""Predicted kernels take as long as Inductor's own do, on graphs that both front ends see."""

import warnings

import pytest

pytest.importorskip("torch")

import torch

with warnings.catch_warnings():  # torch 2.13 warns of itself when Inductor is first imported
    warnings.simplefilter("ignore", DeprecationWarning)
    from llama_repro.fusion.__main__ import main
    from llama_repro.fusion.compare import Comparison, compared
    from llama_repro.fusion.graphs import Experts, Gpt, compiled_graphs, llama_graphs

from tests.support.inductor.models import RANKS, Net, Pair, emulated_ranks

OFF_PERCENT = 10.0
"""All compute of a graph, at most."""
NEAR_PERCENT = 60.0
"""Time in kernels that are found again, at least."""
COMPLEX = "ignore:Torchinductor does not support code generation for complex operators"


def check(found: list[Comparison], near_percent: float = NEAR_PERCENT) -> None:
    assert len(found) == 2
    for comparison in found:
        assert abs(comparison.off_percent) <= OFF_PERCENT, comparison
        assert comparison.near_percent >= near_percent, comparison


@pytest.mark.nightly
def test_a_block_with_layer_norms_and_softmax() -> None:
    x = torch.randn(2, 256, 128, requires_grad=True)
    found = [compared(name, graph) for name, graph in compiled_graphs("gpt", Gpt(128, 2), x)]
    check(found)
    assert all(c.unfused_us > 2 * c.kernels_us for c in found)


@pytest.mark.nightly
def test_a_block_of_experts() -> None:
    x = torch.randn(4, 512, 256, requires_grad=True)  # smaller kernels all take the shortest time there is
    check([compared(name, graph) for name, graph in compiled_graphs("experts", Experts(256, 8, 2), x)])


@pytest.mark.nightly
def test_the_sharded_models_of_the_plug_ins_tests() -> None:
    with emulated_ranks():
        x = torch.randn(2048, 256, requires_grad=True)
        check([compared(name, graph) for name, graph in compiled_graphs("net", Net(3, 256), x)])
        x = torch.randn(2048, 1024, requires_grad=True)
        # nearly nothing but matmuls: the broadcast gradient that they read is copied for each of them, here once
        check([compared(name, graph) for name, graph in compiled_graphs("pair", Pair(1024, RANKS), x)], near_percent=0)


@pytest.mark.nightly
@pytest.mark.filterwarnings(COMPLEX)
@pytest.mark.parametrize("name", ["tiny", "tiny-2d", "llama3-8b-2d"])
def test_captured_llamas(name: str) -> None:
    check([compared(part, graph) for part, graph in llama_graphs(name, 2, "cpu")])


@pytest.mark.nightly
@pytest.mark.filterwarnings(COMPLEX)
def test_the_command_prints_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llama_repro.fusion.__main__.LLAMAS", ("tiny",))
    assert main(["--layers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("loops for cpu, priced for an H100")
    graphs = [f"{name}, {part}" for name in ("tiny", "GPT block", "experts") for part in ("forward", "backward")]
    assert [line.split("|")[1].strip() for line in lines if line.startswith("| ")] == ["graph", "---", *graphs]
