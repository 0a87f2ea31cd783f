"""What nights try beyond each commit: more examples of a property, and more cases of a test."""

import os
from typing import Any

import pytest
from hypothesis import settings

NIGHTLY = "OVERLAP_SCHED_NIGHTLY"
"""Set by ``--nightly``."""


def examples(often: int) -> settings:
    """Settings of a property that is tried so often at night."""
    return settings(max_examples=often if os.environ.get(NIGHTLY) else often // 5)


def at_night(*values: object, id: str | None = None) -> Any:
    """A case that takes long and is like others that each commit tries."""
    return pytest.param(*values, marks=(pytest.mark.slow, pytest.mark.nightly), id=id)
