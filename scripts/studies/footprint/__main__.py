"""Peak memory of training steps in each mode of torch.compile: the table of scripts/studies/footprint/README.md.

Each model runs in each mode in a process of its own, on the CPU, two steps to warm up and one measured: every
allocation of torch's CPU allocator, as the profiler sees it. CUDA graphs' pools are predicted from those allocations by
our replay of torch's caching allocator. What needs a GPU is marked so::

    python -m scripts.studies.footprint [MODEL ...] --json docs/records/footprint-DATE.json    # goes on where it stopped
    python -m scripts.studies.footprint --from docs/records/footprint-DATE.json --page scripts/studies/footprint/README.md    # without running
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from llama_repro.harness.record import provenance, write_record
from scripts.studies.footprint.errors import FootprintError
from scripts.studies.footprint.models import ENTRIES
from scripts.studies.footprint.modes import MEASURED
from scripts.studies.footprint.rows import Row, measured, peak_from
from scripts.studies.footprint.table import markdown

BEGIN, END = "<!-- table -->", "<!-- end of table -->"


def main() -> int:
    """Print the table; 1 where a model ran in no mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [entry.name for entry in ENTRIES]
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"only these of {', '.join(names)}")
    parser.add_argument("--modes", nargs="+", choices=MEASURED, default=MEASURED, metavar="MODE", help="only these")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds for one model in one mode")
    parser.add_argument("--json", metavar="OUT.json", help="write a record")
    parser.add_argument("--from", dest="record", metavar="RECORD.json", help="a record, instead of running")
    parser.add_argument("--page", type=Path, metavar="PAGE.md", help=f"put the table between {BEGIN} and {END}")
    options = parser.parse_args()
    if unknown := set(options.models) - set(names):
        parser.error(f"there is no model {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if options.record:
        rows = [_row(data) for data in _nested(json.loads(Path(options.record).read_text())["rows"])]
    else:
        rows = [_row(one) for one in _all(options)]
    shown = markdown(rows)
    if options.page:
        before, begin, rest = options.page.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        options.page.write_text(f"{before}{begin}\n{shown}\n{end}{after}", encoding="utf-8")
    print(shown)
    return 0 if all(row.peaks for row in rows) else 1


def _all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what is asked for and is not in the record yet, which is written after each run."""
    record = Path(options.json) if options.json else None
    known = json.loads(record.read_text())["rows"] if record is not None and record.exists() else []
    data: dict[str, dict[str, Any]] = {row["model"]: row for row in _nested(known)}
    for entry in ENTRIES:
        if options.models and entry.name not in options.models:
            continue
        if entry.missing:
            print(f"{entry.name}: skipped, {entry.missing}", file=sys.stderr)
            continue
        row = data.setdefault(entry.name, {"model": entry.name, "kind": entry.kind, "peaks": {}, "failed": {}})
        modes = [mode for mode in options.modes if mode not in row["peaks"]]
        for _ in _runs(row, modes, options.timeout):
            if record is not None:
                about = provenance("python -m scripts.studies.footprint", ("torch", "transformers"))
                write_record(record, {**about, "rows": _flat(data.values())})
    return [data[entry.name] for entry in ENTRIES if entry.name in data]


def _runs(row: dict[str, Any], modes: list[str], timeout_s: float) -> Iterator[None]:
    """Run a model in each mode, into its row; one after each."""
    with tempfile.TemporaryDirectory() as cache:
        for mode in modes:
            print(f"{row['model']}, {mode}", file=sys.stderr)
            row["failed"].pop(mode, None)
            try:
                row["peaks"][mode] = measured(row["model"], mode, timeout_s, cache)
            except FootprintError as error:
                row["failed"][mode] = str(error)
            yield


def _flat(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """As a record has them, one per model and mode (``by``)."""
    found = []
    for row in rows:
        about = {"model": row["model"], "kind": row["kind"]}
        for by, peak in row["peaks"].items():
            found.append({**about, "by": by, "peak_bytes": peak["bytes"], **peak})
            del found[-1]["bytes"]
        found += [{**about, "by": by, "failed": why} for by, why in row["failed"].items()]
    return found


def _nested(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The inverse: one per model."""
    found: dict[str, dict[str, Any]] = {}
    for record in records:
        model, kind = record["model"], record["kind"]
        row = found.setdefault(model, {"model": model, "kind": kind, "peaks": {}, "failed": {}})
        if "failed" in record:
            row["failed"][record["by"]] = record["failed"]
        else:
            row["peaks"][record["by"]] = {**record, "bytes": record["peak_bytes"]}
    return list(found.values())


def _row(data: dict[str, Any]) -> Row:
    peaks = {mode: peak_from(found) for mode, found in data["peaks"].items()}
    return Row(data["model"], data["kind"], peaks, data["failed"])


if __name__ == "__main__":
    sys.exit(main())
