"""How often properties are tried: less in the fast part, more at night; and cases that only nights have time for."""

import os
from typing import Any, Literal, cast

import pytest
from hypothesis import settings

Run = Literal["fast", "whole", "nightly"]
RUN = "OVERLAP_SCHED_TESTS"
"""Set before test modules are imported: their decorators say on how many examples."""
TIMES: dict[Run, float] = {"fast": 0.2, "whole": 1.0, "nightly": 5.0}


def often(count: int = 100) -> int:
    """Examples of a property that each commit tries so often."""
    return max(5, int(count * TIMES[cast(Run, os.environ.get(RUN, "whole"))]))


def examples(count: int, others: settings | None = None) -> settings:
    """Settings of a property that each commit tries so often."""
    return settings(others, max_examples=often(count))


def at_night(*values: object, id: str | None = None) -> Any:
    """A case that takes long and is like others that each commit tries."""
    return pytest.param(*values, marks=(pytest.mark.slow, pytest.mark.nightly), id=id)
