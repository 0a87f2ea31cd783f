"""The one line on all graphs against the reports on each: the same figures, read from the texts."""

import re
from collections.abc import Sequence

from overlap_sched.inductor.reporting import GraphReport, outcome_of, summary
from overlap_sched.report.units import duration, from_to

_LINE = re.compile(
    r"overlap_sched: (?P<graphs>[\d,]+) graphs?, (none|[\d,]+) with collectives"
    r"(, (?P<reordered>none|[\d,]+) reordered( \(exposed (?P<exposed>.+?) predicted[^)]*\))?"
    r"(, (?P<rewritten>[\d,]+) rewritten \(exposed (?P<of_rewritten>.+?) predicted)?)?"
)


def assert_agrees(reports: Sequence[GraphReport]) -> None:
    """The line has as many graphs, reordered and rewritten ones as there are such reports, and their exposed time."""
    if not reports:
        return
    line = summary([outcome_of(one.report, one.priced_for) for one in reports], ranks=False).text
    found = _LINE.match(line)
    assert found, line
    became = [str(one.report).split(": ", 1)[1] for one in reports]
    launch = [one.report.schedule is not None and bool(one.report.schedule.problem.collectives) for one in reports]
    reordered = [text.startswith("reordered") and has for text, has in zip(became, launch, strict=True)]
    rewritten = [", not reordered: " in text.splitlines()[0] for text in became]
    assert found["graphs"] == f"{len(reports):,}", line
    assert found["reordered"] in (f"{sum(reordered):,}" if any(reordered) else "none", None), line
    assert found["rewritten"] == (f"{sum(rewritten):,}" if any(rewritten) else None), line
    assert [one.report.changed for one in reports] == [text.startswith("reordered") for text in became]
    for name, chosen in (("exposed", reordered), ("of_rewritten", rewritten)):
        if any(chosen):
            gains = [one.report.exposed_us or (0.0, 0.0) for one, taken in zip(reports, chosen, strict=True) if taken]
            before, after = (sum(figures) for figures in zip(*gains, strict=True))
            assert found[name] == from_to(duration(before), duration(after)), line
