"""The memory tables of docs/memory.md: whole training steps traced without a GPU, ordered, placed, and replayed.

    python -m scripts.studies.memory_zoo                       every model (torchvision and transformers: pip install them first)
    python -m scripts.studies.memory_zoo AlexNet BERT          only models whose names contain one of these
    python -m scripts.studies.memory_zoo --hard tests/data/minimalloc   addresses of MiniMalloc's hard problems, within their capacity
    ... --json record.json                      also a dated record with hardware and versions

All peaks and steps are simulated; seconds are processor time of one thread. Exit status 1 where an order is above the
original peak, a model has not the parameters that it should have, or a hard problem does not fit.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llama_repro.harness.record import provenance, write_record
from scripts.studies.memory_zoo import tables
from scripts.studies.memory_zoo.hard import hard_row, hard_table
from scripts.studies.memory_zoo.models import ENTRIES, Entry
from scripts.studies.memory_zoo.published import TORCH_RATIOS
from scripts.studies.memory_zoo.rows import ZooRow, zoo_row
from scripts.studies.memory_zoo.trace import parameter_count, step_problem
from tests.support.layers import CAPACITY, LETTERS, hard_problem

PACKAGES = ("torch", "torchvision", "transformers", "numpy", "ortools")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help="only models whose names contain one of these")
    parser.add_argument("--hard", type=Path, metavar="FOLDER", help="MiniMalloc's hard problems instead")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write a record")
    options = parser.parse_args(arguments)
    rows: list[Any] = []
    if options.hard:
        rows = [hard_row(hard_problem(options.hard, letter)) for letter in LETTERS]
        shown = hard_table(rows)
        broken = [f"{row.problem} does not fit" for row in rows if row.arena_bytes > CAPACITY]
    else:
        broken = []
        for entry in ENTRIES:
            if not options.models or any(part in entry.name for part in options.models):
                rows += _zoo_rows(entry, broken)
        shown = "\n\n".join((tables.zoo_table(rows), tables.averages(rows), tables.torch_table(rows)))
    print(shown)
    if options.json:
        command = " ".join(
            ["python -m scripts.studies.memory_zoo", *(sys.argv[1:] if arguments is None else arguments)]
        )
        write_record(options.json, {**provenance(command, PACKAGES), "rows": [asdict(row) for row in rows]})
    for name in broken:
        print(f"BROKEN: {name}", file=sys.stderr)
    return 1 if broken else 0


def _zoo_rows(entry: Entry, broken: list[str]) -> Iterator[ZooRow]:
    """All rows of a model; none, with a note, where its library is missing."""
    try:
        model = entry.build()
    except ModuleNotFoundError as error:
        print(f"{entry.name} is left out: it needs {error.name} (pip install {entry.library})", file=sys.stderr)
        return
    if parameter_count(model) != entry.parameters:
        broken.append(f"{entry.name} has {parameter_count(model):,} parameters, not {entry.parameters:,}")
    for batch in entry.batches:
        for update in (True, False) if (entry.name, batch) in TORCH_RATIOS else (True,):
            print(f"{entry.name}, batch {batch}", file=sys.stderr, flush=True)
            problem = step_problem(entry.name, model, entry.batch(batch), entry.loss, update)
            row = zoo_row(entry.name, batch, update, problem)
            if row.peak_bytes > row.original_bytes:
                broken.append(f"{entry.name}, batch {batch}: above the original peak")
            yield row


if __name__ == "__main__":
    sys.exit(main())
