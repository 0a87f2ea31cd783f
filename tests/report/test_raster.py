import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.report.pictures.raster import busy_share, highest
from overlap_sched.report.timeline import Span


def test_shares_of_bins_that_cut_through_spans() -> None:
    spans = (Span(0, 5.0, 15.0), Span(1, 15.0, 20.0), Span(2, 38.0, 40.0))
    assert busy_share(spans, np.linspace(0.0, 40.0, 5)).tolist() == [0.5, 1.0, 0.0, 0.2]


def test_nothing_busy() -> None:
    assert busy_share((), np.linspace(0.0, 1.0, 4)).tolist() == [0.0, 0.0, 0.0]


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=30), st.integers(1, 50))
def test_area_is_kept_whatever_the_bins(ends: list[int], bins: int) -> None:
    ascending = sorted(ends[: len(ends) // 2 * 2])
    spans = [Span(0, float(a), float(b)) for a, b in zip(ascending[::2], ascending[1::2], strict=True) if a < b]
    edges = np.linspace(0.0, 1000.0, bins + 1)
    assert np.isclose((busy_share(spans, edges) * np.diff(edges)).sum(), sum(s.end_us - s.start_us for s in spans))


def test_a_momentary_peak_shows_in_its_bin_and_values_carry_over() -> None:
    samples = [(0.0, 5), (12.0, 9), (12.0, 7), (30.0, 1), (40.0, 2)]
    assert highest(samples, np.linspace(0.0, 40.0, 5)).tolist() == [5.0, 9.0, 7.0, 2.0]


@given(
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 99)), min_size=1, max_size=30).map(sorted),
    st.integers(1, 40),
)
def test_no_peak_is_lost_and_none_is_made_up(later: list[tuple[int, int]], bins: int) -> None:
    samples = [(0.0, 3), *((float(when), value) for when, value in later)]
    top = highest(samples, np.linspace(0.0, 100.0, bins + 1))
    values = [value for _, value in samples]
    assert top.max() == max(values)
    assert set(top) <= set(values)
