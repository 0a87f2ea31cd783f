"""The pass after Inductor's fusion: its nodes in, the same nodes in our order out, or as they were.

    scheduler nodes -> torch's own passes -> problem -> schedule -> all ranks agree -> nodes in that order
            any failure before the ranks agree: the nodes as torch has them, and why

How that is kept: :mod:`overlap_sched.inductor.decision`. torch has passes behind the place where it calls ours
(``simple_overlap``, the one that joins partitions for CUDA graphs). They would undo our order. So ours is deferred
until they have run: what it starts from, what memory is counted from and what no step is longer than is what torch
alone makes. Nothing of torch has to be switched off for it.

What is reported is the order that the generated code has, compared when the code is written.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from overlap_sched.inductor.caches import settings_key, watch_caches
from overlap_sched.inductor.reporting import warn
from overlap_sched.inductor.settings import Settings

SUPPORTED = ((2, 11), (2, 15))
"""First and last minor version of torch whose scheduler we have read and run."""


def knows_torch(version: str = torch.__version__) -> bool:
    """Tell whether the private names of a version of torch mean what we think."""
    first, last = SUPPORTED
    return first <= tuple(int(part) for part in version.split(".")[:2]) <= last


def explain_version() -> str:
    """The message for a version that is not known."""
    first, last = (".".join(map(str, one)) for one in SUPPORTED)
    return (
        f"this is torch {torch.__version__}, and overlap_sched supports the Inductor scheduler of torch {first} to "
        f"{last}. Use one of these, or schedule FX graphs (backend='overlap_sched' or schedule_graph), which works "
        "with any version."
    )


@dataclass(frozen=True)
class SchedulerPass:
    """A callable for ``torch._inductor.config.reorder_for_compute_comm_overlap_passes``; of a version that is known.

    Attributes:
        settings: How to schedule.
    """

    settings: Settings

    def __call__(self, snodes: list[Any]) -> list[Any]:
        """The nodes as they are: they are put in order behind torch's own passes. Where that cannot be, in our order.

        Raises:
            VerificationError, AgreementError: As :meth:`order`.
        """
        try:
            from overlap_sched.inductor import private

            if private.at_the_end(snodes, partial(self.order, last=True)):
                return snodes
        except Exception as error:
            warn("overlap_sched runs in front of torch's last passes", error)
        return self.order(list(snodes))

    def order(self, snodes: list[Any], last: bool = False) -> list[Any]:
        """The nodes in our order, or as they were; ``last``: no pass of torch runs behind this one.

        Raises:
            VerificationError, AgreementError: With ``strict``, instead of a fallback.
        """
        from overlap_sched.inductor.kernel_graph import order_kernels

        return order_kernels(snodes, self.settings, last)

    def __reduce__(self) -> tuple[Any, ...]:
        """How torch's caches see this pass: by its name, see :func:`overlap_sched.inductor.caches.settings_key`.

        Raises:
            TypeError: It has none; torch then compiles without its caches.
        """
        try:
            name = settings_key(self.settings) if watch_caches(self.settings) else None
        except Exception:  # torch goes on without its caches on a TypeError alone
            name = None
        if name is None:
            raise TypeError("this overlap_sched pass has no stable cache key: compile without caches")
        return (_unpickle, (name, self.settings))

    def __deepcopy__(self, memo: dict[int, Any]) -> "SchedulerPass":
        """Itself: it never changes, and torch copies its settings often."""
        return self


def _unpickle(name: str, settings: Settings) -> SchedulerPass:
    """A pass back from its pickle; the name is there for the hash only."""
    return SchedulerPass(settings)
