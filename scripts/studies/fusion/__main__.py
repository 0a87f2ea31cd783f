"""``python -m scripts.studies.fusion``: the kernels that fusion is predicted to give, and those that Inductor forms.

    python -m scripts.studies.fusion
    python -m scripts.studies.fusion --device cuda
    python -m scripts.studies.fusion --orders
    python -m scripts.studies.fusion --time

Prints the tables of ``docs/prices.md``. ``--device cuda`` merges loops as Triton's back end does, for an H100 that is
not there: it needs a CUDA build of torch with Triton. Nothing is run, nothing is measured: both sides are predictions,
of which one knows the kernels.
"""

import argparse
import datetime
import math
import platform
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial

import torch

from llama_repro.harness.console import guarded
from overlap_sched.fx import lift
from overlap_sched.fx.costs import Fusion
from scripts.studies.fusion.compare import Comparison, compared
from scripts.studies.fusion.graphs import Experts, Gpt, compiled_graphs, llama_graphs
from scripts.studies.fusion.orders import worths
from scripts.studies.fusion.pretended_gpu import pretended_gpu

LAYERS = 4
LLAMAS = ("llama3-8b-2d", "llama3-8b", "tiny")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 where it cannot be done."""
    parser = argparse.ArgumentParser(
        "python -m scripts.studies.fusion", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="whose back end (default: cpu)")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"of each Llama (default: {LAYERS})")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--orders", action="store_true", help="instead: what fused prices are worth to an order")
    instead.add_argument("--time", action="store_true", help="instead: how long pricing takes (a whole Llama)")
    options = parser.parse_args(arguments)
    run = _orders if options.orders else _time if options.time else partial(_run, options.device)
    return guarded("fusion", lambda: run(options.layers))


def _orders(layers: int) -> int:
    print("| graph | original order, ms | divided | all on the last | all on the first | node by node |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for llama in LLAMAS[:2]:
        for found in worths(llama, layers):
            cells = " | ".join(f"{us / 1e3:,.2f}" for us in (found.original_us, *found.by.values()))
            print(f"| {found.name} | {cells} |", flush=True)
    return 0


def _time(_layers: int) -> int:
    """Time of lifting with and without, processor seconds; the best of five."""
    name, graph = list(llama_graphs("llama3-8b", 32, "cuda"))[-1]
    seconds: dict[Fusion, float] = {}
    modes: tuple[Fusion, ...] = ("none", "inductor")
    for fusion in modes * 5:
        began = time.process_time()
        nodes = len(lift(graph, fusion=fusion).nodes)
        seconds[fusion] = min(seconds.get(fusion, math.inf), time.process_time() - began)
    extra = seconds["inductor"] - seconds["none"]
    print(f"{name}: {nodes:,} nodes, lifted in {seconds['none']:.2f} s; predicted kernels take {extra:.2f} s more")
    return 0


def _run(device: str, layers: int) -> int:
    warnings.filterwarnings("ignore", message="Torchinductor does not support code generation for complex operators")
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    print(f"{today}, torch {torch.__version__}, {platform.machine()}, loops for {device}, priced for an H100\n")
    print("| graph | Inductor's kernels, us | predicted | off | node by node | loops, us | found | median error |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    worst = []
    for comparison in _comparisons(device, layers):
        print(_row(comparison), flush=True)
        worst += [(comparison.name, *kernel) for kernel in comparison.worst]
    print("\nFurthest off, us (Inductor's, predicted):")
    for name, op, real, ours in sorted(worst, key=lambda kernel: -abs(kernel[2] - kernel[3]))[:8]:
        print(f"- {name}: {real:,.0f}, {ours:,.0f}: {op}")
    return 0


def _comparisons(device: str, layers: int) -> Iterator[Comparison]:
    for llama in LLAMAS:
        for name, graph in llama_graphs(llama, layers, device):
            with pretended_gpu() if device == "cuda" else nullcontext():
                yield compared(name, graph)
    if device == "cpu":
        for block, model in (("GPT block", Gpt(256, 4)), ("experts", Experts(256, 8, 2))):
            for name, graph in compiled_graphs(block, model, torch.randn(4, 512, 256, requires_grad=True)):
                yield compared(name, graph)


def _row(c: Comparison) -> str:
    cells = (
        f"{c.kernels_us:,.0f}",
        f"{c.fused_us:,.0f}",
        f"{c.off_percent:+.1f} %",
        f"{c.unfused_us:,.0f} ({100 * (c.unfused_us / c.kernels_us - 1):+.0f} %)",
        f"{c.loops_us:,.0f}",
        f"{c.near_percent:.0f} %",
        f"{c.spread_percent:.1f} %",
    )
    return f"| {c.name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    raise SystemExit(main())
