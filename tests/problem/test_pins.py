"""Pins: read, held against graphs, made pairs, kept by every order; judged by what they mean."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch
from warnings import catch_warnings, simplefilter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import overlap_sched.problem.pins as pins_of
from overlap_sched import EXAMPLE, Group, Kind, Node, Options, Problem, read_problem, schedule, write_problem
from overlap_sched.errors import OptionsError, OverlapSchedWarning, PinError, ProblemError, VerificationError
from overlap_sched.judge.validate import pin_violation, together_violation, violation
from overlap_sched.options import Base, Concurrent
from overlap_sched.problem import PART
from overlap_sched.problem.file import redact_problem
from overlap_sched.problem.pins import Pin, is_in, pin_notes, pin_pairs, pinned, read_pin
from overlap_sched.report.words.schedule import pins_text
from overlap_sched.scheduler.restrictions import clashes, kept_apart
from overlap_sched.transform.plan import plan
from tests.scheduler.test_driver import check_promises
from tests.support.examples import examples
from tests.support.graphs import problems
from tests.support.layers import layers
from tests.support.oracle import all_orders, random_order
from tests.support.sharded import PRICES, sharded

OPTIONS = Options(headroom="5MiB")
RULES = ("together", "as written", "apart", "in flight 4B", "in flight 8B", "not before {}", "not after {}")


def named(problem: Problem, pin: str, options: Options = OPTIONS) -> list[str]:
    return problem.names(schedule(problem, replace(options, pins=(pin,), strict=True)).order)


def with_modules(problem: Problem) -> Problem:
    """Every third node is in one of three modules; collectives have bytes."""
    nodes = (node._replace(module=("a", "a.b", "c")[v % 3], bytes=4 + v % 2) for v, node in enumerate(problem.nodes))
    return replace(problem, nodes=tuple(nodes))


@st.composite
def pins(draw: st.DrawFn) -> str:
    rule = draw(st.sampled_from(RULES)).format(draw(st.sampled_from(("a", "c", "compute3", "a.*"))))
    about = draw(st.sampled_from(("", ": *", ": all_gather*", ": reduce* in a", ": * in a.b", ": in c")))
    return f"{rule}{about}"


def test_a_pin_is_read() -> None:
    text = "in flight 64MiB: all_gather* in layers.*"
    assert read_pin(text) == Pin(text, "in flight", "64MiB", "all_gather*", "layers.*")
    assert read_pin("not before layers.2") == Pin("not before layers.2", "not before", "layers.2", "*", "*")
    assert read_pin("apart: in a").module == "a"


@pytest.mark.parametrize("text", ["", "not", "together 3", "in flight", "beside: *", "apart: a b", "apart: a in b c"])
def test_what_is_none_is_told(text: str) -> None:
    with pytest.raises(OptionsError, match=f"^pin {text!r} is none; write 'not before MODULE',".replace("*", r"\*")):
        Options(pins=(text,))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pins": ("in flight 64",)}, "in flight, of pin 'in flight 64', is '64', a number without a unit"),
        ({"pins": ("in flight x",)}, "in flight, of pin 'in flight x', is 'x'; write bytes"),
        ({"pins": ("in flight 5%",)}, "in flight, of pin 'in flight 5%', is '5%'; write bytes"),
        ({"pins": "apart"}, "pins is 'apart'; it is a tuple of lines of text"),
        ({"pins": ("apart",), "rewrites": ("bucket",)}, r"rewrites is \('bucket',\) and pins is \('apart',\)"),
    ],
)
def test_sizes_and_kinds_are_checked(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        Options(**given)


@pytest.mark.parametrize(
    ("module", "pattern", "inside"),
    [
        *(("layers.3.attention", "layers.3", True), ("layers.3", "layers.?", True), ("", "*", True)),
        *(("layers.30", "layers.3", False), ("layers", "layers.3", False)),
    ],
)
def test_modules(module: str, pattern: str, inside: bool) -> None:
    assert is_in(module, pattern) == inside


def test_pins_change_the_order_of_the_example() -> None:
    """Each order also keeps its pin: see the property below."""
    free = EXAMPLE.names(schedule(EXAMPLE, OPTIONS).order)
    assert free.index("scatter") < free.index("full") < free.index("dgrad")
    late = named(EXAMPLE, "not before mm: all_gather*")
    assert late.index("mm") < late.index("gather") < free.index("scatter")
    assert named(EXAMPLE, "as written") == EXAMPLE.names(EXAMPLE.original_order)
    assert named(EXAMPLE, "in flight 16MiB") == free
    less = named(EXAMPLE, "in flight 15MiB")
    assert less.index("full") < less.index("scatter")
    with pytest.raises(PinError, match="pin 'in flight 7MiB' cannot be kept: gather alone has 8388608 bytes"):
        schedule(EXAMPLE, Options(pins=("in flight 7MiB",)))


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        (("not before mm: gather", "not after mm: gather"), " contradict each other: gather -> mm -> gather"),
        (
            ("not after mm: scatter", "apart"),
            "^pin 'not after mm: scatter' contradicts the graph: scatter -> mm -> wgrad",
        ),
    ],
)
def test_contradictions_name_a_ring(pins: tuple[str, ...], said: str) -> None:
    with pytest.raises(PinError, match=said) as told:
        schedule(EXAMPLE, Options(pins=pins))
    assert f"pin {pins[0]!r}" in str(told.value)


def test_with_launches_kept_there_may_be_no_order() -> None:
    three = ("not before wgrad1: scatter0", "not after dgrad0: gather1", "not after dgrad1: scatter1")
    assert schedule(layers(2), Options(pins=three[:2], headroom=8)).fell_back is None
    with pytest.warns(OverlapSchedWarning, match="pins contradict preserve_collective_order='all'"):
        found = schedule(layers(2), Options(pins=three, headroom=8, preserve_collective_order="all"))
    assert found.order == found.problem.original_order


def test_what_is_never_waited_for_stays_in_flight() -> None:
    launches = (Node(name, Kind.COLLECTIVE, time_us=1.0, group="g") for name in ("one", "two"))
    problem = Problem("open", tuple(launches), (), {"g": Group(2, True)})
    with pytest.raises(PinError, match="nothing waits for one in this graph"):
        schedule(problem, Options(pins=("apart",)))


NOT_AFTER = "not after dgrad0: gather1"
"""In layers the second gather comes behind the first dgrad as written."""


def test_an_original_order_that_breaks_a_pin_gives_way() -> None:
    problem, options = layers(3), Options(pins=(NOT_AFTER,), headroom=20, strict=True)
    assert pin_violation(problem, problem.original_order, options.pins).startswith(f"pin {NOT_AFTER!r} is broken: ")
    check_promises(problem, options, schedule(problem, options))


def test_where_there_is_no_room_for_it_the_original_stays_and_says_so() -> None:
    problem, options = layers(2), Options(pins=(NOT_AFTER,))
    gather = next(node for node in problem.nodes if node.name == "gather1")
    size = dict.fromkeys(range(len(problem.storages)), 1) | dict.fromkeys(gather.alloc, 10_000)
    size |= dict.fromkeys(problem.nodes[0].alloc, 20_000)
    wide = replace(problem, storages=tuple(one._replace(bytes=size[s]) for s, one in enumerate(problem.storages)))
    with pytest.warns(OverlapSchedWarning, match="the original order breaks the pins"):
        found = schedule(wide, options)
    assert found.order == wide.original_order
    assert "bytes more than there are" in str(found.fell_back)
    with pytest.raises(VerificationError, match="the original order breaks the pins"):
        schedule(wide, replace(options, strict=True))


@pytest.mark.slow
@given(
    problems(),
    st.lists(pins(), min_size=1, max_size=3),
    st.sampled_from([None, "100%"]),
    st.sampled_from(get_args(Concurrent)),
    st.sampled_from(get_args(Base)),
    st.integers(0, 2),
)
@examples(300)
def test_every_order_keeps_its_pins(
    problem: Problem, texts: list[str], memory_limit: str | None, concurrent: Concurrent, base: Base, headroom: int
) -> None:
    problem = with_modules(problem)
    options = Options(
        memory_model=problem.memory_model,
        pins=tuple(texts),
        memory_limit=memory_limit,
        headroom=f"{40 * headroom}%",
        concurrent_groups=concurrent,
        base=base,
    )
    try:
        pin_pairs(problem, texts)
    except PinError:
        with pytest.raises(PinError):
            schedule(problem, options)
        return
    with catch_warnings(record=True):
        simplefilter("always")
        found = schedule(problem, options)
    if found.fell_back is not None:
        assert "failed" not in found.fell_back
        assert pin_violation(problem, problem.original_order, texts) is not None
        return
    if base != "memory-peak":
        check_promises(problem, options, found)
    assert found.scheduled.peak_bytes <= found.original.peak_bytes + found.headroom_bytes
    assert pin_violation(problem, found.order, texts) is None


@given(problems(max_steps=7), st.lists(pins(), min_size=1, max_size=2))
@examples(200)
def test_pairs_are_enough_and_refused_only_with_a_reason(problem: Problem, texts: list[str]) -> None:
    """Orders with all pairs keep all pins but "together"; of what contradicts the graph, no order keeps."""
    problem = with_modules(problem)
    try:
        pairs = pin_pairs(problem, texts)
    except PinError:
        whole = [one for one in pinned(problem, texts) if one.pin.rule in ("as written", "together")]
        assume(len(texts) == len(whole) == 1 and len(problem.nodes) <= 9)
        assert all(pin_violation(problem, order, texts) is not None for order in all_orders(problem))
        return
    sides = [text for text in texts if not text.startswith("together")]
    for seed in range(3):
        order = random_order(problem, seed, pairs)
        assert violation(problem, order) is None
        assert pin_violation(problem, order, sides) is None


@pytest.mark.parametrize(
    ("pin", "order", "broken"),
    [
        ("apart", "scatter full dgrad", "scatter is launched while gather is in flight"),
        ("in flight 9MiB", "scatter full dgrad", "16777216 bytes are in flight behind scatter"),
        ("together", "full dgrad scatter", "mm runs between gather and scatter"),
        ("as written", "full dgrad scatter", "mm runs before full"),
        ("not before mm", "full dgrad scatter", "gather is launched before anything of mm has run"),
        ("not after dgrad: red*", "full dgrad scatter", "scatter is launched after all of dgrad"),
    ],
)
def test_the_judge_says_what_is_broken(pin: str, order: str, broken: str) -> None:
    names = EXAMPLE.names(EXAMPLE.original_order)
    ids = [names.index(name) for name in f"w x gather mm wgrad {order} grad output".split()]
    assert pin_violation(EXAMPLE, ids, (pin,)) == f"pin {pin!r} is broken: {broken}"


@pytest.mark.parametrize(
    ("pin", "note"),
    [
        *((pin, "") for pin in ("apart: gather", "in flight 64MiB: gather")),
        *((f"apart: {what}", "pins_about_nothing") for what in ("all_to_all*", "in layers.9")),
        ("not before nowhere: gather", "pins_about_nothing"),
        *((pin, "pins_about_waits") for pin in ("not after full: scatter", "not before mm: full", "together: wait*")),
        ("in flight 64MiB: scatter", "pins_without_bytes"),
    ],
)
def test_a_pin_that_binds_nothing_is_told(pin: str, note: str) -> None:
    nodes = [n._replace(op="wait_tensor") if n.kind is Kind.WAIT else n for n in EXAMPLE.nodes]
    nodes[7] = nodes[7]._replace(bytes=0)
    problem = replace(EXAMPLE, nodes=tuple(nodes))
    assert pin_notes(problem, (pin, "apart")) == ({note: 1} if note else {})
    assert note == "" or not pin_pairs(problem, (pin,))
    assert pins_text(schedule(problem, replace(OPTIONS, pins=(pin,)))).startswith(f"Pins kept: '{pin}' (")


def test_where_something_waits_in_parts_it_is_not_over_with_the_first_of_them() -> None:
    """``both`` waits for one and two; a part of it may stand anywhere before it, and the program waits at ``both``."""
    nodes = (
        Node("one", Kind.COLLECTIVE, group="a"),
        Node("two", Kind.COLLECTIVE, group="a"),
        Node("both.one", Kind.WAIT, (0,), op=PART, collective=0),
        Node("both", Kind.WAIT, (1, 2), collective=1),
        Node("mm", Kind.COMPUTE, time_us=1.0),
        Node("three", Kind.COLLECTIVE, group="b"),
        Node("last", Kind.WAIT, (5,), collective=5),
    )
    problem = Problem("parts", nodes, (), dict.fromkeys("ab", Group(2, True)))
    assert problem.ends == {0: (3,), 1: (3,), 5: (6,)}
    assert pin_pairs(problem, ("apart: [ot]*e*",)) == ((3, 5),)
    assert pin_violation(problem, (0, 2, 5, 1, 3, 4, 6), ("apart: [ot]*e*",)) is not None
    said = str(together_violation(problem, (0, 2, 5, 1, 3, 4, 6), "one"))
    assert said.startswith("three (b) is launched while one (a)")
    assert kept_apart(problem, (0, 2, 1, 5, 3, 4, 6), clashes(problem, "one")) == (0, 2, 1, 3, 5, 4, 6)


def with_marks(problem: Problem, *marks: str, names: str = "") -> Problem:
    """The collectives, or what is named, have these pins."""
    marked = names.split() or problem.names(problem.collectives)
    return replace(problem, nodes=tuple(n._replace(marks=marks) if n.name in marked else n for n in problem.nodes))


def test_nodes_have_pins_of_their_own(tmp_path: Path) -> None:
    """Together within each module, not across; kept in files and without names."""
    nodes = (n._replace(module=f"layers.{int(n.name[-1]) // 2}") if n.group else n for n in layers(4).nodes)
    problem = replace(layers(4), nodes=tuple(nodes))
    marked = with_marks(problem, "apart")
    assert [len(one.nodes) for one in pinned(marked, ())] == [8]
    assert [len(one.nodes) for one in pinned(with_marks(problem, "together"), ())] == [4, 4]
    found = schedule(marked, Options(strict=True, headroom=20))
    assert pin_violation(marked, found.order, ()) is None
    assert pin_violation(marked, schedule(problem, found.options).order, ()) is not None
    write_problem(marked, tmp_path / "marked.json")
    assert read_problem(tmp_path / "marked.json") == marked
    shown = redact_problem(marked)
    assert schedule(shown, found.options).order == found.order
    assert "layers" not in repr(shown)


def test_redacted_pins_name_nodes_instead_of_modules() -> None:
    mm = EXAMPLE.nodes[4]._replace(module="secret.module")
    problem = replace(EXAMPLE, nodes=(*EXAMPLE.nodes[:4], mm, *EXAMPLE.nodes[5:]))
    marked = with_marks(problem, "not before secret.module", names="gather")
    shown = redact_problem(marked)
    assert "secret" not in repr(shown)
    assert shown.nodes[2].marks == ("not before n4",)
    assert schedule(shown, OPTIONS).order == schedule(marked, OPTIONS).order
    assert pin_pairs(shown, ()) == pin_pairs(marked, ()) == ((4, 2),)


def test_of_many_launches_bytes_in_flight_keep_the_order() -> None:
    problem, pin = with_modules(layers(4)), ("in flight 9B",)
    few = pin_pairs(problem, pin)
    with patch.object(pins_of, "_MANY", 1):
        many = pin_pairs(problem, pin)
    assert {*pairwise(problem.collectives)} <= {*many}
    for order in (random_order(problem, seed, pairs) for seed in range(9) for pairs in (few, many)):
        assert pin_violation(problem, order, pin) is None


def test_a_module_has_begun_with_the_first_of_its_nodes_and_ends_with_the_last() -> None:
    nodes = (n._replace(module="m" if n.name in ("mm", "dgrad", "wgrad") else "") for n in EXAMPLE.nodes)
    problem = replace(EXAMPLE, nodes=tuple(nodes))
    assert pin_pairs(problem, ("not before m: gather",)) == ((4, 2),)
    assert pin_pairs(problem, ("not after m: gather",)) == ((2, 6),)
    for order in ((0, 1, 4, 2, 3, 5, 6, 7, 8, 9), (0, 1, 4, 6, 2, 3, 5, 7, 8, 9)):  # dgrad is still to come
        assert pin_violation(problem, order, ("not after m: gather", "not before m: gather")) is None
    assert pin_violation(problem, problem.original_order, ("not after m: scatter",)) is not None


@pytest.mark.parametrize(
    ("mark", "said"),
    [("apart: all*", r"pin 'apart: all\*' names nodes; .* Write 'apart'"), ("near", "pin 'near' is none")],
)
def test_marks_are_pins_that_name_no_nodes(tmp_path: Path, mark: str, said: str) -> None:
    marked = with_marks(EXAMPLE, mark)
    with pytest.raises(OptionsError, match=said):
        schedule(marked)
    write_problem(marked, tmp_path / "marked.json")
    with pytest.raises(ProblemError, match=rf"marked\.json: {said}"):
        read_problem(tmp_path / "marked.json")


def test_with_marks_nothing_is_rewritten() -> None:
    problem = sharded([[2, 2]] * 3, compute_us=4.0)
    options = Options(rewrites=("bucket",), headroom="100%")
    assert plan(problem, PRICES, options).rewrites
    assert not plan(with_marks(problem, "in flight 1GiB"), PRICES, options).trials
