"""What ``overlap-sched diff`` compares: two orders, two plans or two records, told apart by what is in the files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from overlap_sched.cli.sizes import shortened
from overlap_sched.errors import DiffError
from overlap_sched.problem.limits import Limits
from overlap_sched.problem.unpack import read_json
from overlap_sched.report.units import printable

Kind = Literal["order", "plan", "record"]
ORIGINAL = "original"
"""Given instead of a file: the order in which the problem lists its nodes."""
_PLAN = "overlap-sched/plan/"
_VERSION = "1"
_MAKERS = {
    "order": "an order (overlap-sched plan --out)",
    "plan": "a plan (overlap-sched plan --json)",
    "record": "a record of runs (scripts/bench.py --record)",
}


@dataclass(frozen=True)
class Given:
    """One of the two.

    Attributes:
        path: As given.
        kind: What it is.
        names: Of an order, the names of its nodes; of :data:`ORIGINAL` and of other kinds, none.
        data: Of a plan or a record, what it holds.
    """

    path: str
    kind: Kind
    names: Sequence[str] = ()
    data: Mapping[str, Any] | None = None


def read_pair(before: str, after: str, limits: Limits) -> tuple[Given, Given]:
    """Read both."""
    one, other = _given(before, limits), _given(after, limits)
    if one.kind != other.kind:
        raise DiffError(
            f"{before} is {_MAKERS[one.kind]}, and {after} is {_MAKERS[other.kind]}. Two of one kind can be compared."
        )
    return one, other


def check_plans(before: Given, after: Given, *, any_graph: bool) -> None:
    """Refuse plans whose figures do not compare."""
    one, other = before.data or {}, after.data or {}
    for given, data in ((before, one), (after, other)):
        if not isinstance(data.get("name"), str) or type(data.get("nodes")) is not int:
            raise DiffError(
                f"{given.path}: does not say of which graph it is. Make it again: overlap-sched plan --json."
            )
    models = (one.get("memory_model"), other.get("memory_model"))
    if models[0] != models[1]:
        raise DiffError(
            f"{before.path} counts memory in the {_text(models[0])} model, {after.path} in the {_text(models[1])} "
            "model. Plan both with the same --memory-model."
        )
    graphs = [(data.get("name"), data.get("nodes")) for data in (one, other)]
    if graphs[0] != graphs[1] and not any_graph:
        of = [f"{_text(name)} ({_text(nodes)} nodes)" for name, nodes in graphs]
        raise DiffError(
            f"{before.path} is a plan of {of[0]}, and {after.path} of {of[1]}: two graphs. Plan the same graph, or say "
            "that the figures are to be compared all the same: --any-graph."
        )


def _given(path: str, limits: Limits) -> Given:
    if path == ORIGINAL:
        return Given(path, "order")
    data = read_json(path, limits, "result", DiffError, lambda _: "")
    if isinstance(data, list):
        if not all(isinstance(name, str) for name in data):
            raise DiffError(f"{path}: is a list, but not of names. An order is a JSON list of node names.")
        return Given(path, "order", names=data)
    if not isinstance(data, dict):
        raise DiffError(f"{path}: is neither a JSON list nor an object. Give {_choices()}.")
    schema = data.get("schema")
    if isinstance(schema, str):
        _check_schema(path, schema)
        return Given(path, "plan", data=data)
    if isinstance(data.get("rows"), list):
        return Given(path, "record", data=data)
    if isinstance(data.get("format"), str):
        raise DiffError(
            f"{path}: is in the format {_text(data['format'])}. Of a problem, give the orders, and the problem by "
            "--problem."
        )
    raise DiffError(f"{path}: has neither a schema nor rows. Give {_choices()}.")


def _check_schema(path: str, schema: str) -> None:
    if not schema.startswith(_PLAN):
        raise DiffError(f"{path}: is in the format {_text(schema)}, which is not compared. Give {_choices()}.")
    if schema != _PLAN + _VERSION:
        raise DiffError(
            f"{path}: is in the format {_text(schema)}; this version reads {_PLAN}{_VERSION}. Make it again with this "
            "version."
        )


def _choices() -> str:
    *most, last = _MAKERS.values()
    return f"{', '.join(most)}, or {last}"


def _text(value: object) -> str:
    return printable(shortened(str(value)))
