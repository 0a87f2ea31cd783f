"""Predicted kernels: what is inlined, what is merged, what a kernel moves, and who bears its price."""

from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest

from overlap_sched.cost import Collective, Compute, Device, Roofline, fusion
from overlap_sched.cost.fusion import (
    CPP,
    TRITON,
    FusionRules,
    FusionStep,
    KernelShare,
    Read,
    parts_of_kernels,
    shared_prices,
)
from overlap_sched.cost.model import Price

N = 1000
"""Elements of a vector; one byte each."""
ROWS, COLUMNS = 100, 50
MATRIX = ROWS * COLUMNS


def read(value: int, nbytes: int = N, *, window: int | None = None, aligned: bool = True) -> Read:
    return Read(value, value if window is None else window, nbytes, max(nbytes, N), aligned)


def pointwise(*values: int | Read, n: int = N, **more: object) -> FusionStep:
    reads = tuple(v if isinstance(v, Read) else read(v, n) for v in values)
    return FusionStep("pointwise", reads, n, n, **more)  # type: ignore[arg-type]


def rows_sum(value: int, **more: object) -> FusionStep:
    """Of each row of a matrix."""
    return FusionStep("reduction", (read(value, MATRIX),), ROWS, ROWS, COLUMNS, **more)  # type: ignore[arg-type]


def opaque(*values: int, n: int = N, **more: object) -> FusionStep:
    return FusionStep("opaque", tuple(read(v, n) for v in values), n, **more)  # type: ignore[arg-type]


def kernels(steps: Sequence[FusionStep | None], rules: FusionRules = TRITON) -> dict[int, tuple[set[int], int]]:
    """Per kernel its steps and the bytes that it moves."""
    found: dict[int, tuple[set[int], int]] = {}
    for v, part in enumerate(parts_of_kernels(steps, rules)):
        if part is not None:
            steps_of, nbytes = found.get(part.kernel, (set(), 0))
            found[part.kernel] = (steps_of | {v}, nbytes + part.bytes)
    return found


def test_a_chain_is_one_kernel_that_reads_its_input_and_writes_its_output() -> None:
    steps = [None, pointwise(0), pointwise(1), pointwise(2, kept=True)]
    assert parts_of_kernels(steps, TRITON) == [None, KernelShare(3, 0), KernelShare(3, 0), KernelShare(3, 2 * N)]


def test_what_two_members_read_is_read_once_and_what_leaves_is_written() -> None:
    steps = [None, None, pointwise(0, kept=True), pointwise(0, 1, 2, kept=True)]
    assert parts_of_kernels(steps, TRITON) == [None, None, KernelShare(3, 2 * N), KernelShare(3, 2 * N)]


def test_a_norm_reads_its_input_once() -> None:
    square, total, normed = pointwise(0, n=MATRIX), rows_sum(1), pointwise(read(0, MATRIX), read(2, ROWS), n=MATRIX)
    steps = [None, square, total, replace_kept(normed)]
    assert kernels(steps) == {3: ({1, 2, 3}, 2 * MATRIX)}
    kept = [None, square, replace_kept(total), replace_kept(normed)]  # the sums are wanted by others, too
    assert kernels(kept) == {3: ({1, 2, 3}, 2 * MATRIX + ROWS)}


def replace_kept(step: FusionStep) -> FusionStep:
    return step._replace(kept=True)


def test_what_is_called_as_it_is_stays_alone_and_has_its_input_stored() -> None:
    steps = [None, pointwise(0), opaque(1), pointwise(2, kept=True)]
    assert kernels(steps) == {1: ({1}, 2 * N), 3: ({3}, 2 * N)}


def test_no_kernel_spans_a_path_through_something_else() -> None:
    around = [None, pointwise(0, kept=True), opaque(1), pointwise(1, 2, kept=True)]
    assert kernels(around) == {1: ({1}, 2 * N), 3: ({3}, 3 * N)}
    beside = [None, pointwise(0, kept=True), opaque(0), pointwise(1, 2, kept=True)]
    assert kernels(beside) == {3: ({1, 3}, 4 * N)}
    ordered = [None, pointwise(0, kept=True), opaque(0, after=(1,)), pointwise(1, 2, kept=True)]
    assert set(kernels(ordered)) == {1, 3}  # not data, but an order


def test_no_two_kernels_wait_for_each_other() -> None:
    """a and d read one input, b and c another; b reads what comes of a, and d what comes of c."""
    a, b = pointwise(0, kept=True), pointwise(1, 3, kept=True)
    c, d = pointwise(1, kept=True), pointwise(0, 6, kept=True)
    steps = [None, None, a, opaque(2), b, c, opaque(5), d]
    assert kernels(steps) == {5: ({4, 5}, 4 * N), 2: ({2}, 2 * N), 7: ({7}, 3 * N)}
    alone = [None, None, a, None, None, c, opaque(5), d]
    assert kernels(alone) == {5: ({5}, 2 * N), 7: ({2, 7}, 4 * N)}


def test_a_path_that_a_merge_has_made_counts() -> None:
    """x joins y, so that what reads x comes after what y reads."""
    x, y = pointwise(0, kept=True), pointwise(0, 1, kept=True)
    steps = [None, opaque(0), x, opaque(2), y._replace(reads=(read(0), read(1))), pointwise(1, 3, kept=True)]
    assert kernels(steps) == {4: ({2, 4}, 4 * N), 5: ({5}, 3 * N)}
    crossing = [None, None, x, opaque(2), pointwise(1, kept=True), opaque(4), pointwise(0, 5, kept=True)]
    crossing.append(pointwise(1, 3, kept=True))
    assert kernels(crossing) == {6: ({2, 6}, 4 * N), 4: ({4}, 2 * N), 7: ({7}, 3 * N)}


def test_a_merged_kernel_needs_what_its_parts_need() -> None:
    a, z, y, w = (
        pointwise(0, kept=True),
        pointwise(1, kept=True),
        pointwise(1, 3, kept=True),
        pointwise(2, 4, kept=True),
    )
    assert kernels([None, None, a, opaque(2), z, y, w]) == {2: ({2}, 2 * N), 6: ({4, 5, 6}, 6 * N)}
    inlined = pointwise(0, after=(2,))
    steps = [None, pointwise(0, kept=True), opaque(1), inlined, pointwise(1, 3, kept=True)]
    assert set(kernels(steps)) == {1, 4}


def test_loops_over_other_points_are_not_merged() -> None:
    assert set(kernels([None, pointwise(0, kept=True), pointwise(read(0, 2 * N), n=2 * N, kept=True)])) == {1, 2}
    assert set(kernels([None, rows_sum(0, kept=True), pointwise(read(0, MATRIX + 1), n=MATRIX + 1, kept=True)])) == {
        1,
        2,
    }


def test_what_lies_in_another_order_is_not_merged() -> None:
    straight = [None, pointwise(0, kept=True), pointwise(1, kept=True)]
    assert set(kernels(straight)) == {2}
    turned = [None, pointwise(0, kept=True), pointwise(read(1, window=9, aligned=False), kept=True)]
    assert set(kernels(turned)) == {1, 2}
    within = [None, rows_sum(0, kept=True), pointwise(read(1, ROWS), n=ROWS)]
    within.append(pointwise(read(2, ROWS, window=9, aligned=False), n=ROWS, kept=True))
    assert set(kernels(within)) == {1, 3}


def test_a_reduction_along_columns_joins_no_loops_over_the_matrix() -> None:
    normed = pointwise(0, n=MATRIX, kept=True)
    assert set(kernels([None, normed, rows_sum(1, kept=True)])) == {2}
    assert set(kernels([None, normed, rows_sum(1, inner=False, kept=True)])) == {1, 2}


@pytest.mark.parametrize(("nbytes", "merged"), [(10, True), (9, False)])
def test_sharing_a_few_bytes_is_no_reason(nbytes: int, merged: bool) -> None:
    steps = [None, pointwise(read(0, nbytes), kept=True), pointwise(read(0, nbytes), kept=True)]
    assert (len(kernels(steps)) == 1) is merged


@pytest.mark.parametrize(("between", "merged"), [(63, True), (64, False)])
def test_loops_that_are_far_apart_are_not_merged(between: int, merged: bool) -> None:
    others = [opaque(1) for _ in range(between)]
    steps = [None, None, pointwise(0, kept=True), *others, pointwise(0, kept=True)]
    assert (len(kernels(steps)) == 1) is merged


@pytest.mark.parametrize(("inputs", "stored"), [(4, False), (5, True)])
def test_a_step_with_several_readers_is_stored_when_it_reads_much(inputs: int, stored: bool) -> None:
    steps = [*[None] * inputs, pointwise(*range(inputs))]
    steps += [pointwise(inputs, kept=True), pointwise(read(inputs, N, window=99, aligned=False), kept=True)]
    moved = sum(nbytes for _, nbytes in kernels(steps).values())
    assert moved == (inputs + 2) * N + 2 * N if stored else (inputs + 2) * N


@pytest.mark.parametrize(("inputs", "rules", "stored"), [(8, TRITON, False), (9, TRITON, True), (9, CPP, False)])
def test_any_step_is_stored_when_it_reads_very_much(inputs: int, rules: FusionRules, stored: bool) -> None:
    crooked = read(inputs, N, window=99, aligned=False)
    steps = [*[None] * inputs, pointwise(*range(inputs)), pointwise(crooked, kept=True)]
    assert (len(kernels(steps, rules)) == 2) is stored


@pytest.mark.parametrize(("ops", "stored"), [(28, False), (29, True)])  # and one read, and the reader's own
def test_long_formulas_are_stored(ops: int, stored: bool) -> None:
    steps = [None, pointwise(0, ops=ops + 1), pointwise(read(1, window=99, aligned=False), kept=True)]
    assert (len(kernels(steps, TRITON)) == 2) is stored
    two = [None, pointwise(0, ops=ops), pointwise(1), pointwise(read(2, window=99, aligned=False), kept=True)]
    assert (len(kernels(two, TRITON)) == 2) is stored


def test_slow_functions_are_not_computed_twice_on_a_cpu() -> None:
    crooked = read(1, window=99, aligned=False)
    steps = [None, pointwise(0, slow=True), pointwise(crooked, kept=True), pointwise(crooked, kept=True)]
    assert (len(kernels(steps, TRITON)), len(kernels(steps, CPP))) == (1, 2)
    crooked = read(2, window=99, aligned=False)
    steps = [None, pointwise(0, slow=True), pointwise(1), pointwise(crooked, kept=True), pointwise(crooked, kept=True)]
    assert (len(kernels(steps, TRITON)), len(kernels(steps, CPP))) == (1, 2)


def test_small_reductions_are_written_out() -> None:
    pairs = FusionStep("reduction", (read(0, 7 * N),), N, N, 7)
    assert set(kernels([None, pairs, pointwise(1, kept=True)])) == {2}
    assert parts_of_kernels([None, pairs, pointwise(1, kept=True)], TRITON)[1] == KernelShare(2, 0)
    eight = pairs._replace(reduced=8, reads=(read(0, 8 * N),))
    assert parts_of_kernels([None, eight, pointwise(1, kept=True)], TRITON)[1] == KernelShare(2, 8 * N)


def test_a_part_of_an_inlined_step_reads_a_part_of_its_inputs() -> None:
    half = Read(1, 9, N // 2, N, False)
    assert kernels([None, pointwise(0), pointwise(half, n=N // 2, kept=True)]) == {2: ({1, 2}, N)}


def test_two_halves_of_a_value_are_not_more_than_the_value() -> None:
    halves = [Read(0, 8, 600, N, False), Read(0, 9, 600, N, False)]
    assert kernels([None, pointwise(*halves, kept=True)]) == {1: ({1}, N + N)}
    half = Read(0, 9, N // 2, N, False)
    assert kernels([None, pointwise(half, kept=True), pointwise(half, kept=True)]) == {2: ({1, 2}, N // 2 + 2 * N)}


HIGH, WIDE = 2**13, 2**10


@pytest.mark.parametrize(
    ("high", "wide", "rules", "merged"),
    [
        (HIGH, WIDE, TRITON, True),
        (HIGH, WIDE, CPP, False),
        (HIGH, WIDE // 2, TRITON, False),  # too small
        (WIDE, HIGH, TRITON, False),  # wider than high
    ],
)
def test_a_large_matrix_is_reduced_both_ways_at_once(high: int, wide: int, rules: FusionRules, merged: bool) -> None:
    rows = FusionStep("reduction", (read(0, high * wide),), high, high, wide, kept=True)
    columns = FusionStep("reduction", (read(0, high * wide),), wide, wide, high, inner=False, kept=True)
    assert (len(kernels([None, rows, columns], rules)) == 1) is merged
    needs = columns._replace(reads=(*columns.reads, read(1, high)))
    assert len(kernels([None, rows, needs], rules)) == 2


def test_a_kernel_has_a_largest_size() -> None:
    steps = [None, *[pointwise(v, kept=True) for v in range(5)]]
    assert len(kernels(steps, TRITON)) == 1
    assert len(kernels(steps, replace(TRITON, size=3))) == 2


def test_what_nobody_needs_has_no_kernel() -> None:
    assert parts_of_kernels([None, pointwise(0)], TRITON) == [None, None]


SLOW = Roofline(Device("slow", 1e12, 1e9, flops_efficiency=1, bytes_efficiency=1, kernel_us=0.5))
"""A byte takes a nanosecond."""


def test_the_price_of_a_kernel_is_divided_by_bytes() -> None:
    steps = [None, pointwise(0, kept=True), pointwise(1), pointwise(2, kept=True), opaque(0), pointwise(4, kept=True)]
    names = [f"n{v}" for v in range(6)]
    prices = shared_prices(parts_of_kernels(steps, TRITON), names, ["op"] * 6, [0] * 6, SLOW)
    assert prices == {
        1: Price(2.0, "fusion", "bytes", "n3"),
        2: Price(0.0, "fusion", "bytes", "n3"),
        3: Price(1.0, "fusion", "bytes", "n3"),
        5: Price(2.0, "roofline", "bytes"),
    }


def test_a_kernel_is_priced_once_with_all_that_it_does() -> None:
    asked: list[Compute] = []

    class Model:
        def compute_us(self, work: Compute) -> float:
            asked.append(work)
            return 8.0

        def collective_us(self, work: Collective) -> float:
            raise AssertionError

    steps = [None, pointwise(0, kept=True), pointwise(1, kept=True)]
    parts = parts_of_kernels(steps, TRITON)
    prices = shared_prices(parts, ["x", "a", "b"], ["", "mul", "add"], [0, 3, 4], Model())
    assert asked == [Compute("mul+add", 7, 3 * N, "fused")]
    assert [price.source for price in prices.values()] == ["user", "user"]
    assert sum(price.time_us for price in prices.values()) == 8.0


def test_work_grows_with_the_graph() -> None:
    def merges(layers: int) -> int:
        steps: list[FusionStep | None] = [None]
        for _ in range(layers):
            v = len(steps)
            steps += [pointwise(v - 1, kept=True), pointwise(v - 1, v, kept=True), opaque(v + 1)]
        with patch.object(fusion, "_merge", side_effect=fusion._merge) as merge:
            parts_of_kernels(steps, TRITON)
        return merge.call_count

    assert merges(400) <= 4.1 * merges(100)
