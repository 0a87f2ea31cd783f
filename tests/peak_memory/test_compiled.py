"""The compiled allocator answers as the one in Python does, whatever it is asked."""

import importlib.util
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched import EXAMPLE, Problem
from overlap_sched.peak_memory.allocator import kinds
from overlap_sched.peak_memory.allocator.caching import NO_BLOCK, CachingAllocator, OutOfDeviceMemoryError
from overlap_sched.peak_memory.allocator.kinds import COMPILED, Allocator, allocator, in_python
from overlap_sched.peak_memory.live_ranges import LiveRanges
from overlap_sched.problem.allocator_settings import (
    EXPANDABLE,
    MIB,
    NO_LIMIT,
    PLAIN,
    AllocatorSettings,
    allocator_settings,
)
from tests.support.graphs import problems
from tests.support.oracle import random_order

if COMPILED:
    from overlap_sched.peak_memory.allocator import _compiled

needs_compiled = pytest.mark.skipif(not COMPILED, reason="no C compiler was there when the package was installed")

SETTINGS = (
    PLAIN,
    EXPANDABLE,
    replace(PLAIN, max_split_size_bytes=24 * MIB),
    replace(EXPANDABLE, max_split_size_bytes=25 * MIB, max_non_split_rounding_bytes=2 * MIB),
    replace(EXPANDABLE, large_segment_size_bytes=6 * MIB),
    allocator_settings("roundup_power2_divisions:[1:2,2:8,>:8],large_segment_size_mb:12"),
    allocator_settings("roundup_power2_divisions:[4:1,16:4,>:2],expandable_segments:True"),
)
SIZES = st.one_of(
    st.sampled_from((0, 1, 511, 512, 513, MIB - 511, MIB, MIB + 1, 8 * MIB, 10 * MIB - 1, 10 * MIB, 32 * MIB)),
    st.integers(0, 3 * MIB),
    st.integers(0, 40 * MIB),
)
REQUESTS = st.one_of(
    st.tuples(st.just("allocate"), SIZES),
    st.tuples(st.just("free"), st.integers(0, 100)),
    st.tuples(st.just("serve"), st.lists(SIZES, max_size=12)),
    st.tuples(st.just("capacity"), st.one_of(st.integers(0, 150 * MIB), st.just(NO_LIMIT))),
    st.tuples(st.just("halts"), st.booleans()),
    st.tuples(st.just("most_retries"), st.sampled_from((0, 1, 2, NO_LIMIT))),
    st.tuples(st.just("most_lent_bytes"), st.one_of(st.integers(0, 100 * MIB), st.just(NO_LIMIT))),
    st.tuples(st.just("copy"), st.just(0)),
    st.tuples(st.just("ask"), SIZES),
)


class Asked:
    """An allocator that is asked one thing after the other; it says all that can be seen of it."""

    def __init__(self, new: Allocator) -> None:
        self.allocator, self.held, self.left = new, list[int](), list[Allocator]()

    def ask(self, what: str, value: Any) -> object:
        """What came of it: a block, the name of an exception, or figures."""
        if what == "allocate":
            try:
                self.held.append(self.allocator.allocate(value))
            except OutOfDeviceMemoryError as error:
                return type(error)
            return self.held[-1]
        if what == "free":
            return self.allocator.free(self.held.pop(value % len(self.held))) if self.held else None
        if what == "serve":
            return self.serve(value)
        if what == "copy":
            self.left.append(self.allocator)
            self.allocator = self.allocator.copied()
            return None
        if what == "ask":
            limited = self.allocator.capacity < NO_LIMIT
            return self.allocator.growth_bytes(value), limited and self.allocator.shortfall_bytes(max(value, 1))
        setattr(self.allocator, what, value)
        return getattr(self.allocator, what)

    def serve(self, sizes: list[int]) -> object:
        """Storages of such sizes, but the first; two of three are freed at once, all in the end."""
        events = [event for s in range(len(sizes)) for event in ((s, ~s) if s % 3 else (s,))]
        held, lent_for = [NO_BLOCK] * len(sizes), list[int]()
        at = self.allocator.serve(events, sizes, held, lent_for, min(1, len(events)))
        found = at, list(held), lent_for
        assert self.allocator.serve(tuple(~s for s in range(len(sizes))), sizes, held, lent_for) == len(sizes)
        assert set(held) <= {NO_BLOCK}
        return found

    def seen(self) -> tuple[object, ...]:
        return figures(self.allocator, self.held)

    def seen_of_what_was_copied(self) -> list[tuple[object, ...]]:
        return [figures(one, ()) for one in self.left]


def figures(found: Allocator, held: tuple[int, ...] | list[int]) -> tuple[object, ...]:
    return (
        (found.settings, found.capacity, found.halts, found.most_retries, found.most_lent_bytes, found.lent_bytes),
        (found.reserved_bytes, found.allocated_bytes, found.peak_reserved_bytes, found.peak_allocated_bytes),
        (found.segments, found.retries, found.largest_free_bytes(), sorted(found.free_blocks())),
        [found.size_of(block) for block in held if block != NO_BLOCK],
    )


@needs_compiled
@given(st.sampled_from(SETTINGS), st.integers(20 * MIB, 200 * MIB), st.lists(REQUESTS, max_size=80))
def test_the_same_answers(settings: AllocatorSettings, capacity: int, requests: list[tuple[str, Any]]) -> None:
    one, other = Asked(in_python(settings, capacity)), Asked(allocator(settings, capacity))
    assert type(one.allocator) is not type(other.allocator)
    for request in requests:
        assert one.ask(*request) == other.ask(*request)
        assert one.seen() == other.seen()
    assert one.seen_of_what_was_copied() == other.seen_of_what_was_copied()


@pytest.mark.slow
@needs_compiled
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_same_answers_under_pressure(settings: AllocatorSettings) -> None:
    """Many blocks on devices that are full: whole pages and segments that just fit, or do not; some requests lent."""
    for seed in range(40):
        fuzz = random.Random(seed)
        one, other = Asked(in_python(settings, 100 * MIB)), Asked(allocator(settings, 100 * MIB))
        for _ in range(300):
            request = under_pressure(fuzz, one.allocator)
            assert one.ask(*request) == other.ask(*request)
            assert one.seen() == other.seen()
        assert one.seen_of_what_was_copied() == other.seen_of_what_was_copied()


def under_pressure(fuzz: random.Random, found: Allocator) -> tuple[str, Any]:
    """A request; a device has a few pages more than are reserved, and lends as few."""
    pages = fuzz.choice((0, 0, 2, 6, 10, 12, 20, 24, 40)) * MIB
    what = fuzz.choices(("allocate", "free", "capacity", "most_lent_bytes", "rare"), (50, 40, 4, 4, 2))[0]
    if what == "allocate":
        size = fuzz.choice((fuzz.randint(1, 30) * MIB, int(2 ** fuzz.uniform(6, 25)), 2 ** fuzz.randint(9, 24)))
        return what, size + fuzz.choice((0, 0, 0, 1, 512))
    if what == "free":
        return what, fuzz.randrange(10**6)
    if what == "capacity":
        return what, found.reserved_bytes + pages
    if what == "most_lent_bytes":
        return what, found.lent_bytes + pages
    return fuzz.choice((("halts", True), ("halts", False), ("most_retries", found.retries + 2), ("copy", 0)))


@needs_compiled
@given(st.sampled_from(SETTINGS), st.integers(0, 2**32))
def test_the_same_answers_where_there_are_many_blocks(settings: AllocatorSettings, seed: int) -> None:
    """Hundreds of blocks come and go: tables grow, and places in them are used again."""
    fuzz = random.Random(seed)
    one, other = Asked(in_python(settings)), Asked(allocator(settings))
    for _ in range(600):
        size = int(2 ** fuzz.uniform(8, 24))
        request = ("free", fuzz.randrange(10**6)) if fuzz.random() < 0.45 else ("allocate", size)
        assert one.ask(*request) == other.ask(*request)
    assert one.seen() == other.seen()


@needs_compiled
@pytest.mark.parametrize("made", [in_python, allocator])
def test_blocks_that_are_not_in_use_cannot_be_given_back(made: Callable[..., Allocator]) -> None:
    new = made(PLAIN)
    with pytest.raises(KeyError, match=r"^512$"):
        new.free(512)
    with pytest.raises(KeyError, match=r"^512$"):
        new.size_of(512)
    with pytest.raises(KeyError, match=r"^-1$"):
        new.size_of(NO_BLOCK)
    new.free(NO_BLOCK)


@needs_compiled
def test_what_cannot_be_read_is_an_error() -> None:
    new: Any = allocator(PLAIN)
    for call in (new.allocate, new.free, new.size_of, new.growth_bytes, new.shortfall_bytes):
        with pytest.raises(TypeError):
            call("1 MiB")
    with pytest.raises(TypeError):
        new.capacity = "1 MiB"
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del new.capacity
    with pytest.raises(TypeError):
        type(new)(PLAIN, "1 MiB")
    with pytest.raises(AttributeError):
        type(new)(None)


@needs_compiled
@pytest.mark.parametrize("made", [in_python, allocator])
def test_what_a_serving_leaves(made: Callable[..., Allocator]) -> None:
    """12 MiB and 30: the second does not fit in 40, then 2 are lent for it. The third has no bytes."""
    new, held, lent_for = made(PLAIN, 40 * MIB), [NO_BLOCK] * 3, list[int]()
    events, sizes = [0, 1, ~0, 2], (12 * MIB, 30 * MIB, 0)
    assert new.serve(events, sizes, held, lent_for) == 1
    assert (held[1:], lent_for, new.allocated_bytes) == ([NO_BLOCK] * 2, [], 12 * MIB)
    new.most_lent_bytes = NO_LIMIT
    assert new.serve(tuple(events), list(sizes), held, lent_for, 1) == 4
    assert (held[0], held[2], lent_for, new.lent_bytes) == (NO_BLOCK, NO_BLOCK, [1], 2 * MIB)
    assert new.size_of(held[1]) == new.allocated_bytes == 30 * MIB
    assert new.serve(events, sizes, held, lent_for, 4) == 4


@needs_compiled
@pytest.mark.parametrize("made", [in_python, allocator])
def test_requests_that_are_wrong_are_errors(made: Callable[..., Allocator]) -> None:
    new: Any = made(PLAIN)
    for wrong in ([1], [~1]):
        with pytest.raises(IndexError):
            new.serve(wrong, (MIB,), [NO_BLOCK], [])
    with pytest.raises(IndexError):
        new.serve([1], (MIB,), [NO_BLOCK] * 2, [])
    with pytest.raises(IndexError):
        new.serve([~1], (MIB, MIB), [NO_BLOCK], [])
    with pytest.raises(KeyError, match=r"^512$"):
        new.serve([~0], (MIB,), [512], [])
    with pytest.raises(ValueError, match=r"counted from 0|Indices"):
        new.serve([0], (MIB,), [NO_BLOCK], [], -1)
    with pytest.raises(TypeError):
        new.serve(["0"], (MIB,), [NO_BLOCK], [])
    with pytest.raises(TypeError):
        new.serve([0], ("1 MiB",), [NO_BLOCK], [])
    with pytest.raises(TypeError):
        new.serve(None, (MIB,), [NO_BLOCK], [])
    assert new.allocated_bytes == 0


@needs_compiled
@given(problems(models=("runtime",)), st.integers(0, 2**32))
def test_the_same_events(problem: Problem, seed: int) -> None:
    live_ranges, order = LiveRanges(problem), random_order(problem, seed)
    middle = len(order) // 2
    left, counted = live_ranges.uses_left(), live_ranges.uses_left()
    for nodes in (order[:middle], tuple(order[middle:])):
        assert kinds.events_of(live_ranges, nodes, left) == kinds.events_in_python(live_ranges.steps, nodes, counted)
        assert left == counted


@needs_compiled
def test_nodes_that_are_wrong_are_errors() -> None:
    events_of: Any = _compiled.events_of
    for nodes in ([1], [-1]):
        with pytest.raises(IndexError, match=rf"there is no node {nodes[0]}"):
            events_of([((0,), (), ())], nodes, [1])
    for storage in (3, -1):
        with pytest.raises(IndexError, match=f"there is no storage {storage}"):
            events_of([((), (storage,), ())], [0], [1])
    for step in ((), ((), ()), ((), (), [0])):
        with pytest.raises(TypeError, match="a step is three tuples of storages"):
            events_of([step], [0], [1])
    for step in (((), ("0",), ()), ((), (), ("0",))):
        with pytest.raises(TypeError):
            events_of([step], [0], [1])
    with pytest.raises(TypeError):
        events_of([((), (0,), ())], [0], ["1"])
    with pytest.raises(TypeError):
        events_of([], 0, [1])


def test_without_the_compiled_one_python_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("overlap_sched.peak_memory.allocator._compiled", raising=False)
    monkeypatch.setitem(sys.modules, "overlap_sched.peak_memory.allocator._compiled", None)
    found, live_ranges, order = anew(kinds), LiveRanges(EXAMPLE), EXAMPLE.original_order
    assert not found.COMPILED
    assert type(found.allocator(PLAIN, MIB)) is CachingAllocator
    assert found.all_events_of(live_ranges, order) == kinds.all_events_of(live_ranges, order)


def anew(module: ModuleType) -> ModuleType:
    """A module as it is when it is imported now."""
    spec = importlib.util.spec_from_file_location("imported_anew", str(module.__file__))
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
