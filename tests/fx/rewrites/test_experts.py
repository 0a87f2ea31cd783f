"""Layers with experts in parts of their tokens, as FX graphs: run, lifted, in other orders, undone, refused."""

import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx

from overlap_sched.fx import lift
from overlap_sched.fx.dimensions.candidates import expert_fissions
from overlap_sched.fx.fitting import fit_graph
from overlap_sched.fx.rewrites import prepare, rewrite_graph
from overlap_sched.judge.validate import peak_memory
from overlap_sched.options import Options
from overlap_sched.problem.precedence import find_reachable
from overlap_sched.transform.apply import apply
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Fission
from tests.support.examples import at_night
from tests.support.fx_graphs import RANKS, random_order
from tests.support.rewrite_graphs import by_name, with_times_of
from tests.support.routed_graphs import CHOSEN, TOKENS, WIDTH, check_alike, run, shapes, step, trace

READ = torch.ops.aten._local_scalar_dense.default
WIDE, NARROW = range(2)


def fissioned(parts: int, which: int) -> tuple[fx.GraphModule, Fission]:
    """A graph of its own, and a fission of it."""
    gm = trace(step)
    return gm, expert_fissions(lift(gm), (parts,))[which]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), at_night(2), at_night(3)])
def test_random_layers(seed: int) -> None:
    """Any numbers of experts, of those that a token goes to, of tokens and of parts: down to one token in a part."""
    rng = random.Random(seed)
    parts, experts = rng.choice((2, 3, 4)), RANKS * rng.randint(1, 4)
    each, tokens = rng.randint(1, experts), parts * rng.randint(1, 6)
    make, of = partial(step, each=each), shapes(tokens, 8 * rng.randint(1, 2), 8 * rng.randint(1, 3), experts)
    for which in (WIDE, NARROW):
        gm = trace(make, of)
        lifted = lift(gm)
        one = expert_fissions(lifted, (parts,))[which]
        problem = apply(lifted.problem, [one], Prices(lifted.model))
        names = problem.names(random_order(problem, rng))
        prepare(gm, [one], names).commit()
        gm.graph.lint()
        ran = [node.name for node in gm.graph.nodes if node.op != "placeholder"]
        assert ran == [name for name in names if name in set(ran)]
        for whole, got in zip(run(trace(make, of), seed), run(gm, seed), strict=True):
            check_alike(whole, got)


def without_order_of_reads(gm: fx.GraphModule, facts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Facts of nodes, without two kinds of dependency that carry no data.

    A lifted graph keeps the order of all reads by the host, a rewritten problem that of each part; and a lifted graph
    names the writer of a storage also where it comes earlier by data.
    """
    reads = {node.name for node in gm.graph.nodes if node.target is READ}
    taken = {node.name: {u.name for u in node.all_input_nodes} for node in gm.graph.nodes}

    def data(name: str, deps: list[str]) -> list[str]:
        far = find_reachable(taken[name], taken.__getitem__) | taken[name]
        return [u for u in deps if u in taken[name] or not (u in reads or u in far)]

    return {name: {**one, "deps": data(name, one["deps"])} for name, one in facts.items()}


@pytest.mark.slow
@pytest.mark.parametrize("hinted", [False, True])
@pytest.mark.parametrize(("parts", "which"), [(2, WIDE), at_night(2, NARROW), (4, WIDE)])
def test_the_problem_of_the_rewritten_graph_is_the_rewritten_problem(parts: int, which: int, hinted: bool) -> None:
    gm, one = fissioned(parts, which)
    if hinted:
        balance(gm)
    lifted = lift(gm)
    want = apply(lifted.problem, [one], Prices(lifted.model))
    rewrite_graph(gm, [one])
    got = lift(gm).problem
    assert without_order_of_reads(gm, with_times_of(by_name(got), by_name(want))) == without_order_of_reads(
        gm, by_name(want)
    )
    ids = {node.name: v for v, node in enumerate(want.nodes)}
    order = tuple(ids[name] for name in got.names(got.original_order))
    assert peak_memory(got, got.original_order)[0] == peak_memory(want, order)[0]


def balance(gm: fx.GraphModule) -> None:
    """Each rank sends as many rows to every other."""
    for node in gm.graph.find_nodes(op="call_function", target=READ):
        size = node.meta["val"]
        size.node.shape_env.var_to_hint_override[size.node.expr] = TOKENS * CHOSEN // RANKS


@pytest.mark.slow
def test_each_part_has_symbols_of_its_own() -> None:
    gm, one = fissioned(2, WIDE)
    whole = {node.name: node.meta["val"] for node in gm.graph.find_nodes(op="call_function", target=READ)}
    rewrite_graph(gm, [one])
    parts = {node.name: node for node in gm.graph.find_nodes(op="call_function", target=READ)}
    assert list(parts) == [one.part(name, p) for p in range(2) for name in whole]
    symbols = {node.meta["val"].node.expr for node in parts.values()}
    assert len(symbols) == 2 * len(whole)
    assert symbols.isdisjoint(value.node.expr for value in whole.values())
    for node in parts.values():
        value = node.meta["val"]
        env, symbol = value.node.shape_env, value.node.expr
        assert node.meta["unbacked_bindings"] == {symbol: ()}
        assert env.var_to_range[symbol].lower == 0
        assert not env.pending_fresh_unbacked_symbols
    for p in range(2):
        rows = gm.graph.find_nodes(op="call_function", target=READ)[p * len(whole) : p * len(whole) + 2]
        sent = next(node for node in gm.graph.nodes if node.name == one.part("all_to_all_single_2", p))
        assert sent.meta["val"].shape == (sum(node.meta["val"] for node in rows), WIDTH)


@pytest.mark.slow
def test_fit_graph_runs_experts_in_parts() -> None:
    gm = trace(step)
    before = lift(gm).problem
    limit = int(0.8 * peak_memory(before, before.original_order)[0])
    found = fit_graph(gm, Options(strict=True), memory_limit=limit, kinds=("batch",), effort=0)
    (one,) = found.best.rewrites
    assert isinstance(one, Fission)
    assert any("all_to_all" in name for name in one.nodes)
    after = lift(gm).problem
    assert peak_memory(after, after.original_order)[0] == found.best.peak_bytes <= limit
    for want, got in zip(run(trace(step), 0), run(gm, 0), strict=True):
        check_alike(want, got)
