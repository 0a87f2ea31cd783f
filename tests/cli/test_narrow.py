"""Every command on a terminal of 40 columns: labels whole, nothing cut."""

import re
from collections.abc import Sequence

import pytest

from tests.support.examples import Command

COMMANDS = {
    "plan": ("gap to the lower bound", "peak memory", "reserved, plain segments", "scheduled"),
    "explain": ("Exposed time by cause", "blocked by", "at the end of the step to run meanwhile"),
    "explain --peak": ("saved activations", "largest:", "live at this node in every order"),
    "explain --costs": ("longest:", "all_gather_into_tensor on group fsdp"),
    "sweep --vary network=1 noise=5% --cluster dgx-h100": ("  network ", "  step ", "  gap ", "  p95 "),
    "memory": ("peak", "reserved, plain segments", "original"),
    "plan --rewrites bucket": ("Without rewrites the best order",),
    "fit --max-slowdown 5%": ("peak", "step", "The lowest peak found"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_labels_are_whole_at_40_columns(
    command: str, problem: str, monkeypatch: pytest.MonkeyPatch, cli: Command
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    name, *options = command.split()
    assert_whole(cli.out(name, problem, *options), COMMANDS[command])


def assert_whole(out: str, labels: Sequence[str]) -> None:
    """Nothing is cut, nothing coloured, nothing too long that could be folded, and these labels can be read."""
    assert "…" not in out
    assert "\x1b" not in out
    assert [line for line in out.splitlines() if len(line) > 40 and len(line.split()) > 1] == []
    together = re.sub(r"\n *", " ", out)
    for label in labels:
        assert label in out or label in together, out
