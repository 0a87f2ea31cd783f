"""The numbers that tune the search for low peaks and for addresses."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Budgets of work, and how a search goes on.

    Behind them, where measured: what another value does to 76 graphs (the training steps of scripts/studies/memory_zoo,
    small FSDP steps, random steps, Llama, DeepSeek and Qwen), or to MiniMalloc's eleven problems (A to K).
    """

    steps: int = 20_000
    """Of the walk, in a unit of effort: the price of an order. 5,000: +3.5 % and +0.1 %, 2 graphs."""
    window_steps: int = 8_000
    """A window that takes more is left for a longer one. 2,000, or no end: +3.5 %, 1 graph."""
    looks: int = 130_000
    """At partial placements, in a unit of effort: the price of addresses. B takes 62,300, E takes 90,600."""
    look_cells: int = 2**15
    """Boxes times sections of one look; a larger one counts as several, here 32,768 cells each: a price as well."""
    longer_run: float = 1.05
    """By how much a run may take longer than the one before it. 1: K not found in 60,000 looks; it takes 9,700."""
    blame_weights: tuple[float, ...] = (0.3, 1.0, 3.0)
    """Of blame beside what a box is by itself, in turn. Only 0.3: E not found; only 1.0: J takes 14 times the looks."""
    climb_boxes: int = 30_000
    """Boxes placed while climbing, in a unit of effort. 0: +0.02 to +0.04 %, 4 graphs; one takes 9.9 s, not 0.3."""
    close: float = 1e-3
    """An arena above the peak by less than this part is left as it is. 0: -0.003 %, 1 graph, for 9 s."""


TUNING = Tuning()
