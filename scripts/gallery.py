#!/usr/bin/env python3
"""Make docs/gallery.md: six jobs, the commands that look at them, and what they print.

Everything comes from files in this repository; nothing needs torch or a GPU. About a minute::

    python scripts/gallery.py                   # writes docs/gallery.md
    python scripts/gallery.py --pictures        # also a picture of each page: docs/gallery-*.png

Pictures need playwright (without its own browsers) and a Chromium (Debian: chromium).
"""

import argparse
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, WIDTH = 100, 120
"""Of what commands print, and of text."""
TITAN, INSTANCES = "llama_repro/titan/graphs", "scripts/instances"


@dataclass(frozen=True)
class Job:
    """One chapter.

    Attributes:
        title, text: Its heading, and what to see in it.
        name: Of its files.
        problem: From the root of the repository.
        commands: Behind ``overlap-sched``; what they print is shown.
        page: Behind ``overlap-sched``, what writes the job's page.
        scheme: Of the picture: light or dark.
        caption: What the picture shows.
        shown, width: Of the page, and how wide it is (pixels).
    """

    title: str
    text: str
    name: str
    problem: str
    commands: tuple[str, ...]
    page: str = "report {problem} --effort 1"
    scheme: str = "light"
    caption: str = ""
    shown: str = "section[aria-labelledby='time-title']"
    width: int = 700


JOBS = (
    Job(
        "The Llama regression",
        "The backward of Llama-3-8B under FSDP. A published scheduler hid its communication well and took 40 GB more "
        "memory ([benchmark](benchmark.md)). Ours hides nearly all of it at the original peak.",
        "llama",
        f"{INSTANCES}/llama3_8b_bw_64_1d.json.gz",
        ("plan {problem} --effort 1", "explain {problem} --effort 1 --top 1"),
        "report {problem} --effort 1",
        caption="Streams and memory, original and scheduled. Orange red: the compute stream stalls.",
    ),
    Job(
        "A mixture of experts, from a dump",
        "DeepSeek-V3-16B, FSDP over 64 ranks and expert parallelism over 8, from a real job's dump. Three process "
        "groups share one compute stream: 265.0 ms instead of 613.2, at the same peak.",
        "moe",
        f"{INSTANCES}/dsv3_bw_64.json.gz",
        (),
        scheme="dark",
        caption="Streams and memory, original and scheduled: FSDP (green) and experts (purple) beside compute.",
    ),
    Job(
        "A torchtitan run",
        "One whole step of torchtitan's Llama-3-8B, FSDP 8 x TP 8, traced by its GraphTrainer, with reductions moved "
        "to a second communicator ([rewrites](rewrites.md)): 232.7 ms instead of 279.2, at the same peak.",
        "titan",
        f"{TITAN}/titan-llama3-8b-fsdp8-tp8.json.gz",
        (),
        "report {problem} --effort 1 --rewrites bucket,stream",
        caption="Streams and memory, original and scheduled. What was rewritten stands on orange.",
    ),
    Job(
        "A job that did not fit",
        "The same step needs 4.615 GiB, and no order fits into 3.5 GiB. `overlap-sched fit` computes values again, or "
        "copies them to the host and back beside compute ([fit](fit.md)).",
        "fit",
        f"{TITAN}/titan-llama3-8b-fsdp8-tp8.json.gz",
        ("fit {problem} --memory-limit 3.5GiB --effort 0",),
        "fit {problem} --memory-limit 3.5GiB --effort 0",
        scheme="dark",
        caption="Streams and memory, original and fitted. Dashed: 3.5 GiB; the last stream is of copies to the host.",
    ),
    Job(
        "A pipelined job",
        "Eight stages on four ranks, each with the graphs of Llama-3-8B. A forward beside a backward hides the other's "
        "collectives. [Pipelined jobs](pipelines.md) has the figures.",
        "pipeline",
        f"{INSTANCES}/pipeline.toml",
        (),
        "pipeline {problem} --order-graphs --schedules 1f1b,dualpipev",
        caption="Ranks by time, micro-batches by number, live bytes below; two boxes in one: forward beside backward.",
        shown="main",
        width=1400,
    ),
    Job(
        "64 GPUs, one model",
        "Which PP x TP x DP trains Llama-3-70B fastest on 64 H100? [Pipelined jobs](pipelines.md) has the figures.",
        "capacity",
        f"{INSTANCES}/question.toml",
        (),
        "capacity {problem}",
        caption="The best: ranks by time, micro-batches by number, live bytes below.",
        shown="main",
        width=1400,
    ),
)


def main() -> None:
    """Run everything, then write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", action="store_true", help="also draw a picture of each page")
    options = parser.parse_args()
    chapters = [_chapter(job) for job in JOBS]
    foot = f'*`python scripts/gallery.py`, {date.today()}, Python {platform.python_version()}. Only "Scheduled in" '
    foot += "depends on the machine.*\n"
    (ROOT / "docs" / "gallery.md").write_text("\n".join([_HEAD, *chapters, foot]), encoding="utf-8")
    if options.pictures:
        with tempfile.TemporaryDirectory() as folder:
            for job in JOBS:
                out = f"{folder}/{job.name}.html"
                _run([*shlex.split(job.page.format(problem=job.problem)), "--html", out])
            draw(Path(folder))


def draw(folder: Path) -> None:
    """A picture of each page in a folder, as a browser shows it."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for job in JOBS:
            tab = browser.new_page(viewport={"width": job.width, "height": 900}, color_scheme=job.scheme)
            tab.goto((folder / f"{job.name}.html").as_uri())
            tab.wait_for_selector("html[data-ready=true]", state="attached")
            tab.add_style_tag(content="#help, #controls, #selected { display: none }")
            tab.locator(job.shown).screenshot(path=ROOT / "docs" / f"gallery-{job.name}.png")
            tab.close()
        browser.close()


_HEAD = """# Gallery

Six jobs, the commands that look at them, and what they print. All figures are **simulated**. `python
scripts/gallery.py --pictures` makes this page.
"""


def _chapter(job: Job) -> str:
    parts = [f"## {job.title}\n", f"{textwrap.fill(job.text, WIDTH)}\n"]
    for command in job.commands:
        words = command.format(problem=job.problem)
        parts += [f"```sh\noverlap-sched {words}\n```\n", f"```text printed\n{_run(shlex.split(words))}\n```\n"]
    parts += [f"![{job.title}](gallery-{job.name}.png)\n", f"*{job.caption} Simulated.*\n"]
    parts += [f"The page: `overlap-sched {job.page.format(problem=job.problem)} --html {job.name}.html`.\n"]
    return "\n".join(parts)


def _run(arguments: Sequence[str]) -> str:
    """What a command prints, without blanks at the ends of lines."""
    print(f"overlap-sched {shlex.join(arguments)}", file=sys.stderr)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "overlap_sched", *arguments],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": str(COLUMNS), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return re.sub(r" +$", "", done.stdout, flags=re.MULTILINE).strip("\n")


if __name__ == "__main__":
    main()
