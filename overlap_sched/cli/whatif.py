"""``overlap-sched whatif``: its options, and what it answers."""

import argparse
import math
from collections.abc import Callable
from dataclasses import replace

from rich.console import RenderableType

from overlap_sched.analysis.whatif import AXES, whatif
from overlap_sched.cli.schemas import as_json
from overlap_sched.cli.sizes import shortened
from overlap_sched.cli.source import options_for
from overlap_sched.cost import H100
from overlap_sched.cost.cluster.description import Cluster
from overlap_sched.cost.cluster.file import ASSUMED, read_cluster
from overlap_sched.errors import OptionsError
from overlap_sched.problem import Problem
from overlap_sched.report.words.whatif import whatif_answer, whatif_figures, whatif_table

MAX_POINTS = 256
_MAX_RANKS = 2**20


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
    """Refuse options that cannot be, before anything is read.

    Raises:
        OptionsError: ``--vary`` is not understood, or asks for too much. ClusterError: the cluster is none.
    """
    if options.comm_scale != 1.0:
        raise OptionsError("--comm-scale: whatif prices collectives anew. Give --vary network=FACTOR instead.")
    points = math.prod(map(len, _varied(options).values()))
    if points > MAX_POINTS:
        raise OptionsError(f"--vary: that makes {points} combinations, {MAX_POINTS} at most. Give fewer values.")
    _cluster(options)


def answer(
    options: argparse.Namespace, problem: Problem, tell: Callable[[str], None]
) -> str | tuple[RenderableType, ...]:
    """Price and schedule each combination; what to print: JSON, or a table and a sentence."""
    cluster, wanted = _cluster(options), options_for(options, problem)
    points = whatif(problem, cluster, _varied(options), wanted, not options.no_contention, tell)
    if options.plot:
        from overlap_sched.report.pictures.curves import plot_whatif

        tell(f"drawing {options.plot}")
        plot_whatif(points, cluster.name, options.plot)
    if options.json:
        return as_json("whatif", whatif_figures(points, cluster.name))
    return (whatif_table(points, cluster.name), whatif_answer(points))


def _cluster(options: argparse.Namespace) -> Cluster:
    cluster = read_cluster(options.cluster or ASSUMED[H100.name])
    return replace(cluster, mesh=options.mesh) if options.mesh else cluster


def _varied(options: argparse.Namespace) -> dict[str, tuple[float, ...]]:
    vary: dict[str, tuple[float, ...]] = {}
    for text in options.vary or ["network=0.25..4"]:
        what, values = _axis(text)
        if what in vary:
            raise OptionsError(f"--vary {shortened(text)}: {what} is varied already. Give it once.")
        vary[what] = values
    return vary


def _axis(text: str) -> tuple[str, tuple[float, ...]]:
    what, _, values = (part.strip() for part in text.partition("="))
    if what not in AXES or not values:
        raise OptionsError(
            f"--vary {shortened(text)}: is not WHAT=VALUES, WHAT one of {', '.join(AXES)}: network=0.25..4, "
            "ranks=64,256."
        )
    first, dots, last = values.partition("..")
    try:
        found = _powers(float(first), float(last)) if dots else tuple(float(value) for value in values.split(","))
    except ValueError:
        found = ()
    if not found or not all(2.0**-20 <= value <= 2.0**20 for value in found) or len(set(found)) != len(found):
        raise OptionsError(
            f"--vary {shortened(text)}: values are numbers above 0, each once: FIRST..LAST in powers of two, or A,B,C."
        )
    if what == "ranks" and not all(value == int(value) and 2 <= value <= _MAX_RANKS for value in found):
        raise OptionsError(f"--vary {shortened(text)}: ranks are whole numbers, 2 to {_MAX_RANKS}.")
    return what, found


def _powers(first: float, last: float) -> tuple[float, ...]:
    """From the first on, each twice the one before, up to the last."""
    found: list[float] = []
    while 0 < first <= last * (1 + 1e-9) and len(found) <= MAX_POINTS:
        found.append(first)
        first *= 2
    return tuple(found)
