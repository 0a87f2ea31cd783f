"""Why the peak is what it is: it adds up, and the drawn example reads as drawn."""

from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.peak_memory.peak import explain_peak
from overlap_sched.problem import EXAMPLE, Kind, Node, Problem, Storage
from overlap_sched.report.words.graph import peak_text
from tests.support.graphs import problems
from tests.support.oracle import all_orders, peak_by_definition, random_order

MIB = 2**20


@given(problems(max_steps=20), st.integers(0, 1000))
def test_what_is_live_adds_up_to_the_peak(problem: Problem, seed: int) -> None:
    order = random_order(problem, seed)
    peak = explain_peak(problem, order)
    profile = peak_by_definition(problem, order)
    assert (peak.bytes, peak.position) == (max(profile), profile.index(max(profile)))
    assert sum(peak.by_kind().values()) == peak.bytes == sum(storage.bytes for storage in peak.storages)
    for storage in peak.storages:
        users = [v for v, node in enumerate(problem.nodes) if storage.storage in node.use]
        assert sorted(storage.needed_by) == [v for v in users if order.index(v) >= peak.position]
        assert storage.storage in problem.nodes[storage.maker].alloc


def test_forced_is_what_every_order_has_there() -> None:
    peak = explain_peak(EXAMPLE, EXAMPLE.original_order)
    live_in_all = set(range(len(EXAMPLE.storages)))
    for order in all_orders(EXAMPLE):
        at = order.index(peak.node)
        here = explain_peak_at(order, at)
        live_in_all &= here
    assert {storage.storage for storage in peak.storages if storage.forced} == live_in_all


def explain_peak_at(order: list[int], at: int) -> set[int]:
    """Storages of the example that are live at a position: made by then, needed from then on."""
    live = set()
    for s, (_, pinned) in enumerate(EXAMPLE.storages):
        (maker,) = [v for v, node in enumerate(EXAMPLE.nodes) if s in node.alloc]
        users = [order.index(v) for v, node in enumerate(EXAMPLE.nodes) if s in node.use]
        begun = EXAMPLE.nodes[maker].kind is Kind.INPUT or order.index(maker) <= at
        if begun and (pinned or max(users) >= at):
            live.add(s)
    return live


def test_the_example_in_words() -> None:
    assert peak_text(explain_peak(EXAMPLE, EXAMPLE.original_order), largest=3) == (
        "example: peak 21.0 MiB, first at dgrad, step 6 of 10 (runtime memory model, simulated)\n"
        "  parameters                  1.0 MiB    4.8 %  in 1\n"
        "  saved activations           4.0 MiB   19.0 %  in 1\n"
        "  gathered parameters         8.0 MiB   38.1 %  in 1\n"
        "  temporaries                 8.0 MiB   38.1 %  in 2\n"
        "  live at this node in every order: 17.0 MiB (81.0 %); in some orders, storages marked * are not live here\n"
        "largest:\n"
        "       8.0 MiB  gathered parameters    made by gather, needed by dgrad\n"
        "*      4.0 MiB  saved activations      made by x, needed by wgrad\n"
        "       4.0 MiB  temporaries            made by mm, needed by dgrad, wgrad"
    )


def test_collectives_in_flight() -> None:
    order = (0, 1, 4, 6, 7, 2, 3, 5, 8, 9)  # scatter flies while the gather does
    kinds = {storage.storage: storage.kind for storage in explain_peak(EXAMPLE, order).storages}
    assert EXAMPLE.nodes[explain_peak(EXAMPLE, order).node].name == "dgrad"
    assert kinds[5] == kinds[6] == "collectives in flight"  # dw, read by the scatter, and ds, made by it
    assert kinds[2] == "gathered parameters"  # waited for


def a_step() -> Problem:
    """A weight, its momentum, activations that wait, a gradient, an update in place."""
    kind, mib = Kind, MIB
    nodes = [
        Node("weight", kind.INPUT, (), (0,)),
        Node("weight_momentum", kind.INPUT, (), (1,)),
        Node("a", kind.COMPUTE, (0,), (2,), (0,)),
    ]
    nodes += [Node(f"busy{k}", kind.COMPUTE, (len(nodes) + k - 1,), (), ()) for k in range(12)]
    v = len(nodes)
    nodes += [
        Node("grad", kind.COMPUTE, (v - 1,), (3,), ()),
        Node("top", kind.COMPUTE, (v,), (4,), (3,)),
        *[Node(f"more{k}", kind.COMPUTE, (v + 1 + k,), (), ()) for k in range(12)],
    ]
    w = len(nodes)
    nodes += [Node("update", kind.COMPUTE, (w - 1,), (), (0, 1, 3)), Node("use_a", kind.COMPUTE, (w,), (), (2,))]
    sizes = (4, 4, 2, 3, 5)
    return Problem("step", tuple(nodes), tuple(Storage(s * mib, pinned=k < 2) for k, s in enumerate(sizes)))


def test_kinds_of_a_step() -> None:
    problem = a_step()
    peak = explain_peak(problem, problem.original_order)
    assert {kind: total // MIB for kind, total in peak.by_kind().items() if total} == {
        "parameters": 4, "optimizer": 4, "saved activations": 2, "gradients": 3, "temporaries": 5
    }  # fmt: skip
    told = explain_peak(problem, problem.original_order, kinds={4: "saved activations"})
    assert told.by_kind()["temporaries"] == 0


def test_names_cannot_command_a_terminal() -> None:
    problem = Problem("bad\x1b[2J", (Node("n\x1b[31m", Kind.COMPUTE, (), (0,)),), (Storage(1),))
    assert "\x1b" not in peak_text(explain_peak(problem, (0,)))
