"""``overlap-sched whatif``: its options, and what it answers."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from overlap_sched.analysis.whatif import AXES, WhatIfPoint, whatif
from overlap_sched.cli.schemas import as_json
from overlap_sched.cli.source import cluster_named, options_for
from overlap_sched.cost import H100
from overlap_sched.cost.cluster import ASSUMED
from overlap_sched.errors import OptionsError
from overlap_sched.pipeline.vary import read_axes
from overlap_sched.problem import Problem
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import change, duration, from_to, printable, size
from overlap_sched.report.words.contention import contention_figures, with_contention_line
from overlap_sched.report.words.reserved import reserved_figures, reserved_of
from overlap_sched.report.words.schedule import gap_percent
from overlap_sched.scheduler.driver import Figures

MAX_POINTS = 256


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command's own options."""
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="WHAT=VALUES",
        help="network, inside or compute: factors on a speed (0.25..4: in powers of two; or 1,2,10); ranks: of the "
        "largest process group that shards parameters (64,256,1024); can be repeated, all combinations are tried "
        "(default: network=0.25..4)",
    )
    parser.add_argument("--plot", metavar="OUT.png", help="draw the step over what is varied first (.png, .svg, .pdf)")
    parser.add_argument(
        "--json", action="store_true", help="print the figures as one JSON object (`overlap-sched schema whatif`)"
    )


def check(options: argparse.Namespace) -> None:
    """Refuse options that cannot be, before anything is read."""
    if options.comm_scale != 1.0:
        raise OptionsError("--comm-scale: whatif prices collectives anew. Give --vary network=FACTOR instead.")
    _varied(options)
    cluster_named(options, ASSUMED[H100.name])


def answer(
    options: argparse.Namespace, problem: Problem, tell: Callable[[str], None]
) -> str | tuple[RenderableType, ...]:
    """Price and schedule each combination; what to print: JSON, or a table and a sentence."""
    cluster, wanted = cluster_named(options, ASSUMED[H100.name]), options_for(options, problem)
    points = whatif(problem, cluster, _varied(options), wanted, not options.no_contention, tell)
    if options.plot:
        from overlap_sched.report.pictures.curves import plot_whatif

        tell(f"drawing {options.plot}")
        plot_whatif(points, cluster.name, options.plot)
    if options.json:
        return as_json("whatif", _figures(points, cluster.name))
    return (_table(points, cluster.name), whatif_answer(points))


def _varied(options: argparse.Namespace) -> dict[str, tuple[float, ...]]:
    given = options.vary or ["network=0.25..4"]
    vary = read_axes(given, AXES, ("ranks",), "network=0.25..4, ranks=64,256.", MAX_POINTS)
    if min(vary.get("ranks", (2,))) < 2:
        raise OptionsError("--vary ranks: they are 2 or more.")
    return vary


def _table(points: Sequence[WhatIfPoint], cluster: str) -> Table:
    names = list(points[0].varied)
    problem = points[0].found.problem
    table = captioned_table(
        title=f"{printable(problem.name)} on {printable(cluster)}",
        caption=with_contention_line(
            "Simulated, collectives priced anew for each line: the original order -> ours. Exposed and peak: of ours. "
            "Reserved: what torch's caching allocator would reserve more. Gap: above the lower bound.",
            problem.contention,
        ),
        numbers=(*names, "step", "exposed", "peak", "reserved", "gap"),
    )
    for point in points:
        found = point.found
        before, after = found.original, found.scheduled
        table.add_row(
            *(_value(name, value) for name, value in point.varied.items()),
            from_to(duration(before.step_us), duration(after.step_us)),
            duration(after.exposed_us),
            size(after.peak_bytes),
            "-" if (reserved := reserved_of(found)) is None else change(reserved.before, reserved.after),
            f"{gap_percent(found.scheduled.step_us, found.lower_bound_us):.2f} %",
        )
    return table


def whatif_answer(points: Sequence[WhatIfPoint]) -> str:
    """Say what it brings, in a sentence."""
    ordered = sorted(points, key=lambda point: point.found.scheduled.step_us)
    if len(ordered) == 1:
        return f"The step with {_at(ordered[0])}."
    return f"The shortest step is that with {_at(ordered[0])}; the longest that with {_at(ordered[-1])}."


def _at(point: WhatIfPoint) -> str:
    varied = ", ".join(f"{name} {_value(name, value)}" for name, value in point.varied.items())
    return f"{varied}: {duration(point.found.scheduled.step_us)}"


def _figures(points: Sequence[WhatIfPoint], cluster: str) -> dict[str, Any]:
    problem = points[0].found.problem
    return {
        "name": problem.name,
        "cluster": cluster,
        "memory_model": problem.memory_model,
        "contention": contention_figures(problem.contention),
        "points": [_point_figures(point) for point in points],
    }


def _point_figures(point: WhatIfPoint) -> dict[str, Any]:
    def side(figures: Figures, reserved_bytes: int | None) -> Mapping[str, float | None]:
        return {
            "step_us": figures.step_us,
            "exposed_us": figures.exposed_us,
            "peak_bytes": figures.peak_bytes,
            "reserved_bytes": reserved_bytes,
        }

    found = point.found
    before, after = reserved_figures(reserved_of(found)).values()
    return {
        "varied": dict(point.varied),
        "original": side(found.original, before),
        "scheduled": side(found.scheduled, after),
        "lower_bound_us": found.lower_bound_us,
        "gap_percent": gap_percent(found.scheduled.step_us, found.lower_bound_us),
        "fell_back": found.fell_back,
    }


def _value(name: str, value: float) -> str:
    return f"{value:g}" if name == "ranks" else f"x{value:g}"
