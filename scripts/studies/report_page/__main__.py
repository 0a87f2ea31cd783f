"""How large the HTML page of a schedule is, and how fast: the table of docs/commands.md.

Opens the page in a headless Chromium and measures, in the page, how long each step takes from the call until the frame
after it is drawn. Needs bokeh, playwright (without its own browsers) and a Chromium (Debian: chromium)::

    python -m scripts.studies.report_page [PROBLEM ...]
"""

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from llama_repro import INSTANCES
from overlap_sched.options import Options
from overlap_sched.problem.file import read_problem
from overlap_sched.report.html.page import write_page
from overlap_sched.scheduler.pipeline import schedule

INSTANCE = INSTANCES / "dsv3_bw_64.json.gz"
ZOOMS = ("in", "in", "right", "left", "out", "in", "all") * 3
STEPS = {"sort": "[data-column='7']", "peak": "[data-peak='0']", "switch of theme": "#theme"}
_TIMED = """async (selector) => {
  const begin = performance.now();
  document.querySelector(selector).click();
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0))));
  return performance.now() - begin;
}"""


def main() -> None:
    """Print a line per problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=[str(INSTANCE)], metavar="PROBLEM")
    problems = parser.parse_args().problems
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        load = f"{os.getloadavg()[0]:.1f}"
        where = f"{os.cpu_count()} CPU cores (load {load}), no GPU, {platform.machine()}"
        print(f"{date.today()}, Chromium {browser.version}, {where}; milliseconds: median (worst)")
        for problem in problems:
            print(_line(browser, problem, Path(folder) / "page.html"))
        browser.close()


def _line(browser: Any, problem: str, out: Path) -> str:
    found = schedule(read_problem(problem), Options(effort=1))
    begin = time.perf_counter()
    write_page(found, out)
    made_s = time.perf_counter() - begin
    tab = browser.new_page(viewport={"width": 1500, "height": 900})
    begin = time.perf_counter()
    tab.goto(out.as_uri())
    tab.wait_for_selector("html[data-ready=true]", state="attached")
    ready_s = time.perf_counter() - begin
    zooms = [tab.evaluate(_TIMED, f"[data-do='{do}']") for do in ZOOMS]
    steps = {name: tab.evaluate(_TIMED, selector) for name, selector in STEPS.items()}
    tab.close()
    parts = [
        f"{Path(problem).name}: {len(found.problem.nodes):,} nodes, {out.stat().st_size / 1e6:.2f} MB "
        f"made in {made_s:.1f} s, ready in {ready_s:.2f} s",
        f"zoom {statistics.median(zooms):.0f} ({max(zooms):.0f})",
        *(f"{name} {ms:.0f}" for name, ms in steps.items()),
    ]
    return "; ".join(parts)


if __name__ == "__main__":
    main()
