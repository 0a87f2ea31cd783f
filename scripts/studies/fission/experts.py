"""The table of scripts/studies/fit/README.md on experts: what of a step's all_to_all is exposed, whole and in parts. Simulated.

    python -m scripts.studies.fission.experts                                the whole step of DeepSeek-V3-16B, FSDP 64, EP 8
    python -m scripts.studies.fission.experts --comm-scale 4                 every collective four times as long
    python -m scripts.studies.fission.experts --within                       also within the original peak, by `fit`
    python -m scripts.studies.fission.experts STEP.json.gz FISSIONS.json.gz  another step, as `python -m llama_repro.titan` writes both
    ... --record record.json                                also a dated record with hardware and versions

Another step is traced where torchtitan is installed, without a GPU:

    python -m llama_repro.titan --model titan-deepseek3-16b-fsdp64-ep8 --ep 64 --out STEP --fissions FISSIONS
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from llama_repro.harness.console import markdown_table
from llama_repro.harness.record import provenance, write_record
from llama_repro.titan.fissions import read_fissions
from llama_repro.titan.models import MODELS
from overlap_sched.problem.file import read_problem
from scripts.studies.fission.expert_rows import ExpertRow, expert_rows

MODEL = MODELS["titan-deepseek3-16b-fsdp64-ep8"]
HEADS = ("step", "way", "nodes", "step ms", "compute ms", "exposed all_to_all ms", "other exposed ms", "peak")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", type=Path, default=MODEL.problem_file, help="a problem file")
    parser.add_argument("fissions", nargs="?", type=Path, default=MODEL.fissions_file, help="its fissions")
    parser.add_argument("--comm-scale", type=float, default=1.0, metavar="K", help="collectives take K times as long")
    parser.add_argument("--within", action="store_true", help="also within the original peak")
    parser.add_argument("--parts", type=int, nargs="+", default=[2], help="into how many (default: 2)")
    parser.add_argument("--record", type=Path, metavar="PATH", help="write a record")
    options = parser.parse_args(arguments)
    fissions = [one for one in read_fissions(options.fissions) if one.parts in options.parts]
    rows = []
    for row in expert_rows(read_problem(options.step), fissions, options.comm_scale, options.within):
        print(f"{row.graph}: {row.way}", file=sys.stderr, flush=True)
        rows.append(row)
    print(markdown_table(HEADS, (_cells(row, rows) for row in rows)))
    if options.record:
        command = " ".join(
            ["python -m scripts.studies.fission.experts", *(sys.argv[1:] if arguments is None else arguments)]
        )
        write_record(options.record, {**provenance(command), "rows": [asdict(row) for row in rows]})
    return 0


def _cells(row: ExpertRow, rows: Sequence[ExpertRow]) -> Sequence[str]:
    reordered = rows[1].all_to_all_us
    share = f" ({100 * row.all_to_all_us / reordered:.0f} %)" if row is not rows[0] and reordered else ""
    peak = 100 * (row.peak_bytes / rows[0].peak_bytes - 1)
    times = (row.step_us, row.compute_us)
    return (
        row.graph if row is rows[0] else "",
        row.way,
        f"{row.nodes:,}",
        *(f"{us / 1e3:,.1f}" for us in times),
        f"{row.all_to_all_us / 1e3:.2f}{share}",
        f"{row.other_us / 1e3:.1f}",
        f"{peak:+.1f} %",
    )


if __name__ == "__main__":
    sys.exit(main())
