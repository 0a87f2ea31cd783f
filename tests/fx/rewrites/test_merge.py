"""Products of a graph as one: results, the lifted graph is the rewritten problem, refusals word by word."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from overlap_sched.cost import Roofline
from overlap_sched.errors import RewriteError
from overlap_sched.fx import lift
from overlap_sched.fx.fitting import fit_graph
from overlap_sched.fx.rewrites import rewrite_graph
from overlap_sched.fx.rewrites.merges import merge_candidates, merges
from overlap_sched.judge.liveness import peak_memory
from overlap_sched.transform.apply import apply
from overlap_sched.transform.merge import Merge
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Recompute, from_json, to_json
from tests.support.fx_graphs import tensors, trace
from tests.support.rewrite_graphs import by_name, described, refusal


def attention(x: Tensor, q: Tensor, k: Tensor, v: Tensor, target: Tensor) -> list[Tensor]:
    """Products of one input, as linear layers are traced: with a view of it each; and all gradients."""
    weights = [weight.detach().requires_grad_() for weight in (q, k, v)]
    a, b, c = (torch.nn.functional.linear(x, weight) for weight in weights)
    out = (a @ b.transpose(-1, -2)).softmax(-1) @ torch.relu(c)
    return [out.detach(), *torch.autograd.grad((out - target).square().sum(), weights)]


def experts(x: Tensor, *weights: Tensor) -> list[Tensor]:
    """Small products of one size, of nothing in common."""
    return [torch.relu(part @ weight) for part, weight in zip(x.unbind(0), weights, strict=True)]


def updated(x: Tensor, q: Tensor, k: Tensor) -> list[Tensor]:
    """Weights change behind the products, and one product reads the changed one."""
    a, b = x @ q, x @ k
    q.sub_(0.1 * (a.sum() * b.sum()))
    return [a.cos(), b.sin(), x @ q]


GRAPHS: dict[str, Callable[[], fx.GraphModule]] = {
    "attention": lambda: trace(attention, (3, 4, 8), (8, 8), (8, 8), (8, 8), (3, 4, 8)),
    "experts": lambda: trace(experts, (4, 6, 8), *[(8, 4)] * 4),
    "updated": lambda: trace(updated, (6, 8), (8, 4), (8, 8)),
}


def results(gm: fx.GraphModule) -> list[Tensor]:
    """What a graph returns, and its inputs afterwards; in float64, where another order of a sum changes little."""
    inputs = [given.double() for given in tensors(gm)]
    return [*gm(*inputs), *inputs]


@pytest.mark.parametrize("name", GRAPHS)
def test_every_candidate_gives_the_same_numbers_and_the_problem_says_so(name: str) -> None:
    forms = set()
    for one in merge_candidates(GRAPHS[name]().graph):
        gm = GRAPHS[name]()
        if refusal(gm, [one]) is not None:
            continue
        before = lift(gm).problem
        expected = apply(before, [one], Prices(Roofline()))
        rewrite_graph(gm, [one])
        gm.graph.lint()
        for got, want in zip(results(gm), results(GRAPHS[name]()), strict=True):
            assert got.stride() == want.stride()
            assert (got - want).abs().max() <= 1e-12 * want.abs().max()
        after = lift(gm).problem
        if name == "updated":  # which of several new nodes a writer comes behind is said in another way
            orders = [problem.names(problem.original_order) for problem in (after, expected)]
            assert orders[0] == orders[1]
            assert peak_memory(after, after.original_order) == peak_memory(expected, expected.original_order)
        else:
            assert by_name(after) == by_name(expected)
        forms.add((one.form, one.shared))
    assert (
        forms
        == {
            "attention": {("columns", "left"), ("rows", "right"), ("batched", "left"), ("batched", "right")},
            "experts": {("batched", "")},
            "updated": {("columns", "left")},
        }[name]
    )


def test_small_products_are_worth_it_and_large_ones_are_not() -> None:
    lifted = lift(GRAPHS["experts"]())
    (one,) = merges(lifted, Prices(lifted.model))
    assert (one.form, len(one.members)) == ("batched", 4)  # 2 us of each kernel, and three new ones
    large = lift(trace(lambda x, *ws: [x @ w for w in ws], (512, 4096), *[(4096, 4096)] * 3))
    assert len(merge_candidates(large.nodes[0].graph)) == 2  # columns, batched
    assert merges(large, Prices(large.model)) == ()


def test_asked_for_a_graph_is_merged_and_shorter() -> None:
    gm = GRAPHS["experts"]()
    before = lift(gm).problem
    found = fit_graph(gm, memory_limit="200%", kinds=("merge",))
    assert [type(one) for one in found.best.rewrites] == [Merge]
    assert found.best.step_us < found.without.step_us
    assert {node.target for node in gm.graph.nodes} >= {torch.ops.aten.bmm.default, torch.ops.aten.stack.default}
    assert sum(lift(gm).problem.compute_us) < sum(before.compute_us)
    for got, want in zip(results(gm), results(GRAPHS["experts"]()), strict=True):
        assert (got - want).abs().max() <= 1e-12 * want.abs().max()


def test_what_is_merged_does_not_run_again_behind_a_change_of_any_weight() -> None:
    def late(x: Tensor, q: Tensor, k: Tensor) -> list[Tensor]:
        a, b = x @ q, x @ k
        k.sub_(0.1 * (a * b).sum())
        return [a, b.sin()]

    gm = trace(late, (6, 8), (8, 4), (8, 4))
    (one,) = (one for one in merge_candidates(gm.graph) if one.form == "batched")
    again = Recompute((f"{one.name}_right", one.name, f"{one.name}_out_1"), ("sin",))
    assert refusal(gm, [one, again]) == (
        "'merge_mm_2_right' cannot run again: 'sub_' writes to what it reads before that."
    )
    with pytest.raises(RewriteError, match="writes to what it reads before that"):
        apply(lift(gm).problem, [one, again], Prices(Roofline()))


def changing(x: Tensor, q: Tensor, k: Tensor) -> list[Tensor]:
    """Both weights change at the end."""
    a, b = x @ q, x @ k
    result = a.cos() + b
    q.sub_(0.1 * a.sum())
    k.sub_(0.1 * b.sum())
    return [result]


def test_undone_the_graph_is_as_it_was() -> None:
    gm = GRAPHS["attention"]()
    before = described(gm.graph)
    for one in merge_candidates(gm.graph):
        refusal(gm, [one])
    assert described(gm.graph) == before


QKV = Merge(("mm", "mm_1"), ("x_1", "x_1"), ("q_1", "k_1"), (6, 6), (4, 4), 8, 4, "columns", "left")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"members": ("mm", "mm")}, "a merge of mm, mm: two products at least, each once."),
        (
            {"rows": (6,)},
            "a merge of mm, mm_1, as 'columns' of one 'left' operand: it wants another form, or operands and sizes of "
            "each member.",
        ),
        (
            {"form": "rows"},
            "a merge of mm, mm_1, as 'rows' of one 'left' operand: it wants another form, or operands and sizes of "
            "each member.",
        ),
        ({"rows": (6, 7)}, "a merge of mm, mm_1: as columns, all have as many rows, not 6, 7."),
        ({"right": ("q_1", "q_1")}, "a merge of mm, mm_1: two of them are the same product."),
        ({"left": ("x_1", "q_1")}, "'mm_1' is no product of 'q_1' and 'k_1'."),
        ({"members": ("mm", "cos")}, "'cos' is no product of 'x_1' and 'k_1'."),
        ({"inner": 9}, "'mm' has rows, columns, inner size and bytes (6, 4, 8, 4), not (6, 4, 9, 4)."),
        (
            {"form": "batched", "shared": "right"},
            "'k_1' is not the value of 'q_1', which would go in for it.",
        ),
    ],
)
def test_refusals(changes: dict[str, Any], text: str) -> None:
    gm = trace(changing, (6, 8), (8, 4), (8, 4))
    assert refusal(gm, [replace(QKV, **changes)]) == text


def test_written_results_and_products_on_one_path() -> None:
    def chained(x: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
        y = x @ w
        return [(y @ v).cos(), y]

    one = Merge(("mm", "mm_1"), ("x_1", "mm"), ("w_1", "v_1"), (8, 8), (8, 8), 8, 4, "batched", "")
    said = refusal(trace(chained, (8, 8), (8, 8), (8, 8)), [one])
    assert said is not None
    assert said.startswith("'merge_mm_2' would need itself")

    def written(x: Tensor, w: Tensor, v: Tensor) -> list[Tensor]:
        return [(x @ w).relu_(), x @ v]

    said = refusal(trace(written, (8, 8), (8, 8), (8, 8)), [replace(one, left=("x_1", "x_1"))])
    assert said == (
        "'mm' is written to, looked at by its address, or must come after what it does not take: it stays a product of "
        "its own."
    )


def test_a_merge_is_written_and_read() -> None:
    assert from_json(json.loads(json.dumps(to_json([QKV])))) == (QKV,)
