"""Digests of the orders and decisions of all committed instances: what a change of no order leaves as it is.

``python -m tests.support.order_digests`` writes them anew, after a change that is meant to change orders.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import astuple, replace
from pathlib import Path

from overlap_sched import Kind, Options, Problem, Schedule, Storage, read_problem, schedule

_ROOT = Path(__file__).parents[2]
DIGESTS = _ROOT / "tests" / "data" / "order_digests.json"
INSTANCES = sorted((_ROOT / "scripts" / "instances").glob("*.json.gz"))
COMM_SCALES = (1.0, 4.0)
MODELS = ("runtime", "tracker", "device")
"""Memory models; the last: ``"runtime"`` on the smallest device for the original order, on the plain network."""


def cases() -> Iterator[tuple[str, Path, float, str]]:
    """Name, instance, network, model."""
    for path in INSTANCES:
        for comm_scale in COMM_SCALES:
            for model in MODELS if comm_scale == 1 else MODELS[:2]:
                yield f"{path.name.removesuffix('.json.gz')} x{comm_scale:g} {model}", path, comm_scale, model


def digests_of(path: Path, comm_scale: float, model: str) -> dict[str, str]:
    """Of the order, and of the decisions (times to the nanosecond, so that no rounding counts)."""
    problem = read_problem(path).with_comm_scale(comm_scale)
    if model == "tracker":
        problem = as_tracker(problem)
    options = Options(memory_model=problem.memory_model)
    if model == "device":
        options = replace(options, allocator="plain", memory_limit="100%")
    result = schedule(problem, options)
    assert result.fell_back is None
    return {"order": _digest(list(result.order)), "decisions": _digest(_rounded(result))}


def as_tracker(problem: Problem) -> Problem:
    """The same graph as torch's own tracker counts it: inputs freed at the launch, a wait allocates its result again.

    Who uses what a collective has made and depends on one of its waits uses what that wait has made instead.
    """
    storages, nodes = list(problem.storages), list(problem.nodes)
    made: dict[int, dict[int, int]] = {}  # per storage of a collective: what each of its waits makes of it
    for v, node in enumerate(problem.nodes):
        if node.kind is Kind.WAIT and node.collective is not None:
            results = [s for s in problem.nodes[node.collective].alloc if s in node.use]
            for s in results:
                made.setdefault(s, {})[v] = len(storages)
                storages.append(Storage(problem.storages[s].bytes))
            new = tuple(made[s][v] for s in results)
            nodes[v] = node._replace(alloc=new, use=tuple(results))
        elif any(s in made for s in node.use):
            nodes[v] = node._replace(use=tuple(made[s][max(made[s])] if s in made else s for s in node.use))
    return replace(problem, nodes=tuple(nodes), storages=tuple(storages), memory_model="tracker")


def _rounded(result: Schedule) -> list[list[object]]:
    return [
        [round(field, 3) if isinstance(field, float) else field for field in astuple(decision)]
        for decision in result.decisions
    ]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


if __name__ == "__main__":
    found = {name: digests_of(*case) for name, *case in cases()}
    DIGESTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
