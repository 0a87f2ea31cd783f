"""Whole training steps: published tokens per second and memory beside those predicted.

    python -m scripts.studies.truth.steps [FILES.csv]

A row's model is captured with two and with four layers on a fake world of its ranks, priced for its cluster, and run as
the framework does: parameters are gathered a layer ahead, gradients reduced behind, tensor-parallel collectives waited for
where they stand. All further layers take what the third and fourth do. The optimizer reads and writes all of its state once.
Rows with experts or a pipeline are planned from the model's dimensions, as `overlap-sched capacity` does. Rows that cannot
be had are counted with the reason. Simulated.
"""

import argparse
import csv
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from pathlib import Path
from statistics import median

from msgspec import convert

from llama_repro.capture.configs import LlamaConfig
from llama_repro.capture.model import weights_of
from llama_repro.capture.trace import captured
from llama_repro.harness.console import markdown_table
from overlap_sched.cost import Compute
from overlap_sched.cost.cluster import Cluster
from overlap_sched.cost.collectives import model_of
from overlap_sched.fx import Lifted, lift
from overlap_sched.judge.validate import measure, violation
from overlap_sched.pipeline.capacity import Question, measure_layout
from overlap_sched.pipeline.compare import named
from overlap_sched.pipeline.dimensions import Layout, Mesh, Sharding
from overlap_sched.problem import Kind, Order, Problem
from scripts.studies.truth.__main__ import cluster_of

STEPS = Path("scripts/truth/steps.csv")
SIZES = {  # hidden, ffn, layers, heads, kv_heads, vocabulary
    r"Llama[ -]3.* (7|8)B": (4096, 14336, 32, 32, 8, 128256),
    r"Llama[ -]3.* 13B": (5120, 17920, 40, 40, 8, 128256),
    r"Llama[ -]3.* 70B": (8192, 28672, 80, 64, 8, 128256),
    r"Llama[ -]3.* 405B": (16384, 53248, 126, 128, 8, 128256),
    r"Llama 2 7B": (4096, 11008, 32, 32, 32, 32000),
    r"Llama 2 13B": (5120, 13824, 40, 40, 40, 32000),
    r"Llama 2 34B": (8192, 22016, 48, 64, 8, 32000),
    r"Llama 2 70B": (8192, 28672, 80, 64, 8, 32000),
}
"""Of Touvron et al. (Llama 2, 2023; 34B: Code Llama's), and The Llama 3 Herd of Models, table 3; 13B as its row says."""
BF16_PARAMETERS = ("KempnerInstitute",)
"""Sources that train parameters and moments in bf16, compile the loss, too, and hold whole gradients between the
micro-batches of a step, under FSDP in fp32 (KempnerForge: ``build_parallel_model``, ``maybe_no_sync``)."""
PLANNED = {
    "GPT OSS 120B": ("gpt-oss-120b", "selective"),
    "Qwen3_235B": ("qwen-3-235b", "none"),
    "DeepSeekV3 (w/o": ("deepseek-v3", "selective"),
    "MT-NLG 530B": ("mt-nlg-530b", "full"),
}
"""By how a row's model begins: that of `overlap-sched capacity`, and what is recomputed where the row does not say: what
src/megatron/bridge/perf_recipes of NVIDIA-NeMo/Megatron-Bridge has (commit 067f987d)."""
WEIGHTS_OF_A_LAYER = 9


@dataclass(frozen=True)
class Row:
    """A published step and its prediction: tokens per second and GPU, and GiB (0: not published)."""

    source: str
    model: str
    gpu: str
    mesh: str
    recompute: str
    published: float
    predicted: float
    published_gib: float
    predicted_gib: float

    @property
    def ratio(self) -> float:
        """Of predicted to published speed: above 1 is too fast."""
        return self.predicted / self.published


def reason_against(row: dict[str, str]) -> str:
    """Return why a row cannot be had; empty where it can."""
    if "bf16" not in row["dtype"].lower():
        return "float8, MXFP8 or NVFP4"
    if not any(re.match(name, row["model"]) for name in (*SIZES, *map(re.escape, PLANNED))):
        return "a model without experts or pipelines that is not captured, or one whose dimensions are not shipped"
    if "async TP" in row["notes"]:
        return "async TP"
    return "" if row["micro_batch"] and (row["tokens_per_s_per_gpu"] or row["step_s"]) else "no micro-batch or speed"


def config_of(row: dict[str, str], layers: int) -> LlamaConfig:
    """Return what is captured. Ranks that do not divide the sizes are rounded down to a power of two."""
    hidden, ffn, _, *rest = next(sizes for name, sizes in SIZES.items() if re.match(name, row["model"]))
    tp = int(row["tp"])
    fsdp = int(row["fsdp"]) if row["fsdp"].isdigit() else 8 if "HSDP" in row["fsdp"] else int(row["gpus"]) // tp
    fsdp = fsdp if hidden % fsdp == 0 else 1 << (fsdp.bit_length() - 1)
    batch, sequence = int(row["micro_batch"]), int(row["sequence"].split()[0])
    recompute = row["recompute"].split()[0]
    bf16 = row["source"].startswith(BF16_PARAMETERS)
    return LlamaConfig(
        f"steps-{layers}", hidden, ffn, layers, *rest, batch, sequence, fsdp, tp,
        recompute=recompute, bf16_parameters=bf16, plain_loss=bf16 != (tp == 1),
    )  # fmt: skip


def order_of_fsdp(problem: Problem, fsdp: str | None) -> Order:
    """Return the order in which FSDP2 runs it: gathers a layer ahead, reductions waited for a layer behind."""
    mine = [v for v in problem.collectives if problem.nodes[v].group == fsdp]
    gathers = [v for v in mine if "all_gather" in problem.nodes[v].op]
    reductions = [v for v in mine if "reduce_scatter" in problem.nodes[v].op]
    place = [float(v) for v in problem.original_order]
    for k, v in enumerate(gathers):
        ahead = gathers[max(k - WEIGHTS_OF_A_LAYER, 0)] - 0.5 + k / len(gathers) / 2
        casts = [u for u in problem.nodes[v].deps if problem.nodes[u].kind is Kind.COMPUTE]
        for u in (*casts, v):
            place[u] = min(place[u], ahead)
    for k, v in enumerate(reductions):
        (wait,) = (u for u in problem.successors[v] if problem.nodes[u].collective == v)
        behind = reductions[min(k + WEIGHTS_OF_A_LAYER, len(reductions) - 1)] + 0.5
        place[wait] = max(place[wait], min([behind, *(u - 0.5 for u in problem.successors[wait])]))
    return tuple(sorted(problem.original_order, key=lambda v: (place[v], v)))


def drop_fused(lifted: Lifted) -> Problem:
    """Return the problem without the bytes of what never leaves a compiled kernel."""
    kernels = defaultdict[int, set[str | int]](set)
    for v, (node, price) in enumerate(zip(lifted.problem.nodes, lifted.prices, strict=True)):
        for s in (*node.alloc, *node.use):
            kernels[s].add(price.part_of or v)
    inside = {s for s, its in kernels.items() if len(its) == 1 and isinstance(*its, str)}
    storages = enumerate(lifted.problem.storages)
    return replace(lifted.problem, storages=tuple(one._replace(bytes=0) if s in inside else one for s, one in storages))


def measure_layers(row: dict[str, str], cluster: Cluster, layers: int) -> tuple[float, float]:
    """Return microseconds of forward and backward of a micro-batch, and the most bytes live in them."""
    step_us, peak, fsdp = 0.0, 0, None
    fusion = "none" if row["compile"] == "no" else "inductor"
    config = config_of(row, layers)
    with captured(config) as graphs:
        for part in (graphs.forward, graphs.backward):
            lifted = lift(part, cluster=cluster, fusion=fusion)
            problem = drop_fused(lifted) if config.bf16_parameters else lifted.problem
            fsdp = fsdp or problem.nodes[problem.collectives[0]].group
            order = order_of_fsdp(problem, fsdp)
            assert violation(problem, order) is None
            judged = measure(problem, order)
            step_us, peak = step_us + judged.timeline.step_us, max(peak, *judged.profile)
    return step_us, peak


def find_planned(model: str) -> tuple[str, str] | None:
    """Return what ``PLANNED`` has of a row's model, if anything."""
    return next((of for name, of in PLANNED.items() if model.startswith(name)), None)


def plan(row: dict[str, str], name: str, recompute: str) -> Row:
    """Plan a row of a model of ``overlap-sched capacity``."""
    pp, tp, cp, ep, vp = (int(row[key]) if row[key].isdigit() else 1 for key in ("pp", "tp", "cp", "ep", "vp"))
    number = {key: int(row[key]) for key in ("gpus", "global_batch", "sequence", "micro_batch")}
    mesh = Mesh(pp, number["gpus"] // (pp * tp * cp), cp, tp, ep)
    sharding: Sharding = "zero1" if row["fsdp"] in ("", "0") else "fsdp"
    layout = Layout(mesh, number["micro_batch"], row["recompute"] or recompute, sharding)
    asked = {"format": "overlap-capacity/1", "model": name, "cluster": cluster_of(row).name, **number}
    question = convert(asked | {"micro_batch": [layout.micro_batch]}, Question)
    found = measure_layout(question, layout, named("1f1b" if vp == 1 else f"interleaved:{vp}"))
    tokens = number["global_batch"] * number["sequence"] / number["gpus"]
    container = re.search(r" \(\S+ NeMo", row["source"])
    return Row(
        row["source"].split(":")[0] + (container[0] + ")" if container else ""),
        row["model"],
        row["gpu"],
        f"{number['gpus']}: {'x'.join(map(str, mesh))}" + f", VP {vp}" * (vp > 1),
        layout.recompute,
        float(row["tokens_per_s_per_gpu"] or tokens / float(row["step_s"])),
        found.tokens_per_s,
        float(row["memory_gib"] or 0),
        found.peak_bytes / 2**30,
    )


def predict(row: dict[str, str]) -> Row:
    """Capture and measure a row; speed is of tokens of the whole batch by all GPUs and all of the step."""
    cluster, config = cluster_of(row), config_of(row, 2)
    layers = next(sizes[2] for name, sizes in SIZES.items() if re.match(name, row["model"]))
    two, four = (measure_layers(row, cluster, number) for number in (2, 4))
    step_us, peak = (a + (b - a) / 2 * (layers - 2) for a, b in zip(two, four, strict=True))
    whole = sum(prod(weight.shape) for weight in weights_of(replace(config, layers=layers)))
    held = whole / config.fsdp * (2 if config.bf16_parameters else 4)
    moved = round(7 * held)  # AdamW reads parameter, gradient and moments, and writes all but the gradient
    optimizer = Compute("aten._fused_adamw_.default", 0, moved)
    turns = int(row["global_batch"] or 0) * config.tp // (config.batch * int(row["gpus"])) or 1
    tokens = config.batch * config.sequence * turns / config.tp
    summed = whole * (4 if config.fsdp > 1 else 2) if config.bf16_parameters and turns > 1 else 0
    seconds = (step_us * turns + model_of(cluster).compute_price(optimizer).time_us) / 1e6
    return Row(
        row["source"].split(":")[0],
        row["model"],
        row["gpu"].split(",")[0],
        f"{row['gpus']}: {config.fsdp} x {config.tp}",
        f"{config.recompute}{', eager' if row['compile'] == 'no' else ''}",
        float(row["tokens_per_s_per_gpu"]),
        tokens / seconds,
        float(row["memory_gib"] or 0),
        (peak + 2 * held + summed) / 2**30,
    )


def summarize(rows: Sequence[Row]) -> Iterator[str]:
    """Yield sentences: medians, the worst, and how many pairs within a table are in the published order."""
    for what, errors in (
        ("speed", [abs(row.ratio - 1) for row in rows]),
        ("memory", [abs(row.predicted_gib / row.published_gib - 1) for row in rows if row.published_gib]),
    ):
        if errors:
            yield f"{what}: {len(errors)} rows, median error {median(errors):.1%}, largest {max(errors):.1%}."
    for source in dict.fromkeys(row.source for row in rows):
        own = sorted(row.ratio for row in rows if row.source == source)
        pairs = [(a, b) for a, b in combinations(rows, 2) if a.source == b.source == source]
        pairs = [(a, b) for a, b in pairs if a.published != b.published and a.predicted != b.predicted]
        right = sum((a.published < b.published) == (a.predicted < b.predicted) for a, b in pairs)
        yield f"{source}: {len(own)} rows, {own[0]:.2f} to {own[-1]:.2f}; {right} of {len(pairs)} pairs in order."


def main() -> None:
    """Predict all rows that can be had, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, default=[STEPS], help="CSVs of steps (default: %(default)s)")
    files = parser.parse_args().files
    rows = [row for file in files for row in csv.DictReader(file.read_text().splitlines())]
    left_out = Counter(reason for row in rows if (reason := reason_against(row)))
    found = []
    for row in rows:
        if not reason_against(row):
            of = find_planned(row["model"])
            found.append(predict(row) if of is None else plan(row, *of))
            print(f"{found[-1].model}, {found[-1].gpu}, {found[-1].mesh}: {found[-1].ratio:.2f}", file=sys.stderr)
    mesh = "GPUs: fsdp x tp, or pp x dp x cp x tp x ep"
    heads = ("source", "model", "GPU", mesh, "recompute", "tokens/s/GPU", "predicted", "ratio", "GiB", "predicted")
    cells = (
        (r.source, r.model, r.gpu, r.mesh, r.recompute, f"{r.published:,.0f}", f"{r.predicted:,.0f}", f"{r.ratio:.2f}",
         f"{r.published_gib:.1f}" if r.published_gib else "", f"{r.predicted_gib:.1f}")
        for r in found
    )  # fmt: skip
    print(markdown_table(heads, cells))
    for way, planned in (("captured", False), ("planned", True)):
        print(f"\n{way}:", *summarize([row for row in found if bool(find_planned(row.model)) is planned]), sep="\n")
    print("left out:", ", ".join(f"{count} rows, {reason}" for reason, count in left_out.most_common()))


if __name__ == "__main__":
    main()
