"""Process groups of a dump: names, sizes, ranks; and stand-ins while fake kernels run.

A collective names its group. Its size comes from the caller, from ``setup_fake_process_groups({...})`` in the file
(torch 2.11 and newer write it), from the operator's own ``group_size`` argument, or from its lists of splits. No
process group is ever initialised: a few fake kernels ask for a group by name, and find a stand-in for as long.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
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
            raise DumpGroupError(
                f"group {name!r} is given as {value!r}: give its size, 1 or more, or its ranks, each once."
            )
        found[str(name)] = DumpGroup(size, ranks)
    return found


def written_groups(path: str, literal: Any) -> dict[str, DumpGroup]:
    """The groups in the file's ``setup_fake_process_groups({'0': {'size': 64, 'rank': 0}})``."""
    found = {}
    if not isinstance(literal, dict | None):
        raise DumpGroupError(f"{path}: setup_fake_process_groups is given {literal!r}, not groups by name.")
    for name, info in (literal or {}).items():
        size = info.get("size") if isinstance(info, dict) else None
        if not isinstance(size, int) or not 1 <= size <= MAX_RANKS:
            raise DumpGroupError(f"{path}: setup_fake_process_groups gives group {name!r} as {info!r}, without a size.")
        found[str(name)] = DumpGroup(size)
    return found


def resolve_groups(
    graphs: Sequence[ParsedGraph],
    given: Mapping[str, DumpGroup],
    written: Mapping[str, DumpGroup],
    notes: dict[str, None],
) -> dict[str, DumpGroup]:
    """Size of every group that a collective of the graphs names, in the order of first use.

    A group whose size is not known is taken to be as large as the largest one named, which is noted.

    Raises:
        DumpError: A group is given that does not occur.
        DumpGroupError: Two sources disagree, or no size is known for any group.
    """
    found: dict[str, DumpGroup] = {}
    first_use: dict[str, str] = {}
    for parsed, node in ((one, node) for one in graphs for node in one.graph.nodes):
        for name, size in named_groups(node):
            first_use.setdefault(name, parsed.place(node))
            if size is not None and not 1 <= size <= MAX_RANKS:
                raise DumpGroupError(
                    f"{parsed.place(node)}: group {name!r} has {show_number(size)} ranks here; it has 1 to "
                    f"{MAX_RANKS}. Was the line edited?"
                )
            known = given.get(name) or written.get(name) or found.get(name)
            if known is not None and size is not None and known.size != size:
                written_there = "in setup_fake_process_groups" if name in written else "in another collective"
                where = "as given by the caller" if name in given else written_there
                raise DumpGroupError(
                    f"{parsed.place(node)}: group {name!r} has {size} ranks here, but {known.size} elsewhere "
                    f"({where}). Give groups={{{name!r}: {size}}}, or leave it out."
                )
            if known is not None or size is not None:
                found[name] = known or DumpGroup(size or 0)
    for name, group in given.items():
        if name not in (there := {**first_use, **written}):
            names = f"Its groups are {', '.join(map(repr, there))}" if there else "It names no group"
            raise DumpError(
                f"{graphs[0].path}: process group {name!r} is given (--group {name}={group.size} on the command line), "
                f"but the dump does not name it. {names}. Correct the name, or leave it out."
            )
    sizes = [group.size for group in (*found.values(), *given.values(), *written.values())]
    for name, place in first_use.items():
        if name not in found:
            if not sizes:
                raise DumpGroupError(
                    f"{place}: the size of process group {name!r} is not known. "
                    f"Give it: groups={{{name!r}: 64}} for 64 ranks (--group {name}=64 on the command line)."
                )
            found[name] = DumpGroup(max(sizes))
            notes[f"process group {name!r}: size not known, taken as {max(sizes)}, the largest one named"] = None
    return {name: found[name] for name in first_use}


def named_groups(node: fx.Node) -> list[tuple[str, int | None]]:
    """The groups that a call names, each with its size where the call has it."""
    call: Sequence[Any] = (node.target, *node.args)  # with_effects and the like carry an operator and its arguments
    at = next((i for i, one in enumerate(call) if isinstance(one, torch._ops.OpOverload)), None)
    if node.op != "call_function" or at is None:
        return []
    operator, *arguments = call[at:]
    by_name = arguments_of(operator, arguments, node.kwargs)
    size = by_name.get("group_size", by_name.get("world_size"))
    if not isinstance(size, int):
        splits = by_name.get("output_split_sizes") or by_name.get("input_split_sizes")
        size = len(splits) if isinstance(splits, list | tuple) and splits else None
    named = [by_name.get(argument.name) for argument in operator._schema.arguments if names_a_group(argument)]
    names = [value.target if isinstance(value, fx.Node) and value.op == "get_attr" else value for value in named]
    return [(name, size) for name in names if isinstance(name, str) and name]


def collective_result(op: Any, args: Sequence[Any], groups: Mapping[str, DumpGroup]) -> Any:
    """Fake what a collective returns whose own fake kernel is of no use here; NotImplemented for all others."""
    if not isinstance(op, torch._ops.OpOverload):
        return NotImplemented
    if op.name() == "_dtensor::shard_dim_alltoall":  # asks for this rank in a default group
        shape, size = list(args[0].shape), groups[args[3]].size
        shape[args[1]] *= size
        shape[args[2]] //= size
        return args[0].new_empty(shape)
    if op.name() == "fsdp::all_gather_copy_in" and len(args) == 7:  # until torch 2.8 it allocated what it gathers into
        numel, ranks, rank, dtype, device = args[2:]
        out = torch.empty(numel * ranks, dtype=dtype, device=device)
        return out.narrow(0, numel * rank, numel), out
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
