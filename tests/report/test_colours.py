"""What is drawn can be seen on a light page and on a dark one; what the verdict says can be read."""

import re
from importlib.resources import files

import pytest

from overlap_sched.peak_memory.peak import KINDS
from overlap_sched.report.colours import COMPUTE, EXPOSED, MEMORY, PURPOSES, REWRITTEN

STYLE = files("overlap_sched.report").joinpath("page_files", "style.css").read_text(encoding="utf-8")
GROUNDS = [colour for line in STYLE.splitlines()[:2] for colour in re.findall(r"--soft: (#\w+)", line)]
STREAMS = [COMPUTE, EXPOSED, REWRITTEN, *(paint.colour for paint in PURPOSES.values())]


def luminance(colour: str) -> float:
    """Of sRGB, 0 to 1, as in WCAG 2.2."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_no_two_things_have_one_colour() -> None:
    assert len(set(STREAMS)) == len(STREAMS)
    assert len(set(MEMORY.values())) == len(MEMORY)
    assert len({paint.trace for paint in PURPOSES.values()}) == len(PURPOSES)
    assert tuple(MEMORY) == KINDS


@pytest.mark.parametrize("colour", [*STREAMS, *MEMORY.values()])
def test_nothing_is_faint(colour: str) -> None:
    assert len(GROUNDS) == 2
    assert min(contrast(colour, ground) for ground in GROUNDS) >= 1.99


@pytest.mark.parametrize("came", ["runs", "fails", "kept", "reordered"])
def test_a_verdict_can_be_read(came: str) -> None:
    assert f"#verdict.{came} {{ background: var(--{came}); }}" in STYLE
    (fill,) = re.findall(rf"--{came}: (#\w+);", STYLE)
    assert contrast(fill, "#ffffff") >= 4.5
