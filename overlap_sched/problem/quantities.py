"""Which times, sizes and counts a problem may have, and the errors for all others."""

import math
import sys
from typing import TYPE_CHECKING

from overlap_sched import errors
from overlap_sched.problem.node import MAX_TOTAL_BYTES, TIMED, Group, Kind, Node

if TYPE_CHECKING:
    from overlap_sched.problem import Problem

MAX_RANKS = 2**31 - 1
"""Of one process group: ranks are 32-bit integers everywhere."""
MAX_COUNT = 2**63 - 1
"""Operations, or bytes moved, of one node."""
LONGEST_US = sys.float_info.max
"""What a float holds."""


def check_quantities(problem: "Problem") -> None:
    """Raise for a time, size or count that cannot be; linear."""
    for s, storage in enumerate(problem.storages):
        if storage.bytes < 0:
            raise errors.ProblemError(f"storage {s} has {shown(storage.bytes)} bytes: sizes are 0 or more.")
    total = sum(storage.bytes for storage in problem.storages)
    if total > MAX_TOTAL_BYTES:
        raise errors.ProblemError(
            f"all storages together have {shown(total)} bytes, more than {MAX_TOTAL_BYTES} (2**60). "
            "Are the sizes in bytes?"
        )
    for v, node in enumerate(problem.nodes):
        if not 0.0 <= node.time_us <= LONGEST_US:
            raise errors.ProblemError(
                f"node {v} ({node.name!r}) takes {shown(node.time_us)} us: times are finite and 0 or more. "
                "Check its cost."
            )
        if node.time_us and node.kind not in TIMED:
            raise timeless(f"{node.kind.value} {v} ({node.name!r}) takes", node.kind, node.time_us)
        if not (0 <= node.flops <= MAX_COUNT and 0 <= node.bytes <= MAX_COUNT):
            raise errors.ProblemError(_count_error(v, node))


def _count_error(v: int, node: Node) -> str:
    what, count = ("flops", node.flops) if not 0 <= node.flops <= MAX_COUNT else ("bytes", node.bytes)
    return f"node {v} ({node.name!r}) has {shown(count)} {what}: counts are 0 or more, and below 2**63. Check its cost."


def check_sums(problem: "Problem") -> None:
    """The longest that a step can take must be a finite number."""
    total_us = sum(float(node.time_us) for node in problem.nodes)
    if not math.isfinite(total_us):
        raise errors.ProblemError("the times of all nodes add up to infinity. Are they in microseconds?")
    contention = problem.contention
    slowest = max(contention.slowdown.values(), default=1.0) * max(contention.stretch.values(), default=1.0)
    slowest *= contention.crowding * max(contention.shares.values(), default=1.0)
    if not math.isfinite(total_us * slowest * max(len(contention.links), 1)):
        raise errors.ProblemError(
            "the times of all nodes, slowed down by contention, add up to infinity. "
            "Is a factor of `slowdown` too large?"
        )


def check_group(where: str, group: Group) -> None:
    """Raise for a process group that cannot be.

    Args:
        where: How the error names it.
        group: Its size is checked.
    """
    if not 1 <= group.size <= MAX_RANKS:
        raise errors.ProblemError(
            f"{where} has size {shown(group.size)}; it is a number of ranks, 1 to {MAX_RANKS}. Correct it."
        )
    if group.nodes and (group.intra_node or not 2 <= group.nodes <= group.size):
        raise errors.ProblemError(
            f"{where} has {group.size} ranks on {group.nodes} nodes, and is {'' if group.intra_node else 'not '}in one "
            "node: these do not fit. Correct them, or leave nodes out."
        )
    listed = group.ranks
    if listed and (len(set(listed)) != group.size or len(listed) != group.size or min(listed) < 0):
        raise errors.ProblemError(
            f"{where} has {group.size} ranks and lists {len(listed)}: list each once, from 0 on, or leave ranks out."
        )


def timeless(what: str, kind: Kind, time_us: float) -> errors.ProblemError:
    """The error for a node that cannot take time; ``what``: the node, or where its time is written."""
    article = "a" if kind is Kind.WAIT else "an"
    return errors.ProblemError(
        f"{what} {shown(time_us)} us, but {article} {kind.value} takes no time: only compute nodes and collectives do. "
        "Make it a compute node, or drop its time."
    )


def shown(number: float) -> str:
    """A number for an error message; of a huge integer, how large it is."""
    if isinstance(number, int) and number.bit_length() > 128:
        return f"{'-' if number < 0 else ''}2**{number.bit_length() - 1} or more"
    return str(number)
