"""Random programs on two gloo ranks, through every way in: results bitwise, launches alike.

More of them: ``python scripts/fuzz_programs.py --programs 5000``, which also prints how to read what is found.

Of the fuzzer itself: its rules by hand, its programs and its shrinking.
"""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.examples import RUN
from tests.support.programs.program import KINDS, Program, Step, correct, generate, reads_by_older_names
from tests.support.programs.rank import BROKEN
from tests.support.programs.run import run_programs

pytestmark = pytest.mark.slow
PROGRAMS, BROKEN_PROGRAMS = (1000, 25) if os.environ.get(RUN) == "nightly" else (60, 6)
"""To find that a scheduler is broken takes few: most of them are wrong, and to shrink those takes the time."""


def test_many_programs(tmp_path: Path) -> None:
    found = run_programs(tmp_path, first=0, count=PROGRAMS, inductor_share=0.15)
    assert not found.faults, str(found)
    assert found.programs == PROGRAMS
    assert len(found.torch) < 0.2 * PROGRAMS, found.torch  # what torch cannot do without us either
    assert {kind.family for kind in KINDS.values()} <= set(found.families)
    captures = {way.split(":")[0] for (way, status), count in found.counts.items() if status == "ok" and count}
    assert captures == {"make_fx", "dynamo", "backend", "inductor", "post_grad"}
    assert sum(found.moved.values()) > PROGRAMS, str(found)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_scheduler_is_found(tmp_path: Path, broken: str) -> None:
    found = run_programs(tmp_path, first=0, count=BROKEN_PROGRAMS, broken=broken)
    assert len(found.faults) > BROKEN_PROGRAMS // 3, str(found)
    assert all(fault["program"].startswith("# seed") for fault in found.faults)


GATHERED = (
    Step("all_gather", (4,), (9,), group=1),
    Step("mm", (0, 1), (10,)),
    Step("flat", (9,), (11,)),
    Step("wait_f", (9,), (12,)),
    Step("add", (11, 12), (13,)),
)


GATHER, GATHERS, SCATTERS = GATHERED[0], Step("gathers", (4, 5), (9, 10)), Step("scatters", (0, 1), (9, 10))


@pytest.mark.parametrize(
    ("before", "wait", "step"),
    [
        ((GATHER,), Step("wait_f", (9,), (10,)), Step("relu", (9,), (11,))),
        ((GATHER,), Step("wait_f", (9,), (10,)), Step("mul_", (9,))),
        ((GATHER,), Step("wait_f", (9,), (10,)), Step("half_", (4,))),  # what is sent
        ((GATHERS, Step("wait_f", (9,), (11,))), Step("wait_f", (10,), (12,)), Step("half_", (5,))),
        ((SCATTERS, Step("wait_h", (9,), (11,))), Step("wait_h", (10,), (12,)), Step("half_", (9,))),  # written again
    ],
)
def test_what_is_in_flight_is_neither_read_nor_written(before: tuple[Step, ...], wait: Step, step: Step) -> None:
    early = replace(step, makes=tuple(v - 1 for v in step.makes))
    assert not correct(Program(1, (*before, early)))
    assert correct(Program(1, (*before, wait, step)))


def test_a_read_by_an_older_name_is_known_through_views() -> None:
    assert correct(Program(1, GATHERED))
    assert reads_by_older_names(Program(1, GATHERED))
    assert not reads_by_older_names(Program(1, (*GATHERED[:4], Step("add", (12, 10), (13,)))))


@pytest.mark.private
def test_a_seed_is_a_program_and_all_are_correct() -> None:
    programs = [generate(seed) for seed in range(300)]
    assert programs == [generate(seed) for seed in range(300)]
    assert all(map(correct, programs))
    assert {step.kind for program in programs for step in program.steps} == set(KINDS)
