import pytest

from overlap_sched.report.units import between, change, count, duration, from_to, printable, size


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0.0, "0.0 us"),
        (0.03, "30.0 ns"),
        (0.06, "0.1 us"),
        (3.0, "3.0 us"),
        (999.0, "999.0 us"),
        (1000.0, "1.00 ms"),
        (46_660.0, "46.66 ms"),
        (2_281_812.0, "2,281.8 ms"),
        (12_340_000.0, "12.34 s"),
    ],
)
def test_durations_take_the_unit_that_fits(us: float, text: str) -> None:
    assert duration(us) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (21 * 2**20, "21.0 MiB"), (36136566784, "33.655 GiB")],
)
def test_sizes_take_the_unit_that_fits(count: int, text: str) -> None:
    assert size(count) == text


def test_changes_have_a_sign_and_survive_zero() -> None:
    assert [change(*pair) for pair in ((190, 120), (21, 26), (7, 7), (10**6, 10**6 - 1), (0, 0), (0, 3))] == [
        "-36.8 %", "+23.8 %", "+0.0 %", "+0.0 %", "+0.0 %", "-",
    ]  # fmt: skip


def test_a_common_unit_is_written_once() -> None:
    assert between("190.0 us", "120.0 us") == "190.0 → 120.0 us"
    assert between("1.00 ms", "120.0 us") == "1.00 ms → 120.0 us"


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("14.10 ms", "0.80 ms", "14.10 -> 0.80 ms"),
        ("14.10 ms", "800.0 us", "14.10 ms -> 800.0 us"),
        ("14.10 ms", "0.0 us", "14.10 -> 0 ms"),
        ("0.0 us", "0.0 us", "0 -> 0 us"),
        ("52.0 MiB", "52.0 MiB", "52.0 -> 52.0 MiB"),
        ("0 B", "12 B", "0 -> 12 B"),
    ],
)
def test_from_one_quantity_to_another_in_a_log(before: str, after: str, text: str) -> None:
    assert from_to(before, after) == text


def test_one_is_no_plural() -> None:
    assert [count(number, "graph") for number in (0, 1, 2, 2000)] == ["0 graphs", "1 graph", "2 graphs", "2,000 graphs"]


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert printable("\x1b[31mred\n") == "\\x1b[31mred\\n"
    assert printable("漢字 mm_1") == "漢字 mm_1"
