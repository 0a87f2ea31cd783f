"""What the nodes of a problem compute, as text: the oracle for rewrites. It knows names, and nothing of the package."""

from typing import Any

from overlap_sched.problem import Kind, Problem


def meanings(problem: Problem) -> dict[str, Any]:
    """Per node, what it stands for: a collective of something, a matmul of some things, or several things packed.

    Views, copies, waits and new buffers mean what they are made from; a collective of packed things means packed
    collectives; ``_part_i`` and ``_get_i`` take one out.
    """
    found: dict[str, Any] = {}
    for node in problem.nodes:
        names = [problem.nodes[u].name for u in node.deps]
        before = [found[name] for name in names]
        new = node.name.startswith(("bucket_", "split_", "again_"))
        if node.kind is Kind.COLLECTIVE:
            op = node.op.removesuffix("_coalesced")
            (what,) = (before,) if node.op != op else before
            found[node.name] = [(op, one) for one in what] if isinstance(what, list) else (op, what)
        elif node.kind is Kind.WAIT:
            (found[node.name],) = before
        elif new and "_in_" not in node.name and node.name.endswith("_in"):
            found[node.name] = [found[name] for name in sorted(names, key=_index)]
        elif new and node.name.startswith("bucket_") and ("_part_" in node.name or "_get_" in node.name):
            (packed,) = before
            found[node.name] = packed[_index(node.name)]
        elif new and node.name.startswith("split_") and "_part_" in node.name:
            found[node.name] = (*before, "part", _index(node.name))
        elif new and node.name.endswith("_copy"):
            found[node.name] = _whole([found[name] for name in sorted(names, key=_index)])
        elif new:
            (found[node.name],) = before
        else:
            found[node.name] = (node.name, *sorted(before, key=repr))
    return found


def _index(name: str) -> int:
    return int(name.rsplit("_", 1)[1])


def _whole(parts: list[Any]) -> Any:
    """Collectives of all parts of one thing, in their order, are the collective of it."""
    ops = {op for op, _ in parts}
    things = {repr(what[0]) for _, what in parts}
    assert len(ops) == len(things) == 1
    assert [what[2] for _, what in parts] == list(range(len(parts)))
    return (ops.pop(), parts[0][1][0])
