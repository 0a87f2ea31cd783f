"""How much memory an order needs, step by step.

A storage is live from the step that allocates it to the last step that uses it, both included: a step's
outputs are there before its dead inputs are gone, so the peak counts both. Inputs are live from the start,
pinned storages to the end; so are inputs that nothing uses and what an output node allocates::

    EXAMPLE, original order, MiB    w x gather full mm dgrad wgrad scatter grad output
      w      1 (pinned)             1 1   1     1    1   1     1      1      1    1
      x      4                      4 4   4     4    4   4     4
      full   8                            8     8    8   8
      g      4                                       4   4     4
      dx     4                                           4     4      4      4    4
      dw     8                                                 8      8      8
      ds     1                                                        1      1    1
      live                          5 5  13    13   17  21    21     14     14    6      peak 21, first at dgrad

Both memory models are counted by this one rule; they differ in what the problem says a wait allocates and uses.

Collectives of several process groups at once: how often they run together, and whether an order may let them.

Groups that share more than one rank run kernels of two communicators on the same devices at the same time. Nothing
orders those (NCCL user guide, "Using multiple NCCL communicators concurrently"), and RCCL hangs with some
(ROCm/rccl#2191, openxla/xla#47467). Groups whose ranks are not known are taken to share all. Shares no code with the
scheduler.

Are pins kept? Read anew from their text, and judged by what they mean; shares no code with what keeps them.

Is an order allowed? Brute force on purpose; shares no code with the scheduler.

It reads the nodes' own fields only, rebuilds every rule from them, and returns the first one that is
broken in words, since a user may read it.

Read an order: a JSON list of node names, as ``overlap-sched plan --out`` writes it.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path

from overlap_sched.errors import ProblemError
from overlap_sched.judge.replay import Replay, replay
from overlap_sched.problem import ANY_GROUP, Kind, Node, Order, Problem
from overlap_sched.problem.file import nameable
from overlap_sched.problem.precedence import Preserve
from overlap_sched.problem.sizes import size_bytes


def memory_profile(problem: Problem, order: Sequence[int]) -> list[int]:
    """Bytes live while each step of the order runs; as long as the order."""
    nodes = problem.nodes
    size = [storage.bytes for storage in problem.storages]
    pinned = [storage.pinned for storage in problem.storages]
    users_left = [0] * len(size)
    live = 0
    for node in nodes:
        for s in node.use:
            users_left[s] += 1
        if node.kind is Kind.INPUT:
            live += sum(size[s] for s in node.alloc)
    profile = []
    for v in order:
        node = nodes[v]
        if node.kind is not Kind.INPUT:
            for s in node.alloc:
                live += size[s]
        profile.append(live)
        for s in node.use:
            users_left[s] -= 1
            if users_left[s] == 0 and not pinned[s]:
                live -= size[s]
        if node.alloc and node.kind not in (Kind.INPUT, Kind.OUTPUT):
            for s in node.alloc:
                # nobody ever uses it: gone when the step is over (a pin protects what is used)
                if users_left[s] == 0 and s not in node.use:
                    live -= size[s]
    return profile


def peak_memory(problem: Problem, order: Sequence[int]) -> tuple[int, int]:
    """The most bytes live at once, and the first position of the order at which they are."""
    profile = memory_profile(problem, order)
    peak = max(profile)
    return peak, profile.index(peak)


_ROUNDING = 1e-9
"""Relative to the step: overlaps below this come from adding up floating-point numbers."""


def together(problem: Problem, timeline: Replay) -> int:
    """Pairs of collectives of groups that share more than one rank and run at the same time in a replay."""
    known = [v for v, node in enumerate(problem.nodes) if (groups := _groups_of(node)) and ANY_GROUP not in groups]
    if len({name for v in known for name in _groups_of(problem.nodes[v])}) < 2:
        return 0
    least_us = _ROUNDING * timeline.step_us
    spans = sorted((timeline.start_us[v], timeline.finish_us[v], v) for v in known)
    meet, pairs = _meeting(problem, "disjoint"), 0
    running: list[tuple[float, int]] = []
    for start_us, finish_us, v in spans:
        running = [(end_us, u) for end_us, u in running if end_us > start_us + least_us]
        if finish_us > start_us + least_us:
            pairs += sum(meet(u, v) for _, u in running)
            running.append((finish_us, v))
    return pairs


def together_violation(
    problem: Problem, order: Sequence[int], concurrent: str, as_originally: bool = True
) -> str | None:
    """The first launch of a valid order while a collective is in flight that it must stay apart from, or ``None``.

    A collective is in flight from its launch to the first of its waits; what communicates itself, or may, only while it
    runs. With ``as_originally`` two that are in flight together in the original order may be.
    """
    if concurrent == "any":
        return None
    nodes, meet, ended = problem.nodes, _meeting(problem, concurrent), completions(problem)
    ends = [v if node.launches else len(nodes) for v, node in enumerate(nodes)]
    for w in sorted(ended, reverse=True):  # the first wait comes last
        for launch in ended[w]:
            ends[launch] = w
    in_flight: list[int] = []
    for v in order:
        node, groups = nodes[v], _groups_of(nodes[v])
        for u in in_flight if groups else ():
            if meet(u, v) and not (as_originally and u < ends[v] and v < ends[u]):
                runs = "is launched" if node.kind is Kind.COLLECTIVE else "communicates"
                return (
                    f"{node.name} ({', '.join(groups)}) {runs} while {nodes[u].name} ({nodes[u].group}) is in "
                    f"flight: concurrent_groups={concurrent!r} keeps them apart"
                )
        in_flight = [u for u in in_flight if u not in ended.get(v, ())]
        if node.kind is Kind.COLLECTIVE:
            in_flight.append(v)
    return None


def completions(problem: Problem) -> dict[int, list[int]]:
    """Per node, the collectives that the program waits for there: a part waits where the node behind it runs."""
    nodes = problem.nodes
    found: dict[int, list[int]] = {}
    for w, node in enumerate(nodes):
        if node.collective is not None:
            behind = (v for v in range(w + 1, len(nodes)) if w in nodes[v].deps)
            found.setdefault(next(behind, w) if node.op == "part" else w, []).append(node.collective)
    return found


def _groups_of(node: Node) -> tuple[str, ...]:
    return (node.group or "",) if node.kind is Kind.COLLECTIVE else tuple(dict.fromkeys(node.launches))


def _meeting(problem: Problem, concurrent: str) -> Callable[[int, int], bool]:
    """Return a test of whether what two nodes launch must not be in flight together."""
    nodes = problem.nodes
    ranks = {name: frozenset(group.ranks) for name, group in problem.groups.items()}

    def meet(u: int, v: int) -> bool:
        pairs = [(a, b) for a in _groups_of(nodes[u]) for b in _groups_of(nodes[v]) if a != b]
        return any(concurrent == "one" or share(ranks.get(a), ranks.get(b)) for a, b in pairs)

    def share(one: frozenset[int] | None, other: frozenset[int] | None) -> bool:
        return not one or not other or len(one & other) > 1

    return meet


def pin_violation(problem: Problem, order: Sequence[int], pins: Iterable[str]) -> str | None:
    """The first pin that a valid order breaks, of those given and those that nodes have, or ``None``."""
    position = {v: at for at, v in enumerate(order)}
    for text, about in (*((text, _matching(problem, text)) for text in pins), *_marked(problem)):
        broken = _broken(problem, order, position, text.partition(":")[0].split(), about)
        if broken:
            return f"pin {text!r} is broken: {broken}"
    return None


def _matching(problem: Problem, text: str) -> list[int]:
    """The nodes that a pin is about."""
    words = text.partition(":")[2].split()
    module = words.pop() if "in" in words and words[-1] != "in" else "*"
    pattern = words[0] if words and words[0] != "in" else "*"
    return [
        v
        for v, node in enumerate(problem.nodes)
        if (fnmatchcase(node.op, pattern) or fnmatchcase(node.name, pattern)) and _inside(node, module)
    ]


def _marked(problem: Problem) -> Iterator[tuple[str, list[int]]]:
    """The pins that nodes have, with these nodes."""
    found: dict[tuple[str, str], list[int]] = {}
    for v, node in enumerate(problem.nodes):
        for text in node.marks:
            alone = text.split()[0] in ("together", "as")
            found.setdefault((text, node.module if alone else ""), []).append(v)
    return ((text, nodes) for (text, _), nodes in found.items())


def _inside(node: Node, module: str) -> bool:
    return fnmatchcase(node.module, module) or fnmatchcase(node.module, f"{module}.*")


def _broken(
    problem: Problem, order: Sequence[int], position: Mapping[int, int], words: Sequence[str], about: Sequence[int]
) -> str:
    nodes = problem.nodes
    launches = sorted((v for v in about if nodes[v].kind is Kind.COLLECTIVE), key=position.__getitem__)
    if words[0] == "as":
        inside = [v for v in about if nodes[v].kind not in (Kind.INPUT, Kind.OUTPUT)]
        for u, v in pairwise(inside):
            if position[u] > position[v]:
                return f"{nodes[v].name} runs before {nodes[u].name}"
    elif words[0] == "together" and launches:
        between = order[position[launches[0]] : position[launches[-1]] + 1]
        stranger = next((v for v in between if v not in launches), None)
        if stranger is not None:
            return f"{nodes[stranger].name} runs between {nodes[launches[0]].name} and {nodes[launches[-1]].name}"
    elif words[0] == "not":
        computes = (v for v, n in enumerate(nodes) if n.kind is Kind.COMPUTE and n.op not in ("launch", "finish"))
        there = [position[v] for v in computes if _inside(nodes[v], words[2]) or nodes[v].name == words[2]]
        timed = [at for at in there if nodes[order[at]].time_us > 0] or there
        for v in launches if timed else ():
            if words[1] == "before" and position[v] < min(timed):
                return f"{nodes[v].name} is launched before anything of {words[2]} has run"
            if words[1] == "after" and position[v] > max(timed):
                return f"{nodes[v].name} is launched after all of {words[2]}"
    elif words[0] in ("in", "apart"):
        return _in_flight(problem, order, set(launches), size_bytes(words[-1], 0) if words[0] == "in" else None)
    return ""


def _in_flight(problem: Problem, order: Sequence[int], counted: set[int], most_bytes: int | None) -> str:
    """Say what is wrong with what is in flight; no limit: one at a time."""
    in_flight: dict[int, int] = {}
    ended = completions(problem)
    for v in order:
        node = problem.nodes[v]
        if v in counted:
            in_flight[v] = node.bytes
            if most_bytes is None and len(in_flight) > 1:
                return f"{node.name} is launched while {problem.nodes[next(iter(in_flight))].name} is in flight"
            if most_bytes is not None and sum(in_flight.values()) > most_bytes:
                return f"{sum(in_flight.values())} bytes are in flight behind {node.name}"
        for launch in ended.get(v, ()):
            in_flight.pop(launch, None)
    return ""


REPLAY_TOLERANCE = 1e-9
"""Relative: sums of the same times in another order differ by rounding."""


def violation(problem: Problem, order: Sequence[int]) -> str | None:
    """The first rule of the graph that the order breaks, or ``None`` if it can run.

    A permutation; every dependency; no storage used before it is allocated; no wait before its collective;
    an output behind everything listed before it.
    """
    nodes = problem.nodes
    position = [-1] * len(nodes)
    for at, v in enumerate(order):
        if not 0 <= v < len(nodes):
            return f"position {at} holds id {v}, which is not a node of the problem"
        if position[v] >= 0:
            return f"{nodes[v].name} runs twice, at positions {position[v]} and {at}"
        position[v] = at
    if len(order) != len(nodes):
        return f"{nodes[position.index(-1)].name} never runs"

    allocated_at = {s: position[v] for v, node in enumerate(nodes) if node.kind is not Kind.INPUT for s in node.alloc}
    listed_before = -1  # the last position of any node listed before the one at hand
    for v, node in enumerate(nodes):
        at = position[v]
        for u in node.deps:
            if position[u] > at:
                return f"{node.name} runs before {nodes[u].name}, on which it depends"
        if node.collective is not None and position[node.collective] > at:
            return f"{node.name} waits for {nodes[node.collective].name} before it is launched"
        for s in node.use:
            if allocated_at.get(s, -1) > at:
                return f"{node.name} uses storage {s} before it is allocated"
        if node.kind is Kind.OUTPUT and listed_before > at:
            return f"{node.name} runs before {nodes[order[listed_before]].name}, which must not follow an output"
        listed_before = max(listed_before, at)
    return None


@dataclass(frozen=True)
class JudgedOrder:
    """An order as the judges see it: its timeline, and the bytes live at each position."""

    order: Sequence[int]
    timeline: Replay
    profile: Sequence[int]


def measure(problem: Problem, order: Sequence[int]) -> JudgedOrder:
    """Replay a valid order and count its memory."""
    return JudgedOrder(order, replay(problem, order), memory_profile(problem, order))


@dataclass(frozen=True)
class Promise:
    """What an order is held to, besides being valid and no slower than the original.

    Attributes:
        base_bytes: The peak that headroom is counted from.
        headroom_bytes: How far above that, or above the original profile, memory may go.
        budget: ``"peak"`` or ``"profile"``.
        preserve: Whose launch order is kept.
        concurrent: Collectives of which groups may be in flight together.
        pins: Lines of text.
    """

    base_bytes: int
    headroom_bytes: int = 0
    budget: str = "peak"
    preserve: Preserve = "none"
    concurrent: str = "any"
    pins: tuple[str, ...] = ()


def broken_promise(problem: Problem, original: JudgedOrder, scheduled: JudgedOrder, promise: Promise) -> str | None:
    """The first promise that a valid order breaks against the original one, or ``None``.

    Peak (or every position of the profile) within the budget; step not longer than the original; launch order kept
    where asked for, process groups apart, and pins kept.
    """
    order, reference = scheduled.order, original.profile
    for at, live in enumerate(scheduled.profile):
        limit = (promise.base_bytes if promise.budget == "peak" else reference[at]) + promise.headroom_bytes
        if live > limit:
            name = problem.nodes[order[at]].name
            return f"{live} bytes are live at position {at} ({name}), {live - limit} above the {promise.budget} budget"

    before_us, after_us = original.timeline.step_us, scheduled.timeline.step_us
    if after_us > before_us * (1 + REPLAY_TOLERANCE):
        return f"the step takes {after_us} us, longer than the original's {before_us} us"

    return (
        launch_violation(problem, order, promise.preserve)
        or together_violation(problem, order, promise.concurrent)
        or pin_violation(problem, order, promise.pins)
    )


def launch_violation(problem: Problem, order: Sequence[int], preserve: Preserve) -> str | None:
    """The first launch of a valid order that is not in the order asked for, or wait in front of one, or ``None``."""
    last: dict[str | None, int] = {}
    to_come = {v for v, node in enumerate(problem.nodes) if node.kind is Kind.COLLECTIVE or node.launches}
    for v in order if preserve != "none" else ():
        node = problem.nodes[v]
        on = [node.group] if node.kind is Kind.COLLECTIVE else list(node.launches)
        if not on:
            if preserve == "waits" and node.kind is Kind.WAIT and (first := min(to_come, default=v)) < v:
                return f"{node.name} waits before {problem.nodes[first].name} is launched, unlike originally"
            continue
        to_come.discard(v)
        every = preserve in ("all", "waits") or ANY_GROUP in on
        later = max((u for group, u in last.items() if every or group in (*on, ANY_GROUP)), default=-1)
        if later > v:
            return f"{problem.nodes[later].name} is launched before {node.name}, unlike originally"
        last.update(dict.fromkeys(on, v))
    return None


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
