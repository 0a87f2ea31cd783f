"""Measured times: interpolated, never falling, said where they come from."""

import math
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.cost import H100, Collective, Compute, Price, Roofline
from overlap_sched.cost.table import (
    COPY,
    CollectiveTime,
    KernelTime,
    TableModel,
    Tables,
    curve_of,
    kind_of,
)
from overlap_sched.errors import CostError, OverlapSchedWarning
from overlap_sched.problem import Group

PAIR, ACROSS = Group(2, True), Group(2, False)
GATHERS = (
    CollectiveTime("all_gather", 2, 1, 1000, 10.0, 4.0),
    CollectiveTime("all_gather", 2, 1, 100000, 90.0, 9.0),
    CollectiveTime("all_gather", 2, 4, 1000, 40.0, 4.0),
    CollectiveTime("all_gather", 2, 2, 1000, 20.0, 4.0),
)
MATMULS = (
    KernelTime("aten.mm.default", "a", 10**12, 10**9, 3000.0),
    KernelTime("aten.mm.default", "b", 10**10, 10**7, 40.0),
)
COPIES = (KernelTime(COPY, "c", 0, 10**6, 2.0), KernelTime(COPY, "d", 0, 10**8, 200.0))
TABLES = Tables(GATHERS, (*MATMULS, *COPIES))


def test_between_two_points_logarithms_are_interpolated():
    curve = curve_of([(100, 10.0), (10000, 1000.0)])
    assert curve.at(1000) == pytest.approx(100.0)  # the middle of both, on both axes
    assert curve.at(100) == 10.0
    assert curve.at(10000) == 1000.0
    assert curve_of([(1, 2.0), (4, 4.0)]).at(2) == pytest.approx(2 * math.sqrt(2))


def test_beyond_the_ends():
    curve = curve_of([(100, 10.0), (200, 12.0)])
    assert curve.at(1) == 10.0  # latency
    assert curve.at(0) == 10.0
    assert curve.at(2000) == pytest.approx(120.0)  # bandwidth
    assert [curve.covers(size) for size in (99, 100, 150, 200, 201)] == [False, True, True, True, False]


def test_what_falls_is_averaged_with_its_neighbour():
    curve = curve_of([(1, 1.0), (2, 8.0), (3, 2.0), (4, 16.0)])
    assert curve.times_us == pytest.approx((1.0, 4.0, 4.0, 16.0))
    assert curve_of([(3, 1.0), (2, 10.0), (1, 100.0)]).times_us == pytest.approx((10.0, 10.0, 10.0))
    assert curve_of([(5, 4.0), (5, 9.0)]).times_us == pytest.approx((6.0,))  # two of one size


@given(st.lists(st.tuples(st.integers(1, 10**12), st.floats(1e-3, 1e9)), min_size=1), st.data())
def test_a_larger_size_never_takes_less(points, data):
    curve = curve_of(points)
    small, large = sorted(data.draw(st.tuples(st.integers(0, 10**13), st.integers(0, 10**13))))
    assert curve.at(small) <= curve.at(large) * (1 + 1e-9)
    times = [time_us for _, time_us in points]
    assert min(times) * (1 - 1e-9) <= curve.times_us[0] <= curve.times_us[-1] <= max(times) * (1 + 1e-9)


@pytest.mark.parametrize("point", [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0), (1, math.inf), (1, math.nan)])
def test_points_that_are_none(point):
    with pytest.raises(CostError) as error:
        curve_of([point])
    assert str(error.value) == f"a measured size of {point[0]} took {point[1]} us; both are finite and above 0."


def test_a_curve_of_nothing():
    with pytest.raises(CostError, match=r"^a curve needs one measured point at least\.$"):
        curve_of([])


def test_what_was_not_measured_lists_what_was():
    with pytest.raises(CostError) as error:
        TABLES.collective("all_to_all", 8, 1)
    assert str(error.value) == (
        "all_to_all of 8 ranks on 1 node was not measured; there is all_gather of 2 ranks on 1 node, all_gather of 2 "
        "ranks on 2 nodes, all_gather of 2 ranks on 4 nodes. Calibrate with this group, or leave it to the formulas."
    )
    with pytest.raises(CostError, match="there is no collective at all"):
        Tables().launch("all_gather", 2, 1)
    with pytest.raises(CostError) as error:
        TABLES.kernel("aten.bmm.default")
    assert str(error.value) == (
        "operator 'aten.bmm.default' was not measured; there is aten.clone.default, aten.mm.default. "
        "Calibrate with a graph that has it."
    )
    with pytest.raises(CostError, match="there is no operator at all"):
        Tables().kernel("x")
    assert TABLES.kernel(COPY) == COPIES


@pytest.mark.parametrize(
    ("op", "kind"),
    [
        ("all_gather_into_tensor_coalesced", "all_gather"),
        ("reduce_scatter_tensor", "reduce_scatter"),
        ("all_reduce_", "all_reduce"),
        ("allreduce_", "all_reduce"),
        ("all_to_all_single", "all_to_all"),
        ("broadcast", ""),
        ("isend", ""),
    ],
)
def test_the_kind_of_an_operator(op, kind):
    assert kind_of(op) == kind


def test_a_collective_is_looked_up_by_kind_ranks_and_nodes():
    model = TableModel(TABLES)
    gather = Collective("all_gather_into_tensor", 10000, PAIR)
    assert model.collective_price(gather) == Price(pytest.approx(30.0), "table")
    assert model.collective_us(gather) == model.collective_price(gather).time_us
    with pytest.warns(OverlapSchedWarning):
        assert model.collective_us(Collective("all_gather_into_tensor", 999, ACROSS)) == 20.0  # fewest nodes above 1
    fresh = TableModel(TABLES)
    with pytest.warns(OverlapSchedWarning):
        assert fresh.collective_us(Collective("all_gather_into_tensor", 999, Group(2, False, 4))) == 40.0
    for other in (Collective("broadcast", 10, PAIR), Collective("all_gather_into_tensor", 10, Group(4, True))):
        assert model.collective_price(other) == Roofline().collective_price(other)
    assert model.launch_us(gather) == 0.0  # a GPU's stream does not wait for the host
    host = TableModel(TABLES, on_host=True)
    assert host.launch_us(gather) == pytest.approx(6.0)
    assert host.launch_us(Collective("all_reduce", 10, PAIR)) == 0.0


def test_a_kernel_that_was_measured():
    model = TableModel(TABLES)
    assert model.compute_price(Compute("aten.mm.default", 10**12, 10**9)) == Price(pytest.approx(3000.0), "table")
    assert model.compute_us(Compute("aten.mm.default", 10**10, 10**7)) == pytest.approx(40.0)
    odd = Tables(
        kernels=(MATMULS[0]._replace(time_us=10.0), MATMULS[1])
    )  # the curve never falls, what was measured may
    assert TableModel(odd).compute_us(Compute("aten.mm.default", 10**12, 10**9)) == 10.0
    twice = Tables(kernels=(*MATMULS, MATMULS[0]._replace(shapes="transposed", time_us=12000.0)))
    assert TableModel(twice).compute_us(Compute("aten.mm.default", 10**12, 10**9)) == pytest.approx(6000.0)


def test_a_shape_in_between_is_found_by_the_time_of_the_formulas():
    model = TableModel(TABLES)
    between = Compute("aten.mm.default", 10**11, 10**8)
    small, asked, large = (Roofline().compute_us(Compute("x", 10**k, 10 ** (k - 3))) for k in (10, 11, 12))
    part = math.log(asked / small) / math.log(large / small)
    assert model.compute_price(between) == Price(pytest.approx(40.0 * 75.0**part), "table")


def test_kernels_without_products_cost_what_copies_cost():
    model = TableModel(TABLES)
    assert model.compute_price(Compute("aten.add.Tensor", 0, 10**7)) == Price(pytest.approx(20.0), "table")
    assert model.compute_price(Compute("aten.view.default", 0, 0)) == Price(0.0, "free")
    bmm = Compute("aten.bmm.default", 10**10, 10**7)
    assert model.compute_price(bmm) == Roofline().compute_price(bmm)
    add = Compute("aten.add.Tensor", 0, 10**7)
    assert TableModel(Tables(GATHERS), Roofline(H100)).compute_price(add) == Roofline().compute_price(add)


def test_beyond_what_was_measured_there_is_one_warning():
    model = TableModel(TABLES)
    with pytest.warns(OverlapSchedWarning) as said:
        assert model.collective_us(Collective("all_gather_into_tensor", 200000, PAIR)) == pytest.approx(180.0)
    assert [str(one.message) for one in said] == [
        "all_gather of 2 ranks on 1 node is asked for beyond the sizes that were measured: its time is extrapolated. "
        "Calibrate with this graph (--graph)."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.collective_us(Collective("all_gather_into_tensor", 400000, PAIR))
        model.collective_us(Collective("all_gather_into_tensor", 100000, PAIR))
    assert model.beyond == {"all_gather of 2 ranks on 1 node": 2}
    small = Compute("aten.mm.default", 10**9, 10**6)
    ratio = Roofline().compute_us(small) / Roofline().compute_us(Compute("x", 10**10, 10**7))
    with pytest.warns(OverlapSchedWarning, match=r"^aten\.mm\.default is asked for beyond"):
        assert model.compute_us(small) == pytest.approx(40.0 * ratio)  # in proportion, not as long as the smallest
    with pytest.warns(OverlapSchedWarning, match=r"^a copy is asked for beyond"):
        assert model.compute_us(Compute("aten.add.Tensor", 0, 10)) == 2.0


def test_the_model_has_one_key_whatever_it_was_asked():
    model, other = TableModel(TABLES), TableModel(TABLES)
    with pytest.warns(OverlapSchedWarning):
        model.compute_us(Compute("aten.add.Tensor", 0, 10))
    assert model == other
    assert repr(model) == repr(other)
