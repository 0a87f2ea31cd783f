"""Peak memory of training steps in each mode of torch.compile: the table of scripts/studies/footprint/README.md.

Each model runs in each mode in a process of its own, on the CPU, two steps to warm up and one measured: every
allocation of torch's CPU allocator, as the profiler sees it. CUDA graphs' pools are predicted from those allocations by
our replay of torch's caching allocator. What needs a GPU is marked so::

    python -m scripts.studies.footprint [MODEL ...] --json docs/records/footprint-DATE.json
"""

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from llama_repro.harness.record import provenance, write_record
from scripts.studies.footprint.models import ENTRIES, Entry
from scripts.studies.footprint.rows import MEASURED, FootprintError, Row, measure_peak
from scripts.studies.footprint.table import markdown


def main() -> int:
    """Print the table; 1 where a model ran in no mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [entry.name for entry in ENTRIES]
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"only these of {', '.join(names)}")
    parser.add_argument("--modes", nargs="+", choices=MEASURED, default=MEASURED, metavar="MODE", help="only these")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds for one model in one mode")
    parser.add_argument("--json", type=Path, metavar="OUT.json", help="write a record")
    options = parser.parse_args()
    if unknown := set(options.models) - set(names):
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    wanted = [entry for entry in ENTRIES if not options.models or entry.name in options.models]
    rows = [run_modes(entry, options.modes, options.timeout) for entry in wanted if not entry.missing]
    if options.json:
        about = provenance("python -m scripts.studies.footprint", ("torch", "transformers"))
        write_record(options.json, {**about, "rows": [asdict(row) for row in rows]})
    for entry in wanted:
        if entry.missing:
            print(f"{entry.name}: skipped, {entry.missing}", file=sys.stderr)
    print(markdown(rows))
    return 0 if all(row.peaks for row in rows) else 1


def run_modes(entry: Entry, modes: list[str], timeout_s: float) -> Row:
    """Run a model in each mode."""
    row = Row(entry.name, entry.kind, {}, {})
    with tempfile.TemporaryDirectory() as cache:
        for mode in modes:
            print(f"{entry.name}, {mode}", file=sys.stderr)
            try:
                row.peaks[mode] = measure_peak(entry.name, mode, timeout_s, cache)
            except FootprintError as error:
                row.failed[mode] = str(error)
    return row


if __name__ == "__main__":
    sys.exit(main())
