"""Real tensors cut into parts and put together again, by definition: row by row."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from overlap_sched.fx.dimensions.rules import CallCut
from overlap_sched.transform.dimension_graph import Cut, Given, Uncut


def rows_of(cut: Cut, parts: int, p: int) -> list[int]:
    """The rows of a part, in their order: block p of every run."""
    return [(run * parts + p) * cut.inner + row for run in range(cut.outer) for row in range(cut.inner)]


def take(tensor: Tensor, cut: Cut, parts: int, p: int) -> Tensor:
    """A part of a tensor."""
    return tensor.index_select(cut.dim, torch.tensor(rows_of(cut, parts, p)))


def put_together(results: Sequence[Any], given: Given, parts: int) -> Any:
    """The whole, from the results of all parts."""
    if given is Uncut.PARTIAL:
        return torch.stack(list(results)).sum(0)
    if not isinstance(given, Cut):
        return results[0]
    whole = torch.cat(list(results), given.dim)
    order = [row for p in range(parts) for row in rows_of(given, parts, p)]
    return torch.empty_like(whole).index_copy_(given.dim, torch.tensor(order), whole)


def call_part(node: fx.Node, cut: CallCut, values: dict[fx.Node, Tensor], parts: int, p: int) -> tuple[Any, Any]:
    """The arguments of a call in one part: inputs cut as the rule needs them, other arguments as it says."""

    def of(u: fx.Node) -> Tensor:
        return take(values[u], cut.needs[u], parts, p) if u in cut.needs else values[u]

    args, kwargs = list(fx.node.map_arg(node.args, of)), dict(fx.node.map_arg(node.kwargs, of))
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    for name, value in cut.changes.items():
        at = names.index(name)
        if at < len(args):
            args[at] = value
        else:
            kwargs[name] = value
    return args, kwargs
