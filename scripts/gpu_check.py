#!/usr/bin/env python3
"""Run a Llama's backward graph on one GPU in several orders: time and memory against what was predicted.

    scripts/gpu_check.py                          4 layers of llama3-8b: original order, ours, torch's
    scripts/gpu_check.py --json record.json       also a record with date, hardware and versions
    scripts/gpu_check.py --device cpu             its logic without a GPU, on the tiny model: nothing is timed

Collectives are emulated: a copy and a wait of the length that the cost model says, on a stream per process group. The
plug-in of torch.compile runs besides, in a real process group of one rank (NCCL; gloo on the CPU).
Exit status: 0, also where there is no GPU; 1 where bytes are not those predicted, or the plug-in changed a result; 2
for wrong usage.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # llama_repro is not installed

from llama_repro.capture.configs import CONFIGS, find_config
from llama_repro.gpu.check import ORDERS, check
from llama_repro.gpu.plugin import PluginCheck, check_plugin
from llama_repro.gpu.table import broken, hardware_of, record, table_of
from llama_repro.harness.console import guarded, verdict, wide_console
from llama_repro.harness.record import write_record
from overlap_sched.report.files import check_writable
from overlap_sched.report.progress import progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = _parser().parse_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("no GPU: nothing measured (--device cpu runs the logic without one)")
        return 0
    return guarded("gpu_check", lambda: _run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--config", choices=list(CONFIGS), help="which model (default: llama3-8b; on the CPU: tiny)")
    parser.add_argument(
        "--layers", metavar="N", type=_count, help="how many of its layers (default: 4; on the CPU: all)"
    )
    parser.add_argument(
        "--orders", nargs="+", choices=ORDERS, default=ORDERS, help="which orders; the original one always runs"
    )
    parser.add_argument("--headroom", default="0", metavar="SIZE", help="of our order: bytes, 1GiB, 5%% (default: 0)")
    parser.add_argument("--repeat", metavar="N", type=_count, default=7, help="timed runs of each order (default: 7)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: cuda")
    parser.add_argument("--no-plugin", action="store_true", help="leave out the plug-in of torch.compile")
    parser.add_argument("--json", metavar="OUT", type=Path, help="write a record")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    if options.json:
        check_writable(options.json)
    device = torch.device(options.device, 0) if options.device == "cuda" else torch.device("cpu")
    config = find_config(options.config or ("llama3-8b" if options.device == "cuda" else "tiny"))
    layers = options.layers or (4 if options.device == "cuda" else config.layers)
    plugin: PluginCheck | None = None
    with progress() as step:
        checked = check(
            replace(config, layers=layers),
            options.orders,
            device,
            repeat=options.repeat,
            headroom=options.headroom,
            progress=step,
        )
        if not options.no_plugin:
            step("compiling with and without the plug-in")
            plugin = check_plugin(device)
    console = wide_console()
    console.print(table_of(checked, f"{hardware_of(device)}, torch {torch.__version__}"))
    if options.json:
        write_record(options.json, record(checked, plugin, device, repeat=options.repeat, headroom=options.headroom))
    failures = [text for row in checked.rows if (text := broken(row)) is not None]
    if plugin is not None and not plugin.same_results:
        failures.append("the plug-in changed a result")
    return verdict(console, (*checked.remarks, *_plugin_lines(plugin)), failures)


def _plugin_lines(plugin: PluginCheck | None) -> list[str]:
    if plugin is None:
        return []
    same = "bitwise equal" if plugin.same_results else "NOT equal"
    head = f"torch.compile with {plugin.backend}, one rank: results with and without overlap_sched are {same}; "
    return [head + f"{plugin.changed} graphs reordered", *(f"  {line}" for line in plugin.lines)]


if __name__ == "__main__":
    sys.exit(main())
