"""Random programs on two gloo ranks, through every way in: results bitwise, launches alike.

More of them: ``python scripts/fuzz_programs.py --programs 5000``, which also prints how to read what is found.
"""

import os
from pathlib import Path

import pytest

from tests.support.examples import RUN
from tests.support.programs.broken import BROKEN
from tests.support.programs.kinds import KINDS
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
