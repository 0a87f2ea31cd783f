"""``--fail-if``: what holds, what does not, and what is said of text that is not understood."""

import pytest

from overlap_sched.cli.fail_if import condition_of, failures
from overlap_sched.errors import OptionsError
from overlap_sched.report.diff.figures import Figure

MIB = 2**20
STEP, FREE = Figure("step", "", 100_000.0, 102_000.0), Figure("exposed", "", 0.0, 5.0)
PEAK, GAP = Figure("peak", "", 1000 * MIB, 1010 * MIB), Figure("gap", "", 4.0, 3.0)


@pytest.mark.parametrize(
    ("text", "figure", "holds"),
    [
        ("step > +1%", STEP, True),
        ("step > +2%", STEP, False),  # exactly as much
        ("step > +2.1%", STEP, False),
        ("step>+1.99ms", STEP, True),
        ("  step  >  +2ms ", STEP, False),
        ("step > +1500us", STEP, True),
        ("step > -1%", STEP, True),  # it was to become shorter by more than 1 %
        ("step < +3%", STEP, True),
        ("step < -1%", STEP, False),
        ("step > +0%", STEP._replace(after=100_000.0 * (1 + 1e-12)), False),  # rounding
        ("exposed > +50%", FREE, True),  # of nothing
        ("exposed > +5us", FREE, False),
        ("peak > +9MiB", PEAK, True),
        ("peak > +10MiB", PEAK, False),
        ("peak > +10MB", PEAK, True),
        ("peak > +.9%", PEAK, True),
        ("peak < +1GiB", PEAK, True),
        ("reserved > +1B", PEAK._replace(name="reserved", of=""), True),
        ("gap < -0.9%", GAP, True),  # percentage points
        ("gap < -1%", GAP, False),
        ("gap > -2%", GAP, True),
    ],
)
def test_what_holds(text: str, figure: Figure, holds: bool) -> None:
    condition = condition_of(text)
    assert condition.holds(figure) is holds
    assert condition.text == text.strip()
    assert bool(failures([condition], [figure], "A and B")) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "step",
            "--fail-if 'step': has not one > or <. Write NAME > +CHANGE or NAME < -CHANGE, in quotation marks (a "
            "shell takes "
            '> for itself): "step > +1%", "exposed > +2ms", "peak > +10MiB" or "gap < -1%".',
        ),
        (
            "stp > +1%",
            "--fail-if 'stp > +1%': 'stp', before the >, is no figure. Write one of step, exposed, peak, reserved, "
            "gap.",
        ),
        (
            "original step > +1%",
            "--fail-if 'original step > +1%': 'original step', before the >, is no figure. Write one of step, exposed, "
            "peak, reserved, gap.",
        ),
        (
            "step > 1%",
            "--fail-if 'step > 1%': '1%', after the >, has no sign. Changes from A to B are meant: write > +1% for "
            "step that grows, > -1% for step that shrinks.",
        ),
        (
            "peak <",
            "--fail-if 'peak <': nothing stands after the <. Write a change from A to B with its sign: "
            '"step > +1%", "exposed > +2ms", "peak > +10MiB" or "gap < -1%".',
        ),
        (
            "step > +1MiB",
            "--fail-if 'step > +1MiB': '+1MiB' is no change of step, which is a time. Write percent of A (+1%) or a "
            "time (+850us, +2ms, +1.5s).",
        ),
        (
            "exposed < -5",
            "--fail-if 'exposed < -5': '-5' is no change of exposed, which is a time. Write percent of A (-1%) or a "
            "time (-850us, -2ms, -1.5s).",
        ),
        (
            "reserved > +2ms",
            "--fail-if 'reserved > +2ms': '+2ms' is no change of reserved, which is memory. Write percent of A (+1%) "
            "or a size (+10MiB, +1GB).",
        ),
        (
            "peak > +10",
            "--fail-if 'peak > +10': '+10' is no change of peak, which is memory. Write percent of A (+1%) or a size "
            "(+10MiB, +1GB).",
        ),
        (
            "gap > +2ms",
            "--fail-if 'gap > +2ms': '+2ms' is no change of gap, which is in percent already. Write percentage points "
            "(+0.5%).",
        ),
        (
            "step > > +1%",
            "--fail-if 'step > > +1%': has not one > or <. Write NAME > +CHANGE or NAME < -CHANGE, in quotation "
            "marks (a "
            'shell takes > for itself): "step > +1%", "exposed > +2ms", "peak > +10MiB" or "gap < -1%".',
        ),
    ],
)
def test_what_is_not_understood(text: str, message: str) -> None:
    with pytest.raises(OptionsError) as caught:
        condition_of(text)
    assert str(caught.value) == message


def test_a_condition_that_could_never_hold() -> None:
    with pytest.raises(OptionsError) as caught:
        failures([condition_of("reserved > +0%")], [STEP, PEAK], "a.json and b.json")
    assert str(caught.value) == (
        "--fail-if 'reserved > +0%': a.json and b.json do not both have reserved, so this can never fail. Both have "
        "step, peak: write a condition on those, or leave it out."
    )


def test_the_line_says_which_and_by_how_much() -> None:
    plain, expandable = (Figure("reserved", of, 1000 * MIB, after * MIB) for of, after in (("a", 1010), ("b", 1020)))
    found = failures([condition_of("step > +1%"), condition_of("reserved > +0%")], [STEP, plain, expandable], "")
    assert [failure.line() for failure in found] == [
        "failed: --fail-if 'step > +1%': step: 100.00 → 102.00 ms, +2.0 % (+2.00 ms), from A to B",
        "failed: --fail-if 'reserved > +0%': reserved, b (and of 1 other): 1,000.0 → 1,020.0 MiB, +2.0 % (+20.0 MiB), "
        "from A to B",
    ]
