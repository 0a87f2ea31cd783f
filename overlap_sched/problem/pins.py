"""Pins: what a user wants of every order, one line of text each, and the dependencies that keep them.

::

    not before layers.2: all_gather* in layers.4     launched only once something of layers.2 has run
    not after layers.2: reduce_scatter*              launched while something of layers.2 is still to come
    together: all_gather* in layers.4                launched one right behind the other
    as written: * in layers.*.router                 in the order of the graph, compute too
    in flight 256MiB: * in layers.*                  no more bytes than that between launch and wait
    apart: all_to_all*                               each waited for before the next is launched

Behind the colon stand nodes, by name or operator, and behind ``in`` their module; ``*``, ``?`` and ``[]`` as in file
names, and a module is all that is in it. Left out: all. A node's own pins (``Node.marks``) name no nodes: those are the
nodes that have them; ``together`` and ``as written`` then hold within each module by itself.

Each pin becomes pairs of nodes of which one must run before the other, so that every order that the scheduler makes
keeps it. That can be more than it says: with "apart" launches stay in the order as written, and with "in flight" each
comes behind the waits of those written so far before it that the bytes between would be too many.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Literal, NamedTuple, cast

from overlap_sched.errors import OptionsError, PinError
from overlap_sched.problem import OF_HOST, Kind, Node, NodeId, Problem
from overlap_sched.problem.precedence import Pair, by_key, neighbours
from overlap_sched.problem.sizes import parse_size

Rule = Literal["not before", "not after", "together", "as written", "in flight", "apart"]

_RULE = re.compile(r"(not before|not after|in flight)\s+(\S+)|(together|as written|apart)")
_ABOUT = re.compile(r"(?:(?!in(?:\s|$))(\S+))?(?:(?:^|\s+)in\s+(?!in$)(\S+))?")
"""``NODES in MODULE``, each of which may be left out."""
_MANY = 400
"""Of more launches "in flight" keeps the order as written: pairs would be too many."""
BINDS_NOTHING = {
    "pins_about_nothing": "nothing here is so named",
    "pins_about_waits": "it names a wait; name what is launched, or what computes",
    "pins_without_bytes": "its collectives have no bytes here",
}
"""Notes on pins that bind nothing, in words."""
_SHOWN = 6
"""So many nodes of a ring are named."""


@dataclass(frozen=True)
class Pin:
    """One of them.

    Attributes:
        text: As it was written.
        rule: What it wants.
        of: The module of "not before" and "not after"; the size of "in flight"; else ``""``.
        nodes, module: Which nodes it is about.
    """

    text: str
    rule: Rule
    of: str
    nodes: str
    module: str


class Pinned(NamedTuple):
    """A pin on a graph.

    Attributes:
        pin: Which.
        nodes: What it is about: collectives, or with "as written" all nodes; ascending.
        anchors: The compute of the module that "not before" and "not after" name.
    """

    pin: Pin
    nodes: tuple[NodeId, ...]
    anchors: tuple[NodeId, ...] = ()


def read_pin(text: str) -> Pin:
    """Read a pin.

    Raises:
        OptionsError: It is none.
    """
    rule, _, about = str(text).partition(":")
    match = _RULE.fullmatch(rule.strip())
    found = _ABOUT.fullmatch(about.strip())
    if not isinstance(text, str) or match is None or found is None:
        raise OptionsError(
            f"pin {text!r} is none; write 'not before MODULE', 'not after MODULE', 'together', 'as written', "
            "'in flight SIZE' or 'apart', then ': NODES in MODULE'."
        )
    pin = Pin(text, cast(Rule, match[1] or match[3]), match[2] or "", found[1] or "*", found[2] or "*")
    if pin.rule == "in flight":
        name, meant = f"in flight, of pin {text!r},", "bytes (67108864B) or a size with a unit (64MiB)"
        if "%" in pin.of:  # of what?
            raise OptionsError(f"{name} is {pin.of!r}; write {meant}.")
        parse_size(name, pin.of, 0, meant)
    return pin


def read_mark(text: str) -> Pin:
    """Read a pin of nodes, which names none.

    Raises:
        OptionsError: It is none, or names some.
    """
    pin, alone = read_pin(text), text.partition(":")[0].strip()
    if ":" in text:
        raise OptionsError(f"pin {text!r} names nodes; inside of a block it is about all of them. Write {alone!r}.")
    return pin


def pinned(problem: Problem, pins: Iterable[str]) -> tuple[Pinned, ...]:
    """Return what pins, and those that nodes have themselves, are about in a graph; perhaps nothing.

    Raises:
        OptionsError: One is none.
    """
    given = [_selected(problem, read_pin(text)) for text in pins]
    return (*given, *_of_nodes(problem))


def pin_pairs(problem: Problem, pins: Iterable[str]) -> tuple[Pair, ...]:
    """Pairs of nodes that keep all pins; linear in their number and that of the nodes.

    Raises:
        OptionsError: One is none.
        PinError: No order keeps them, or none with "apart" and "in flight" in the order as written.
    """
    because = {pair: one.pin.text for one in pinned(problem, pins) for pair in _pairs(problem, one)}
    pairs = tuple(because)
    if pairs and by_key(problem, pairs, range(len(problem.nodes))) is None:
        raise PinError(_contradiction(problem, because))
    return pairs


def pin_notes(problem: Problem, pins: Sequence[str]) -> dict[str, int]:
    """How many pins bind nothing in a graph, as notes for reports, by :data:`BINDS_NOTHING`."""
    return dict(Counter(filter(None, (binds_nothing(problem, one) for one in pinned(problem, pins)))))


def binds_nothing(problem: Problem, one: Pinned) -> str:
    """Return why a pin binds nothing, of :data:`BINDS_NOTHING`; ``""``: it does."""
    pin = one.pin
    if one.nodes and (one.anchors or not pin.rule.startswith("not")):
        lacks_bytes = pin.rule == "in flight" and not any(problem.nodes[v].bytes for v in one.nodes)
        return "pins_without_bytes" if lacks_bytes else ""
    waits = [node for node in problem.nodes if node.kind is Kind.WAIT]
    if one.nodes:  # but nothing to come before or after
        return "pins_about_waits" if any(node.name == pin.of for node in waits) else "pins_about_nothing"
    named = pin.nodes != "*" and any(fnmatchcase(name, pin.nodes) for node in waits for name in (node.op, node.name))
    return "pins_about_waits" if named else "pins_about_nothing"


def is_in(module: str, pattern: str) -> bool:
    """Is a module one of those that a pattern names, or in one?"""
    parts = module.split(".")
    return any(fnmatchcase(".".join(parts[:k]), pattern) for k in range(1, len(parts) + 1))


def _selected(problem: Problem, pin: Pin) -> Pinned:
    here: dict[str, bool] = {}

    def about(node: Node) -> bool:
        if not any(fnmatchcase(name, pin.nodes) for name in (node.op, node.name)):
            return False
        if node.module not in here:
            here[node.module] = is_in(node.module, pin.module)
        return here[node.module]

    found = tuple(v for v, node in enumerate(problem.nodes) if _may_be_pinned(node, pin.rule) and about(node))
    return Pinned(pin, found, _anchors(problem, pin))


def _of_nodes(problem: Problem) -> Iterator[Pinned]:
    """The pins that nodes have themselves."""
    found: dict[tuple[str, str], list[NodeId]] = {}
    read: dict[str, Pin] = {}
    for v, node in enumerate(problem.nodes):
        for text in node.marks:
            pin = read[text] = read.get(text) or read_mark(text)
            if _may_be_pinned(node, pin.rule):
                each = pin.rule in ("together", "as written")
                found.setdefault((text, node.module if each else ""), []).append(v)
    for (text, _), nodes in found.items():
        yield Pinned(read[text], tuple(nodes), _anchors(problem, read[text]))


def _may_be_pinned(node: Node, rule: Rule) -> bool:
    if rule == "as written":
        return node.kind not in (Kind.INPUT, Kind.OUTPUT)
    return node.kind is Kind.COLLECTIVE


def _anchors(problem: Problem, pin: Pin) -> tuple[NodeId, ...]:
    if not pin.of or pin.rule == "in flight":
        return ()
    there = [
        v
        for v, node in enumerate(problem.nodes)
        if node.kind is Kind.COMPUTE and node.op not in OF_HOST and (is_in(node.module, pin.of) or node.name == pin.of)
    ]
    return tuple([v for v in there if problem.nodes[v].time_us] or there)


def _pairs(problem: Problem, one: Pinned) -> Iterator[Pair]:
    pin, nodes, anchors = one
    if pin.rule == "as written":
        yield from pairwise(nodes)
    elif pin.rule == "not before" and anchors:
        yield from ((anchors[0], v) for v in nodes)
    elif pin.rule == "not after" and anchors:
        yield from ((v, anchors[-1]) for v in nodes)
    elif pin.rule == "apart":
        yield from ((_end(problem, u, pin), v) for u, v in pairwise(nodes))
    elif pin.rule == "together" and len(nodes) > 1:
        yield from pairwise(nodes)
        members = set(nodes)
        yield from ((u, nodes[0]) for v in nodes for u in problem.predecessors[v] if u not in members)
        yield from ((nodes[-1], w) for v in nodes for w in problem.successors[v] if w not in members)
    elif pin.rule == "in flight":
        yield from _fewer_bytes(problem, nodes, pin)


def _fewer_bytes(problem: Problem, launches: Sequence[NodeId], pin: Pin) -> Iterator[Pair]:
    """In the order as written, each behind the waits of as many before it as must have finished."""
    most, in_flight_bytes, first = parse_size("in flight", pin.of, 0, "a size"), 0, 0
    ends = list[NodeId]()
    chained = len(launches) > _MANY
    yield from pairwise(launches) if chained else ()
    for v in launches:
        nbytes = problem.nodes[v].bytes
        if nbytes > most:
            raise PinError(f"pin {pin.text!r} cannot be kept: {problem.nodes[v].name} alone has {nbytes} bytes.")
        while in_flight_bytes + nbytes > most:
            gone = launches[first]
            ends.append(_end(problem, gone, pin))
            in_flight_bytes, first = in_flight_bytes - problem.nodes[gone].bytes, first + 1
        in_flight_bytes += nbytes
        yield from ((u, v) for u in ends)
        if chained:
            ends.clear()  # the launch behind it comes behind them, too


def _end(problem: Problem, launch: NodeId, pin: Pin) -> NodeId:
    ends = problem.ends.get(launch)
    if not ends:
        name = problem.nodes[launch].name
        raise PinError(f"pin {pin.text!r} cannot be kept: nothing waits for {name} in this graph. Leave it out.")
    return ends[0]


def _contradiction(problem: Problem, because: Mapping[Pair, str]) -> str:
    """Say which pins no order keeps, by a ring of nodes that would have to run before each other."""
    before, _ = neighbours(problem, because)
    try:
        TopologicalSorter(dict(enumerate(before))).prepare()
    except CycleError as error:
        ring = error.args[1]  # whose last is its first
    pins = [f"pin {text!r}" for text in dict.fromkeys(because[pair] for pair in pairwise(ring) if pair in because)]
    names = [problem.nodes[v].name for v in ring]
    shown = " -> ".join(names if len(ring) <= _SHOWN + 1 else [*names[:_SHOWN], "..."])
    if len(pins) == 1:
        return f"{pins[0]} contradicts the graph: {shown}. Change it or leave it out."
    return f"{' and '.join(pins)} contradict each other: {shown}. Leave one of them out."
