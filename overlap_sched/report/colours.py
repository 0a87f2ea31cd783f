"""The colours of all that is drawn, in one table: pictures, pages and traces keep to it.

Compute, stalls, rewrites and FSDP have Okabe and Ito's, which colour-blind readers can tell apart
(jfly.uni-koeln.de/color). All purposes and all kinds of memory stand out from a light ground as from a dark one.
"""

from collections.abc import Collection
from typing import NamedTuple

from overlap_sched.peak_memory.peak import PeakKind
from overlap_sched.report.words.graph import Purpose

COMPUTE, EXPOSED, REWRITTEN = "#56B4E9", "#D55E00", "#E69F00"
AFTER, BESIDE = "#0072B2", "#CC79A7"
BEFORE, LIMIT, IDLE, INK = "#B8B8B8", "#000000", "#F1F1F1", "#222222"
TRACE_COMPUTE, TRACE_EXPOSED = "thread_state_runnable", "terrible"
"""Names that chrome://tracing has for a light blue and a red; Perfetto colours by what a span is called."""


class Paint(NamedTuple):
    """How collectives of one purpose look: their colour, the name nearest to it in traces, what a legend says."""

    colour: str
    trace: str
    words: str


PURPOSES: dict[Purpose, Paint] = {
    "FSDP": Paint("#009E73", "rail_load", "FSDP"),
    "data": Paint("#5F5F24", "olive", "data parallel"),
    "tensor": Paint("#4955FF", "light_memory_dump", "tensor parallel"),
    "expert": Paint("#992C8B", "detailed_memory_dump", "expert parallel"),
    "host": Paint("#C49651", "thread_state_unknown", "copies to the host and back"),
    "other": Paint("#5D5A5E", "generic_work", "other collectives"),
}
"""In the order of rows and legends. Groups of one purpose share its colour; each has a row and a name of its own."""

MEMORY: dict[PeakKind, str] = {
    "parameters": "#5F6063",
    "optimizer": "#E23BAA",
    "saved activations": "#1FB588",
    "gathered parameters": "#BF9C0D",
    "gradients": "#9766FC",
    "collectives in flight": "#BB2328",
    "temporaries": "#1BA5DD",
}
"""No kind is faint: each may be the largest."""


PIPELINE = {
    "F": ("#0072B2", "forward"),
    "B": ("#009E73", "backward"),
    "I": ("#009E73", "gradient of inputs"),
    "W": ("#B07AA1", "gradient of weights"),
    "UNSHARD": ("#BF9C0D", "gather of parameters"),
    "RESHARD": ("#BF9C0D", "release of parameters"),
    "REDUCE_GRAD": ("#992C8B", "reduction of gradients"),
    "STEP": ("#5F6063", "step of the optimizer"),
}
"""By the letter of an action of a pipeline: its colour, and what it is."""


def stream_legend(purposes: Collection[Purpose], *, rewritten: bool = False) -> list[tuple[str, str]]:
    """List what the colours of streams stand for: (words, colour), of what is there."""
    return [
        ("compute", COMPUTE),
        ("exposed: compute stalls", EXPOSED),
        *((paint.words, paint.colour) for purpose, paint in PURPOSES.items() if purpose in purposes),
        *([("rewritten, or made of what was", REWRITTEN)] if rewritten else []),
    ]
