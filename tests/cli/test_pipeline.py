"""``overlap-sched pipeline``: its figures and files; ``transcripts`` have its tables and errors."""

import json
from pathlib import Path

import pytest

from overlap_sched.pipeline.named import one_f_one_b
from tests.support.examples import Command
from tests.support.pipelines import read_schedule


def test_csv(inputs: object, cli: Command) -> None:
    cli.out("pipeline", "job.toml", "--csv", "out.csv", "--schedule", "1f1b")
    assert read_schedule(*Path("out.csv").read_text().splitlines()).orders == one_f_one_b(2, 4).orders


def test_graphs(inputs: object, cli: Command) -> None:
    def step_us(job: str, *options: str) -> float:
        return float(cli.json("pipeline", job, "--schedules", "1f1b", *options)["schedules"][0]["step_us"])

    ordered = ("--order-graphs",)
    assert step_us("graphs.toml") == 4 * 190.0
    assert step_us("graphs.toml", *ordered) == step_us("graphs-64MiB.toml", *ordered, "0") == 4 * 150.0
    assert step_us("graphs.toml", *ordered, "5MiB") == step_us("graphs-64MiB.toml", *ordered) == 4 * 120.0
    figures = cli.json("pipeline", "graphs.toml", "--schedules", "1f1b", *ordered, "5MiB")
    before, after = (figures["pairs"][0][name] for name in ("before", "ordered"))
    assert (before["step_us"], before["peak_bytes"] >> 20) == (240.0, 32)
    assert after["step_us"] < 240
    assert after["peak_bytes"] >> 20 <= 32 + 5


@pytest.mark.slow
def test_dumps_are_priced_for_the_cluster(dump: str, cli: Command) -> None:
    for cluster in ("dgx-h100", "dgx-a100"):
        job = Path("one.toml").read_text().replace('{ time = "1ms" }', f"{{ problem = {json.dumps(dump)} }}")
        Path("of_dump.toml").write_text(job.replace("ranks = 1", f'ranks = 1\ncluster = "{cluster}"'))
        alone = cli.json("plan", dump, "--effort", "0", "--cluster", cluster)["original_step_us"]
        found = cli.json("pipeline", "of_dump.toml", "--schedules", "1f1b")
        assert found["schedules"][0]["step_us"] == 2 * (alone + 2000.0)


def test_the_example_of_the_documents_is_what_is_printed(cli: Command, tmp_path: Path, plain_terminal: None) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    path = tmp_path / "job.toml"
    path.write_text(page.split("```toml\n")[2].split("```")[0])
    words = cli.words("pipeline", str(path))
    lines = page[page.index("## By numbers") :].splitlines()
    rows = [line for line in lines if line.startswith(("| gpipe", "| 1f1b", "| inter", "| zb", "| dual"))]
    assert len(rows) == 7
    for row in rows:
        assert " ".join(row.replace("|", " ").split()) in words


@pytest.mark.slow
def test_find_adds_the_shortest_schedule_that_fits(inputs: object, cli: Command) -> None:
    figures = cli.json("pipeline", "job.toml", "--schedules", "1f1b", "--find")
    first, found = figures["schedules"]
    assert (first["name"], found["name"]) == ("1f1b", "found")
    assert found["step_us"] < first["step_us"]
    assert found["lacks"] is None
    assert figures["found"]["any_cut_bound_us"] <= figures["found"]["bound_us"] <= found["step_us"]
    assert (sum(first["cut"]), sum(found["cut"]), found["recomputed"]) == (4, 4, [])


@pytest.mark.slow
def test_what_recomputes_is_said(inputs: object, cli: Command) -> None:
    assert "; recomputed: " in cli.words("pipeline", "recompute.toml", "--schedules", "gpipe", "--find")
    Path("less.toml").write_text(Path("recompute.toml").read_text().replace('"9MB"', '"3MB"'))
    told = cli.refused("pipeline", "less.toml", "--schedules", "gpipe", "--find")
    assert told.startswith("four: no schedule was found that fits, recomputed or not. With gpipe, the nearest, ")


def test_what_if(inputs: object, cli: Command) -> None:
    """One row per combination, the job as it is included."""
    given = ("pipeline", "links.toml", "--schedules", "1f1b,zbv")
    varied = cli.json(*given, "--vary", "micro_batches=4,8", "--vary", "links=0.5,1")["varied"]
    assert [one["changed"] for one in varied] == [
        {"micro_batches": count, "links": factor} for count in (4, 8) for factor in (0.5, 1.0)
    ]
    slow, fast, *more = (one["schedule"]["step_us"] for one in varied)
    assert fast < slow < min(more)
    assert fast == min(one["step_us"] for one in cli.json(*given)["schedules"] if one["lacks"] is None)


def test_a_picture_says_what_is_cut(inputs: Path, cli: Command) -> None:
    cli.words("pipeline", "five.toml", "--schedules", "1f1b,zbv", "--html", "page.html")
    text = (inputs / "page.html").read_text()
    assert text.count("<section") == 2
    assert "<code>overlap-sched pipeline " in text
    assert "; stages as written joined: 3, 2</h2>" in text
