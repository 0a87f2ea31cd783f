"""Slots on the link, chains of copies, and choices that are taken back, by hand."""

import random

import numpy as np
import pytest

from overlap_sched.cost import Roofline
from overlap_sched.fit import fit
from overlap_sched.fit.greedy import Above, Greedy
from overlap_sched.fit.state import LinkTime, LiveState
from overlap_sched.problem import Kind, Node, Problem, Storage
from overlap_sched.transform.host import HostLink
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Recompute

MIB = 2**20


def test_slots_never_overlap() -> None:
    link = LinkTime(HostLink("a byte per us", 1e6, 0.0), 100.0)
    assert link.slots(10, 0.0, 15.0) is None
    assert link.slots(10, 0.0, 30.0) == (0.0, 20.0)
    link.take(10, 0.0, 20.0)
    assert link.slots(10, 0.0, 30.0) is None
    assert link.slots(5, 0.0, 30.0) == (10.0, 15.0)
    assert link.slots(10, 0.0, 60.0) == (10.0, 50.0)


def chain() -> Problem:
    """A value of 64 MiB of one of 64 MiB that nobody else uses; both made from x, then a long computation."""
    node, kind = Node, Kind
    nodes = [
        node("x", kind.INPUT, alloc=(0,)),
        node("h", kind.COMPUTE, (0,), (1,), (0,), 5.0, "aten.mul"),
        node("value", kind.COMPUTE, (1,), (2,), (1,), 10.0, "aten.gelu"),
    ]
    for k in range(6):
        nodes.append(node(f"m{k}", kind.COMPUTE, (2 + k,), (3 + k,), (2 + k,), 500.0, "aten.mm"))
    nodes.append(node("grad", kind.COMPUTE, (2, 8), (9,), (2, 8), 100.0, "aten.mm"))
    nodes.append(node("output", kind.OUTPUT, (9,), (), (9,)))
    sizes = (1, 64, 64, *(40,) * 4, 1, 1, 1)
    return Problem("chain", tuple(nodes), tuple(Storage(size * MIB, s == 0) for s, size in enumerate(sizes)))


def test_what_a_copy_needs_is_made_again_too() -> None:
    found = fit(chain(), Prices(Roofline()), memory_limit=135 * MIB, kinds=("recompute",))
    assert found.fits
    assert found.best.rewrites == (
        Recompute(("value",), ("grad",)),
        Recompute(("h",), ("again_value",)),
    )
    assert found.best.step_us == found.without.step_us + 15.0


def test_a_choice_that_is_not_needed_any_more_is_taken_back() -> None:
    problem = chain()
    state = LiveState(problem, 135 * MIB, None)
    greedy = Greedy(state, None, None, ("recompute",), 0.05)
    greedy.run()
    assert sum(bool(copy.parts) for copies in state.copies.values() for copy in copies) == 2
    state.limit_bytes = 10**12
    greedy.run()
    assert not any(copy.parts for copies in state.copies.values() for copy in copies)
    assert state.profile.tolist() == LiveState(problem, 10**12, None).profile.tolist()


def layers(depth: int) -> Problem:
    """Layers that are all alike, forward and backward: each saves a value for its gradient."""
    node, kind = Node, Kind
    nodes = [node("x", kind.INPUT, alloc=(0,))]
    nodes += [node(f"f{k}", kind.COMPUTE, (k,), (1 + k,), (k,), 100.0, "aten.gelu") for k in range(depth)]
    for k in reversed(range(depth)):
        last, saved = len(nodes) - 1, 1 + k
        given = (saved,) if k == depth - 1 else (saved, last)
        nodes.append(
            node(f"b{k}", kind.COMPUTE, tuple(sorted(given)), (last + 1,), tuple(sorted(given)), 100.0, "aten.mul")
        )
    nodes.append(node("output", kind.OUTPUT, (len(nodes) - 1,), (), (len(nodes) - 1,)))
    return Problem("layers", tuple(nodes), tuple(Storage(MIB, s == 0) for s in range(2 * depth + 1)))


@pytest.mark.slow
@pytest.mark.parametrize(("bytes_per_s", "each"), [(2e10, 2), (5e9, 25)], ids=["free", "filled"])
def test_few_values_are_priced_for_one_that_is_chosen(bytes_per_s: float, each: int) -> None:
    """Layers tie: all get worse together, and are not all priced again. On a link that fills, prices rise, too."""
    state = LiveState(layers(200), 60 * MIB, None)
    greedy = Greedy(state, LinkTime(HostLink("link", bytes_per_s, 0.0), 0.0), None, ("recompute", "offload"), 0.05)
    assert greedy.run()
    assert greedy.chosen > 100
    assert greedy.looked <= 200 + each * greedy.chosen


@pytest.mark.parametrize("seed", range(20))
def test_what_is_taken_above_a_limit(seed: int) -> None:
    """By prefix sums and by the places themselves."""
    rng = random.Random(seed)
    excess = np.array([rng.choice((0, 0, 3, 10, 50)) for _ in range(40)], dtype=np.int64)
    above = Above(excess)
    for _ in range(50):
        begin, end, nbytes = rng.randrange(41), rng.randrange(41), rng.choice((1, 5, 20, 100))
        assert above.taken(begin, end, nbytes) == sum(min(int(one), nbytes) for one in excess[begin:end])
        assert above.any(begin, end) == bool((excess[begin:end] > 0).any())
