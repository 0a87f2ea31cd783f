"""Training steps fitted into memory on CPU ranks: predicted and measured, side by side.

    torchrun --nproc-per-node 2 -m scripts.studies.fit_run --limits 80% 60%         torch.compile, through the joint graph
    torchrun --nproc-per-node 2 -m scripts.studies.fit_run --slow-network 0.1 --limits 150%
    torchrun --nproc-per-node 2 -m scripts.studies.fit_run --whole --limits 80% 60%     the whole step as one graph

All other options are those of scripts/train.py. ``--record OUT.json`` writes the figures, when and on what.
docs/fit.md says what is compared.
"""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from llama_repro.harness.console import markdown_table
from llama_repro.harness.record import provenance, write_record
from llama_repro.training.arguments import parse
from llama_repro.training.world import world_of
from overlap_sched.fx.fitting import ALL, KINDS
from scripts.studies.fit_run.rank import Row, rows
from scripts.studies.fit_run.whole_rank import whole_rows


def main() -> int:
    """Print a table on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", nargs="+", default=["80%", "60%"], metavar="SIZE", help="40GiB, or 80%% of torch's")
    parser.add_argument("--backend", default="overlap_sched", metavar="NAME", help="or inductor, which takes longer")
    parser.add_argument("--whole", action="store_true", help="forward, backward and updates in one graph, by fit_graph")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="KINDS", help=f"with --whole: {', '.join(ALL)}")
    parser.add_argument("--record", metavar="OUT.json", help="write a record")
    own, rest = parser.parse_known_args()
    arguments = parse(rest)
    with world_of("cpu") as world:
        if own.whole:
            found = whole_rows(arguments, world, own.limits, own.kinds.split(","))
        else:
            found = rows(arguments, world, own.limits, own.backend)
        if world.rank == 0:
            print(table(found))
            if own.record:
                about = provenance(" ".join(["scripts.studies.fit_run", *sys.argv[1:]]), ("torch",))
                write_record(Path(own.record), {**about, "rows": [asdict(row) for row in found]})
    return 0


def table(found: list[Row]) -> str:
    """For docs/fit.md."""
    heads = ["limit", "what", "peak, predicted", "measured", "", "step, predicted", "measured", "shorter by, predicted"]
    heads += ["measured", "bitwise"]
    lines, first = [], found[0]
    for row in found:
        off = row.measured_bytes / row.predicted_bytes - 1
        less = (first.predicted_us - row.predicted_us, first.measured_us - row.measured_us)
        lines.append(
            [
                row.limit,
                row.what,
                f"{row.predicted_bytes / 2**20:.2f} MiB",
                f"{row.measured_bytes / 2**20:.2f} MiB",
                f"{off:+.1%}",
                f"{row.predicted_us / 1e3:.0f} ms",
                f"{row.measured_us / 1e3:.0f} ms",
                *(f"{us / 1e3:.0f} ms" for us in less),
                "yes" if row.bitwise else "NO",
            ]
        )
    return markdown_table(heads, lines)


if __name__ == "__main__":
    sys.exit(main())
