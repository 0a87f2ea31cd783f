"""A step cut into blocks of consecutive nodes, so that a program with a variable for each pair of them can be solved.

Views and updates in place go with what is before them; then neighbours are merged of which the second takes most bytes
of what the first makes, as long as a block takes little of the step::

    mm  view | relu | mm  view | ...  ->  mm  view  relu | mm  view ...
"""

from itertools import pairwise

from overlap_sched.problem import Kind, NodeId, Problem

Block = tuple[NodeId, ...]
_LARGEST = 1.5
"""How many times as long as the mean a block may take, at first; and what that grows by where nothing may be merged."""
_WIDER = 1.25


def blocks_of(problem: Problem, most: int) -> list[Block]:
    """The compute nodes in their original order, in ``most`` blocks (at least 1), or fewer; inputs, outputs in none."""
    nodes = problem.nodes
    blocks = _units(problem)
    us = [sum(nodes[v].time_us for v in block) for block in blocks]
    taken = [_taken_bytes(problem, *pair) for pair in pairwise(blocks)]
    cap_us = _LARGEST * sum(us) / most
    while len(blocks) > most:
        pairs = [k for k in range(len(taken)) if us[k] + us[k + 1] <= cap_us]
        if not pairs:
            cap_us *= _WIDER
            continue
        k = max(pairs, key=lambda k: (taken[k], -us[k] - us[k + 1], -k))
        blocks[k : k + 2] = [blocks[k] + blocks[k + 1]]
        us[k : k + 2] = [us[k] + us[k + 1]]
        around = blocks[max(k - 1, 0) : k + 2]
        taken[max(k - 1, 0) : k + 2] = [_taken_bytes(problem, *pair) for pair in pairwise(around)]
    return blocks


def _units(problem: Problem) -> list[Block]:
    """A block for each node that makes something, with those behind it that make nothing."""
    units: list[list[NodeId]] = []
    for v, node in enumerate(problem.nodes):
        if node.kind is Kind.COMPUTE:
            if units and not node.alloc:
                units[-1].append(v)
            else:
                units.append([v])
    return [tuple(unit) for unit in units]


def _taken_bytes(problem: Problem, one: Block, other: Block) -> int:
    """What the first makes and the second takes."""
    used = {s for v in other for s in problem.nodes[v].use}
    return sum(problem.storages[s].bytes for v in one for s in problem.nodes[v].alloc if s in used)
