"""``python -m llama_repro.generate``: write a training step of a large Llama as a problem file.

A few layers are traced (kept in the cache), the rest repeats them: a million nodes in seconds.

    python -m llama_repro.generate --model 70b --nodes 36000 --out 70b.json.gz
    python -m llama_repro.generate --model 405b --mesh fsdp=64,tp=8,pp=4 --nodes 100000 --out 405b.json.gz
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from llama_repro.capture.cache import traced_graphs
from llama_repro.generate.graph import generate
from llama_repro.generate.models import MODELS, parse_mesh
from llama_repro.harness.console import guarded
from overlap_sched.errors import OutputError
from overlap_sched.problem.file import write_problem
from overlap_sched.report.terminal import progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 where it cannot be done."""
    options = _parser().parse_args(arguments)
    return guarded("generate", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    model = MODELS[options.model]
    mesh = parse_mesh(options.mesh, model) if options.mesh else model.mesh
    with progress() as step:
        traced = traced_graphs(model.traced(mesh), step)
        problem = generate(model, traced, mesh, options.nodes, step)
        step(f"writing {len(problem.nodes):,} nodes")
        try:
            write_problem(problem, options.out)
        except OSError as error:
            raise OutputError(f"{options.out}: cannot be written ({error.strerror}). Check the path.") from None
    count = len(problem.collectives)
    print(f"{options.out}: {problem.name}, {len(problem.nodes):,} nodes, {count:,} collectives, {mesh}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m llama_repro.generate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="70b", choices=list(MODELS), help="which model (default: 70b)")
    parser.add_argument("--mesh", help="ranks, as in fsdp=64,tp=8,cp=2,pp=4 (default: the model's)")
    parser.add_argument("--nodes", type=int, help="how many nodes at least (default: all layers, one micro-batch)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="problem file; .gz is compressed")
    return parser


if __name__ == "__main__":
    sys.exit(main())
