"""Sections of the page that only some have, readable without scripts: rewrites, and the frontier."""

import html

from overlap_sched.report.html.data import FrontierData, Page
from overlap_sched.report.units import count, duration, size
from overlap_sched.report.words.frontier import point_cells


def table_row(cells: tuple[str, ...]) -> str:
    """A line of a table, its first cell a heading."""
    first, *others = map(html.escape, cells)
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'


def rewrites_section(page: Page) -> str:
    """The section of what was rewritten and tried; nothing where nothing was."""
    if not page.rewrites and not page.tried:
        return ""
    rows = [
        f'<li><button type="button" data-node="{one.node}">{html.escape(one.words)}</button></li>'
        if one.node >= 0
        else f"<li>{html.escape(one.words)}</li>"
        for one in page.rewrites
    ]
    step = f"; the best order without rewrites takes {duration(page.figures['step_without_rewrites_us'])}"
    if page.figures["without_rewrites_for_live_bytes"]:
        step += " by live bytes alone, hardly ever less in what the allocator can hold"
    found = (
        " A click on one finds it in the streams, where what rewrites made, and what they made it of, has a colour of "
        "its own."
        if any(one.node >= 0 for one in page.rewrites)
        else ""
    )
    tried = "".join(table_row(one) for one in page.tried)
    return _section(
        "rewrites",
        "Rewrites, what each bought and costs (simulated)",
        f"<p>{count(len(page.rewrites), 'rewrite')} in the scheduled order{step}.{found}</p>",
        f'<ol id="rewrites" class="list scroll" tabindex="0" aria-label="Rewrites">{"".join(rows)}</ol>'
        if rows
        else "",
        f'<details><summary>{len(page.tried)} plans were tried</summary><div class="scroll"><table id="tried">'
        f"<tbody>{tried}</tbody></table></div></details>"
        if tried
        else "",
        _left_out(page.left),
    )


def _left_out(left: tuple[tuple[str, ...], ...]) -> str:
    """The step without each rewrite; nothing where none was left out."""
    if not left:
        return ""
    (title,), *rows = left
    return (
        f'<details><summary>{html.escape(title)}</summary><div class="scroll"><table id="left-out">'
        f"<tbody>{''.join(map(table_row, rows))}</tbody></table></div></details>"
    )


def frontier_section(page: Page) -> str:
    """The section of step against peak memory; nothing where it was not computed."""
    found = page.frontier
    if found is None:
        return ""
    original = found.others[0]
    head = ("order", "peak", "", "step", "", "exposed", *(() if found.bound_us is None else ("gap",)))
    rows = [
        table_row((point.name or "on the frontier", *point_cells(point, original, found.bound_us))[: len(head)])
        for point in (*found.points, *found.others)
    ]
    return _section(
        "frontier",
        "Step against peak memory (simulated)",
        f"<p>{_bounds(found)}</p>",
        '<div id="frontier-plot"></div>',
        '<div class="scroll" tabindex="0" role="group" aria-labelledby="frontier-title">'
        '<table id="frontier"><thead><tr>'
        + "".join(f'<th scope="col">{name}</th>' for name in head)
        + f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>",
    )


def _bounds(found: FrontierData) -> str:
    if found.bound_us is None or found.floor_bytes is None:
        return "The shortest step found for each peak, with rewrites; there may be better ones."
    return (
        "The shortest step found for each peak, of the graph of the original order. No order's step is below "
        f"{duration(found.bound_us)}; no order's peak is below {size(found.floor_bytes)}."
    )


def _section(name: str, title: str, *parts: str) -> str:
    inside = "\n".join(filter(None, parts))
    return f'<section aria-labelledby="{name}-title">\n<h2 id="{name}-title">{title}</h2>\n{inside}\n</section>\n'
