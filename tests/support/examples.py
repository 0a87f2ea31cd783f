"""On how many examples a property is tried: all of them at night, a fifth for each commit."""

import os

from hypothesis import settings

NIGHTLY = "OVERLAP_SCHED_NIGHTLY"
"""Set by ``--nightly``."""


def examples(often: int) -> settings:
    """Settings of a property that is tried so often at night."""
    return settings(max_examples=often if os.environ.get(NIGHTLY) else often // 5)
