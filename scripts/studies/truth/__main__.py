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
from overlap_sched.cost.cluster import Cluster, read_cluster
from overlap_sched.cost.collectives import model_of, setting, ways
from overlap_sched.cost.compute import H100_96GB, Kind, kind_of, shape_of
from overlap_sched.cost.toml_file import Bandwidth
from overlap_sched.errors import CostError
from overlap_sched.problem import Group
from overlap_sched.report.pictures import new_figure, write_picture

TRUTH = Path(__file__).resolve().parents[2] / "truth"
NEAR = (0.8, 1.25)
SIZES = ((2**16, "< 64 KiB"), (2**20, "64 KiB - 1 MiB"), (2**24, "1 - 16 MiB"), (2**28, "16 - 256 MiB"))
HEADINGS = ("table", "class", "where", "rows are", "rows", "25 %", "median", "75 %", "in 0.8 to 1.25")
CLUSTERS = {  # by what the name of a GPU or of a fabric has in it; the first counts
    "EFA 4x": "aws-p4d", "EFA": "aws-p5", "TCPXO": "gcp-a3-mega", "GKE": "gcp-a3-ultra", "GB200": "gb200-nvl72",
    "GB300": "gb200-nvl72", "B300": "dgx-b200",  # by data sheets as fast in 16 bits as those before them
    "H200": "dgx-h200", "B200": "dgx-b200", "SM100": "dgx-b200", "H100": "dgx-h100", "SM90": "dgx-h100",
    "H800": "dgx-h800", "A100": "dgx-a100", "MI300X": "mi300x",
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
    skipped: Counter[str] = Counter()
    rows = (row for path in options.files for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    found = list(compare(rows, skipped))
    if options.plot:
        _plot(found, options.plot)
    if options.json:
        print(json.dumps({"rows": [one._asdict() for one in found], "skipped": skipped}))
        return 0
    groups: defaultdict[tuple[str, ...], list[float]] = defaultdict(list)
    for one in found:
        groups[one.table, one.kind, one.place, one.rows_are].append(one.ratio)
        groups[one.table, "all", "", one.rows_are].append(one.ratio)
    lines = [(*key, *summarize(ratios)) for key, ratios in sorted(groups.items())]
    print(f"Predicted over measured:\n\n{markdown_table(HEADINGS, lines)}")
    worst = sorted(found, key=lambda one: -abs(np.log(one.ratio)))[:10]
    cells = [(f"{one.ratio:.2f}", *one[:5]) for one in worst]
    print(f"\nThe ten worst rows:\n\n{markdown_table(('ratio', *HEADINGS[:3], 'source', 'what'), cells)}\n")
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
    if "tokens_per_rank" in row:
        return _exchange(row)
    raise CostError("whole steps are not predicted here" if "global_batch" in row else "their columns are not known")


def _kernel(row: Mapping[str, str]) -> Comparison:
    op, shapes = f"{row['op'].replace('::', '.')}.default", list(filter(None, json.loads(row["input_shapes"])))
    own = "elementwise_kernel" in row["kernel"] and "vectorized" not in row["kernel"]
    kind: Kind = "strided" if row["class"] == "pointwise" and own else kind_of(op)
    work = Compute(op, int(row["flops"]), max(int(row["bytes"]), 1), kind, shape_of(op, shapes))
    us, label = float(row["median_kernel_us"]), row["class"]
    if label == "pointwise":
        label += ", contiguous" if "vectorized" in row["kernel"] else ", strided"
    if border := {"pointwise": 5, "gemm": 20}.get(row["class"]):
        label += f", {'<' if us < border else 'from'} {border} us"
    what, predicted_us = f"{row['op']} {row['dtype']} {row['input_shapes']}", Roofline(_device(row)).compute_us(work)
    return Comparison("Kernels", label, row["gpu"], row["trace"], what, predicted_us, us)


def _device(row: Mapping[str, str]) -> Device:
    named = [device for device in DEVICES if device.name.lower() in row["gpu"].lower()]
    return max(named, key=lambda device: len(device.name)) if named else cluster_of(row).device


def _collective(row: Mapping[str, str]) -> Comparison:
    if row["judgement"] != "sane":
        raise CostError("who collected them does not judge them sane")
    cluster, ranks, size = cluster_of(row), int(row["ranks"]), int(row["bytes"])
    # a node of several trays is one NVLink domain
    nodes = int(row["nodes"]) if cluster.ranks_per_node <= 8 else -(-ranks // cluster.ranks_per_node)
    group = Group(ranks, nodes == 1, nodes if nodes > 1 else 0)
    op = row["collective"].replace("alltoall", "all_to_all")
    label = next((label for below, label in SIZES if size < below), ">= 256 MiB")
    place = f"{cluster.name}, {nodes} node{'' if nodes == 1 else 's'}, {label}"
    if forced := re.search(r"NCCL_ALGO=(\w+)", row["notes"]):
        named = (way for way in ways(op, setting(cluster, ranks, nodes)) if way.algorithm == forced[1].lower())
        predicted_us = sum(min(named, key=lambda way: way.expected_us(size)).time_us(size))
    else:
        predicted_us = model_of(cluster).collective_us(Collective(op, size, group))
    what = f"{ranks} ranks, {size} B {row['notes']}"
    return Comparison("Collectives", op, place, row["source"], what, predicted_us, float(row["time_us"]))


def _exchange(row: Mapping[str, str]) -> Comparison:
    """DeepEP: its bandwidths are of bytes that count a token once for each rank (NVLink) or node that it goes to."""
    cluster, ranks, experts = cluster_of(row), int(row["ep"]), int(row["topk"])
    nodes, low = -(-ranks // cluster.ranks_per_node), "low_latency_" if row["latency_us"] else ""
    sent = int(row["tokens_per_rank"]) * int(row["hidden"]) * (2 if row["dtype"] == "bf16" else 1 + 4 / 128)
    to_ranks, to_nodes = (sent * places * (1 - (1 - 1 / places) ** experts) for places in (ranks, min(nodes, 4)))
    nbytes = sent * experts if low else to_ranks
    logical = to_ranks if "NVLink" in row["bandwidth_of"] else to_nodes
    measured_us = float(row["latency_us"] or logical / float(row["bandwidth_gbs"]) / 1e3)
    work = Collective(low + row["operation"], round(nbytes), Group(ranks, nodes == 1, nodes if nodes > 1 else 0))
    what, predicted_us = f"{ranks} ranks, {row['notes']}", model_of(cluster).collective_us(work)
    return Comparison("Expert parallel", work.op, cluster.name, row["source"], what, predicted_us, measured_us)


def cluster_of(row: Mapping[str, str]) -> Cluster:
    """Return the shipped cluster of a GPU and its network, with memory, ranks and cards as the row has them."""
    gpu, fabric = row["gpu"], row.get("fabric", "")
    if (name := next((name for word, name in CLUSTERS.items() if word in gpu + fabric), None)) is None:
        raise CostError(f"no cluster is known for {gpu}")
    cluster, count = read_cluster(name), re.search(r"(\d+) per node", gpu)
    if re.search(r"9[46]GB", gpu):
        cluster = structs.replace(cluster, device=H100_96GB)
    if count:
        cluster = structs.replace(cluster, ranks_per_node=int(count[1]))
    cards = int(row.get("nics_per_node") or (count[1] if count else cluster.across.cards_per_node))
    rate = re.search(r"(\d+)G\b", fabric) if row.get("nics_per_node") else None
    network = re.search(r"(\d+) Gb/s network a node", row.get("notes", ""))
    gigabits = int(rate[1]) if rate else int(network[1]) / cards if network else 0
    across = {"cards_per_node": cards, "rails": cards} if count or rate else {}
    across |= {"card_bytes_per_s": Bandwidth(gigabits / 8 * 1e9)} if gigabits else {}
    return structs.replace(cluster, across=structs.replace(cluster.across, **across)) if across else cluster


def summarize(ratios: Sequence[float]) -> tuple[str, ...]:
    """How many there are, the quartiles, and the share within ``NEAR``: the last columns of ``HEADINGS``."""
    near = np.mean([NEAR[0] <= ratio <= NEAR[1] for ratio in ratios])
    return f"{len(ratios)}", *(f"{one:.2f}" for one in np.percentile(ratios, (25, 50, 75))), f"{near:.0%}"


def _plot(found: Sequence[Comparison], path: str) -> None:
    axes = (figure := new_figure(7, 6)).add_subplot(xlabel="measured (us)", ylabel="predicted (us)")
    for table in dict.fromkeys(one.table for one in found):
        both = [(one.measured_us, one.predicted_us) for one in found if one.table == table]
        axes.loglog(*zip(*both, strict=True), ".", alpha=0.5, label=f"{table} ({len(both)})")
    for factor in (1.0, *NEAR):
        axes.loglog([1, 1e5], [factor, factor * 1e5], color="grey", linewidth=0.5)
    axes.legend()
    write_picture(figure, path)


if __name__ == "__main__":
    sys.exit(main())
