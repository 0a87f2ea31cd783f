"""``python -m llama_repro.fusion``: the kernels that fusion is predicted to give, and those that Inductor forms.

    python -m llama_repro.fusion
    python -m llama_repro.fusion --device cuda

Prints the table of ``docs/prices.md``. ``--device cuda`` merges loops as Triton's back end does, for an H100 that is
not there: it needs a CUDA build of torch with Triton. Nothing is run, nothing is measured: both sides are predictions,
of which one knows the kernels.
"""

import argparse
import datetime
import platform
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch

from llama_repro.fusion.compare import Comparison, compared
from llama_repro.fusion.graphs import Gpt, compiled_graphs, llama_graphs
from llama_repro.fusion.pretended_gpu import pretended_gpu
from llama_repro.harness.console import guarded

LAYERS = 4
LLAMAS = ("llama3-8b-2d", "llama3-8b", "tiny")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 where it cannot be done."""
    parser = argparse.ArgumentParser(
        "python -m llama_repro.fusion", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="whose back end (default: cpu)")
    parser.add_argument("--layers", type=int, default=LAYERS, help=f"of each Llama (default: {LAYERS})")
    options = parser.parse_args(arguments)
    return guarded("fusion", lambda: _run(options.device, options.layers))


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
        for name, graph in compiled_graphs("GPT block", Gpt(256, 4), torch.randn(4, 512, 256, requires_grad=True)):
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
