"""What a graph launches, read from the graph: at every depth, custom operators included."""

from collections.abc import Iterator, Sequence
from typing import Any

from torch import fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from tests.support.programs import operators
from tests.support.programs.flight import WAITS


def launches_of(gm: fx.GraphModule, groups: Sequence[str]) -> list[tuple[str, str]]:
    """In order: a group, and what is launched there (its node's name)."""
    return list(_launches(gm, groups))


def _launches(gm: fx.GraphModule, groups: Sequence[str]) -> Iterator[tuple[str, str]]:
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        arguments = tree_leaves((node.args, node.kwargs))
        for argument in arguments:
            inner = _inner(gm, argument)
            if inner is not None:
                yield from ((group, f"{node.name}/{name}") for group, name in _launches(inner, groups))
        called = [op for op in (node.target, *arguments) if isinstance(op, OpOverload)]
        if any(map(_communicates, called)):
            named = [str(a) for a in arguments if isinstance(a, str) and a in groups]
            yield (named or [operators.world])[-1], node.name


def _inner(gm: fx.GraphModule, argument: Any) -> fx.GraphModule | None:
    if isinstance(argument, fx.Node) and argument.op == "get_attr":
        value = getattr(gm, str(argument.target), None)
        return value if isinstance(value, fx.GraphModule) else None
    return None


def _communicates(op: OpOverload) -> bool:
    name = op._schema.name.split("::")[1]
    if op.namespace == "progs":
        return name.startswith("hidden")
    return op.namespace == "_dtensor" or (op.namespace == "_c10d_functional" and name not in WAITS)


def by_group(launches: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Launches of each group, in order."""
    found: dict[str, list[str]] = {}
    for group, name in launches:
        found.setdefault(group, []).append(name)
    return found
