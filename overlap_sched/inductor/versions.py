"""Which versions of torch we know after Inductor's fusion."""

import torch

from overlap_sched.errors import UnsupportedError

SUPPORTED = ((2, 11), (2, 15))
"""First and last minor version of torch whose scheduler we have read and run."""


def knows_torch(version: str = torch.__version__) -> bool:
    """Is this one of the versions whose private names mean what we think?"""
    first, last = SUPPORTED
    return first <= tuple(int(part) for part in version.split(".")[:2]) <= last


def check_torch(version: str = torch.__version__) -> None:
    """Refuse versions of torch whose private names may mean something else.

    Raises:
        UnsupportedError: It is older or newer than those seen.
    """
    if not knows_torch(version):
        raise UnsupportedError(refusal(version))


def refusal(version: str = torch.__version__) -> str:
    """The message for a version that is not known."""
    first, last = SUPPORTED
    return (
        f"this is torch {version}, and overlap_sched supports the Inductor scheduler of torch "
        f"{first[0]}.{first[1]} to {last[0]}.{last[1]}. Use one of these versions, or schedule FX graphs "
        "(backend='overlap_sched' or schedule_graph), which works with any version."
    )
