"""One rank of a real gloo job: ``python -m tests.support.agreement_ranks SCENES FOLDER``, started as torchrun would.

It runs all scenes in one process group and writes what each of them gave to ``FOLDER/rank.json``.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from overlap_sched.distributed import Digest, agree, broadcast_costs, digest_of
from overlap_sched.distributed.agreement import membership_of
from overlap_sched.options import Options
from overlap_sched.problem import EXAMPLE

# Digests and stores for the tests; picklable, no torch.


def digest(operator: str = "aten.mm", *, headroom: int = 0, slower_us: float = 0.0, swapped: bool = False) -> Digest:
    """The digest of the drawn example with an operator in it, other options, other times, or another order."""
    nodes = [node._replace(time_us=node.time_us + slower_us) if node.time_us else node for node in EXAMPLE.nodes]
    nodes[4] = nodes[4]._replace(op=operator)
    first, second, *rest = EXAMPLE.original_order
    order = [second, first, *rest] if swapped else EXAMPLE.original_order
    return digest_of(replace(EXAMPLE, nodes=tuple(nodes), name=operator), Options(headroom=headroom), order)


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


@dataclass
class FaultyStore:
    """A store of which one operation goes wrong, or all from that one on.

    Attributes:
        store: The real one.
        at: Which operation, counted from 1; 0: none.
        how: ``"before"``, ``"after"``, ``"garbage"`` comes back, ``"slow"``, ``"for good"``, ``"for good, done"``.
        calls: How many there were.
        standing: Which operation made this rank stand waiting: the first at which others may count on it; 0: none.
    """

    store: Any
    at: int = 0
    how: str = "before"
    calls: int = 0
    standing: int = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self.store, name)

        def perform(key: Any, *rest: Any) -> Any:
            self.calls += 1
            if name == "set" and "/at/" in str(key) and not self.standing:
                self.standing = self.calls
            hit = self.calls == self.at or (self.how.startswith("for good") and 0 < self.at <= self.calls)
            if hit and self.how in ("before", "for good"):
                raise RuntimeError("Broken pipe")
            result = operation(key, *rest)
            if hit and self.how in ("after", "for good, done"):
                raise RuntimeError("Broken pipe")
            if hit and self.how == "slow":
                time.sleep(0.2)
            return b"garbage" if hit and self.how == "garbage" and isinstance(result, bytes) else result

        return perform


class Clock:
    """Time that passes only while somebody sleeps; then other ranks may do something."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now_s, self.naps_s, self.meanwhile = 0.0, list[float](), meanwhile

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now_s += seconds
        self.naps_s.append(seconds)
        self.meanwhile()


LIMIT_S = 60.0
"""Far more than a loaded machine needs; scenes in which a rank is missing use a short one."""


def ask(mine: Digest, timeout_s: float = LIMIT_S) -> dict[str, Any]:
    agreement = agree(mine, timeout_s)
    return {**asdict(agreement.verdict), "in_doubt": agreement.in_doubt}


def scenes(rank: int, last: int) -> dict[str, Any]:
    """Everything in which no rank dies; the last rank is the odd one."""
    odd = rank == last
    found: dict[str, Any] = {}
    found["equal"] = ask(digest("equal"))
    found["operators"] = ask(digest("another" if odd else "graph"))
    found["options"] = ask(digest("options", headroom=int(odd)))
    found["costs"] = ask(digest("costs", slower_us=float(odd)))
    slower_us = broadcast_costs({"all": rank + 0.1}, timeout_s=LIMIT_S)["all"]
    found["costs of rank 0"] = ask(digest("shared costs", slower_us=slower_us))
    found["order"] = ask(digest("order", swapped=odd))
    one, other = digest("one"), digest("other")
    found["different order"] = {mine.name: ask(mine) for mine in ((other, one) if odd else (one, other))}
    found["hit and miss"] = [ask(digest("cached"))]
    if not odd:  # the odd one finds it in a cache the second time
        found["hit and miss"].append(ask(digest("cached"), 1.0))
    dist.barrier()
    twice = digest("twice")
    failed = Digest(failure="KeyError: 'mm'", key=twice.key, launches=twice.launches)
    found["fails the second time"] = [ask(twice), ask(failed if odd else twice)]
    found["late"], limit_s = [], 0.05
    for i in range(12):
        time.sleep(limit_s * i / 6 if odd else 0.0)
        found["late"].append(ask(digest(f"late {i}"), limit_s))
        dist.barrier()
    total = torch.ones(1)
    dist.all_reduce(total)
    found["collectives still work"] = total.item()
    return found


def one_dies(rank: int, last: int) -> dict[str, Any]:
    dist.barrier()
    if rank == last:
        os._exit(0)
    return {"died": ask(digest("died"), 1.0)}


def server_dies(rank: int, last: int) -> dict[str, Any]:
    """Rank 0 serves the store; it goes while the other waits."""
    if rank == 0:
        membership = membership_of()
        assert membership is not None
        while not membership.store.check(["overlap_sched/agreement/all/waiting"]):
            time.sleep(0.01)
        os._exit(0)
    return {"no store": ask(digest("no store"))}


def main(names: list[str], folder: str) -> None:
    dist.init_process_group("gloo")
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    found: dict[str, Any] = {}
    for name in names:
        found |= {"scenes": scenes, "one_dies": one_dies, "server_dies": server_dies}[name](rank, last)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    if rank == 0:  # serves the store: goes last
        while len(list(Path(folder).glob("*.json"))) < last:
            time.sleep(0.01)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1].split(","), sys.argv[2])
