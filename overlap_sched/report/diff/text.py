"""What changed between two results, for people: figures, then causes, then one by one, the largest change first."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from overlap_sched.report.causes import WORDS
from overlap_sched.report.diff.figures import NAMES, Figure, change_text, in_one_unit, largest_first, percent_text
from overlap_sched.report.diff.orders import CollectivePlace, Moved, OrdersDiff, total_us
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import between, count, duration, printable
from overlap_sched.report.words.contention import with_contention_line

_SHORT = {**WORDS, "nothing": "nothing: hidden"}


def figures_table(figures: Sequence[Figure], title: str, caption: str) -> Table:
    """One line per figure; the unit stands beside its name, so that a narrow terminal has room for the numbers."""
    table = _table(title, caption, ("A", "B", "change"))
    for figure in figures:
        before, after, unit = in_one_unit(figure)
        table.add_row(f"{printable(figure.label())}, {unit}", before, after, percent_text(figure))
    return table


def orders_text(diff: OrdersDiff, names: tuple[str, str], top: int | None) -> tuple[RenderableType, ...]:
    """Figures, causes of exposed time, what moved, then collectives: the ``top`` largest changes (``None``: all)."""
    problem = diff.problem
    caption = with_contention_line(
        f"Simulated, in the {problem.memory_model} memory model. A: {printable(names[0])}. B: {printable(names[1])}. "
        "Reserved: a replay of torch's CUDA caching allocator. Gap: above the lower bound of the step, its change in "
        "points (pt).",
        problem.contention,
    )
    table = figures_table(diff.figures, f"{printable(problem.name)}: {count(len(problem.nodes), 'node')}", caption)
    if not diff.moved:
        return (table, "\nThe two orders are the same.")
    parts: list[RenderableType] = [table, *_causes(diff), _what_moved(diff)]
    listed = diff.collectives[:top]
    if listed:
        every = len(listed) == len(diff.collectives)
        head = (
            "Largest changes first"
            if every
            else f"The {count(len(listed), 'largest change')} of {len(diff.collectives):,}"
        )
        parts.append(f"\n{head}{'' if every else ' (--all shows every one)'}:")
    return (*parts, *(f"\n{_collective(diff, moved)}" for moved in listed))


def rows_text(figures: Sequence[Figure], top: int | None) -> tuple[RenderableType, ...]:
    """Describe records: per figure how many rows have more or less of it; then the rows, the largest change first."""
    table = _table("Changes from A to B", "", ("less", "same", "more", "largest"))
    for name in NAMES:
        ours = [figure for figure in figures if figure.name == name]
        if ours:
            less, more = sum(f.change < 0 for f in ours), sum(f.change > 0 for f in ours)
            counts = (less, len(ours) - less - more, more)
            table.add_row(name, *(f"{number:,}" for number in counts), percent_text(largest_first(ours)[0]))
    changed: dict[str, list[Figure]] = {}
    for figure in largest_first([figure for figure in figures if figure.change]):
        changed.setdefault(figure.of, []).append(figure)
    listed = list(changed)[:top]
    parts: list[RenderableType] = [table]
    if not changed:
        return (*parts, "\nNo row changed.")
    if listed:
        head = f"The {count(len(listed), 'row')} with the largest changes of {len(changed):,} (--all shows every one):"
        parts.append(f"\n{head if len(listed) < len(changed) else 'Largest changes first:'}")
    for of in listed:
        lines = [f"  {figure.name} {change_text(figure)}" for figure in changed[of]]
        parts.append("\n".join(["", printable(of), *lines]))
    return tuple(parts)


def names_line(what: str, names: Sequence[str], most: int = 6) -> list[str]:
    """``only in A: a, b and 3 more``; no line for none."""
    if not names:
        return []
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return [f"{what}: {'; '.join(map(printable, names[:most]))}{more}"]


def _table(title: str, caption: str, numbers: Sequence[str]) -> Table:
    """Without the blanks at both edges: at 40 columns they are worth a label."""
    table = captioned_table(title, caption, numbers, first="")
    table.pad_edge = table.show_edge = False
    return table


def _causes(diff: OrdersDiff) -> list[RenderableType]:
    """Exposed time by cause, the largest change first; nothing where nothing is exposed."""
    figures = [Figure("exposed", name, *us) for name, us in diff.causes_us.items() if name != "nothing"]
    if not figures:
        return []
    figures.sort(key=lambda figure: (-abs(figure.change), figure.of))
    largest = max(max(figure.before, figure.after) for figure in figures)
    unit = in_one_unit(Figure("exposed", "", largest, largest))[2]
    table = _table(f"Exposed time by cause, {unit}", "", ("A", "B", "change"))
    for figure in figures:
        # one unit for all lines: the third figure only sets the scale
        cells = [in_one_unit(Figure("exposed", "", us, largest))[0] for us in (figure.before, figure.after)]
        more = in_one_unit(Figure("exposed", "", figure.change, largest))[0]
        table.add_row(WORDS.get(figure.of, figure.of), *cells, more if figure.change < 0 else f"+{more}")
    return ["", table]


def _what_moved(diff: OrdersDiff) -> str:
    problem = diff.problem
    launches = [moved for moved in diff.collectives if moved.launch]
    sooner = sum(moved.after.position < moved.before.position for moved in launches)
    waits = sum(w in diff.moved for ws in problem.waits.values() for w in ws)
    less = [moved for moved in diff.collectives if moved.exposed_us < 0]
    more = [moved for moved in diff.collectives if moved.exposed_us > 0]
    return "\n".join(
        [
            "",
            f"Moved: {len(diff.moved):,} of {count(len(problem.nodes), 'node')} (the rest is in the same sequence): "
            f"{len(launches):,} launch{'' if len(launches) == 1 else 'es'} ({sooner:,} earlier, "
            f"{len(launches) - sooner:,} later), {count(waits, 'wait')}.",
            f"Exposed less: {_together(less)}; more: {_together(more)}.",
        ]
    )


def _together(changed: Sequence[Moved]) -> str:
    return f"{count(len(changed), 'collective')} ({_signed(total_us(changed))})" if changed else "none"


def _collective(diff: OrdersDiff, moved: Moved) -> str:
    """One collective in a few lines."""
    node, before, after = diff.problem.nodes[moved.collective], moved.before, moved.after
    lines = [
        f"{printable(node.name)} on group {printable(node.group or '')}, {duration(node.time_us)}",
        f"  exposed {_times(before.exposed_us, after.exposed_us)} ({_signed(moved.exposed_us)})",
        f"  launch at {_places(before.position, after.position)}, {_times(before.launch_us, after.launch_us)}",
        f"  wait at {_waits(before, after)}",
    ]
    if before.cause != after.cause:
        lines += [f"  A: {_SHORT[before.cause]}", f"  B: {_SHORT[after.cause]}"]
    elif before.exposed_us or after.exposed_us:
        lines.append(f"  both: {_SHORT[after.cause]}")
    return "\n".join(lines)


def _waits(before: CollectivePlace, after: CollectivePlace) -> str:
    if before.wait_position is None or after.wait_position is None or before.wait_us is None or after.wait_us is None:
        return "nothing in this graph"
    return f"{_places(before.wait_position, after.wait_position)}, {_times(before.wait_us, after.wait_us)}"


def _places(before: int, after: int) -> str:
    by = after - before
    return f"{before:,} → {after:,} ({abs(by):,} {'later' if by > 0 else 'earlier'})" if by else f"{before:,} as in A"


def _times(before: float, after: float) -> str:
    return between(duration(before), duration(after))


def _signed(us: float) -> str:
    text = duration(abs(us))
    return f"-{text}" if us < 0 else f"+{text}"
