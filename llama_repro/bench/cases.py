"""Which graphs are measured, and how each is had."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from llama_repro import CLUSTER, INSTANCES
from llama_repro.generate.models import MODELS, parse_mesh
from llama_repro.titan.models import MODELS as TITAN_MODELS
from overlap_sched.cost.cluster import read_cluster
from overlap_sched.cost.repricing import placed_on, priced_on
from overlap_sched.problem import Problem
from overlap_sched.problem.contention import NO_CONTENTION
from overlap_sched.problem.file import read_problem

CAPTURED = ("llama1d",)
CAPTURED_MORE = ("llama3-8b", "llama3-8b-2d")
"""Configurations of :mod:`llama_repro.capture.configs`; the second with ``--full``."""

GENERATED = (("70b", "fsdp=64", 10_000),)
GENERATED_MORE = (("70b", "fsdp=32,tp=8", 36_000), ("405b", "fsdp=64,tp=8,cp=2,pp=4", 36_000))
"""Model, mesh, nodes at least; the second with ``--full``. Larger ones are measured in processes of their own."""

CONTENTION = ", contention"
"""Behind the name of a network where collectives slow compute and each other."""

Tell = Callable[[str], None]
"""Hears what is being done."""


@dataclass(frozen=True)
class Loaded:
    """A graph, without contention and with it.

    Attributes:
        problem: Priced as ``overlap-sched plan DUMP --no-contention`` does. contended: with contention.
        lift_s: Seconds that lifting it from FX takes; 0 where it comes from a file.
    """

    problem: Problem
    contended: Problem
    lift_s: float = 0.0


@dataclass(frozen=True)
class Case:
    """A graph that can be loaded; the loader is given a function that hears what is being done."""

    name: str
    load: Callable[[Tell], Loaded]


def cases(problems: list[Path], *, full: bool = False, generated: bool = True) -> Iterator[Case]:
    """The files given, or all of the benchmark's own graphs."""
    for path in problems or sorted(INSTANCES.glob("*.json.gz")):
        yield Case(path.name, partial(_file, path))
    if problems:
        return
    for name in CAPTURED + CAPTURED_MORE if full else CAPTURED:
        yield Case(name, partial(_captured, name))
    yield from (Case(step.name, partial(_file, step.problem_file)) for step in TITAN_MODELS.values())
    for model, mesh, nodes in (GENERATED + GENERATED_MORE if full else GENERATED) if generated else ():
        yield Case(f"{model}, {mesh}, {nodes:,} nodes", partial(_generated, model, mesh, nodes))


def _file(path: Path, tell: Tell) -> Loaded:
    read = read_problem(path)
    problem = replace(read, name=read.name.removeprefix("repro_"))
    return Loaded(problem, on_cluster(problem, CLUSTER))


def _generated(model: str, mesh: str, nodes: int, tell: Tell) -> Loaded:
    problem = generated_problem(model, mesh, nodes, tell)
    return Loaded(problem, on_cluster(problem, CLUSTER))


def _captured(name: str, tell: Tell) -> Loaded:
    from llama_repro.capture.cache import fused_problem, stored_problems
    from llama_repro.capture.configs import find_config

    lift_s = stored_problems(find_config(name), progress=tell).lift_s
    fused = replace(fused_problem(find_config(name), tell), name=name)
    return Loaded(replace(fused, contention=NO_CONTENTION), fused, lift_s)


def generated_problem(model: str, mesh: str, nodes: int, tell: Tell) -> Problem:
    """A training step of a large model with at least so many nodes."""
    from llama_repro.capture.cache import traced_graphs
    from llama_repro.generate.graph import generate

    which = MODELS[model]
    ranks = parse_mesh(mesh, which)
    return generate(which, traced_graphs(which.traced(ranks), tell), ranks, nodes, tell)


def on_cluster(problem: Problem, cluster: str) -> Problem:
    """Place groups on a cluster, price collectives for it, with contention; compute keeps its times.

    Raises:
        CostError: The cluster is none, or a process group does not fit it.
    """
    found = read_cluster(cluster)
    return priced_on(placed_on(problem, found), found, compute=1.0, contention=True)
