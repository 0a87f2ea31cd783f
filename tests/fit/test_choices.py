"""Slots on the link, chains of copies, and choices that are taken back, by hand."""

import random
from itertools import pairwise

import numpy as np
import pytest

from overlap_sched.cost import Roofline
from overlap_sched.fit import fit
from overlap_sched.fit.greedy import Above, Greedy
from overlap_sched.fit.state import LinkTime, LiveState
from overlap_sched.problem import Problem
from overlap_sched.transform.host import HostLink
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Recompute
from tests.support.fit_graphs import computed

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
    ahead = (("x", "", 1, 0.0), ("h", "x", 64, 5.0), ("value", "h", 64, 10.0))
    names = ["value", *(f"m{k}" for k in range(6))]
    large = ((v, u, 40 if v < "m4" else 1, 500.0) for u, v in pairwise(names))
    return computed("chain", *ahead, *large, ("grad", "value m5", 1, 100.0))


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
    ahead = [(f"f{k + 1}", f"f{k}", 1, 100.0) for k in range(depth)]
    back = [(f"b{k}", f"f{k} b{k + 1}" if k < depth else f"f{k}", 1, 100.0) for k in range(depth, 0, -1)]
    return computed("layers", ("f0", "", 1, 0.0), *ahead, *back)


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
