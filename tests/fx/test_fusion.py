"""Predicted kernels of real graphs: which operators are loops, what is looked through, who pays."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from overlap_sched.errors import OptionsError
from overlap_sched.fx import lift
from overlap_sched.fx.lifting import Lifted
from overlap_sched.problem import Kind, Node
from tests.support.fx_graphs import ATEN, gather, on_gpu, trace, wait

ROWS, WIDTH = 256, 512
FULL = 4 * ROWS * WIDTH


def fused(f: Callable[..., Any], *shapes: tuple[int, ...], device: str = "cuda", **options: Any) -> Lifted:
    gm = trace(f, *shapes)
    if device == "cuda":
        on_gpu(gm)
    return lift(gm, fusion="inductor", **options)


def kernels(lifted: Lifted) -> dict[str, int]:
    """Bytes of every kernel, by the node that names it."""
    found: dict[str, int] = {}
    for node, price in zip(lifted.problem.nodes, lifted.prices, strict=True):
        if node.kind is Kind.COMPUTE and price.source != "free":
            name = price.part_of or node.name
            found[name] = found.get(name, 0) + node.bytes
    return found


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def test_a_norm_is_one_kernel() -> None:
    lifted = fused(norm, (ROWS, WIDTH), (WIDTH,))
    assert kernels(lifted) == {"mul_1": 2 * FULL + 4 * WIDTH}
    plain = lift(trace(norm, (ROWS, WIDTH), (WIDTH,)))
    assert sum(node.bytes for node in plain.problem.nodes) > 3 * sum(node.bytes for node in lifted.problem.nodes)
    assert {price.source for price in plain.prices} == {"free", "roofline"}


def test_the_graph_stays_one_of_single_nodes() -> None:
    gm = trace(norm, (ROWS, WIDTH), (WIDTH,))
    plain, priced = lift(gm), lift(gm, fusion="inductor")
    assert plain.nodes == priced.nodes

    def bare(node: Node) -> Node:
        return node._replace(time_us=0.0, bytes=0)

    assert [bare(node) for node in plain.problem.nodes] == [bare(node) for node in priced.problem.nodes]
    for node, price in zip(priced.problem.nodes, priced.prices, strict=True):
        assert node.time_us == price.time_us


def softmax(x: Tensor) -> Tensor:
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def softmax_backward(x: Tensor, y: Tensor) -> Tensor:
    return ATEN._softmax_backward_data.default(x, y, -1, torch.float32).sum(-1)


def transposed(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.relu(x)
    return y, y.t() * 2


def halves(x: Tensor) -> Tensor:
    left, right = x.split(WIDTH // 2, 1)
    return left * right


def around_a_collective(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    return y * wait(gather(y))[:ROWS], y


X = (ROWS, WIDTH)
KERNELS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], dict[str, int]]] = {
    "softmax, decomposed": (softmax, [X], {"div": 2 * FULL}),
    "softmax": (lambda x: ATEN._softmax.default(x * 2, -1, False) + 1, [X], {"add": 2 * FULL}),
    "softmax backward": (softmax_backward, [X, X], {"sum_1": 2 * FULL + 4 * ROWS}),
    "views are looked through": (
        lambda x: ((x + 1).view(-1) * 2).view(WIDTH, ROWS).unsqueeze(0).exp(),
        [X],
        {"exp": 2 * FULL},
    ),
    "results in another order are not merged with who made them": (
        transposed,
        [X],
        {"relu": 2 * FULL, "mul": 2 * FULL},
    ),
    "parts are read as parts": (halves, [X], {"mul": FULL + FULL // 2}),
    "a slice is read as a part": (lambda x: x[:, :8] * 2, [X], {"mul": 2 * 4 * ROWS * 8}),
    "broadcast values are read once": (lambda x: x.expand(ROWS, WIDTH) + 1, [(WIDTH,)], {"add": FULL + 4 * WIDTH}),
    "what is written back is written": (lambda x, y: x.copy_(y * 2), [X, X], {"copy_": 2 * FULL}),
    "no kernel spans a collective": (around_a_collective, [X], {"mul": 2 * FULL, "mul_1": 3 * FULL}),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels(name: str) -> None:
    f, shapes, found = KERNELS[name]
    assert kernels(fused(f, *shapes)) == found


def test_matmuls_stay_alone_and_what_they_read_is_stored() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(torch.relu(x + 1) @ y) * 2

    found = fused(f, (ROWS, WIDTH), (WIDTH, WIDTH))
    assert kernels(found) == {"relu": 2 * FULL, "mm": 2 * FULL + 4 * WIDTH * WIDTH, "mul": 2 * FULL}
    by_name = dict(zip([node.name for node in found.problem.nodes], found.prices, strict=True))
    assert (by_name["mm"].source, by_name["relu_1"].part_of, by_name["relu_1"].time_us) == ("roofline", "mul", 0.0)


def test_matmuls_read_broadcast_values_from_copies() -> None:
    found = kernels(fused(lambda x, y: x.expand(ROWS, WIDTH) @ y, (1, 1), (WIDTH, WIDTH)))
    assert found["expand"] == FULL + 4


def test_lookups_read_the_rows_that_they_pick() -> None:
    def f(table: Tensor, x: Tensor) -> Tensor:
        return table[x.argmax(1)] * 2

    assert kernels(fused(f, (10_000, WIDTH), (ROWS, 7)))["mul"] == 2 * FULL + 4 * 7 * ROWS


def test_masks_pick_what_only_the_data_knows() -> None:
    env = ShapeEnv(allow_dynamic_output_shape_ops=True)
    with torch._subclasses.FakeTensorMode(shape_env=env):
        x = torch.empty(ROWS, WIDTH)
        gm = make_fx(lambda x: x[x > 0] * 2)(x)
    assert set(kernels(lift(gm, fusion="inductor"))) == {"gt", "index", "mul"}


def test_concatenations_are_written() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x * 2, y * 3]) + 1

    moved = sum(kernels(fused(f, (ROWS, WIDTH), (ROWS, WIDTH))).values())
    assert moved == 4 * FULL  # the sum joins: nobody else reads the concatenation


def scattered(x: Tensor, at: Tensor, values: Tensor) -> Tensor:
    return (x * 2).scatter_add(1, at.long(), values)


@pytest.mark.parametrize(
    ("device", "found"),
    [
        ("cuda", {"scatter_add": 2 * FULL + (4 + 4 + 4) * ROWS}),
        ("cpu", {"mul": 2 * FULL, "_to_copy": 12 * ROWS, "scatter_add": 2 * FULL + 12 * ROWS}),
    ],
)
def test_scatters_copy_what_they_write_into(device: str, found: dict[str, int]) -> None:
    shapes = (ROWS, WIDTH), (ROWS, 1), (ROWS, 1)
    assert kernels(fused(scattered, *shapes, device=device)) == found
    doubled_after = fused(lambda *given: scattered(*given) * 2, *shapes, device=device)
    assert kernels(doubled_after) == {**found, "mul_1": 2 * FULL}  # all has to be written before it is read


def test_complex_numbers_and_unknown_operators_stay_alone() -> None:
    def f(x: Tensor) -> Tensor:
        turned = torch.view_as_complex(x.view(ROWS, -1, 2)) * 1j
        return torch.view_as_real(turned * 1j) + 1

    assert set(kernels(fused(f, (ROWS, WIDTH)))) == {"mul", "mul_1", "add"}
    assert set(kernels(fused(lambda x: (x * 2).sort(1)[0] * 2, (ROWS, WIDTH)))) == {"mul", "sort", "mul_1"}


def test_no_kernel_spans_the_order_of_the_collectives() -> None:
    """b joins a, and would have to run before the first collective is waited for and after the second."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a = x * 2
        first = wait(gather(a))
        second = wait(gather(y))
        return a, first, a * second[:ROWS] + x

    assert set(kernels(fused(f, (ROWS, WIDTH), (ROWS, WIDTH)))) == {"mul", "add"}


def test_times_of_the_user_are_kept_and_are_all_that_a_kernel_takes() -> None:
    gm_times = {"pow_1": 7.0, "mul_1": 2.0}
    lifted = fused(norm, (ROWS, WIDTH), (WIDTH,), cost=lambda node: gm_times.get(node.name))
    timed = {node.name: node.time_us for node in lifted.problem.nodes if node.time_us}
    assert timed == gm_times
    sources = {node.name: price.source for node, price in zip(lifted.problem.nodes, lifted.prices, strict=True)}
    assert (sources["pow_1"], sources["mean"]) == ("user", "fusion")


def test_it_is_asked_for_by_name() -> None:
    with pytest.raises(OptionsError) as error:
        lift(trace(norm, (ROWS, WIDTH), (WIDTH,)), fusion="triton")  # type: ignore[arg-type]
    assert str(error.value) == "fusion is 'triton'; it is 'none' or 'inductor'."


def doubled(reduction: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: reduction(x) * 2


def test_reductions_name_their_dimensions_in_many_ways() -> None:
    ways: list[tuple[Callable[[Tensor], Tensor], int]] = [
        (lambda x: x.sum(), 1),
        (lambda x: x.sum(0), WIDTH),
        (lambda x: x.mean([-1]), ROWS),
        (lambda x: x.amax((0, 1)), 1),
        (lambda x: torch.linalg.vector_norm(x, 2.0, 1), ROWS),
        (lambda x: x.max(1)[0], ROWS),
    ]
    for reduction, points in ways:  # squares of the result join only where there is one for each point
        assert len(kernels(fused(doubled(reduction), (ROWS, WIDTH)))) == 1, points
        assert len(kernels(fused(doubled(reduction), (ROWS + 1, WIDTH + 1)))) == 1, points


def test_normalized_rows_and_columns_differ() -> None:
    rows = fused(lambda x: x / x.sum(1, keepdim=True), (ROWS, WIDTH))
    columns = fused(lambda x: x / x.sum(0, keepdim=True), (ROWS, WIDTH))
    assert (len(kernels(rows)), len(kernels(columns))) == (1, 2)
