"""What every node allocates and uses, in either memory model."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from torch import fx

from overlap_sched.fx.reading import Reading
from overlap_sched.problem import MemoryModel, Storage

DeviceFilter = Callable[[str], bool]
"""Whether storages on a device of this type (``"cuda"``) are counted."""


class Memory(NamedTuple):
    """Per node what it allocates and uses (ids of ``storages``); the storages that count."""

    alloc: list[tuple[int, ...]]
    use: list[tuple[int, ...]]
    storages: tuple[Storage, ...]


def memory_of(
    reading: Reading, memory_model: MemoryModel, kept: set[fx.Node], device_filter: DeviceFilter | None
) -> Memory:
    """Allocations and uses of a graph.

    ``runtime``: a wait allocates nothing and uses its collective's inputs and output; a collective that nothing waits
    for holds both to the end; what is mutated of the inputs stays. ``tracker``: as torch's
    ``memory_estimator.MemoryTracker`` sees them: each value's own storages, a use is an input's value, and what is
    never used is never freed.

    Without a filter, storages that are not on a CPU count; where all are, they do.
    """
    runtime = memory_model == "runtime"
    alloc, use = _runtime(reading) if runtime else _tracker(reading)
    pinned = _pinned(reading, kept, runtime)
    number = _numbering(reading, alloc, device_filter)
    table = reading.storages
    return Memory(
        [tuple([number[s] for s in a if s in number]) if a else a for a in alloc],
        [tuple([number[s] for s in u if s in number]) if u else u for u in use],
        tuple(Storage(table.nbytes[s], s in pinned) for s in number),
    )


def _runtime(r: Reading) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    root = r.storages.root
    alloc = [tuple([s for s in fresh if root[s] == s]) if fresh else fresh for fresh in r.raw_fresh]
    use = list(r.takes)
    for v, before in r.order_only.items():
        use[v] = _union(use[v], *(r.outs[u] for u in before))
    for v, launches in r.ends.items():
        use[v] = _union(*(r.held_in_flight(launch) for launch in launches), r.takes[v])
    waited = {launch for launches in r.ends.values() for launch in launches}
    in_flight = [v for v in r.launches if v not in waited]
    if in_flight and r.nodes[-1].op == "output":
        use[-1] = _union(use[-1], *(s for v in in_flight for s in (r.held_in_flight(v), r.outs[v])))
    return alloc, use


def _tracker(r: Reading) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    fake = r.storages.fake
    outs = [raw if all(fake[s] for s in raw) else tuple(s for s in raw if fake[s]) for raw in r.raw_outs]
    alloc = [tuple([s for s in fresh if fake[s]]) if fresh else fresh for fresh in r.raw_fresh]
    use = [outs[ids[0]] if len(ids) == 1 else _union(*(outs[u] for u in ids)) for ids in r.inputs]
    if r.nodes[-1].op == "output":
        used = {s for u in use for s in u}
        use[-1] = _union(use[-1], [s for a in alloc for s in a if s not in used])
    return alloc, use


def _union(*parts: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys([s for part in parts for s in part]))


def _pinned(r: Reading, kept: set[fx.Node], runtime: bool) -> set[int]:
    """Storages that are never freed."""
    pinned: set[int] = set()
    inputs: set[int] = set()
    for node, raw, roots in zip(r.nodes, r.raw_outs, r.outs, strict=True):
        if node.op == "placeholder":
            inputs.update(roots)
            if node in kept:
                pinned.update(roots if runtime else raw)
        elif node.op == "get_attr" and (runtime or node.name.startswith("primals")):
            pinned.update(roots if runtime else raw)
    if runtime:
        # the caller sees all writes but those of unknown calls, which we only suppose
        pinned.update(s for v, roots in r.writes.items() for s in roots if s in inputs and r.traits[v].known)
    return pinned


def _numbering(r: Reading, alloc: Iterable[tuple[int, ...]], device_filter: DeviceFilter | None) -> dict[int, int]:
    """From the raw storages that are allocated and counted to consecutive ids."""
    device = r.storages.device
    if device_filter is None:
        all_on_cpu = all(d == "cpu" for d in device)
        counted = {d: all_on_cpu or d != "cpu" for d in set(device)}
    else:
        counted = {d: device_filter(d) for d in set(device)}
    number: dict[int, int] = {}
    for stored in alloc:
        for s in stored:
            if counted[device[s]]:
                number[s] = len(number)
    return number
