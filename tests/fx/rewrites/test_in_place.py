"""Results written over what they were made of, in graphs: both halves agree, bits stay, and what is refused."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx

from overlap_sched.cost import Roofline
from overlap_sched.errors import RewriteError
from overlap_sched.fx import lift
from overlap_sched.fx.operators import traits_of
from overlap_sched.fx.rewrites import alike_of, prepare, rewrite_graph
from overlap_sched.fx.rewrites.in_place import IN_PLACE
from overlap_sched.fx.rewrites.planning import refusals_in
from overlap_sched.problem import Group, Problem
from overlap_sched.transform.apply import apply
from overlap_sched.transform.in_place import COPYING, in_place_op, places
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Bucket, Form, InPlace, Recompute, Regather, Rewrite
from tests.fx.rewrites.test_results import check_results
from tests.support.examples import examples
from tests.support.fx_graphs import (
    ATEN,
    C10D,
    gather,
    random_order,
    scatter,
    trace,
    wait,
)
from tests.support.rewrite_graphs import ancestors, by_name, described, refusal
from tests.support.written import COLUMNS, ROWS, WRITES, at, distinct, put, zeros

pytestmark = pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter")  # said once per process

GROUPS = {"0": Group(2, True)}


def problem_of(gm: fx.GraphModule) -> Problem:
    return lift(gm, groups=GROUPS).problem


def agree(gm: fx.GraphModule, rewrites: list[Rewrite]) -> None:
    """The rewritten graph, lifted, is the rewritten problem; by bytes it takes no longer than the problem says."""
    wanted = apply(problem_of(gm), rewrites, Prices(Roofline()), alike_of(gm))
    written = {one.node for one in rewrites if isinstance(one, InPlace)}
    rewrite_graph(gm, rewrites)
    gm.graph.lint()
    problems = problem_of(gm), wanted
    have, want = map(by_name, problems)
    for name in written:
        assert have[name]["bytes"] <= want[name]["bytes"]
        assert have[name]["time_us"] <= want[name]["time_us"]
    for nodes, needed in zip((have, want), map(ancestors, problems), strict=True):
        for name, node in nodes.items():
            node["deps"] = needed[name]
            if name in written:
                node["bytes"] = node["time_us"] = None
    assert have == want


def legal(gm: fx.GraphModule) -> list[InPlace]:
    refuses = refusals_in(lift(gm, groups=GROUPS))
    return [one for one in places(problem_of(gm)) if not refuses(one)]


def beside(write: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """Zeros that others look at, listed behind what is written: a sum, a view, a gather in flight."""

    def f(a: Tensor, b: Tensor) -> list[Tensor]:
        x = zeros() * 1.0
        ga = gather(x)
        y = write(x, a)
        view = x.view(-1)
        seen = view[3:7] * 2.0 + x.sum()
        wa = wait(ga)
        sy = scatter(y.view(4, -1))
        return [seen, wa[:2], wait(sy), y + b.sum()]

    return f


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("op", COPYING)
def test_both_halves_agree_and_bits_stay(op: str) -> None:
    shapes = ((4, COLUMNS), (4, COLUMNS))
    original, gm = (trace(beside(WRITES[op]), *shapes) for _ in range(2))
    (one,) = legal(gm)
    agree(gm, [one])
    (node,) = (n for n in gm.graph.nodes if n.name == one.node)
    assert traits_of(node.target).op == in_place_op(op)
    check_results(original, gm, 0, orders=3)


def test_each_operator_has_an_in_place_one() -> None:
    assert {traits_of(target).op: traits_of(to).op for target, to in IN_PLACE.items()} == {
        op: in_place_op(op) for op in COPYING
    }
    assert set(WRITES) == set(COPYING)


def chain(a: Tensor, b: Tensor) -> list[Tensor]:
    x = zeros() * 1.0
    y = put(x, a)
    z = put(y, b)
    return [z.view(-1) * 2.0, z]


def test_one_after_the_other_over_the_same_zeros() -> None:
    original, gm = (trace(chain, (4, COLUMNS), (4, COLUMNS)) for _ in range(2))
    wanted = [InPlace("index_put_1", "index_put"), InPlace("index_put", "mul")]
    assert legal(gm) == wanted
    agree(gm, list(wanted))
    problem = problem_of(gm)
    assert sum(bool(node.alloc) and node.op.startswith("aten.index_put") for node in problem.nodes) == 0
    check_results(original, gm, 1, orders=3)
    said = refusal(trace(chain, (4, COLUMNS), (4, COLUMNS)), wanted[::-1])
    assert said == "'index_put' makes no storage of its own, or several: it cannot be written over."


def test_views_whose_schema_does_not_say_so_look_at_what_is_written() -> None:
    def f(a: Tensor) -> list[Tensor]:
        y = put(zeros() * 1.0, a)
        return [ATEN._unsafe_view.default(y, [4, 16]) * 2.0, y * 3.0]

    agree(trace(f, (4, COLUMNS)), [OVER_MUL])


def shared(a: Tensor) -> list[Tensor]:
    x = zeros() * 1.0
    return [put(x, a) * 2.0, put(x, a * 0.5) * 3.0]


def test_zeros_of_several_are_written_over_once() -> None:
    """By the last; or by the first, which then comes behind the other."""
    for one, other in (("index_put_1", "index_put"), ("index_put", "index_put_1")):
        original, gm = (trace(shared, (4, COLUMNS)) for _ in range(2))
        both = [InPlace(one, "mul"), InPlace(other, "mul")]
        assert refusal(gm, list(both)) == "something else writes to 'mul': it can be written over once."
        agree(gm, both[:1])
        check_results(original, gm, 3, orders=3)


def test_what_is_written_to_afterwards_is_written_in_place_too() -> None:
    def f(a: Tensor) -> list[Tensor]:
        x = zeros() * 1.0
        y = put(x, a)
        s, seen = y.sum(), y.view(-1)[3:9] * 2.0
        y.mul_(s)
        return [seen, y.view(-1) * 1.0, s]

    original, gm = (trace(f, (4, COLUMNS)) for _ in range(2))
    agree(gm, [InPlace("index_put", "mul")])
    check_results(original, gm, 4, orders=6)


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("form", ["copied", "coalesced"])
def test_orders_of_the_problem_are_orders_of_the_graph(form: Form) -> None:
    """The zeros are gathered, too, in a bucket: the put comes behind that in every order of the rewritten problem."""

    def f(a: Tensor, b: Tensor) -> list[Tensor]:
        x = zeros() * 1.0
        ga, gb = gather(x), gather(b * 2.0)
        y = put(x, a)
        return [wait(ga) * 2.0, wait(gb) * 3.0, y + 1.0]

    shapes, rng = ((4, COLUMNS), (4, COLUMNS)), random.Random(2)
    original = trace(f, *shapes)
    rewrites = [InPlace("index_put", "mul"), Bucket(("all_gather_into_tensor", "all_gather_into_tensor_1"), form)]
    for _ in range(5):
        gm = trace(f, *shapes)
        problem = apply(problem_of(gm), rewrites, Prices(Roofline()), alike_of(gm))
        prepare(gm, rewrites, problem.names(random_order(problem, rng))).commit()
        check_results(original, gm, 2, orders=1)


def test_what_has_been_written_over_is_neither_read_again_nor_gathered_again() -> None:
    def f(a: Tensor, b: Tensor) -> list[Tensor]:
        x = zeros() * 1.0
        wa = wait(gather(x))
        s = x * 3.0
        y = put(x, a)
        return [wa * 2.0, s * 2.0, y + s, wa.sum() + y.sum()]

    gm = trace(f, (4, COLUMNS), (4, COLUMNS))
    over = InPlace("index_put", "mul")
    assert refusal(gm, [over]) is None
    for again, why in (
        (Recompute(("mul",), ("mul_1",)), "'mul' cannot run again: it gives what something writes to."),
        (Recompute(("index_put",), ("sum_3",)), "'index_put' cannot run again: it gives what something writes to."),
        (
            Recompute(("mul_1",), ("add",)),
            "'mul_1' cannot run again: 'index_put' writes to what it reads before that.",
        ),
        (
            Regather("all_gather_into_tensor", ("sum_2",)),
            "something writes to the input of 'all_gather_into_tensor': a later gather of it may give something else.",
        ),
    ):
        assert refusal(gm, [over, again]) == why


def made_of(f: Callable[..., Any], *shapes: tuple[int, ...]) -> Callable[[], fx.GraphModule]:
    return lambda: trace(f, *(shapes or ((4, COLUMNS),)))


def looks_back(a: Tensor) -> Tensor:
    x = zeros() * 1.0
    y = put(x, a)
    return x * y.sum()


def wrote(a: Tensor) -> Tensor:
    x = zeros() * 1.0
    x.view(-1).add_(a.sum())
    return put(x, a) * 2.0


def never_waited(a: Tensor) -> Tensor:
    x = zeros() * 1.0
    gather(x)
    return put(x, a) * 1.0


def never_waited_beside_one_that_is(a: Tensor) -> Any:
    x = zeros() * 1.0
    gather(x)
    return wait(gather(a)), put(x, a) * 1.0


def twice_the_same(a: Tensor) -> Tensor:
    x = zeros() * 1.0
    return ATEN.index_put.default(x, [distinct(a.view(8, 4))], x, True) * 1.0


def through_a_view(a: Tensor) -> Tensor:
    x = zeros() * 1.0
    return ATEN.index_put.default(x, [distinct(a.view(8, 4))], x.t(), True) * 1.0


WHAT = f"what can be written in place is {', '.join(COPYING)}."
NOT_ITS_OWN = "makes no storage of its own, or several: it cannot be written over."
OVER_FULL, OVER_MUL = InPlace("index_put", "full"), InPlace("index_put", "mul")


def with_zeros(f: Callable[[Tensor, Tensor], Any], *shapes: tuple[int, ...]) -> Callable[[], fx.GraphModule]:
    """A function of one input and zeros."""
    return made_of(lambda a: f(a, zeros()), *shapes)


def one_number(a: Tensor, x: Tensor) -> Tensor:
    return ATEN.index_put.default(x, [at(a)], torch.ones(()) * 2.0) * 1.0


def with_gaps(a: Tensor) -> Tensor:
    return put(ATEN.empty_strided.default([8, 8], [16, 1]), a) * 1.0


def viewed(a: Tensor, x: Tensor) -> Tensor:
    return put(x.view(4, 16).view(8, 8), a) * 1.0


REFUSED: list[tuple[Callable[[], fx.GraphModule], InPlace, str]] = [
    (made_of(lambda a: a * 2.0), InPlace("mul", "a_1"), f"'mul' is 'aten.mul.Tensor': {WHAT}"),
    (made_of(lambda a: a * 2.0), InPlace("a_1", "mul"), f"'a_1' is 'placeholder': {WHAT}"),
    (
        with_zeros(lambda a, x: put(x, a) * 1.0),
        InPlace("index_put", "a_1"),
        "'index_put' does not take 'a_1' as its first argument.",
    ),
    (
        made_of(lambda a, x: put(x, a) * 1.0, (4, 8), (8, 8)),
        InPlace("index_put", "x_1"),
        f"'x_1' {NOT_ITS_OWN}",
    ),
    (with_zeros(viewed), InPlace("index_put", "view_1"), f"'view_1' {NOT_ITS_OWN}"),
    (
        made_of(lambda a: put(wait(gather(a)), a) * 1.0),
        InPlace("index_put", "wait_tensor"),
        f"'wait_tensor' {NOT_ITS_OWN}",
    ),
    (
        made_of(lambda a: put(gather(a), a) * 1.0),
        InPlace("index_put", "all_gather_into_tensor"),
        f"'all_gather_into_tensor' {NOT_ITS_OWN}",
    ),
    (
        with_zeros(one_number),
        OVER_FULL,
        "'index_put' writes one number: how often, and so how long it takes in place, is not known.",
    ),
    (
        made_of(with_gaps),
        InPlace("index_put", "empty_strided"),
        "'index_put' and 'empty_strided' are not two whole storages of one layout.",
    ),
    (with_zeros(lambda a, x: [x, put(x, a)]), OVER_FULL, "the graph returns 'full': it must stay as it is."),
    (with_zeros(lambda a, x: [x.view(-1), put(x, a)]), OVER_FULL, "the graph returns 'full': it must stay as it is."),
    (made_of(wrote), OVER_MUL, "something else writes to 'mul': it can be written over once."),
    (made_of(never_waited), OVER_MUL, "a collective that reads 'mul' is not waited for: it must stay as it is."),
    (
        made_of(never_waited_beside_one_that_is),
        OVER_MUL,
        "a collective that reads 'mul' is not waited for: it must stay as it is.",
    ),
    (made_of(twice_the_same), OVER_MUL, "'index_put' takes 'mul' twice: it would read what it writes."),
    (
        made_of(through_a_view),
        OVER_MUL,
        "'index_put' also takes 'mul' through 't': it would read what it writes.",
    ),
    (
        made_of(looks_back),
        OVER_MUL,
        "'mul_2' takes 'mul' and comes after 'index_put', which would have changed it.",
    ),
]


@pytest.mark.parametrize(("graph", "rewrite", "message"), REFUSED, ids=[text for *_, text in REFUSED])
def test_what_is_refused_and_why(graph: Callable[[], fx.GraphModule], rewrite: InPlace, message: str) -> None:
    gm = graph()
    before = described(gm.graph)
    assert refusal(gm, [rewrite]) == message
    assert described(gm.graph) == before


@pytest.mark.parametrize(
    ("names", "strides", "dtype"),
    [
        (("index_put",), (1, 8), torch.float32),
        (("index_put",), (8, 1), torch.int32),
        (("mul", "index_put"), (16, 1), torch.float32),
    ],
)
def test_only_whole_storages_of_one_layout(
    names: tuple[str, ...], strides: tuple[int, int], dtype: torch.dtype
) -> None:
    gm = trace(lambda a: put(zeros() * 1.0, a) * 1.0, (4, COLUMNS))
    for node in gm.graph.nodes:
        if node.name in names:
            with node.meta["val"].fake_mode:
                node.meta["val"] = torch.empty_strided((ROWS, COLUMNS), strides, dtype=dtype)
    assert refusal(gm, [OVER_MUL]) == "'index_put' and 'mul' are not two whole storages of one layout."


def test_undone_the_graph_is_as_it_was() -> None:
    gm = trace(chain, (4, COLUMNS), (4, COLUMNS))
    before = described(gm.graph)
    wanted = legal(gm)
    assert refusal(gm, list(wanted)) is None
    assert described(gm.graph) == before
    with pytest.raises(RewriteError, match="there is no node 'missing'"):
        rewrite_graph(gm, [*wanted, InPlace("missing", "mul")])
    assert described(gm.graph) == before


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """Steps on a growing list of tensors: what, and on which of them."""
    ops = st.sampled_from(["zeros", *COPYING, "put", "put", "view", "gather", "reduce", "mix", "write"])
    number = st.integers(0, 30)
    return draw(st.lists(st.tuples(ops, number, number), min_size=4, max_size=14))


def program(steps: list[tuple[str, int, int]], *inputs: Tensor) -> list[Tensor]:
    """Tables of 8 rows; collectives are waited for when their results are used, or at the end."""
    rows = inputs[0] * 1.0
    values = [zeros() * 1.0, zeros() * 2.0]
    waiting: dict[int, Tensor] = {}

    def value(k: int) -> Tensor:
        k %= len(values)
        if k in waiting:
            values[k] = wait(waiting.pop(k))
        return values[k]

    for what, k, j in steps:
        x = value(k)
        if what == "zeros":
            values.append(zeros() * float(j))
        elif what == "put":
            values.append(put(x, value(j)[:4] * 0.5))
        elif what in WRITES:
            values.append(WRITES[what](x, rows))
        elif what == "view":
            values.append(x.view(-1).view(ROWS, COLUMNS))
        elif what in ("gather", "reduce"):
            waiting[len(values)] = gather(x[:4]) if what == "gather" else C10D.all_reduce(x, "sum", "0")
            values.append(waiting[len(values)])
        elif what == "mix":
            values.append(x * 0.5 + value(j).sum())
        elif what == "write" and j % 5 == 0:
            x.mul_(0.5)
    return [value(k) * 1.0 for k in range(j % 3, len(values))]


@pytest.mark.slow
@given(programs(), st.integers(0, 10**6))
@examples(20)
def test_random_graphs(steps: list[tuple[str, int, int]], seed: int) -> None:
    original, gm = (trace(lambda *xs: program(steps, *xs), (4, COLUMNS)) for _ in range(2))
    rng = random.Random(seed)
    chosen: list[Rewrite] = []
    for one in legal(gm):
        if rng.random() < 0.8 and refusal(gm, [*chosen, one]) is None:
            chosen.append(one)
    problem = apply(problem_of(gm), chosen, Prices(Roofline()), alike_of(gm))
    agree(gm, chosen)
    check_results(original, gm, seed, orders=3)
    ordered = trace(lambda *xs: program(steps, *xs), (4, COLUMNS))
    prepare(ordered, chosen, problem.names(random_order(problem, rng))).commit()
    check_results(original, ordered, seed, orders=0)
