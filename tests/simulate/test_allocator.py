"""The allocator's replay against torch's rules and slow models of it; live ranges against drawn ones."""

import json
import random
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.errors import OptionsError
from overlap_sched.problem import EXAMPLE, Kind, Node, Problem, Storage
from overlap_sched.problem.file import problem_bytes
from overlap_sched.problem.sizes import (
    EXPANDABLE,
    MIB,
    PLAIN,
    AllocatorSettings,
    allocator_settings,
    settings_in_environment,
)
from overlap_sched.simulate.allocator import (
    CachingAllocator,
    ExpandableAllocator,
    OutOfDeviceMemoryError,
    Requests,
    Reservation,
    replay_allocator,
    requests_of,
    rounded,
)
from overlap_sched.simulate.ledger import LiveRange, LiveRanges
from tests.support.graphs import problems
from tests.support.oracle import random_order

KIB = 2**10


class Slow:
    """Segments as lists of [size, in use], searched from end to end."""

    def __init__(self) -> None:
        self.segments: list[tuple[bool, list[list[int]]]] = []

    def allocate(self, count: int) -> tuple[int, int]:
        size = (count + 511) // 512 * 512
        small = size <= MIB
        while True:
            fits = [
                (part[0], k, i)
                for k, (is_small, parts) in enumerate(self.segments)
                for i, part in enumerate(parts)
                if is_small == small and not part[1] and part[0] >= size
            ]
            if fits:
                break
            length = 2 * MIB if small else 20 * MIB if size < 10 * MIB else (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB
            self.segments.append((small, [[length, 0]]))
        _, k, i = min(fits)
        part = self.segments[k][1][i]
        left = part[0] - size
        if left >= 512 if small else left > MIB:
            part[0] = size
            self.segments[k][1].insert(i + 1, [left, 0])
        part[1] = 1
        return k, sum(p[0] for p in self.segments[k][1][:i])

    def free(self, where: tuple[int, int]) -> None:
        k, offset = where
        parts = self.segments[k][1]
        at = 0
        for part in parts:
            if at == offset:
                part[1] = 0
            at += part[0]
        joined: list[list[int]] = []
        for part in parts:
            if joined and not joined[-1][1] and not part[1]:
                joined[-1][0] += part[0]
            else:
                joined.append(part)
        parts[:] = joined

    def reserved(self) -> int:
        return sum(part[0] for _, parts in self.segments for part in parts)

    def used(self) -> int:
        return sum(part[0] for _, parts in self.segments for part in parts if part[1])


SIZES = st.sampled_from(
    (1, 512, 700, 64 * KIB, MIB - 511, MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 11 * MIB, 33 * MIB)
)


@given(st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 30)), max_size=60))
def test_against_a_slow_allocator(script: list[tuple[bool, int, int]]) -> None:
    fast, slow, held = CachingAllocator(), Slow(), []
    for give_back, size, which in script:
        if give_back and held:
            address, where = held.pop(which % len(held))
            fast.free(address)
            slow.free(where)
        else:
            held.append((fast.allocate(size), slow.allocate(size)))
        assert (fast.reserved_bytes, fast.allocated_bytes) == (slow.reserved(), slow.used())
        assert fast.segments == len(slow.segments)


def test_replay_of_the_example() -> None:
    # w (1 MiB, small): a segment of 2. x (4), full (8), g (4): 16 of a segment of 20, then dx (4) fills it; x and full
    # are gone when dw (8) comes: both lie side by side, so it fits. ds (1): the rest of w's segment
    assert replay_allocator(EXAMPLE, EXAMPLE.original_order) == Reservation(22 * MIB, 21 * MIB, 2)


def judged(judge: ModuleType, data: Any, order: tuple[int, ...], capacity: int | None) -> tuple[int, int] | None:
    try:
        found = judge.replay(data, list(order), capacity)
    except judge.OutOfMemory:
        return None
    return found.peak_reserved, found.retries


def ours(requests: Requests, capacity: int) -> tuple[int, int] | None:
    try:
        found = requests.replayed(PLAIN, capacity)
    except OutOfDeviceMemoryError:
        return None
    return found.peak_reserved_bytes, found.retries


@given(problems(models=("runtime",)), st.integers(0, 100))
def test_plain_segments_as_the_judge_has_them(allocator_judge: ModuleType, problem: Problem, percent: int) -> None:
    large = with_sizes_of_all_kinds(problem)
    data = json.loads(problem_bytes(large))
    requests = requests_of(LiveRanges(large), large.original_order)
    free = requests.replayed(PLAIN)
    assert judged(allocator_judge, data, large.original_order, None) == (free.peak_reserved_bytes, 0)
    capacity = free.peak_reserved_bytes * percent // 100
    assert judged(allocator_judge, data, large.original_order, capacity) == ours(requests, capacity)


def with_sizes_of_all_kinds(problem: Problem) -> Problem:
    """From some hundred kilobytes to 40 MiB: small segments, shared ones and those of one request."""
    storages = tuple(storage._replace(bytes=storage.bytes * 300_001 % (40 * MIB)) for storage in problem.storages)
    return replace(problem, storages=storages)


def run(allocator: CachingAllocator, script: str) -> CachingAllocator:
    """``a12 b3 -a c12``: allocate MiB by name, give back."""
    held = {}
    for word in script.split():
        if word[0] == "-":
            allocator.free(held.pop(word[1:]))
        else:
            held[word[0]] = allocator.allocate(int(float(word[1:]) * MIB))
    return allocator


def test_a_retry_gives_back_what_is_wholly_free() -> None:
    found = run(CachingAllocator(PLAIN, 40 * MIB), "a12 b14 -a c20")
    assert (found.retries, found.reserved_bytes) == (1, 34 * MIB)
    with pytest.raises(OutOfDeviceMemoryError):  # half of the first segment is in use: it stays
        run(CachingAllocator(PLAIN, 40 * MIB), "a12 -a d3 b14 c20")


def test_expandable_segments_unmap_whole_pages_under_pressure() -> None:
    # b lies from 45 to 115 MiB: once it is free, the two pages from 60 to 100 can go, what is left of others cannot
    before = "a45 b70 c5 -b"
    assert run(ExpandableAllocator(), before).reserved_bytes == 120 * MIB
    found = run(ExpandableAllocator(EXPANDABLE, 160 * MIB), f"{before} d80")
    assert (found.retries, found.reserved_bytes, found.peak_reserved_bytes) == (1, 160 * MIB, 160 * MIB)
    with pytest.raises(OutOfDeviceMemoryError):
        run(ExpandableAllocator(EXPANDABLE, 160 * MIB - 1), f"{before} d80")


def test_unmapped_pages_are_mapped_again_at_the_lowest_place() -> None:
    allocator = run(ExpandableAllocator(EXPANDABLE, 160 * MIB), "a45 b70 c5 -b")
    with pytest.raises(OutOfDeviceMemoryError):
        allocator.allocate(200 * MIB)
    assert allocator.reserved_bytes == 80 * MIB
    assert (allocator.allocate(50 * MIB), allocator.reserved_bytes) == (45 * MIB, 120 * MIB)


def test_pages_that_are_unmapped_one_after_the_other_are_one_place() -> None:
    allocator = ExpandableAllocator(EXPANDABLE, 60 * MIB)
    first, second, _ = (allocator.allocate(20 * MIB) for _ in range(3))
    for page in (first, second):
        allocator.free(page)
        with pytest.raises(OutOfDeviceMemoryError):
            allocator.allocate(50 * MIB)
    assert allocator.reserved_bytes == 20 * MIB
    assert allocator.allocate(40 * MIB) == first


class SlowExpandable:
    """Bytes of one pool as pages and intervals, all of them looked at for every request."""

    def __init__(self, page: int) -> None:
        self.page, self.used, self.mapped = page, [], set()  # type: ignore[var-annotated]

    def allocate(self, size: int) -> int:
        free = self.free_blocks()
        fits = sorted((stop - start, start) for start, stop in free if stop - start >= size)
        if fits:
            k, ends = 0, [self.grows_to(start, start + length) for length, start in fits]
            while k + 1 < len(fits) and ends[k + 1] < ends[k]:
                k += 1
            start = fits[k][1]
        else:
            starts = [start for start, stop in free if stop // self.page not in self.mapped or stop % self.page]
            holes = sorted({self.end(), *starts})
            start = next(at for at in holes if self.room(at) >= size and self.can_start(at, free))
            self.mapped.update(range(start // self.page, -(-(start + size) // self.page)))
        self.used.append((start, start + size))
        return start

    def can_start(self, at: int, free: list[tuple[int, int]]) -> bool:
        grows = (start for start, stop in free if self.grows_to(start, stop) > stop - start)
        return at == self.end() or at in grows

    def end(self) -> int:
        return (max(self.mapped) + 1) * self.page if self.mapped else 0

    def room(self, at: int) -> int:
        return min((start - at for start, _ in self.used if start >= at), default=2**62)

    def grows_to(self, start: int, stop: int) -> int:
        return stop - start if stop < self.end() else 2**62

    def free_blocks(self) -> list[tuple[int, int]]:
        found, at = [], 0
        for start, stop in [*sorted(self.used), (self.end(), self.end())]:
            if start > at:
                found.append((at, start))
            at = stop
        return found


@given(st.integers(0, 10**6))
def test_expandable_segments_against_intervals(seed: int) -> None:
    rng = random.Random(seed)
    fast, slow = ExpandableAllocator(), SlowExpandable(20 * MIB)
    held: list[tuple[int, tuple[int, int]]] = []
    for _ in range(rng.randrange(40)):
        if held and rng.random() < 0.45:
            block, interval = held.pop(rng.randrange(len(held)))
            fast.free(block)
            slow.used.remove(interval)
        else:
            size = rng.choice((2, 3, 7, 12, 20, 45)) * MIB
            block, start = fast.allocate(size), slow.allocate(size)
            assert block == start
            held.append((block, (start, start + size)))
        assert fast.reserved_bytes == len(slow.mapped) * 20 * MIB


@given(problems(models=("runtime",)), st.sampled_from((PLAIN, EXPANDABLE)))
def test_the_smallest_capacity_is_found_by_bisection(problem: Problem, settings: AllocatorSettings) -> None:
    large = with_sizes_of_all_kinds(problem)
    requests = requests_of(LiveRanges(large), large.original_order)
    found = requests.smallest_capacity(settings)
    assert requests.live_bytes <= found <= requests.replayed(settings).peak_reserved_bytes
    assert requests.fits(found, settings)
    if found - 8 * MIB >= requests.live_bytes and not requests.fits(found - 8 * MIB, settings):
        assert requests.smallest_capacity(settings, found - 8 * MIB) <= found
    assert replay_allocator(EXAMPLE, EXAMPLE.original_order).reserved_bytes == 22 * MIB


def test_settings_as_torch_reads_them() -> None:
    assert allocator_settings("") == PLAIN
    assert allocator_settings("expandable_segments:True") == EXPANDABLE
    large = AllocatorSettings(max_split_size_bytes=512 * MIB)
    assert allocator_settings("backend:native, max_split_size_mb:512") == large
    divisions = allocator_settings("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]")
    assert [divisions.divisions(size * MIB) for size in (1, 256, 511, 512, 1024, 2048, 2**17)] == [1, 1, 1, 2, 4, 8, 8]
    assert [rounded(count) for count in (1, 512, 513, 2048)] == [512, 512, 1024, 2048]
    four = allocator_settings("roundup_power2_divisions:4")  # 1024, 1280, 1536, 1792, 2048: docs/source/notes/cuda.rst
    assert [rounded(count * MIB + 1, four) for count in (1024, 1200, 1536)] == [1280 * MIB, 1280 * MIB, 1792 * MIB]
    assert rounded(1200, four) == 1536  # below 512 times the divisions: to 512 bytes


@pytest.mark.parametrize("text", ["expandable_segments", "max_split_size_mb:20", "roundup_power2_divisions:3"])
def test_settings_that_torch_would_not_take(text: str) -> None:
    with pytest.raises(OptionsError, match=r"^allocator (is|has) "):
        allocator_settings(text)


def test_max_split_size() -> None:
    settings = allocator_settings("max_split_size_mb:50")
    assert run(CachingAllocator(settings), "a100 -a b20").reserved_bytes == 120 * MIB  # not split for a small request
    assert run(CachingAllocator(settings), "a100 -a b90").reserved_bytes == 100 * MIB  # within 20 MiB
    assert run(CachingAllocator(settings), "a100 -a b70").reserved_bytes == 170 * MIB
    pressed = run(CachingAllocator(settings, 150 * MIB), "a100 -a b70")
    assert (pressed.retries, pressed.reserved_bytes) == (0, 70 * MIB)  # one oversize block is given back: no retry
    whole = run(CachingAllocator(allocator_settings("max_split_size_mb:22")), "a22.1")
    assert whole.allocated_bytes == 24 * MIB  # 1.9 MiB of the segment are left, and stay with the block
    part = allocator_settings("max_split_size_mb:30,large_segment_size_mb:200")
    with pytest.raises(OutOfDeviceMemoryError):  # 195 MiB of the segment are free, but not all of it
        run(CachingAllocator(part, 210 * MIB), "a5 b40")


def test_settings_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    assert settings_in_environment() == "expandable_segments:True"
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    assert settings_in_environment() == "max_split_size_mb:64"
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "nonsense")
    assert settings_in_environment() == ""


@given(problems(models=("runtime",)), st.integers(0, 1000), st.sampled_from((PLAIN, EXPANDABLE)))
def test_step_by_step_it_is_what_requests_so_far_reserve(
    problem: Problem, seed: int, settings: AllocatorSettings
) -> None:
    large = with_sizes_of_all_kinds(problem)
    order = random_order(large, seed)
    requests = requests_of(LiveRanges(large), order)
    profile = requests.profile(settings)
    assert len(profile) == len(order)
    assert profile[-1] == max(profile) == requests.replayed(settings).peak_reserved_bytes
    for step in (0, len(order) // 2):  # behind a step: the inputs, and what the steps up to it make
        some = replace(requests, steps=requests.steps[: step + 2])
        assert profile[step] == some.replayed(settings).reserved_bytes


# storages     0: unused input  1: given up  2: pinned input  3: passing  4: pinned  5: of the output, unused
NODES = (
    Node("unused", Kind.INPUT, alloc=(0,)),
    Node("given", Kind.INPUT, alloc=(1,)),
    Node("weight", Kind.INPUT, alloc=(2,)),
    Node("make", Kind.COMPUTE, deps=(1,), alloc=(3, 4), use=(1, 2)),
    Node("use", Kind.COMPUTE, deps=(3,), use=(4,)),
    Node("output", Kind.OUTPUT, alloc=(5,)),
    Node("behind", Kind.COMPUTE, deps=(5,)),
)
STORAGES = (Storage(1), Storage(2), Storage(4, True), Storage(8), Storage(16, True), Storage(32))
PROBLEM = Problem("rules", NODES, STORAGES)


def test_every_rule() -> None:
    ranges = LiveRanges(PROBLEM).of(PROBLEM.original_order)
    spans = [(0, 6), (0, 3), (0, 6), (3, 3), (3, 6), (5, 6)]
    assert ranges == [LiveRange(s, STORAGES[s].bytes, *span) for s, span in enumerate(spans)]
    assert LiveRanges(PROBLEM).profile(PROBLEM.original_order).tolist() == [7, 7, 7, 31, 21, 53, 53]
    assert LiveRanges(PROBLEM).end_bytes == 53
