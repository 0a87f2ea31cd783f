"""``overlap-sched sweep``: one graph scheduled for each combination of settings, prices and errors.

An order keeps its memory whatever the prices, and fits wherever at least as much memory is allowed. So each point is
also offered the orders of its neighbours with as much memory or less: more headroom never makes the step longer, nor
does a faster network.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from rich.console import RenderableType

from overlap_sched.cli.arguments import SweepCommand
from overlap_sched.cli.input import Printed, Tell, Want, cluster_of, options_for, read_input
from overlap_sched.cli.vary import read_axes
from overlap_sched.cost import H100
from overlap_sched.cost.cluster import ASSUMED
from overlap_sched.cost.repricing import MACHINE, on_machine
from overlap_sched.errors import OptionsError
from overlap_sched.judge.validate import broken_promise, measure
from overlap_sched.options import Options
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.sizes import parse_size
from overlap_sched.report.answers import SweepAnswer, SweepPoint, SweptOrder, as_json
from overlap_sched.report.colours import AFTER, BEFORE, LIMIT
from overlap_sched.report.terminal import captioned_table
from overlap_sched.report.units import duration, from_to, memory_unit, printable, size, time_unit
from overlap_sched.report.words.schedule import gain_of, gain_text, gap_percent, with_contention_line
from overlap_sched.scheduler.driver import Schedule, figures_of, promise_of, schedule
from overlap_sched.scheduler.task import SAME_STEP
from overlap_sched.simulate.clock import StepTimes

MEMORY = ("headroom", "memory_limit")
MAX_POINTS = 256
DRAWS = 100
NONE = (None, None)
_EXAMPLE = "headroom=0..2GiB network=0.25..4 noise=0..30%"


def _read_vary(texts: Sequence[str], peak_bytes: int) -> dict[str, tuple[float, ...]]:
    """Read ``--vary``; percent of memory are of the original peak."""

    def read(name: str, text: str) -> float:
        if name in MEMORY:
            return parse_size(f"--vary {name}", text, peak_bytes, "a size with a unit (2GiB) or percent (5%)")
        return float(text.removesuffix("%")) / 100 if name == "noise" and text.endswith("%") else float(text)

    vary = read_axes(texts, (*MEMORY, *MACHINE, "noise"), _EXAMPLE, MAX_POINTS, read, ("headroom", "noise"))
    whole = {name: tuple(dict.fromkeys(float(int(value)) for value in vary[name])) for name in MEMORY if name in vary}
    vary |= whole  # halves of a size may be no whole bytes
    if max(vary.get("noise", (0,))) > 1:
        raise OptionsError("--vary noise: it is 100% at most (30%: errors of about 30 %).")
    return vary


def run_sweep(command: SweepCommand, tell: Tell) -> Printed:
    """Schedule each combination; what to print: JSON, or a table."""
    vary = _read_vary(command.vary, 2**40)
    for name in MEMORY:
        if name in vary and getattr(command.options, name) not in (None, 0, "0"):
            raise OptionsError(f"--vary and its own flag give {name}: give one of them.")
    cluster = cluster_of(command, ASSUMED[H100.name]) if set(vary).intersection(MACHINE) else None
    if cluster is not None and command.comm_scale != 1.0:
        raise OptionsError("--comm-scale: collectives are priced anew. Give --vary network=FACTOR instead.")
    wants: list[Want] = [] if cluster is None else ["rewrites"]
    problem = read_input(command, tell, wants).problem
    vary = _read_vary(command.vary, max(measure(problem, problem.original_order).profile))

    def priced(varied: Mapping[str, float]) -> Problem:
        machine = {name: value for name, value in varied.items() if name in MACHINE}
        return problem if cluster is None else on_machine(problem, cluster, machine, not command.no_contention)

    found = SweepAnswer(
        name=problem.name,
        memory_model=problem.memory_model,
        contention=problem.contention or None,
        cluster=None if cluster is None else cluster.name,
        points=sweep(priced, vary, options_for(command, command.options, problem), tell),
    )
    if command.plot:
        _plot(found, command.plot)
    return as_json(found) if command.json else (_table(found, problem),), 0


def sweep(
    priced: Callable[[Mapping[str, float]], Problem],
    vary: Mapping[str, Sequence[float]],
    options: Options,
    tell: Tell = lambda text: None,
) -> tuple[SweepPoint, ...]:
    """Schedule each combination, in the order given, the last name varying fastest.

    Args:
        priced: The problem at the speeds of a combination.
        vary: Per name of those that ``--vary`` takes its values.
        options: What else is asked for.
        tell: Hears what is being done.
    """
    scheduled = tuple(name for name in vary if name != "noise")
    found: dict[tuple[float, ...], Schedule] = {}
    combined = list(product(*(vary[name] for name in scheduled)))
    for values in combined:
        tell(f"scheduling {len(found) + 1} of {len(combined)}")
        varied = dict(zip(scheduled, values, strict=True))
        memory = {name: int(value) for name, value in varied.items() if name in MEMORY}
        found[values] = schedule(priced(varied), replace(options, **memory))  # type: ignore[arg-type]
    _carry_orders_over(found, {name: vary[name] for name in scheduled})
    noisy = _replay_with_noise(found.values(), vary.get("noise", ()), tell)
    points = list[SweepPoint]()
    for values in product(*vary.values()):
        varied = dict(zip(vary, values, strict=True))
        made, noise = found[tuple(varied[name] for name in scheduled)], varied.get("noise")
        before, after = (
            SweptOrder(
                of.step_us, of.exposed_us, of.peak_bytes, *noisy.get((id(made.problem), order, noise), (None, None))
            )
            for of, order in ((made.original, made.problem.original_order), (made.scheduled, made.order))
        )
        bound_us, given = made.lower_bound_us, {name: int(at) if at == int(at) else at for name, at in varied.items()}
        gap, fell_back = gap_percent(after.step_us, bound_us), made.fell_back is not None
        gain = gain_of(made) if noise is None else None
        points.append(SweepPoint(given, before, after, bound_us, gap, made.short_bytes, fell_back, gain))
    return tuple(points)


def _carry_orders_over(found: dict[tuple[float, ...], Schedule], vary: Mapping[str, Sequence[float]]) -> None:
    """Give each point the order of a neighbour that is better there, until none is."""
    axes, changed = {name: sorted(values) for name, values in vary.items()}, True
    while changed:
        changed = False
        for values, (k, name) in product(found, enumerate(vary)):
            axis = axes[name]
            at = axis.index(values[k])
            for other in (*axis[max(at - 1, 0) : at], *(() if name in MEMORY else axis[at + 1 : at + 2])):
                better = _with_order_of(found[values], found[(*values[:k], other, *values[k + 1 :])])
                if better is not None:
                    found[values], changed = better, True


def _with_order_of(found: Schedule, other: Schedule) -> Schedule | None:
    """Return a schedule in the order of another one given no more memory; ``None``: it is no better there."""
    same_device = found.memory_limit_bytes == other.memory_limit_bytes
    runs = not other.short_bytes or (same_device and other.short_bytes <= found.short_bytes)
    if other.order == found.order or not runs:
        return None
    problem, measured = found.problem, measure(found.problem, other.order)
    better = measured.timeline.step_us < found.scheduled.step_us * (1 - SAME_STEP)
    if not (other.short_bytes < found.short_bytes if found.short_bytes else better):
        return None
    original, promise = measure(problem, problem.original_order), promise_of(found.options, found.base_bytes)
    if broken_promise(problem, original, measured, promise) is not None:
        return None
    figures = figures_of(problem, measured)
    return replace(found, order=other.order, scheduled=figures, decisions=(), short_bytes=other.short_bytes)


def _replay_with_noise(
    found: Collection[Schedule], noises: Sequence[float], tell: Tell
) -> dict[tuple[int, Order, float | None], tuple[float, float]]:
    """Return median and 95th percentile of each order's step under errors, by the id of its problem and the noise.

    Each duration is multiplied by exp(sigma z - sigma^2 / 2) with z normal, whose mean is 1: the same for all orders.
    """
    quantiles: dict[tuple[int, Order, float | None], tuple[float, float]] = {}
    problems = {id(made.problem): made.problem for made in found}
    for at, (noise, problem) in enumerate(product(noises, problems.values()), 1):
        tell(f"replaying {at} of {len(noises) * len(problems)}")
        normal = np.random.default_rng(0).standard_normal((DRAWS if noise else 1, len(problem.nodes)))
        times, factors = StepTimes(problem), np.exp(noise * normal - noise**2 / 2).tolist()
        for order in {problem.original_order, *(made.order for made in found if made.problem is problem)}:
            quantiles[id(problem), order, noise] = tuple(np.quantile(times.drawn(order, factors), (0.5, 0.95)).tolist())
    return quantiles


def _table(found: SweepAnswer, problem: Problem) -> RenderableType:
    names, noisy = list(found.points[0].varied), "noise" in found.points[0].varied
    rows = []
    for point in found.points:
        before, after = point.original, point.scheduled
        noise = ((before.median_us, after.median_us), (before.p95_us, after.p95_us)) if noisy else ()
        pairs = ((before.step_us, after.step_us), *noise)
        step, *more = (from_to(duration(one or 0.0), duration(two or 0.0)) for one, two in pairs)
        peak = size(after.peak_bytes) + (" (too large)" if point.short_bytes else "")
        values = [value_text(name, value) for name, value in point.varied.items()]
        more = more or [gain_text(before.step_us, after.step_us, point.gain_range)]
        rows.append([*values, step, duration(after.exposed_us), peak, f"{point.gap_percent:.2f} %", *more])
    on = "" if found.cluster is None else f" on {printable(found.cluster)}, collectives priced anew"
    about = f" Noise: median and 95th percentile of {DRAWS} replays with wrong durations." if noisy else ""
    caption = "Simulated: the original order -> ours. Exposed and peak: of ours. Gap: above any order's bound."
    return captioned_table(
        f"{printable(found.name)}{on}",
        with_contention_line(caption + about, problem.contention),
        (*names, "step", "exposed", "peak", "gap", *(("median", "p95") if noisy else ("speed (9 of 10 draws)",))),
        rows=rows,
    )


def _plot(found: SweepAnswer, path: str) -> None:
    """Draw the step over what is varied first; a set of curves for each combination of the others."""
    from overlap_sched.report.pictures import Curve, plot_curves

    first, *others = found.points[0].varied
    last = max(point.varied[first] for point in found.points)
    per, unit = memory_unit(last) if first in MEMORY else (0.01, "%") if first == "noise" else (1, "times as now")
    scale, name = time_unit(max(point.original.step_us for point in found.points))
    series = defaultdict[str, list[SweepPoint]](list)
    for point in found.points:
        series["".join(f", {name} {value_text(name, point.varied[name])}" for name in others)].append(point)
    curves = list[Curve]()
    for k, (label, points) in enumerate(series.items()):
        x = [point.varied[first] / per for point in points]
        for what, colour, style, steps_us in (
            ("original order", BEFORE, "--", [point.original.step_us for point in points]),
            ("our order", AFTER, "-", [point.scheduled.step_us for point in points]),
            ("lower bound", LIMIT, ":", [point.lower_bound_us for point in points]),
            ("95 % of replays", AFTER, "-.", [point.scheduled.p95_us or 0.0 for point in points]),
        ):
            if any(steps_us):
                look = {"color": colour, "linestyle": style, "alpha": 1.0 - 0.7 * k / len(series), "marker": "."}
                curves.append((x, [us / scale for us in steps_us], {"label": what + label, **look}))
    title = printable(found.name if found.cluster is None else f"{found.name} on {found.cluster}")
    powers, drawn = first in MACHINE, f"step ({name}), simulated"
    plot_curves(curves, title, f"{first} ({unit})", drawn, path, powers=powers)


def value_text(name: str, value: float) -> str:
    """Write a value of an axis as people read it."""
    if name in MEMORY:
        return size(int(value))
    return f"{100 * value:g} %" if name == "noise" else f"x{value:g}"
