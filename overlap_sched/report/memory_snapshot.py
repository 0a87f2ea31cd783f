"""Predicted allocations as a snapshot for torch's memory viewer (https://pytorch.org/memory_viz).

The format is that of ``torch.cuda.memory._dump_snapshot``: "Snapshot API Reference" in torch's document "Understanding
CUDA Memory Usage", and what ``torch/cuda/_memory_viz.py`` reads (torch 2.13 to 2.15)::

    device_traces   per device, what the allocator did, in turn: segment_alloc, alloc, free_requested, free_completed
    segments        what it holds at the end: blocks by address, in use or free

Device 0 is the original order, device 1 the new one. What the allocator does is our replay of it with plain segments
(:mod:`overlap_sched.simulate.allocator`): simulated, as every frame says. A frame names the node that
allocates; where a stack trace has the number of a line it has the position in the order. Files are only written here,
never read: they are pickles of lists, dictionaries, texts and whole numbers.
"""

import pickle
from bisect import bisect_left
from itertools import chain
from pathlib import Path
from typing import Any

from overlap_sched.errors import OptionsError
from overlap_sched.judge.replay import replay
from overlap_sched.problem import Kind, Order, Problem
from overlap_sched.problem.sizes import PLAIN
from overlap_sched.report.files import write_file
from overlap_sched.report.timeline import memory_kinds
from overlap_sched.report.units import printable
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.simulate.allocator import SMALL_BASE, Address, Block, CachingAllocator, requests_of
from overlap_sched.simulate.ledger import LiveRanges

PROTOCOL = 4
"""Of pickle: the viewer's script reads 2 to 4."""
_BASE, _SMALL_BASE = 2**40, 2**50
"""The first address of each pool: ours begin at 0, which is none, and at more than a number of JavaScript can tell."""
_STREAM = 0
_UNKNOWN = "unknown"
"""A category that must be there: the viewer's script stumbles over categories without it."""

Entry = dict[str, Any]


def write_memory_snapshot(schedule: Schedule, path: str | Path, original: Problem | None = None) -> None:
    """Write the file.

    Args:
        schedule: Whose order is the new one.
        path: The file; torch's viewer takes any name.
        original: Whose order is the original one; ``None``: the same problem (else it was rewritten).

    Raises:
        OptionsError: The memory model is the tracker's: the allocator is not replayed in it.
        OutputError: The file cannot be written.
    """
    write_file(path, pickle.dumps(memory_snapshot(schedule, original), PROTOCOL))


def memory_snapshot(schedule: Schedule, original: Problem | None = None) -> dict[str, Any]:
    """The same as data."""
    problem = schedule.problem
    if problem.memory_model != "runtime":
        raise OptionsError(
            f"a memory snapshot replays torch's allocator, which is not done in the {problem.memory_model} memory "
            "model: it frees what a collective in flight still holds. Capture the graph in the runtime model."
        )
    was = problem if original is None else original
    replayed = [
        _Replayed(was, was.original_order, 0, "original order"),
        _Replayed(problem, schedule.order, 1, "new order"),
    ]
    return {
        "segments": [segment for device in replayed for segment in device.segments()],
        "device_traces": [device.entries for device in replayed],
        "simulated": f"{printable(problem.name)}: device 0 is the original order, device 1 the new one. Nothing was "
        "measured: predicted by overlap_sched, by a replay of torch's caching allocator with plain segments.",
    }


class _Replayed:
    """What the allocator does in one order.

    Attributes:
        entries: In turn.
    """

    def __init__(self, problem: Problem, order: Order, device: int, title: str) -> None:
        self.entries: list[Entry] = []
        self._problem, self._device, self._title = problem, device, title
        self._kinds = memory_kinds(problem)
        self._position = {v: at for at, v in enumerate(order)}
        self._allocator, self._held = CachingAllocator(PLAIN), dict[int, Address]()
        self._segments = list[Block]()
        ranges, run = LiveRanges(problem), replay(problem, order)
        last = {span.storage: order[span.last] for span in ranges.of(order)}
        for event in chain.from_iterable(requests_of(ranges, order).steps):
            s = event if event >= 0 else ~event
            maker, v = problem.maker[s], last[s]
            if not problem.storages[s].bytes:
                continue
            if event >= 0:
                is_input = problem.nodes[maker].kind is Kind.INPUT
                self._allocate(s, 0.0 if is_input else run.at_us[maker])
            else:
                address, launched = self._held.pop(s), problem.nodes[v].kind is Kind.COLLECTIVE
                self._allocator.free(address)
                for action in ("free_requested", "free_completed"):
                    self._add(action, address, s, run.at_us[v] if launched else run.finish_us[v])

    def _allocate(self, s: int, at_us: float) -> None:
        reserved, segments = self._allocator.reserved_bytes, self._allocator.segments
        block = self._allocator.allocate(self._problem.storages[s].bytes)
        if self._allocator.segments > segments:  # a block of a new segment is its first
            self._segments.append(Block(block, self._allocator.reserved_bytes - reserved))
            self._add("segment_alloc", block, s, at_us, size=self._segments[-1].size, category=_UNKNOWN)
        self._held[s] = block
        self._add("alloc", block, s, at_us)

    def _add(self, action: str, address: int, s: int, at_us: float, **other: object) -> None:
        entry = {"action": action, "addr": _shown(address), "size": self._problem.storages[s].bytes, "stream": _STREAM}
        entry |= {"time_us": round(at_us), "category": self._kinds[s], **other}
        self.entries.append(entry | {"frames": self._frames(s, str(entry["category"]))})

    def _frames(self, s: int, kind: str) -> list[Entry]:
        """In the place of a stack trace: the viewer shows ``filename:line:name``."""
        maker = self._problem.maker[s]
        node = self._problem.nodes[maker]
        what = ", ".join(filter(None, (printable(node.op), kind, f"{self._title}, simulated")))
        return [{"filename": printable(node.name), "line": self._position[maker], "name": what}]

    def segments(self) -> list[Entry]:
        """Return the segments that are there at the end."""
        blocks: dict[int, Entry] = {}
        for s, at in self._held.items():
            blocks[at] = {
                "size": self._allocator.size_of(at),
                "requested_size": self._problem.storages[s].bytes,
                "state": "active_allocated",
                "frames": self._frames(s, self._kinds[s]),
            }
        for at, size in self._allocator.free_blocks():
            blocks[at] = {"size": size, "requested_size": 0, "state": "inactive", "frames": []}
        addresses, found = sorted(blocks), []
        for begin, size in self._segments:
            first, end = (bisect_left(addresses, at) for at in (begin, begin + size))
            within = [{"address": _shown(at), **blocks[at]} for at in addresses[first:end]]
            active = sum(block["size"] for block in within if block["state"] == "active_allocated")
            found.append(
                {
                    "device": self._device,
                    "address": _shown(begin),
                    "total_size": size,
                    "stream": _STREAM,
                    "segment_type": "small" if begin >= SMALL_BASE else "large",
                    "allocated_size": active,
                    "active_size": active,
                    "requested_size": sum(block["requested_size"] for block in within),
                    "is_expandable": False,
                    "blocks": within,
                    "frames": [],
                }
            )
        return found


def _shown(address: Address) -> int:
    return address - SMALL_BASE + _SMALL_BASE if address >= SMALL_BASE else address + _BASE
