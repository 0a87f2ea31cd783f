"""Where this process stands among the ranks: the store that they share, its rank, how many there are.

The only module of this package that touches torch, and torch's one private name that it needs
(``_get_default_store``: in torch 2.11 to 2.13 the store of ``init_process_group``; there is no public way to it).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from overlap_sched.errors import AgreementError, OptionsError

PREFIX = "overlap_sched/"
"""In front of every key that we write."""


class Store(Protocol):
    """What is used of ``torch.distributed.Store``; none of it blocks.

    ``compare_set`` returns what is stored afterwards; with an empty expected value it writes only where nothing is.
    """

    def set(self, key: str, value: str) -> object: ...  # noqa: D102
    def get(self, key: str) -> bytes: ...  # noqa: D102
    def check(self, keys: list[str]) -> bool: ...  # noqa: D102
    def add(self, key: str, amount: int) -> int: ...  # noqa: D102
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...  # noqa: D102


@dataclass(frozen=True)
class Membership:
    """A rank among those that share a store."""

    store: Store
    rank: int
    world_size: int


def membership_of(store: Store | None, rank: int | None, world_size: int | None) -> Membership | None:
    """The membership given, or that in torch's default process group; ``None``: there is nobody to agree with.

    That is so without a process group, with one rank, and with torch's ``fake`` backend (one process for all ranks).

    Raises:
        OptionsError: Only some of the three are given.
        AgreementError: There are several ranks, but torch does not give access to their store.
    """
    if store is not None and rank is not None and world_size is not None:
        return Membership(store, rank, world_size) if world_size > 1 else None
    if store is not None or rank is not None or world_size is not None:
        raise OptionsError(
            f"only some of store, rank ({rank}) and world_size ({world_size}) are given. "
            "Give all three, or none to use the default process group."
        )
    c10d = _initialized()
    if c10d is None or c10d.get_world_size() == 1 or c10d.get_backend() == "fake":
        return None
    try:
        default: Any = c10d._get_default_store()
    except Exception as error:
        raise AgreementError(
            f"cannot get the store of the default process group: {type(error).__name__}: {error}. "
            "Call torch.distributed.init_process_group with init_method or store (torch 2.11 to 2.13)."
        ) from error
    return Membership(default, c10d.get_rank(), c10d.get_world_size())


def members_of(membership: Membership, ranks: Sequence[int] | None) -> tuple[int, ...]:
    """Who takes part, ascending; ``None``: everybody.

    Raises:
        OptionsError: This rank is not among them, or one of them does not exist.
    """
    members = tuple(sorted(set(range(membership.world_size) if ranks is None else ranks)))
    if membership.rank not in members or members[0] < 0 or members[-1] >= membership.world_size:
        raise OptionsError(
            f"ranks is {list(members)}. Every rank must be between 0 and {membership.world_size - 1}, "
            f"and this rank ({membership.rank}) must be among them."
        )
    return members


def _initialized() -> Any:
    """``torch.distributed.distributed_c10d`` if a process group is up; torch is not imported for this."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    from torch.distributed import distributed_c10d

    return distributed_c10d
