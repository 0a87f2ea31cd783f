"""One figure before and after: what counts as a change, and how it reads."""

import math

import pytest

from overlap_sched.report.diff.figures import Figure, change_text, in_one_unit, largest_first, percent_text

MIB = 2**20


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure("step", "", 150_290.0, 155_000.0), "150.29 → 155.00 ms, +3.1 % (+4.71 ms)"),
        (Figure("step", "", 155_000.0, 150_290.0), "155.00 → 150.29 ms, -3.0 % (-4.71 ms)"),
        (Figure("step", "", 1e6, 1e6 + 250.0), "1,000.00 → 1,000.25 ms, +0.03 % (+250.0 us)"),
        (Figure("exposed", "", 0.0, 12.0), "0.0 → 12.0 us (+12.0 us)"),
        (Figure("peak", "", 21 * MIB, 26 * MIB), "21.0 → 26.0 MiB, +23.8 % (+5.0 MiB)"),
        (Figure("reserved", "", 2**30, 2**30 - 512), "1.000 → 1.000 GiB, +0.0 % (-512 B)"),
        (Figure("peak", "", 0, 0), "0 → 0 B, +0.0 % (+0 B)"),
        (Figure("gap", "", 0.0, 0.5), "0.00 → 0.50 %, +0.5 pt"),
        (Figure("gap", "", 0.05, 0.01), "0.05 → 0.01 %, -0.04 pt"),
    ],
)
def test_a_change_in_words(figure: Figure, text: str) -> None:
    assert change_text(figure) == text


def test_rounding_is_no_change() -> None:
    assert Figure("step", "", 0.1 + 0.2, 0.3).change == 0.0
    assert Figure("gap", "", 1e-8, 0.0).change == 0.0
    assert Figure("peak", "", 2**29, 2**29 + 1).change == 1.0
    assert percent_text(Figure("step", "", 0.1 + 0.2, 0.3)) == "+0.0 %"


def test_shares_compare_figures_of_all_units() -> None:
    step, peak = Figure("step", "", 100.0, 90.0), Figure("peak", "", 1000, 1050)
    gap, new = Figure("gap", "", 1.0, 3.0), Figure("exposed", "", 0.0, 1.0)
    assert [figure.share for figure in (step, peak, gap, new)] == pytest.approx([-0.1, 0.05, 0.02, math.inf])
    assert largest_first([gap, peak, new, step]) == [new, step, peak, gap]
    assert Figure("exposed", "", 0.0, 0.0).share == 0.0


def test_both_have_the_unit_of_the_larger() -> None:
    assert in_one_unit(Figure("step", "", 900.0, 1_100.0)) == ("0.90", "1.10", "ms")
    assert in_one_unit(Figure("peak", "", 512, 2048)) == ("0.5", "2.0", "KiB")
    assert Figure("step", "dsv3, x1", 0, 0).label() == "step, dsv3, x1"
