"""``python -m llama_repro.titan``: write a whole training step of one of torchtitan's models as a problem file.

    python -m llama_repro.titan --model titan-llama3-8b-fsdp64 --out step.json.gz
    python -m llama_repro.titan --model titan-deepseek3-16b-fsdp64-ep8 --ep 64 --out step.json.gz
    python -m llama_repro.titan --all

Needs torch 2.15.0, torchtitan==0.3.0 and spmd_types; no GPU and no second process.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from llama_repro.harness.console import guarded
from llama_repro.titan.models import MODELS, TitanModel
from overlap_sched.errors import OutputError
from overlap_sched.problem.file import write_problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 where it cannot be done."""
    options = _parser().parse_args(arguments)
    return guarded("titan", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if options.all:
        return max(_in_a_process(model) for model in MODELS.values())
    model = MODELS[options.model]
    model = model.shortened(options.layers) if options.layers else model
    _write(model.spread(options.ep) if options.ep else model, options.out)
    return 0


def _in_a_process(model: TitanModel) -> int:
    """Write one file in a process of its own, since torch remembers the meshes of an earlier world; its exit status."""
    command = [sys.executable, "-m", "llama_repro.titan", "--model", model.name, "--out", str(model.problem_file)]
    return subprocess.run(command, check=False).returncode


def _write(model: TitanModel, path: Path) -> None:
    from llama_repro.titan.trace import whole_step
    from overlap_sched.fx import lift

    started = time.perf_counter()
    with whole_step(model) as graph_module:
        traced_s = time.perf_counter() - started
        problem = lift(graph_module, name=model.name).problem
    try:
        write_problem(problem, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}). Check the path.") from None
    lift_s = time.perf_counter() - started - traced_s
    count = len(problem.collectives)
    print(
        f"{path}: {len(problem.nodes):,} nodes, {count:,} collectives, "
        f"traced in {traced_s:.0f} s, lifted in {lift_s:.1f} s"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m llama_repro.titan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", choices=list(MODELS), metavar="NAME", help=f"which: {', '.join(MODELS)}")
    which.add_argument("--all", action="store_true", help="write the files of all of them, in llama_repro/titan/graphs")
    parser.add_argument("--layers", type=int, default=0, help="how many of its layers (default: all)")
    parser.add_argument("--ep", type=int, default=0, help="ranks that experts are spread over (default: the model's)")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", default=Path("titan.json.gz"), help="problem file (default: titan.json.gz)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
