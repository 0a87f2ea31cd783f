"""Digests and stores for the tests; picklable, no torch."""

from dataclasses import replace

from overlap_sched.distributed import Digest, digest_of
from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE, Problem


def problem(operator: str = "aten.mm") -> Problem:
    """The drawn example with another operator in it: another graph."""
    nodes = list(EXAMPLE.nodes)
    nodes[4] = nodes[4]._replace(op=operator)
    return replace(EXAMPLE, nodes=tuple(nodes), name=operator)


def digest(operator: str = "aten.mm", *, headroom: int = 0, slower_us: float = 0.0, swapped: bool = False) -> Digest:
    """The digest of such a graph, with other options, other times, or another order than the original one."""
    made = problem(operator)
    nodes = tuple(node._replace(time_us=node.time_us + slower_us) if node.time_us else node for node in made.nodes)
    order = list(made.original_order)
    if swapped:
        order[0], order[1] = order[1], order[0]
    return digest_of(replace(made, nodes=nodes), Options(headroom=headroom), order)


class MemoryStore:
    """What :class:`overlap_sched.distributed.agreement.Store` asks for, in a dictionary."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def add(self, key: str, amount: int) -> int:
        total = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.values.get(key, b"") == expected.encode() and (key in self.values or not expected):
            self.values[key] = desired.encode()
        return self.values.get(key, expected.encode())
