"""Read and write problems as ``overlap-problem/1`` (some as ``/2``): JSON, plain or gzipped.

``name``; ``groups``: {name: {``size``, ``intra_node``, where known ``nodes`` and ``ranks``}};
``storages``: list of {``bytes``, ``pinned``}; ``nodes``
in the original order, ids are indices: ``name``, ``kind``, ``deps``, ``alloc``, ``use``, ``us`` (microseconds,
absent: 0), ``op``, ``flops``, ``bytes``, ``group``, ``collective``, where known ``module``, ``marks`` (pins, see
:mod:`overlap_sched.problem.pins`); optionally ``memory_model`` (absent: ``runtime``).
Version 2 adds the ``launches`` of nodes (process groups on which compute communicates by itself, ``"*"``: any) and
``contention``: ``slowdown`` {operator prefix: factor on compute}, ``links`` {group: link}, where there is any
``stretch`` {operator prefix: factor on collectives} and ``shares`` {"flops" or "bytes": part of a slowdown} with
``flops_per_byte``, with more than one ``lanes`` and ``crowding``, see
:mod:`overlap_sched.problem.contention`. Written only where there is any: all else stays readable to old versions.

Files are not trusted: every field is checked for its type here, for its meaning by :class:`Problem`; a key that is not
among those above is an error.
"""

import gzip
import json
from pathlib import Path
from typing import Any

from overlap_sched.errors import ProblemError
from overlap_sched.problem import Group, Node, Problem
from overlap_sched.problem.contention import NO_CONTENTION
from overlap_sched.problem.limits import DEFAULT_LIMITS, Limits
from overlap_sched.problem.paths import nameable
from overlap_sched.problem.quantities import LONGEST_US, shown
from overlap_sched.problem.reader import FORMAT, FORMAT_2, Reader
from overlap_sched.problem.unpack import read_json

PARTS_PER_NODE = 16
"""JSON objects and lists, at most: a node has four, each storage is one. Parsed, they take far more than their text."""


def read_problem(path: str | Path, comm_scale: float = 1.0, limits: Limits = DEFAULT_LIMITS) -> Problem:
    """Read a problem.

    Args:
        path: The file, plain or gzipped.
        comm_scale: Every collective takes so many times as long.
        limits: How large the file may be.

    Raises:
        ProblemError: The file is missing, cut short, not gzip or JSON, or has an unknown key or a wrong type.
        InputTooLargeError: The file is larger than the limits.
        ProblemError: Its content breaks a rule of :mod:`overlap_sched.problem`.
    """
    if not 0 <= comm_scale <= LONGEST_US:
        raise ProblemError(f"comm_scale is {shown(comm_scale)}: it is a finite factor of 0 or more.")
    data = _load(Path(path), limits)
    return Reader(str(path), comm_scale, limits).problem(data)


def write_problem(problem: Problem, path: str | Path) -> None:
    """Write a problem; gzipped where the name ends in ``.gz``."""
    Path(nameable(path)).write_bytes(problem_bytes(problem, gzipped=str(path).endswith(".gz")))


def problem_bytes(problem: Problem, *, gzipped: bool = False) -> bytes:
    """A problem as a file holds it. The same problem gives the same bytes."""
    contention = problem.contention != NO_CONTENTION
    newer = contention or any(node.launches for node in problem.nodes)
    data: dict[str, Any] = {"format": FORMAT_2 if newer else FORMAT, "name": problem.name}
    if problem.memory_model != "runtime":
        data["memory_model"] = problem.memory_model
    if contention:
        data["contention"] = {
            "slowdown": dict(problem.contention.slowdown),
            "links": dict(problem.contention.links),
        }
        if problem.contention.stretch:
            data["contention"]["stretch"] = dict(problem.contention.stretch)
        if problem.contention.lanes > 1:
            data["contention"] |= {"lanes": problem.contention.lanes, "crowding": problem.contention.crowding}
        if problem.contention.shares:
            shares, balance = dict(problem.contention.shares), problem.contention.flops_per_byte
            data["contention"] |= {"shares": shares, "flops_per_byte": balance}
    data["groups"] = {name: _group_fields(group) for name, group in problem.groups.items()}
    data["storages"] = [storage._asdict() for storage in problem.storages]
    data["nodes"] = [_node_fields(node) for node in problem.nodes]
    text = json.dumps(data, separators=(",", ":")).encode()
    return gzip.compress(text, mtime=0) if gzipped else text


def _group_fields(group: Group) -> dict[str, Any]:
    return {name: value for name, value in group._asdict().items() if name not in ("nodes", "ranks") or value}


def _node_fields(node: Node) -> dict[str, Any]:
    fields = node._asdict()
    fields["us"] = fields.pop("time_us")
    required = ("name", "kind", "deps", "alloc", "use")
    defaults = {"us": 0.0, "op": "", "group": None, "collective": None, "flops": 0, "bytes": 0}
    defaults |= {"launches": (), "module": "", "marks": ()}
    return {name: value for name, value in fields.items() if name in required or value != defaults[name]}


def _load(path: Path, limits: Limits) -> Any:
    def too_many(parts: int) -> str:
        if parts <= PARTS_PER_NODE * limits.nodes:
            return ""
        return (
            f"{path}: has {parts:,} objects and lists, more than a problem of {limits.nodes:,} nodes has. "
            "Raise the limit (--max-nodes on the command line) if the file is meant to be that large."
        )

    return read_json(path, limits, "problem", ProblemError, too_many)
