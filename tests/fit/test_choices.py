"""Slots on the link, chains of copies, and choices that are taken back, by hand."""

from overlap_sched.cost import Roofline
from overlap_sched.fit import fit
from overlap_sched.fit.greedy import Greedy
from overlap_sched.fit.link_time import LinkTime
from overlap_sched.fit.state import LiveState
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


def test_two_streams_do_not_disturb_each_other() -> None:
    link = LinkTime(HostLink("a byte per us", 1e6, 0.0, streams=2), 100.0)
    link.take(10, 0.0, 20.0)
    assert link.slots(10, 0.0, 30.0) == (10.0, 10.0) or link.slots(10, 0.0, 30.0) is None
    assert link.slots(10, 5.0, 40.0) == (10.0, 30.0)


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
