"""Process groups of a dump: names, sizes, ranks; and stand-ins while fake kernels run.

A collective names its group. Its size comes from the caller, from ``setup_fake_process_groups({...})`` in the file
(torch 2.11 and newer write it), from the operator's own ``group_size`` argument, or from its lists of splits. No
process group is ever initialised: a few fake kernels ask for a group by name, and find a stand-in for as long.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import fx

from overlap_sched.dump.graph import ParsedGraph
from overlap_sched.errors import DumpError, DumpGroupError
from overlap_sched.fx.operators import arguments_of, names_a_group
from overlap_sched.problem import MAX_RANKS
from overlap_sched.problem.sizes import show_number


class DumpGroup(NamedTuple):
    """A process group: how many ranks, and which, where the caller gave them."""

    size: int
    ranks: tuple[int, ...] | None = None


def given_groups(groups: Mapping[str, int | Sequence[int]] | None) -> dict[str, DumpGroup]:
    """The groups that the caller gives, by their size or their ranks."""
    found = {}
    for name, value in (groups or {}).items():
        ranks = None if isinstance(value, int) else tuple(value)
        size = value if isinstance(value, int) else len(value)
        if isinstance(value, bool) or not 1 <= size <= MAX_RANKS or (ranks is not None and len(set(ranks)) != size):
            raise DumpGroupError(f"group {name!r} is given as {value!r}: give its size, or its ranks, each once.")
        found[str(name)] = DumpGroup(size, ranks)
    return found


def written_groups(path: str, literal: Any) -> dict[str, DumpGroup]:
    """The groups in the file's ``setup_fake_process_groups({'0': {'size': 64, 'rank': 0}})``."""
    try:
        found = {str(name): DumpGroup(info["size"]) for name, info in (literal or {}).items()}
        assert all(isinstance(group.size, int) and 1 <= group.size <= MAX_RANKS for group in found.values())
    except (AssertionError, AttributeError, LookupError, TypeError):
        fault = f"setup_fake_process_groups is given {literal!r:.200}"
        raise DumpGroupError(f"{path}: {fault}, not groups by name, each with its size.") from None
    return found


class GroupUse(NamedTuple):
    """A call that names a group: the size that it says, and whether its fake kernel looks the name up."""

    parsed: ParsedGraph
    node: fx.Node
    name: str
    size: int | None
    looks_up: bool


def group_uses(graphs: Iterable[ParsedGraph]) -> list[GroupUse]:
    """Each group that a call names."""
    found = []
    for parsed, node in ((one, node) for one in graphs for node in one.graph.nodes if node.op == "call_function"):
        call: Sequence[Any] = (node.target, *node.args)  # with_effects and the like carry an operator and its arguments
        at = next((i for i, one in enumerate(call) if isinstance(one, torch._ops.OpOverload)), None)
        if at is None or not (named := _naming(call[at])):
            continue
        by_name = arguments_of(call[at], call[at + 1 :], node.kwargs)
        size = by_name.get("group_size", by_name.get("world_size"))
        if not isinstance(size, int):
            splits = by_name.get("output_split_sizes") or by_name.get("input_split_sizes")
            size = len(splits) if splits and isinstance(splits, list | tuple) else None
        names = [by_name.get(name) for name in named]
        names = [one.target if isinstance(one, fx.Node) and one.op == "get_attr" else one for one in names]
        looks_up = at > 0 or call[at].namespace != "_c10d_functional"
        found += [GroupUse(parsed, node, name, size, looks_up) for name in names if isinstance(name, str) and name]
    return found


@cache
def _naming(op: torch._ops.OpOverload) -> list[str]:
    """The arguments of an operator that name a group."""
    return [argument.name for argument in op._schema.arguments if names_a_group(argument)]


def resolve_groups(
    path: str,
    uses: Sequence[GroupUse],
    given: Mapping[str, DumpGroup],
    written: Mapping[str, DumpGroup],
    notes: dict[str, None],
) -> dict[str, DumpGroup]:
    """Size of every group that a collective names, in the order of first use.

    A group whose size is not known is taken to be as large as the largest one named, which is noted.

    Raises:
        DumpError: A group is given that does not occur.
        DumpGroupError: Two sources disagree, or no size is known for any group.
    """
    found: dict[str, DumpGroup] = {}
    for parsed, node, name, size, _ in uses:
        if size is not None and not 1 <= size <= MAX_RANKS:
            fault = f"{parsed.place(node)}: group {name!r} has {show_number(size)} ranks here"
            raise DumpGroupError(f"{fault}; it has 1 to {MAX_RANKS}. Was the line edited?")
        known = given.get(name) or written.get(name) or found.get(name)
        if known is not None and size is not None and known.size != size:
            fault = f"{parsed.place(node)}: group {name!r} has {size} ranks here, but {known.size} elsewhere"
            raise DumpGroupError(f"{fault}. Give groups={{{name!r}: {size}}}, or leave it out.")
        if known is not None or size is not None:
            found[name] = known or DumpGroup(size or 0)
    there = dict.fromkeys([*(use.name for use in uses), *written])
    for name in (name for name in given if name not in there):
        names = f"Its groups are {', '.join(map(repr, there))}" if there else "It names no group"
        fault = f"{path}: process group {name!r} is given (--group {name}={given[name].size})"
        raise DumpError(f"{fault}, but the dump does not name it. {names}. Correct the name, or leave it out.")
    largest = max([group.size for group in (*found.values(), *given.values(), *written.values())], default=0)
    for parsed, node, name, *_ in (use for use in uses if use.name not in found):
        if not largest:
            fault = f"{parsed.place(node)}: the size of process group {name!r} is not known"
            raise DumpGroupError(f"{fault}. Give it: groups={{{name!r}: 64}} (--group {name}=64 on the command line).")
        found[name] = DumpGroup(largest)
        notes[f"process group {name!r}: size not known, taken as {largest}, the largest one named"] = None
    return {name: found[name] for _, _, name, *_ in uses}


def collective_result(op: Any, args: Sequence[Any], groups: Mapping[str, DumpGroup]) -> Any:
    """Fake what a collective returns whose own fake kernel is of no use here; NotImplemented for all others."""
    if not isinstance(op, torch._ops.OpOverload):
        return NotImplemented
    if op.name() == "_dtensor::shard_dim_alltoall":  # asks for this rank in a default group
        shape, size = list(args[0].shape), groups[args[3]].size
        shape[args[1]] *= size
        shape[args[2]] //= size
        return args[0].new_empty(shape)
    if op.namespace == "c10d":  # in place, and a handle
        given = [(str(a.type), value) for a, value in zip(op._schema.arguments, args, strict=False)]
        found = [next((value for kind, value in given if kind == str(r.type)), None) for r in op._schema.returns]
        return found[0] if len(found) == 1 else tuple(found)
    return NotImplemented


@contextlib.contextmanager
def stand_ins(groups: Mapping[str, DumpGroup]) -> Iterator[None]:
    """Within it, a lookup of a group by name finds a fake one of the right size; afterwards all is as before."""
    if not groups or not torch.distributed.is_available():
        yield
        return
    c10d: Any = torch._C._distributed_c10d
    before: dict[str, Any] = {}
    made: dict[str, Any] = {}  # the registry alone does not keep them alive
    try:
        for name, group in groups.items():
            with contextlib.suppress(RuntimeError):
                before[name] = c10d._resolve_process_group(name)
                c10d._unregister_process_group(name)
            made[name] = c10d.ProcessGroup(0, group.size)
            c10d._register_process_group(name, made[name])
        yield
    finally:
        for name in made:
            c10d._unregister_process_group(name)
        for name, group in before.items():
            c10d._register_process_group(name, group)
