"""What a profile says of a graph, in lines and as a table: how much of it was found, and where predictions were off."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from rich.table import Table

from overlap_sched.cost.profile import How, MeasuredTime, Profile, Sought
from overlap_sched.report.table import captioned_table
from overlap_sched.report.units import count, duration, printable

_LISTED = 4
_ROWS = 8


def profile_notes(profile: Profile) -> Iterator[str]:
    """Lines: what was matched and how, what was not, and what of skew."""
    pairs = zip(profile.sought, profile.measured, strict=True)
    timed = [(node, m) for node, m in pairs if m is not None or node.us > 0.0]
    how = Counter(m.how for _, m in timed if m is not None)
    ways: tuple[tuple[How, str], ...] = (
        ("order", "by shapes and order"),
        ("shapes", "by shapes alone"),
        ("names", "by names of fused kernels"),
    )
    yield (
        f"profile: {sum(how.values()):,} of {count(len(timed), 'node')} that take time were found in it, "
        f"{profile.share():.1%} of the predicted time"
        + "".join(f", {how[key]:,} {what}" for key, what in ways if how[key])
        + f" ({count(profile.runs, 'run')} on {count(profile.ranks, 'rank')})"
    )
    if profile.skew_us is not None:
        yield f"profile: {duration(profile.skew_us)} of waiting for late ranks taken out of the collectives of a run"
    else:
        yield (
            "profile: one rank: its collectives still hold the time that it waited for others in them; give the traces "
            "of more ranks to take that out"
        )
    missing = Counter(node.name for node, m in timed if m is None).most_common()
    if missing:
        listed = ", ".join(f"{n} x {printable(name)}" for name, n in missing[:_LISTED])
        more = ", ..." if len(missing) > _LISTED else ""
        yield f"profile: not found, so as predicted: {listed}{more}"


def profile_table(profile: Profile) -> Table:
    """The operators whose predicted and measured times differ most."""
    rows: dict[str, list[tuple[Sought, MeasuredTime]]] = defaultdict(list)
    for node, measured in zip(profile.sought, profile.measured, strict=True):
        if measured is not None:
            rows["in fused kernels" if measured.how == "names" else _label(node)].append((node, measured))
    totals = [
        (label, len(pairs), sum(node.us for node, _ in pairs), sum(m.us for _, m in pairs))
        for label, pairs in rows.items()
    ]
    totals.sort(key=lambda row: (-abs(row[3] - row[2]), row[0]))
    heads = ("nodes", "predicted", "measured", "measured / predicted")
    table = captioned_table("where prediction and profile differ most", "", heads, first="operator")
    for label, nodes, predicted, measured_us in totals[:_ROWS]:
        ratio = f"{measured_us / predicted:,.2f}" if predicted else "-"
        table.add_row(label, f"{nodes:,}", duration(predicted), duration(measured_us), ratio)
    return table


def _label(node: Sought) -> str:
    shapes = [str(list(shape)) for shape in node.shapes or ()]
    return printable(" ".join([node.name.removeprefix("_c10d_functional::"), *shapes[:2], *["..."][: len(shapes) > 2]]))
