"""Results written over what they were made of: by hand, what is refused, and chosen with the order."""

from dataclasses import replace

import pytest

from overlap_sched import Kind, Node, Problem
from overlap_sched.errors import RewriteError
from overlap_sched.report.words.rewrites import record_text
from overlap_sched.transform.apply import apply
from overlap_sched.transform.in_place import COPYING, in_place_op, legal_together, places
from overlap_sched.transform.records import records
from overlap_sched.transform.rewrites import InPlace, Rewrite, from_json, to_json
from tests.support.puts import put_step
from tests.support.sharded import COPY_US_PER_BYTE, PRICES

ONE = put_step([100], rows=8, readers=1)
OVER = InPlace("put0", "zeros0")


def named(problem: Problem, name: str) -> Node:
    return next(node for node in problem.nodes if node.name == name)


def changed(problem: Problem, name: str, **fields: object) -> Problem:
    nodes = (node._replace(**fields) if node.name == name else node for node in problem.nodes)  # type: ignore[arg-type]
    return replace(problem, nodes=tuple(nodes))


def ids(problem: Problem) -> dict[str, int]:
    return {node.name: v for v, node in enumerate(problem.nodes)}


def test_by_hand() -> None:
    """The put moves 2 * 100 + 8 + 1 bytes; in place 3 * (8 + 1) at most. Who looks at the zeros comes before."""
    after = apply(ONE, [OVER], PRICES)
    put, (zeros,) = named(after, "put0"), named(after, "zeros0").alloc
    assert (put.op, put.alloc, put.bytes) == ("aten.index_put_.default", (), 27)
    assert put.time_us == pytest.approx(27 * COPY_US_PER_BYTE)
    assert zeros in put.use
    assert {after.nodes[u].name for u in put.deps} == {"zeros0", "at", "mm0", "look0_0"}
    assert named(after, "scatter0").use == (zeros,)
    assert named(after, "scatter0_wait").use[0] == zeros
    assert sum(s.bytes for s in after.storages) == sum(s.bytes for s in ONE.storages) - 100
    names = [node.name for node in after.nodes]
    assert names.index("look0_0") < names.index("put0")
    assert sorted(names) == sorted(node.name for node in ONE.nodes)
    (record,) = records(ONE, after, [OVER])
    assert (record.stream_us, record.held_bytes) == (0.0, -100)
    assert record.compute_us == pytest.approx((27 - 209) * COPY_US_PER_BYTE)
    assert record_text(record) == "put0 written over zeros0: 1.8 us less compute, 100 B not allocated"


def test_as_plain_data() -> None:
    assert to_json([OVER]) == [{"kind": "in_place", "node": "put0", "over": "zeros0"}]
    assert from_json(to_json([OVER])) == (OVER,)
    assert in_place_op("aten.scatter_reduce.two") == "aten.scatter_reduce_.two"


@pytest.mark.parametrize(("moved", "want"), [(0, 0), (199, 199), (200, 0), (250, 150), (400, 400)])
def test_in_place_never_takes_longer(moved: int, want: int) -> None:
    """Where the bytes do not hold two tables, nothing is known; where others are many, no more than before."""
    problem = changed(ONE, "put0", bytes=moved, time_us=5.0)
    put = named(apply(problem, [OVER], PRICES), "put0")
    assert (put.bytes, put.time_us) == (want, pytest.approx(5.0 * want / moved if moved else 5.0))


def pinned(name: str) -> Problem:
    (s,) = named(ONE, name).alloc
    return replace(ONE, storages=tuple(one._replace(pinned=k == s or one.pinned) for k, one in enumerate(ONE.storages)))


def through_a_view(name: str, op: str = "aten.view.default") -> Problem:
    """The put also takes a view of the zeros, or what has written to them: it stands in the place of what is given."""
    at, (zeros,) = ids(ONE)["zeros0"], named(ONE, "zeros0").alloc
    view = Node(name, Kind.COMPUTE, (at,), (), (zeros,), op=op)
    nodes = [
        node._replace(
            deps=tuple(u + (u > at) for u in node.deps),
            collective=node.collective and node.collective + (node.collective > at),
        )
        for node in ONE.nodes
    ]
    nodes.insert(at + 1, view)
    nodes = [n._replace(deps=(*n.deps, at + 1)) if n.name == "put0" else n for n in nodes]
    return replace(ONE, nodes=tuple(nodes))


LOOKS_BACK = changed(ONE, "look0_0", deps=(ids(ONE)["zeros0"], ids(ONE)["put0"]))
GIVEN_BACK = changed(
    ONE, "output", use=(*named(ONE, "output").use, *named(ONE, "zeros0").alloc), deps=(*named(ONE, "output").deps,)
)
NEVER_WAITED = replace(
    ONE,
    nodes=tuple(
        node._replace(kind=Kind.COLLECTIVE, op="all_reduce", group="fsdp") if node.name == "look0_0" else node
        for node in ONE.nodes
    ),
)
REFUSED: list[tuple[Problem, list[Rewrite], str]] = [
    (ONE, [InPlace("gone", "zeros0")], "there is no node 'gone' to rewrite: it is not in the graph, or gone by now."),
    (ONE, [InPlace("mm0", "at")], f"'mm0' is 'aten.mm.default': what can be written in place is {', '.join(COPYING)}."),
    (ONE, [InPlace("w", "at")], f"'w' is 'input': what can be written in place is {', '.join(COPYING)}."),
    (ONE, [InPlace("put0", "at")], "'at' makes no storage of its own, or several: it cannot be written over."),
    (ONE, [InPlace("put0", "look0_0")], "'put0' does not take 'look0_0'."),
    (ONE, [InPlace("put0", "mm0")], "'put0' makes 100 bytes and 'mm0' 8: only what is as large can be written over."),
    (pinned("zeros0"), [OVER], "'put0' or 'zeros0' is never freed: each stays where it is."),
    (pinned("put0"), [OVER], "'put0' or 'zeros0' is never freed: each stays where it is."),
    (GIVEN_BACK, [OVER], "'zeros0' is given to 'output': it must stay as it is."),
    (LOOKS_BACK, [OVER], "'look0_0' takes 'zeros0' and comes after 'put0', which would have changed it."),
    (NEVER_WAITED, [OVER], "a collective that reads 'zeros0' is not waited for: it must stay as it is."),
    (through_a_view("seen"), [OVER], "'put0' also takes 'zeros0' through 'seen': it would read what it writes."),
    (
        through_a_view("filled", "aten.fill_.Scalar"),
        [OVER],
        "'filled' writes to 'zeros0', too: it can be written over once.",
    ),
    (ONE, [OVER, OVER], f"'put0' is 'aten.index_put_.default': what can be written in place is {', '.join(COPYING)}."),
]  # fmt: skip


@pytest.mark.parametrize(("problem", "rewrites", "message"), REFUSED, ids=[text for *_, text in REFUSED])
def test_what_is_refused_and_why(problem: Problem, rewrites: list[Rewrite], message: str) -> None:
    with pytest.raises(RewriteError) as caught:
        apply(problem, rewrites, PRICES)
    assert str(caught.value) == message


def test_a_collective_that_reads_what_is_written_over_is_waited_for_before() -> None:
    at, last, (zeros,) = ids(ONE), len(ONE.nodes) - 1, named(ONE, "zeros0").alloc
    wait = Node("look_wait", Kind.WAIT, (at["look0_0"],), (), (zeros, *named(ONE, "look0_0").alloc))
    output = ONE.nodes[last]._replace(deps=(*ONE.nodes[last].deps, last))
    nodes = (*NEVER_WAITED.nodes[:last], wait._replace(collective=at["look0_0"]), output)
    after = apply(replace(ONE, nodes=nodes), [OVER], PRICES)
    assert {after.nodes[u].name for u in named(after, "put0").deps} == {"zeros0", "at", "mm0", "look_wait"}


def test_zeros_of_several_are_written_over_once() -> None:
    """The last of two puts into the same zeros; the first still copies them, before that."""
    two = put_step([100, 100])
    (zeros,), second = named(two, "zeros0").alloc, named(two, "put1")
    (other,) = named(two, "zeros1").alloc
    shared = changed(
        two,
        "put1",
        deps=tuple(ids(two)["zeros0"] if u == ids(two)["zeros1"] else u for u in second.deps),
        use=tuple(zeros if s == other else s for s in second.use),
    )
    found = places(shared)
    assert found == [InPlace("put1", "zeros0"), InPlace("put0", "zeros0")]
    assert legal_together(shared, found, PRICES) == found[:1]
    after = apply(shared, found[:1], PRICES)
    assert ids(after)["put0"] in named(after, "put1").deps
    with pytest.raises(RewriteError, match="'put1' writes to 'zeros0', too: it can be written over once"):
        apply(shared, found, PRICES)
