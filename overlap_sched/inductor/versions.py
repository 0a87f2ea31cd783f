"""Which versions of torch we know after Inductor's fusion."""

import torch

from overlap_sched.errors import TorchVersionError

SUPPORTED = ((2, 11), (2, 13))
"""First and last minor version of torch whose scheduler we have read and run."""


def check_torch(version: str = torch.__version__) -> None:
    """Refuse versions of torch whose private names may mean something else.

    Raises:
        TorchVersionError: It is older or newer than those seen.
    """
    first, last = SUPPORTED
    if not first <= tuple(int(part) for part in version.split(".")[:2]) <= last:
        raise TorchVersionError(
            f"this is torch {version}, and overlap_sched supports the Inductor scheduler of torch "
            f"{first[0]}.{first[1]} to {last[0]}.{last[1]}. Use one of these versions, or schedule FX graphs "
            "(backend='overlap_sched' or schedule_graph), which works with any version."
        )
