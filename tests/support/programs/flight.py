"""What is launched while a program runs: both ranks must launch alike, and what is in flight is left alone.

Every call of a collective's operator from Python is intercepted, by whatever made the call: eager code, an FX graph,
code that Inductor generated, a kernel of a custom operator.

- **Launch by launch the ranks compare what they launch.** A rank that launches anything else than the other learns it
  there, before it launches: both stop with :class:`UnlikeError`, and nothing hangs. Between two launches a rank waits
  only for what both have launched, so comparing them adds no deadlock.
- **A collective is as late and as early as it can be.** It is done at its launch; its results are held back until their
  wait, and its buffers are full of NaN until then. So whoever reads too early finds NaN, and whoever writes what is in
  flight, be it sent or received, is found at the wait. No race decides what a test sees.
- **With a record of an earlier run nothing is communicated.** A collective that is given the same bytes gives the same.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses import FakeTensor

NAMESPACES = ("_c10d_functional", "_dtensor")
WAITS = ("wait_tensor", "wait_tensors")
END, FAILED = 1, 2
"""What a rank shows in place of a launch."""


class UnlikeError(Exception):
    """The ranks do not launch alike."""


class NotRecordedError(Exception):
    """A collective is given what none was given without the package."""


Record = dict[tuple[Any, ...], list[Tensor]]
"""Per label and bytes that are sent: what comes back."""


@dataclass
class _Flight:
    result: Tensor
    true: Tensor
    sent: list[tuple[Tensor, Tensor]]
    label: str


@dataclass
class Flights:
    """What is in flight, over all graphs of one run.

    Attributes:
        control: The group over which the ranks compare their launches.
        launched: Labels of what was launched, in order.
        faults: What was done to something in flight.
        hold_back: Whether results are; else collectives are asynchronous as usual.
        record: What the collectives of an earlier run gave, by what they were given. With it nothing is communicated: a
            collective that is given anything else is a fault, and the ranks compare their launches at the end.
        recorded: The same of this run.
        unclear: The same bytes were given twice and other bytes came back: the other rank has given others.
    """

    control: Any
    hold_back: bool = True
    record: "Record | None" = None
    recorded: "Record" = field(default_factory=dict)
    unclear: bool = False
    launched: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    _arriving: dict[int, _Flight] = field(default_factory=dict)
    _inside: bool = False

    @property
    def in_flight(self) -> bool:
        """Has something been launched that nobody has waited for?"""
        return bool(self._arriving)

    def alike(self, shown: int) -> bool:
        """Whether the other rank shows the same now."""
        both = torch.tensor([shown, -shown], dtype=torch.int64)
        dist.all_reduce(both, dist.ReduceOp.MAX, group=self.control)
        return bool(both[0] == -both[1])

    def finish(self, failed: bool) -> bool:
        """The end of a run on this rank; whether the other has ended like this."""
        if self.record is not None and not failed:
            return self.alike(zlib.crc32(repr(self.launched).encode()) + 10)
        return self.alike(FAILED if failed else END)

    def call(self, op: OpOverload, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a collective or a wait."""
        name = op._schema.name.split("::")[1]
        self._inside = True
        try:
            if name in WAITS:
                tensors = [args[0]] if isinstance(args[0], Tensor) else list(args[0])
                for tensor in tensors:
                    self._arrive(tensor)
                return original(op, *args, **kwargs)
            return self._launch(op, name, original, args, kwargs)
        finally:
            self._inside = False

    def _launch(self, op: OpOverload, name: str, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        sends = [args[0]] if isinstance(args[0], Tensor) else list(args[0])
        where = args[-1] if "group_name" not in kwargs else kwargs["group_name"]
        plain = name.removesuffix("_").removesuffix("_out")
        label = f"{plain} {[tuple(t.shape) for t in sends]} {getattr(where, 'group_name', where)}"
        if self.record is None and not self.alike(zlib.crc32(label.encode()) + 10):
            raise UnlikeError(f"this rank launches {label} after {len(self.launched)} launches")
        self.launched.append(label)
        key = label, *(t.detach().contiguous().numpy().tobytes() for t in sends)
        result = self._recorded(key, name, sends, kwargs) if self.record is not None else original(op, *args, **kwargs)
        if not self.hold_back:
            return result
        results = [result] if isinstance(result, Tensor) else list(result)
        if self.record is None and name != "shard_dim_alltoall":
            for tensor in results:
                original(torch.ops._c10d_functional.wait_tensor.default, tensor.detach())
        came = [t.detach().clone() for t in results]
        self.unclear |= not all(map(equal, came, self.recorded.setdefault(key, came)))
        if name == "shard_dim_alltoall":
            return result
        own = {_address(tensor) for tensor in results}
        sent = [(t.detach(), t.detach().clone()) for t in sends if _address(t) not in own]
        for tensor in results:
            bare = tensor.data
            self._arriving[_address(bare)] = _Flight(bare, bare.clone(), sent, label)
            bare.fill_(float("nan") if bare.is_floating_point() else -(2**30))
        return result

    def _recorded(self, key: tuple[Any, ...], name: str, sends: list[Tensor], kwargs: dict[str, Any]) -> Any:
        """What a collective gave in the run before."""
        assert self.record is not None
        true = self.record.get(key)
        if true is None:
            raise NotRecordedError(f"{key[0]} sends what no launch sends without us")
        where = [kwargs["out"]] if "out" in kwargs else sends if name.endswith("_") else [t.clone() for t in true]
        for tensor, value in zip(where, true, strict=True):
            tensor.data.copy_(value)
        return where[0] if len(where) == 1 and "coalesced" not in name else where

    def _arrive(self, tensor: Tensor) -> None:
        flight = self._arriving.pop(_address(tensor), None)
        if flight is None:
            return
        poison = torch.full_like(flight.result, float("nan") if flight.result.is_floating_point() else -(2**30))
        if not equal(flight.result, poison):
            self.faults.append(f"the result of {flight.label} was written while it was in flight")
        if not all(equal(now, before) for now, before in flight.sent):
            self.faults.append(f"what {flight.label} sends was written while it was in flight")
        flight.result.copy_(flight.true)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are bitwise equal; every NaN is one."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(a, b)) or bool(((a == b) | ((a != a) & (b != b))).all())


@contextmanager
def intercepted(flights: Flights) -> Iterator[None]:
    """Intercept collectives that are called inside; not while anything is traced."""
    original = OpOverload.__call__
    known: dict[OpOverload, bool] = {}

    def call(op: OpOverload, /, *args: Any, **kwargs: Any) -> Any:
        ours = known.get(op)
        if ours is None:
            ours = known[op] = op.namespace in NAMESPACES and not op._schema.name.endswith("_wrap_tensor_autograd")
        if not ours or flights._inside or torch._C._len_torch_dispatch_stack() or torch.compiler.is_compiling():
            return original(op, *args, **kwargs)
        first = args[0] if args else None
        first = first[0] if isinstance(first, list | tuple) and first else first
        if not isinstance(first, Tensor) or isinstance(first, FakeTensor):
            return original(op, *args, **kwargs)
        return flights.call(op, original, args, kwargs)

    with mock.patch.object(OpOverload, "__call__", call):
        yield
