"""The rules of hazards on lists made by hand, and against brute force: all orders they allow, no more and no fewer."""

import random
from collections.abc import Iterable

import pytest

from overlap_sched.fx.hazards import (
    Launch,
    Pair,
    blocking_hazards,
    chain_hazards,
    fence_hazards,
    impurity_hazards,
    launch_chains,
    storage_hazards,
)
from overlap_sched.fx.operators import Ordering

NONE, RANDOM, EFFECT, BARRIER, FENCE = Ordering
Steps = list[tuple[str, str]]
"""Per position what is read and what is written: a storage is a letter."""


def storage_pairs(steps: Steps) -> list[Pair]:
    return sorted(set(storage_hazards((at, reads, writes) for at, (reads, writes) in enumerate(steps))))


def impurity_pairs(orderings: Iterable[Ordering]) -> list[Pair]:
    return sorted(impurity_hazards(enumerate(orderings)))


def closure(n: int, pairs: Iterable[Pair]) -> set[Pair]:
    """All that follows: (later, earlier)."""
    behind: list[set[int]] = [set() for _ in range(n)]
    for at, before in sorted(pairs):
        assert before < at
        behind[at] |= {before, *behind[before]}
    return {(at, before) for at in range(n) for before in behind[at]}


@pytest.mark.parametrize(
    ("steps", "pairs"),
    [
        pytest.param([("", "a"), ("a", "")], [(1, 0)], id="read after write"),
        pytest.param([("a", ""), ("", "a")], [(1, 0)], id="write after read"),
        pytest.param([("", "a"), ("", "a")], [(1, 0)], id="write after write"),
        pytest.param([("a", ""), ("a", "")], [], id="read after read"),
        pytest.param([("", "a"), ("", "b"), ("a", ""), ("b", "")], [(2, 0), (3, 1)], id="each storage by itself"),
        pytest.param([("a", "a"), ("a", "a")], [(1, 0)], id="both at once, never behind itself"),
        pytest.param([("a", ""), ("a", ""), ("", "a")], [(2, 0), (2, 1)], id="a write after all readers"),
        pytest.param([("a", ""), ("", "a"), ("", "a")], [(1, 0), (2, 1)], id="readers before the last write follow"),
    ],
)
def test_storages(steps: Steps, pairs: list[Pair]) -> None:
    assert storage_pairs(steps) == pairs


@pytest.mark.parametrize(
    ("orderings", "pairs"),
    [
        pytest.param([RANDOM, RANDOM], [(1, 0)], id="random numbers"),
        pytest.param([EFFECT, EFFECT], [(1, 0)], id="effects"),
        pytest.param([RANDOM, EFFECT, RANDOM, EFFECT], [(2, 0), (3, 1)], id="each of its kind"),
        pytest.param([NONE, NONE], [], id="writes and communication, by themselves free"),
        pytest.param([NONE, RANDOM, EFFECT, BARRIER], [(3, 0), (3, 1), (3, 2)], id="a barrier after all"),
        pytest.param([BARRIER, NONE, RANDOM, EFFECT], [(1, 0), (2, 0), (3, 0)], id="all after a barrier"),
        pytest.param([BARRIER, BARRIER], [(1, 0)], id="barriers"),
        pytest.param([RANDOM, BARRIER, RANDOM], [(1, 0), (2, 1)], id="a barrier in between"),
        pytest.param([RANDOM, BARRIER, BARRIER], [(1, 0), (2, 1)], id="only since the last barrier"),
        pytest.param([RANDOM, FENCE, RANDOM], [(1, 0), (2, 1)], id="a fence is a barrier too"),
    ],
)
def test_impurity(orderings: list[Ordering], pairs: list[Pair]) -> None:
    assert impurity_pairs(orderings) == pairs


def test_a_fence_holds_back_what_nothing_else_does() -> None:
    # 0 -> 1, 2 | fence 3 | 4 -> 5 | fence 6
    nodes: list[tuple[int, bool, set[int]]] = [
        (0, False, set()),
        (1, False, {0}),
        (2, False, set()),
        (3, True, set()),
        (4, False, {0}),
        (5, False, {4}),
        (6, True, set()),
    ]
    assert sorted(fence_hazards(nodes)) == [(3, 1), (3, 2), (4, 3), (6, 3), (6, 5)]


def test_only_groups_with_sends_or_receives_keep_their_launch_order() -> None:
    launches = [Launch(0, "pipe", False), Launch(1, "data", False), Launch(3, "pipe", True), Launch(7, "data", False)]
    assert launch_chains(launches) == [[0, 3]]
    assert launch_chains(launches[:2]) == []
    assert list(chain_hazards([[0, 3, 8], [5]])) == [(3, 0), (8, 3)]


@pytest.mark.parametrize("seed", range(50))
def test_storages_against_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    steps = [tuple("".join(s for s in "abc" if rng.random() < 0.25) for _ in range(2)) for _ in range(12)]
    conflicts = [
        (at, before)
        for at, (reads, writes) in enumerate(steps)
        for before, (reads_before, writes_before) in enumerate(steps[:at])
        if {*writes} & {*reads_before, *writes_before} or {*reads} & {*writes_before}
    ]
    assert closure(12, storage_pairs(steps)) == closure(12, conflicts)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(50))
def test_blocking_against_brute_force(seed: int) -> None:
    """Two that share a group, or one on any, keep their order where one of them blocks."""
    rng = random.Random(seed)
    blocking = [("*",), ("a", "b"), *"abc"]
    drawn = [(rng.choice(blocking), True) if rng.random() < 0.4 else (rng.choice("abc"), False) for _ in range(12)]
    steps = [(at, groups, blocks) for at, (groups, blocks) in enumerate(drawn)]
    conflicts = [
        (at, before)
        for at, groups, blocks in steps
        for before, others, blocked in steps[:at]
        if (blocks or blocked) and ("*" in (*groups, *others) or not {*groups}.isdisjoint(others))
    ]
    assert closure(12, blocking_hazards(steps)) == closure(12, conflicts)


@pytest.mark.parametrize("seed", range(50))
def test_impurity_and_fences_against_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    n = 12
    orderings = [rng.choice([NONE, NONE, RANDOM, RANDOM, EFFECT, EFFECT, BARRIER, FENCE]) for _ in range(n)]
    pairs = [(at, before) for at in range(n) for before in range(at)]
    conflicts = [
        (at, before)
        for at, before in pairs
        if max(orderings[at], orderings[before]) >= BARRIER or NONE != orderings[at] == orderings[before]
    ]
    assert closure(n, impurity_pairs(orderings)) == closure(n, conflicts)
    data = [pair for pair in pairs if rng.random() < 0.15]
    fences = [pair for pair in pairs if FENCE in (orderings[pair[0]], orderings[pair[1]])]
    nodes = [(at, orderings[at] is FENCE, {u for v, u in data if v == at}) for at in range(n)]
    assert closure(n, [*data, *fence_hazards(nodes)]) == closure(n, [*data, *fences])
