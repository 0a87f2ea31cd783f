"""The names of the parameters that a graph gathers, for the other ranks to compare with theirs."""

import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import fx
from torch._ops import OpOverload

from overlap_sched.distributed.digest import Digest
from overlap_sched.distributed.gathered import RankLaunch, renamed, to_text
from overlap_sched.fx.communication import Communications
from overlap_sched.fx.groups import live_ranks
from overlap_sched.inductor.console import log
from overlap_sched.inductor.launches import Launches
from overlap_sched.inductor.names import Named, dynamo_names, name_of

_CASTS_AND_COPIES = frozenset({
    "aten::_to_copy", "aten::_unsafe_view", "aten::cat", "aten::clone", "aten::constant_pad_nd", "aten::contiguous",
    "aten::reshape", "aten::split_with_sizes_copy", "aten::to", "bucketing::_pre_bucket_all_gather",
    "prims::convert_element_type", "prims::device_put",
})  # fmt: skip
"""Besides views: what these give holds the same values as what they take."""
_FOLLOWED = 1_000
"""So many nodes are looked at for one gather: one bucket of a large model."""
_JOINED = " + "
_POSITION = re.compile(r"\$\d+")


def gathered_text(launches: Launches | None) -> str:
    """Show what a rank gathers, see :func:`overlap_sched.distributed.gathered.to_text`. Never raises."""
    return _or_nothing(lambda: _text(launches, dynamo_names()))


def by_position(mine: Digest, launches: Launches | None) -> Digest:
    """Return what code carries into torch's cache: one code serves whatever is gathered, so inputs stand for names."""
    return replace(mine, gathers=_or_nothing(lambda: _text(launches, lambda position: f"${position}")))


def named_now(carried: Digest) -> Digest:
    """Return what a rank that finds it there shows: with the names of the inputs that it has now."""
    if not carried.gathers:
        return carried
    return replace(carried, gathers=_or_nothing(lambda: _renamed(carried, dynamo_names())))


def _renamed(carried: Digest, named: Named) -> str:
    def now(name: str) -> str:
        parts = [named(int(one[1:])) if _POSITION.fullmatch(one) else "" for one in name.split(_JOINED)]
        return _JOINED.join(parts) if all(parts) else ""

    return renamed(carried.gathers, now)


def _or_nothing(made: Callable[[], str]) -> str:
    try:
        return made()
    except Exception as error:  # the names are left out
        log.debug("what is gathered has no names: %s: %s", type(error).__name__, error)
        return ""


def _text(launches: Launches | None, named: Named) -> str:
    return to_text(_launches(launches, lambda placeholder: name_of(placeholder, named))) if launches else ""


def _launches(launches: Launches, called: Callable[[fx.Node], str]) -> Iterator[RankLaunch]:
    known = Communications(launches[0].graph)
    for node in launches:
        for one in known.of(node):
            direct = one.op.startswith("all_gather") and isinstance(node.target, OpOverload)
            name = _JOINED.join(_names(node.args[0], called)) if direct else ""
            for group, live in one.groups:
                ranks = live_ranks(group if live is None else live)
                if ranks is not None and len(ranks) > 1:
                    yield RankLaunch(one.op, tuple(ranks), name)


def _names(given: Any, called: Callable[[fx.Node], str]) -> list[str]:
    """List the inputs that a gather is given whose values it holds, in their order; none: it holds anything else, too.

    A bucket has several. A tensor that is only made, as to pad with, counts as anything else.
    """
    names: list[str] = []
    open_nodes, followed = _nodes(given), 0
    while open_nodes:
        node, followed = open_nodes.pop(), followed + 1
        name = called(node) if node.op == "placeholder" else ""
        if name:
            names.append(name)
        elif followed > _FOLLOWED or not _only_carries(node):
            return []
        else:
            open_nodes += _nodes(node.args[0])
    return names


def _nodes(given: Any) -> list[fx.Node]:
    """The tensors in an argument, last first."""
    listed = given if isinstance(given, list | tuple) else [given]
    return [one for one in reversed(listed) if isinstance(one, fx.Node)]


def _only_carries(node: fx.Node) -> bool:
    """Tell whether a node only passes on the values of its first argument: a view, a cast, a pad, a copy."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return True
    target = node.target
    return isinstance(target, OpOverload) and (target._schema.name in _CASTS_AND_COPIES or bool(target.is_view))
