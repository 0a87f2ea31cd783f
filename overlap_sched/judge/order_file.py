"""Read an order: a JSON list of node names, as ``overlap-sched plan --out`` writes it."""

import json
from pathlib import Path

from overlap_sched.errors import ProblemError
from overlap_sched.judge.validate import violation
from overlap_sched.problem import Order, Problem
from overlap_sched.problem.paths import nameable


def read_order(path: str | Path, problem: Problem) -> Order:
    """The order in a file as node ids.

    Raises:
        ProblemError: The file cannot be read, is not such a list, or the order cannot run.
    """
    try:
        names = json.loads(Path(nameable(path)).read_text(encoding="utf-8"))
    except OSError as error:
        raise ProblemError(f"{path}: cannot be read ({error.strerror}). Check the path.") from None
    except (ValueError, RecursionError):
        raise ProblemError(f"{path}: is not JSON. An order is a JSON list of node names.") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ProblemError(f"{path}: is not a list of names. An order is a JSON list of node names.")
    ids = {node.name: v for v, node in enumerate(problem.nodes)}
    unknown = next((name for name in names if name not in ids), None)
    if unknown is not None:
        raise ProblemError(
            f"{path}: {unknown!r} is not a node of problem {problem.name!r}. Was the order made for another graph?"
        )
    order = tuple(ids[name] for name in names)
    broken = violation(problem, order)
    if broken is not None:
        raise ProblemError(f"{path}: the order cannot run on problem {problem.name!r}: {broken}. Make it again.")
    return order
