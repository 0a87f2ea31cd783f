"""What stages have earned, by a record of runs without each of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from llama_repro.bench.ablation import Record, Run
from llama_repro.harness.console import markdown_table

SAME = 1e-5
"""Relative: steps closer than this are the same."""
HEADINGS = (
    *("without", "rows", "touched", "longer", "shorter", "mean", "median", "most longer", "most shorter"),
    *("fit only with it", "fit only without", "run only with it", "run only without", "of the pass"),
    "of the pass, where it wins nothing",
)


@dataclass(frozen=True)
class Pair:
    """A run with all stages, and that without some of them, by the same seed."""

    whole: Run
    part: Run

    @property
    def earned(self) -> float:
        """How much longer the step is without it, as a part."""
        return self.part.step_us / self.whole.step_us - 1

    @property
    def cpu(self) -> float:
        """Of the pass, what it takes."""
        seconds = sum(self.whole.by_stage_s.get(name, 0.0) for name in self.part.without.split("+"))
        return seconds / max(self.whole.cpu_s, 1e-9)


def table(record: Record, without: Sequence[str], seeds: Sequence[int]) -> str:
    """A line per stage, over rows that were run; a row counts as the mean over its seeds."""
    return markdown_table(HEADINGS, [_line(name, list(_pairs(record, name, seeds))) for name in without])


def _pairs(record: Record, without: str, seeds: Sequence[int]) -> Iterator[list[Pair]]:
    """Of each row that a stage could be left out of, by seed."""
    for row in dict.fromkeys(row for row, *_ in record.runs):
        pairs = []
        for seed in seeds:
            whole, part = record.known(row, "", seed), record.known(row, without, seed)
            if whole is not None and part is not None and _applies(record, row, without):
                pairs.append(Pair(whole, part))
        if pairs:
            yield pairs


def _applies(record: Record, row: str, without: str) -> bool:
    """Was one of the stages there at all?"""
    whole = record.runs[row, "", 0]
    return any(name in whole.by_stage_s for name in without.split("+"))


def _line(name: str, rows: list[list[Pair]]) -> list[str]:
    touched = [pairs for pairs in rows if any(_differs(pair) for pair in pairs)]
    earned = [mean(pair.earned for pair in pairs) for pairs in touched]
    shares = [mean(pair.cpu for pair in pairs) for pairs in rows]
    in_vain = [mean(pair.cpu for pair in pairs) for pairs in rows if not _wins(pairs)]
    return (
        [
            *(name, str(len(rows)), str(len(touched))),
            *(str(sum(part > SAME for part in earned)), str(sum(part < -SAME for part in earned))),
            *(_percent(value) for value in (mean(earned), median(earned), max(earned), min(earned))),
            *_counted(rows, "fits"),
            *_counted(rows, "runs"),
            *(f"{100 * mean(values):.0f} %" if values else "-" for values in (shares, in_vain)),
        ]
        if touched
        else [
            *(name, str(len(rows)), *("0",) * 3, *("-",) * 4, *("0",) * 4),
            *(f"{100 * mean(values):.0f} %" if values else "-" for values in (shares, in_vain)),
        ]
    )


def _differs(pair: Pair) -> bool:
    return abs(pair.earned) > SAME or (pair.whole.fits, pair.whole.runs) != (pair.part.fits, pair.part.runs)


def _wins(pairs: Sequence[Pair]) -> bool:
    fits = sum(pair.whole.fits - pair.part.fits for pair in pairs)
    return fits > 0 or (fits == 0 and mean(pair.earned for pair in pairs) > SAME)


def _counted(rows: Sequence[Sequence[Pair]], what: str) -> Iterator[str]:
    """Rows, in parts by seed, in which something is so only with all stages; and only without some."""
    for sign in (1, -1):
        parts = [
            sum(max(sign * (getattr(pair.whole, what) - getattr(pair.part, what)), 0) for pair in pairs) / len(pairs)
            for pairs in rows
        ]
        yield f"{sum(parts):.1f}".removesuffix(".0")


def _percent(part: float) -> str:
    return f"{100 * part:+.2f} %"
