"""``--cluster``, ``--mesh`` and ``--no-contention``: what they change; ``transcripts`` have what is refused."""

import pytest

from overlap_sched.problem.file import read_problem
from tests.support.examples import run

pytest.importorskip("torch")


def saved(dump: str, *options: str) -> tuple[list[float], object, object]:
    """Times of collectives, the group and the contention, as a problem file saved."""
    assert run("plan", dump, *options, "--effort", "0", "--save-problem", "out.json") == 0
    problem = read_problem("out.json")
    return [problem.nodes[v].time_us for v in problem.collectives], problem.groups["0"], problem.contention


def test_a_cluster_prices_and_places(dump: str) -> None:
    times, group, contention = saved(dump, "--group", "0=64", "--cluster", "dgx-h100")
    assert (group.size, group.nodes) == (64, 8)  # type: ignore[attr-defined]
    assert contention.slowdown == {"": 1.189}  # type: ignore[attr-defined]
    slower, _, none = saved(dump, "--group", "0=64", "--cluster", "pcie-box", "--no-contention")
    assert not none
    assert all(a < b for a, b in zip(times, slower, strict=True))
    _, group, _ = saved(dump, "--group", "0=fsdp", "--mesh", "fsdp=64,tp=8", "--cluster", "dgx-h100")
    assert (group.size, group.nodes) == (64, 64)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "cluster"),
    [("", "dgx-h100"), ("--device A100", "dgx-a100"), ("--device cpu", ""), ("--cluster dgx-h100", "")],
)
def test_what_is_assumed_is_said(options: str, cluster: str, dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", dump, "--group", "0=64", "--effort", "0", *options.split()) == 0
    err = capsys.readouterr().err
    assert (f"priced for {cluster}, as nothing says" in err) if cluster else ("priced for" not in err)
