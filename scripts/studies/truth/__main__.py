"""Are prices what others have measured? Predicted over measured time of every row of public measurements.

    python -m scripts.studies.truth                            the CSV files of scripts/truth
    python -m scripts.studies.truth FILE.csv ... --plot truth.png --json

Files are told apart by their columns, and may have rows of other sources. Rows on which numbers of the product were
fitted (``scripts/truth/fitted.txt``) and those held out are shown apart.
"""

import argparse
import csv
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec import structs

from llama_repro.harness.console import guarded, markdown_table
from overlap_sched.cost import DEVICES, Collective, Compute, Device, Roofline
from overlap_sched.cost.cluster import Cluster, read_cluster, shipped_clusters
from overlap_sched.cost.collectives import model_of
from overlap_sched.cost.compute import Kind, kind_of, shape_of
from overlap_sched.cost.toml_file import Bandwidth
from overlap_sched.errors import CostError
from overlap_sched.problem import Group
from overlap_sched.report.pictures import check_plot, new_figure, write_picture

TRUTH = Path(__file__).resolve().parents[2] / "truth"
NEAR = (0.8, 1.25)
SIZES = ((2**16, "< 64 KiB"), (2**20, "64 KiB - 1 MiB"), (2**24, "1 - 16 MiB"), (2**28, "16 - 256 MiB"))
HEADINGS = ("class", "where", "rows are", "rows", "lower quartile", "median", "upper quartile", "in 0.8 to 1.25")
CLUSTERS = {  # by what the name of a GPU or of a fabric has in it; the first counts
    "EFA 4x": "dgx-a100", "EFA": "dgx-h100", "TCPXO": "dgx-h100", "H200": "dgx-h200", "B200": "dgx-b200",
    "H100": "dgx-h100", "H800": "dgx-h100", "A100": "dgx-a100", "MI300X": "mi300x",
}  # fmt: skip


class Comparison(NamedTuple):
    """A row that was priced: its table and class, where it ran, and both times."""

    table: str
    kind: str
    place: str
    source: str
    what: str
    predicted_us: float
    measured_us: float
    rows_are: str = ""

    @property
    def ratio(self) -> float:
        """Predicted over measured: below 1 the prediction is too fast."""
        return self.predicted_us / self.measured_us


def main(arguments: Sequence[str] | None = None) -> int:
    """Price and print; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(TRUTH.glob("*.csv")), help="CSV files")
    parser.add_argument("--plot", help="draw predicted against measured time (.png, .svg, .pdf)")
    parser.add_argument("--json", action="store_true", help="print every row instead of tables")
    options = parser.parse_args(arguments)
    return guarded("truth", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if options.plot:
        check_plot(options.plot)
    skipped: Counter[str] = Counter()
    rows = (row for path in options.files for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    found = list(compare(rows, skipped))
    if options.plot:
        _plot(found, options.plot)
    if options.json:
        print(json.dumps({"rows": [one._asdict() for one in found], "skipped": skipped}))
        return 0
    for table in dict.fromkeys(one.table for one in found):
        groups: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
        for one in found:
            for key in [(one.kind, one.place, one.rows_are), ("all", "", one.rows_are)] if one.table == table else []:
                groups[key].append(one.ratio)
        lines = [(*key, *summarize(ratios)) for key, ratios in sorted(groups.items())]
        print(f"\n{table}, predicted over measured:\n\n{markdown_table(HEADINGS, lines)}")
    worst = sorted(found, key=lambda one: -abs(np.log(one.ratio)))[:10]
    cells = [(f"{one.ratio:.2f}", *one[1:3], one.what, one.source) for one in worst]
    print(f"\nThe ten worst rows:\n\n{markdown_table(('ratio', *HEADINGS[:2], 'what', 'source'), cells)}\n")
    print("\n".join(f"{count} rows skipped: {why}" for why, count in skipped.items()))
    return 0


def compare(rows: Iterable[Mapping[str, str]], skipped: Counter[str]) -> Iterator[Comparison]:
    """Price all rows that can be; ``skipped`` counts the others by the reason."""
    lines = (TRUTH / "fitted.txt").read_text(encoding="utf-8").splitlines()
    fitted = tuple(line for line in lines if line and not line.startswith("#"))
    for row in rows:
        try:
            one = _priced(row)
        except CostError as error:
            skipped[str(error)] += 1
        else:
            yield one._replace(rows_are="fitted" if one.source.startswith(fitted) else "held out")


def _priced(row: Mapping[str, str]) -> Comparison:
    if "median_kernel_us" in row:
        return _kernel(row)
    if "busbw_gbs" in row:
        return _collective(row)
    raise CostError("whole steps are not predicted here" if "global_batch" in row else "their columns are not known")


def _kernel(row: Mapping[str, str]) -> Comparison:
    op, shapes = (
        row["op"].replace("::", ".") + ".default",
        [shape for shape in json.loads(row["input_shapes"]) if shape],
    )
    own = "elementwise_kernel" in row["kernel"] and "vectorized" not in row["kernel"]
    kind: Kind = "strided" if row["class"] == "pointwise" and own else kind_of(op)
    work = Compute(op, int(row["flops"]), max(int(row["bytes"]), 1), kind, shape_of(op, shapes))
    us, label = float(row["median_kernel_us"]), row["class"]
    if label == "pointwise":
        label += ", contiguous" if "vectorized" in row["kernel"] else ", strided"
    if border := {"pointwise": 5, "gemm": 20}.get(row["class"]):
        label += f", {'<' if us < border else 'from'} {border} us"
    what = f"{row['op']} {row['dtype']} {row['input_shapes']}"
    return Comparison(
        "Kernels", label, row["gpu"], row["trace"], what, Roofline(_device(row["gpu"])).compute_us(work), us
    )


def _device(gpu: str) -> Device:
    known = (*DEVICES, *(read_cluster(name).device for name in shipped_clusters()))
    if named := [device for device in known if device.name.lower() in gpu.lower()]:
        return max(named, key=lambda device: len(device.name))
    raise CostError(f"no device is known for {gpu}")


def _collective(row: Mapping[str, str]) -> Comparison:
    if row["judgement"] != "sane":
        raise CostError("who collected them does not judge them sane")
    cluster, nodes, size = _cluster(row), int(row["nodes"]), int(row["bytes"])
    group = Group(int(row["ranks"]), True) if nodes == 1 else Group(int(row["ranks"]), False, nodes)
    op = row["collective"].replace("alltoall", "all_to_all")
    label = next((label for below, label in SIZES if size < below), ">= 256 MiB")
    place = f"{cluster.name}, {nodes} node{'' if nodes == 1 else 's'}, {label}"
    predicted_us, what = model_of(cluster).collective_us(Collective(op, size, group)), f"{row['ranks']} ranks, {size} B"
    return Comparison("Collectives", op, place, row["source"], what, predicted_us, float(row["time_us"]))


def _cluster(row: Mapping[str, str]) -> Cluster:
    """The shipped cluster of a GPU and its network, with cards as the row has them."""
    name = next((name for word, name in CLUSTERS.items() if word in row["gpu"] + row["fabric"]), "")
    if not name:
        raise CostError(f"no cluster is known for {row['gpu']}")
    cluster, rate, cards = read_cluster(name), re.search(r"(\d+)G\b", row["fabric"]), int(row["nics_per_node"] or 0)
    if cluster.across is None or not rate or not cards:
        return cluster
    card = {"card_bytes_per_s": Bandwidth(int(rate[1]) / 8 * 1e9), "cards_per_node": cards, "rails": cards}
    return structs.replace(cluster, across=structs.replace(cluster.across, **card))


def summarize(ratios: Sequence[float]) -> tuple[str, ...]:
    """How many there are, the quartiles, and the share within ``NEAR``: the last columns of ``HEADINGS``."""
    near = np.mean([NEAR[0] <= ratio <= NEAR[1] for ratio in ratios])
    return f"{len(ratios)}", *(f"{one:.2f}" for one in np.percentile(ratios, (25, 50, 75))), f"{near:.0%}"


def _plot(found: Sequence[Comparison], path: str) -> None:
    axes = (figure := new_figure(7, 6)).add_subplot()
    for table in dict.fromkeys(one.table for one in found):
        both = [(one.measured_us, one.predicted_us) for one in found if one.table == table]
        axes.plot(*zip(*both, strict=True), ".", alpha=0.5, label=f"{table} ({len(both)})")
    for factor in (1.0, *NEAR):
        axes.plot([1, 1e5], [factor, factor * 1e5], color="grey", linewidth=1.0 if factor == 1.0 else 0.5)
    axes.set(xscale="log", yscale="log", xlabel="measured (us)", ylabel="predicted (us)")
    axes.legend()
    write_picture(figure, path)


if __name__ == "__main__":
    sys.exit(main())
