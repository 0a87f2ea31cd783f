"""``--cluster``, ``--mesh`` and ``--no-contention``: what they change, and what is refused."""

from pathlib import Path

import pytest

from overlap_sched.cli.command import main
from overlap_sched.problem.file import read_problem
from tests.support.examples import Command

pytest.importorskip("torch")


def saved(dump: str, *options: str) -> tuple[list[float], object, object]:
    """Times of collectives, the group and the contention, as a problem file saved."""
    out = str(Path(dump).with_name("saved.json"))
    assert main(["plan", dump, *options, "--save-problem", out]) == 0
    problem = read_problem(out)
    return [problem.nodes[v].time_us for v in problem.collectives], problem.groups["0"], problem.contention


def test_a_cluster_prices_and_places(dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    times, group, contention = saved(dump, "--group", "0=64", "--cluster", "dgx-h100")
    assert (group.size, group.nodes) == (64, 8)  # type: ignore[attr-defined]
    assert contention.slowdown == {"": 1.189}  # type: ignore[attr-defined]
    assert "With contention: compute takes 1.189 times as long beside any collective." in " ".join(
        capsys.readouterr().out.split()
    )
    slower, _, none = saved(dump, "--group", "0=64", "--cluster", "pcie-box", "--no-contention")
    assert not none
    assert all(a < b for a, b in zip(times, slower, strict=True))


@pytest.mark.slow
def test_what_is_assumed_is_said_with_the_flag_that_changes_it(dump: str, capsys: pytest.CaptureFixture[str]) -> None:
    def noted(*options: str) -> str:
        capsys.readouterr()
        assert main(["plan", dump, "--group", "0=64", *options]) == 0
        return capsys.readouterr().err

    said = (
        "overlap-sched: note: collectives are priced for {}, as nothing says where the graph runs: 8 ranks per node"
        "{}; say otherwise with --cluster FILE_OR_NAME\n"
    )
    slowed = ", compute slower beside collectives (--no-contention: not slower)"
    assert said.format("dgx-h100", slowed) in noted()
    assert said.format("dgx-a100", slowed) in noted("--device", "A100")
    assert said.format("dgx-h200", "") in noted("--device", "H200", "--no-contention")
    for other in (("--cluster", "dgx-h100"), ("--device", "cpu")):  # given; a device that no shipped cluster has
        assert "priced for" not in noted(*other)
    assert saved(dump, "--group", "0=64") == saved(dump, "--group", "0=64", "--cluster", "dgx-h100")


def test_a_group_by_its_dimension(dump: str, cli: Command, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--mesh", "fsdp=64,tp=8", "--cluster", "dgx-h100")
    _, group, _ = saved(dump, "--group", "0=fsdp", *given)
    assert (group.size, group.nodes) == (64, 64)  # type: ignore[attr-defined]
    assert "not known" not in capsys.readouterr().err
    assert "the mesh is fsdp=64, tp=8: it has no 'ep'." in cli.refused("plan", dump, "--group", "0=ep", *given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--group", "0=64", "--cluster", "dgx-h1"), "dgx-h1: is neither a file that can be read"),
        (("--group", "0=64", "--mesh", "dp=8", "--cluster", "dgx-h100"),
         "process group '0' has 64 ranks, but no dimension of the mesh dp=8, nor neighbours together, has as many."),
        (("--cluster", "gloo", "--device", "A100"), "--device A100: cluster gloo has its own device."),
    ],
)  # fmt: skip
def test_what_does_not_fit(dump: str, options: tuple[str, ...], said: str, cli: Command) -> None:
    assert cli.refused("plan", dump, *options).startswith(f"{said}")
