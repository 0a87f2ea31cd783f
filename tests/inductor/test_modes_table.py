"""The table of ``docs/torch.md``: every row is run, its outcome and what is said are as written."""

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch._inductor.utils import run_and_get_code
from torch.testing._internal.distributed.fake_pg import FakeStore

import overlap_sched
from overlap_sched import Options
from overlap_sched.errors import OverlapSchedWarning
from tests.support.inductor.generated import matmuls_under_way
from tests.support.inductor.models import SLOW_NETWORK
from tests.support.inductor.modes import MODES, RANKS, Mode, Plain, plain, trained

DOCUMENT = Path(__file__).parents[2] / "docs" / "torch.md"
pytestmark = pytest.mark.usefixtures("fresh")


class Row(NamedTuple):
    """What the document says of a mode."""

    mode: str
    outcome: str
    notes: str
    said: str


def table() -> list[Row]:
    text = DOCUMENT.read_text(encoding="utf-8")
    lines = text[text.index("## Modes of training and compiling") :].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [Row(*row) for row in cells[2:]]


@contextmanager
def world(mode: str) -> Iterator[None]:
    """DDP's reducer needs a group that computes; the others need one that stands for several ranks."""
    if mode.startswith("DDP"):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    else:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    try:
        yield
    finally:
        dist.destroy_process_group()


def run(mode: Mode) -> tuple[list[torch.Tensor], list[str]]:
    """Results, and the code of all graphs."""
    torch._dynamo.reset()
    overlap_sched.clear_reports()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", OverlapSchedWarning)
        results, code = run_and_get_code(mode.step)
        return results, code


def test_every_mode_has_its_row() -> None:
    rows = table()
    assert [row.mode for row in rows] == list(MODES)
    assert {row.outcome for row in rows} == {"works", "works with", "nothing"}
    assert all(re.findall("`([^`]+)`", row.said) for row in rows)
    assert all("`torch._dynamo.config." in row.notes for row in rows if row.outcome == "works with")


@pytest.mark.slow
@pytest.mark.parametrize("row", table(), ids=lambda row: row.mode.replace("`", ""))
def test_what_the_row_says(row: Row) -> None:
    mode = MODES[row.mode]
    with world(row.mode):
        expected, alone = run(mode)
        with overlap_sched.enabled(Options(headroom="50%", strict=True), model=SLOW_NETWORK, **mode.how):
            results, ours = run(mode)
    assert len(results) == len(expected) > 0
    assert all(map(torch.equal, results, expected))
    assert matmuls_under_way(ours) >= matmuls_under_way(alone)
    reports = overlap_sched.reports()
    assert any(report.report.schedule is not None for report in reports) == (row.outcome != "nothing")
    became = {"reordered" if r.report.changed else str(r.report.reason).partition(": ")[0] for r in reports}
    said = became.union(*(report.settings for report in reports))
    written = [set(re.findall("`([^`]+)`", either)) for either in row.said.split(" or ")]
    assert any(phrases <= said for phrases in written)
    assert row.outcome != "nothing" or became in written


def compare(step: Any) -> tuple[overlap_sched.inductor.GraphReport, ...]:
    """Run a step without us and with us; what is reported."""
    with world(""):
        expected, _ = run(Mode(step))
        with overlap_sched.enabled(Options(headroom="50%", strict=True), model=SLOW_NETWORK):
            results, _ = run(Mode(step))
    assert len(results) == len(expected) > 0
    assert all(map(torch.equal, results, expected))
    return overlap_sched.reports()


@pytest.mark.slow
def test_a_compiled_optimizer_step() -> None:
    """Gradients are averaged in the same graph: an update writes its parameter behind the wait of its collective."""

    def step() -> list[torch.Tensor]:
        model = Plain()
        parameters, momenta = list(model.parameters()), [torch.zeros_like(p) for p in model.parameters()]
        group, functional = dist.group.WORLD.group_name, torch.ops._c10d_functional

        @torch.compile(fullgraph=True)
        def update(gradients: list[torch.Tensor]) -> None:
            means = [functional.all_reduce(gradient, "avg", group) for gradient in gradients]
            means = [functional.wait_tensor(mean) for mean in means]
            torch._foreach_mul_(momenta, 0.9)
            torch._foreach_add_(momenta, means)
            torch._foreach_add_(parameters, momenta, alpha=-0.1)

        for _ in range(2):
            model.zero_grad(set_to_none=True)
            trained(model, model)
            with torch.no_grad():
                update([p.grad for p in parameters])
        return [*(p.detach() for p in parameters), *momenta]

    reports = compare(step)
    assert {report.name.split()[0] for report in reports} == {"inference"}
    assert all(report.report.schedule is not None for report in reports)


@pytest.mark.slow
def test_deterministic_mode_keeps_the_original_order_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        assert compare(plain) == ()
        assert "torch._inductor.config.deterministic is on" in caplog.text
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.slow
def test_cpp_wrapper() -> None:
    with torch._inductor.config.patch(cpp_wrapper=True):
        try:
            with world(""):
                run(Mode(plain))
        except torch._inductor.exc.InductorError as error:
            pytest.skip(f"torch {torch.__version__} itself cannot: {str(error).splitlines()[0]}")
        assert compare(plain)[-1].report.changed
