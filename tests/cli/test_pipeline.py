"""``overlap-sched pipeline``."""

import json
from pathlib import Path

import pytest

from overlap_sched import EXAMPLE, write_problem
from overlap_sched.pipeline.csv_file import read_schedule_csv
from overlap_sched.pipeline.named import one_f_one_b
from tests.support.examples import Command

ONE_STAGE = """
format = "overlap-pipeline/1"
ranks = 1
micro_batches = 2
[[stage]]
forward = { time = "1ms" }
backward = { time = "2ms" }
"""
JOB = """
format = "overlap-pipeline/1"
name = "four"
ranks = 2
micro_batches = 4
memory_limit = "100MB"
[[stage]]
repeat = 4
forward = { time = "1ms", output = "1MB" }
input_gradient = { time = "1ms" }
weight_gradient = { time = "1ms" }
saved = "10MB"
kept = "10MB"
parameters = "1MB"
"""


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text(JOB)
    return str(path)


def test_a_table(job: str, cli: Command) -> None:
    words = cli.words("pipeline", job)
    assert words.startswith("four: 4 stages, 2 ranks, micro-batches: 4")
    assert "1f1b 30.00 ms 20.0 % 0.0 us 40.1 MiB 26.00 ms 15.38 %" in words
    assert "zbv 25.00 ms 4.0 %" in words
    assert "Peak memory by rank, MiB" in words
    for name in ("gpipe", "interleaved:2", "zb-h1", "dualpipe", "dualpipev"):
        assert f" {name} " in words


def test_figures(job: str, cli: Command) -> None:
    found = cli.json("pipeline", job, "--schedules", "1f1b, zbv")
    assert [one["name"] for one in found["schedules"]] == ["1f1b", "zbv"]
    first = found["schedules"][0]
    assert (first["step_us"], first["bubble"], first["lacks"]) == (30_000.0, 0.2, None)
    assert [rank["peak_bytes"] for rank in first["ranks"]] == [42_000_000, 23_000_000]
    assert found["cannot"] == []


def test_what_a_job_cannot_have_is_said(tmp_path: Path, cli: Command) -> None:
    path = tmp_path / "job.toml"
    path.write_text(ONE_STAGE)
    words = cli.words("pipeline", str(path))
    assert (
        "zb-h1: zb-h1 runs the halves of backward apart, but no stage has any. Give input_gradient and weight_gradient."
    ) in words
    assert "dualpipe: DualPipe has an even number" not in words  # its stages come first
    assert len(cli.json("pipeline", str(path))["cannot"]) == 4


def test_memory_that_is_lacking(job: str, cli: Command) -> None:
    tight = Path(job).read_text().replace('"100MB"', '["45MB", "100MB"]')
    Path(job).write_text(tight)
    words = cli.words("pipeline", job)
    assert "gpipe does not fit: rank 0 lacks 37,000,000 bytes (35.3 MiB) at 0F3." in words
    assert "1f1b does not" not in words
    assert cli.json("pipeline", job, "--schedules", "1f1b,gpipe")["schedules"][1]["lacks"] == {
        "rank": 0,
        "bytes": 37_000_000,
        "at": "0F3",
    }
    refused = cli.refused("pipeline", job, "--csv", job + ".csv", "--schedule", "gpipe")
    assert refused == "four: gpipe does not fit: rank 0 lacks 37,000,000 bytes (35.3 MiB) at 0F3."
    Path(job).write_text(tight.replace('"45MB"', '"41MB"'))
    assert cli.refused("pipeline", job) == (
        "four: no schedule was found that fits. With 1f1b, the nearest, rank 0 lacks 1,000,000 bytes (976.6 KiB) at "
        "0F1. Raise memory_limit, or take more ranks or smaller micro-batches."
    )


def test_csv(job: str, cli: Command, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    cli.out("pipeline", job, "--csv", str(out), "--schedule", "1f1b")
    assert read_schedule_csv(out).orders == one_f_one_b(2, 4).orders
    cli.out("pipeline", job, "--csv", str(out), "--schedule", "1f1b", "--csv-format", "compute_comms_waits")
    assert out.read_text().splitlines()[0].startswith("0F0,0SEND_F0,")
    assert "0WAIT_SEND_F0" in out.read_text()


def test_graphs(job: str, cli: Command) -> None:
    write_problem(EXAMPLE, Path(job).with_name("stage.json"))
    graph = '{ problem = "stage.json" }'
    Path(job).write_text(ONE_STAGE.replace('{ time = "1ms" }', graph).replace('{ time = "2ms" }', graph))
    written = cli.json("pipeline", job, "--schedules", "1f1b")
    assert written["schedules"][0]["step_us"] == 4 * 190.0
    assert (len(written["graphs"]), written["pairs"]) == (1, [])
    assert cli.json("pipeline", job, "--schedules", "1f1b", "--order-graphs")["schedules"][0]["step_us"] == 4 * 150.0
    figures = cli.json("pipeline", job, "--schedules", "1f1b", "--order-graphs", "5MiB")
    assert figures["schedules"][0]["step_us"] == 4 * 120.0
    before, ordered = (figures["pairs"][0][name] for name in ("before", "ordered"))
    assert (before["step_us"], before["peak_bytes"] >> 20) == (240.0, 32)
    assert ordered["step_us"] < 240
    assert ordered["peak_bytes"] >> 20 <= 32 + 5
    words = cli.words("pipeline", job, "--schedules", "1f1b", "--order-graphs")
    assert "stage.json 10 190.0 us 150.0 us 80.0 us 40.0 us 21.0 MiB 21.0 MiB" in words
    limited = Path(job).read_text().replace("ranks = 1", 'ranks = 1\nmemory_limit = "64MiB"')
    Path(job).write_text(limited)
    assert cli.json("pipeline", job, "--schedules", "1f1b", "--order-graphs")["schedules"][0]["step_us"] == 4 * 120.0
    assert cli.json("pipeline", job, "--schedules", "1f1b", "--order-graphs", "0")["schedules"][0]["step_us"] == 600.0


@pytest.mark.slow
def test_dumps_are_priced_for_the_cluster(job: str, dump: str, cli: Command) -> None:
    graph = f"{{ problem = {json.dumps(dump)} }}"
    Path(job).write_text(ONE_STAGE.replace('{ time = "1ms" }', graph))
    alone = cli.json("plan", dump, "--effort", "0")["original_step_us"]
    assert cli.json("pipeline", job, "--schedules", "1f1b")["schedules"][0]["step_us"] == 2 * (alone + 2000.0)
    Path(job).write_text(Path(job).read_text().replace("ranks = 1", 'ranks = 1\ncluster = "dgx-a100"'))
    slower = cli.json("plan", dump, "--effort", "0", "--cluster", "dgx-a100")["original_step_us"]
    assert cli.json("pipeline", job, "--schedules", "1f1b")["schedules"][0]["step_us"] == 2 * (slower + 2000.0)
    assert slower > alone


def test_the_example_of_the_documents_is_what_is_printed(cli: Command, tmp_path: Path) -> None:
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
def test_find_adds_the_shortest_schedule_that_fits(job: str, cli: Command) -> None:
    figures = cli.json("pipeline", job, "--schedules", "1f1b", "--find")
    first, found = figures["schedules"]
    assert (first["name"], found["name"]) == ("1f1b", "found")
    assert found["step_us"] < first["step_us"]
    assert found["lacks"] is None
    assert figures["found"]["any_cut_bound_us"] <= figures["found"]["bound_us"] <= found["step_us"]
    assert (sum(first["cut"]), sum(found["cut"]), found["recomputed"]) == (4, 4, [])


def test_stages_that_are_no_multiple_of_the_ranks(job: str, cli: Command, tmp_path: Path) -> None:
    """Named schedules take the best cut, and say it; as the picture does."""
    Path(job).write_text(Path(job).read_text().replace("repeat = 4", "repeat = 5"))
    page = tmp_path / "page.html"
    words = cli.words("pipeline", job, "--schedules", "1f1b,zbv", "--html", str(page))
    assert "1f1b: stages as written joined: 3, 2. zbv: stages as written joined: 3 x 1, 2." in words
    assert "; stages as written joined: 3, 2</h2>" in page.read_text()
    assert [one["cut"] for one in cli.json("pipeline", job, "--schedules", "1f1b,zbv")["schedules"]] == [
        [3, 2],
        [1, 1, 1, 2],
    ]


@pytest.mark.slow
def test_what_recomputes_is_said(job: str, cli: Command) -> None:
    tight = Path(job).read_text().replace('"100MB"', '"9MB"').replace("kept =", "recompute = true\nkept =")
    Path(job).write_text(tight.replace("10MB", "4MB"))
    assert cli.refused("pipeline", job, "--schedules", "gpipe") == (
        "four: no schedule was found that fits. With gpipe, the nearest, rank 0 lacks 25,000,000 bytes (23.8 MiB) at "
        "0F3. Raise memory_limit, or take more ranks or smaller micro-batches, or --find, which recomputes stages."
    )
    assert "; recomputed: " in cli.words("pipeline", job, "--schedules", "gpipe", "--find")
    Path(job).write_text(tight.replace('"9MB"', '"3MB"'))
    told = cli.refused("pipeline", job, "--schedules", "gpipe", "--find")
    assert told.startswith("four: no schedule was found that fits, recomputed or not. With gpipe, the nearest, ")


def test_what_if(job: str, cli: Command) -> None:
    """One row per combination; what does not fit says so, the job as it is included."""
    Path(job).write_text(Path(job).read_text().replace('"100MB"', '"45MB"') + '[link]\nbandwidth = "1GB/s"\n')
    given = ("pipeline", job, "--schedules", "1f1b,zbv", "--vary", "micro_batches=4,8", "--vary", "links=0.5,1")
    varied = cli.json(*given)["varied"]
    assert [one["changed"] for one in varied] == [
        {"micro_batches": count, "links": factor} for count in (4, 8) for factor in (0.5, 1.0)
    ]
    slow, fast, *more = (one["schedule"]["step_us"] for one in varied)
    assert slow > fast
    assert min(more) > slow
    alone = cli.json("pipeline", job, "--schedules", "1f1b,zbv")["schedules"]
    assert fast == min(one["step_us"] for one in alone if one["lacks"] is None)
    words = cli.words(*given)
    assert f"{fast / 4000:.2f} ms" in words
    tight = cli.json("pipeline", job, "--schedules", "gpipe", "--vary", "ranks=1,4")["varied"]
    assert tight[0] == {"changed": {"ranks": 1}, "schedule": None}
    assert "none fits 1" in cli.words("pipeline", job, "--schedules", "gpipe", "--vary", "ranks=1,4")


def test_a_picture(job: str, cli: Command, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    cli.words("pipeline", job, "--schedules", "1f1b,zbv", "--html", str(page))
    text = page.read_text()
    assert text.count("<section") == 2
    assert "<code>overlap-sched pipeline " in text


def test_a_file_of_a_schedule_that_the_job_cannot_have(tmp_path: Path, cli: Command) -> None:
    path = tmp_path / "one.toml"
    path.write_text(ONE_STAGE)
    refused = cli.refused("pipeline", str(path), "--csv", str(tmp_path / "o.csv"), "--schedule", "zb-h1")
    assert "zb-h1 runs the halves of backward apart, but no stage has any." in refused
