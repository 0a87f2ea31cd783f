"""The storages behind the values of a graph: who shares which, how large they are, on which device."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from overlap_sched.fx.sizes import Sizes
from overlap_sched.report.words.sizes import AssumedSize

_NUMBERS = (type(None), int, float, bool, str, torch.SymInt, torch.SymFloat, torch.SymBool)


class Storages:
    """Storages by number, in the order in which the graph's values show them.

    A *raw* storage is one that ``meta["val"]`` shows. Its *root* is the storage that it is in reality: that of a wait
    is its collective's, that of an ``out=`` result is the buffer's (their fake kernels allocate anew). Where a pass has
    copied a node together with its ``val`` (recomputation, a reload after an offload), one shown storage stands for
    several raw ones, see :meth:`copy_for`.

    Args:
        notes: Counts; added to.
        nodes: Of the graph: what it asserts of sizes.

    Attributes:
        nbytes, device, root: Per raw storage: size (the largest that the graph admits), device type, root (itself, but
            for the cases above).
        fake: Per raw storage, whether a ``FakeTensor`` showed it: torch's ``MemoryTracker`` sees no other.
        bare: Raw storages of tensors that have none of their own (sparse tensors and the like).
        notes: Counts ``size_without_hint`` and ``no_storage`` (how many are ``bare``).
    """

    def __init__(self, notes: Counter[str], nodes: Sequence[fx.Node]) -> None:
        self._nodes = nodes
        self._sizes: Sizes | None = None
        self.nbytes: list[int] = []
        self.device: list[str] = []
        self.root: list[int] = []
        self.fake: list[bool] = []
        self.bare: set[int] = set()
        self.notes = notes
        self._raw_of: dict[int, int] = {}
        self._key: list[int] = []
        self._copies: dict[int, list[int]] = {}

    def of_value(self, val: Any) -> tuple[tuple[int, ...], int]:
        """Raw storages of a value, without repeats, and the bytes that reading its tensors takes."""
        kind = type(val)
        if kind is FakeTensor:
            return (self._of_tensor(val),), self.hint(val.numel()) * val.dtype.itemsize
        if kind in _NUMBERS:
            return (), 0
        leaves = [leaf for leaf in tree_leaves(val) if isinstance(leaf, torch.Tensor)]
        found: dict[int, None] = {}
        nbytes = 0
        for leaf in leaves:
            for tensor in _unwrapped(leaf):
                found[self._of_tensor(tensor)] = None
                nbytes += self.hint(tensor.numel()) * tensor.dtype.itemsize
        return tuple(found), nbytes

    def _of_tensor(self, tensor: torch.Tensor) -> int:
        try:
            storage = tensor.untyped_storage()
            key = storage._cdata
        except (NotImplementedError, RuntimeError):  # sparse, functorch wrappers: known by the tensor itself
            storage, key = None, -id(tensor)
        raw = self._raw_of.get(key)
        if raw is None:
            raw = self._raw_of[key] = len(self.root)
            nbytes = 0 if storage is None else self.largest(storage.nbytes())
            self._append(key, nbytes, tensor.device.type, isinstance(tensor, FakeTensor))
            if storage is None:
                self.bare.add(raw)
                self.notes["no_storage"] += 1
        return raw

    def _append(self, key: int, nbytes: int, device: str, fake: bool) -> None:
        self._key.append(key)
        self.root.append(len(self.root))
        self.device.append(device)
        self.fake.append(fake)
        self.nbytes.append(nbytes)

    def unknown(self) -> int:
        """A storage of its own that no value shows: its size is not known, and counts as 0 bytes."""
        self._append(-1, 0, "cpu", False)
        return len(self.root) - 1

    def copy_for(self, raw: int, takes: tuple[int, ...]) -> int:
        """Which raw storage a shown one is, in the value of a node whose arguments have the roots ``takes``.

        What an operator returns is new, or one of its arguments. A storage that was shown before and that no argument
        has is therefore new: the node was copied with its ``val``. From then on values that show it mean the copy, in
        a node that takes that, and the original in a node that takes the original.
        """
        root = self.root
        if root[raw] in takes:
            return raw
        key = self._key[raw]
        copies = self._copies.setdefault(key, [raw])
        meant = [copy for copy in copies if root[copy] in takes]
        if meant:
            copy = min(meant, key=lambda s: takes.index(root[s]))
        else:
            copy = len(root)
            copies.append(copy)
            self._append(key, self.nbytes[raw], self.device[raw], self.fake[raw])
        self._raw_of[key] = copy
        return copy

    def hint(self, size: int | torch.SymInt) -> int:
        """A size as a plain number, for times: see :mod:`overlap_sched.fx.sizes`."""
        return size if type(size) is int else self._number(size, Sizes.hint)

    def largest(self, size: int | torch.SymInt) -> int:
        """A size as a plain number, for memory."""
        return size if type(size) is int else self._number(size, Sizes.largest)

    def sizes(self, env: Any) -> Sizes:
        """Numbers for symbols of torch's ``ShapeEnv``."""
        if self._sizes is None:
            self._sizes = Sizes(self._nodes, env)
        return self._sizes

    @property
    def assumed(self) -> tuple[AssumedSize, ...]:
        """The sizes that only the data knows on which ``nbytes`` rest."""
        return () if self._sizes is None else self._sizes.assumed

    def _number(self, size: int | torch.SymInt, number: Callable[[Sizes, Any], int]) -> int:
        if not isinstance(size, torch.SymInt) or size.node.has_hint():
            return max(0, int(size.node.hint if isinstance(size, torch.SymInt) else size))
        self.notes["size_without_hint"] += 1
        return number(self.sizes(size.node.shape_env), size)


def _unwrapped(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors in a tensor subclass (DTensor and the like), nested ones too."""
    if type(tensor) is FakeTensor or not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [plain for name in names for plain in _unwrapped(getattr(tensor, name))]
