"""What is launched while a program runs: both ranks must launch alike, and what is in flight is left alone.

Every call of a collective's operator from Python is intercepted, by whatever made the call: eager code, an FX graph,
code that Inductor generated, a kernel of a custom operator.

- **Launch by launch the ranks compare what they launch.** A rank that launches anything else than the other learns it
  there, before it launches: both stop with :class:`UnlikeError`, and nothing hangs. Between two launches a rank waits
  only for what both have launched, so comparing them adds no deadlock.
- **A collective is as late and as early as it can be.** It is done at its launch; its results are held back until their
  wait, and its buffers are full of NaN until then. So whoever reads too early finds NaN, and whoever writes what is in
  flight, be it sent or received, is found at the wait. No race decides what a test sees.

Programs executed: functions of their parts, inputs, and what comes of a run.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses import FakeTensor

from tests.support.programs import operators
from tests.support.programs.program import GROUPS, INPUTS, SHAPES, N, Program, read_by, returned, source_of

NAMESPACES = ("_c10d_functional", "_dtensor")
WAITS = ("wait_tensor", "wait_tensors")


class UnlikeError(Exception):
    """The ranks do not launch alike."""


@dataclass
class _Flight:
    result: Tensor
    true: Tensor
    sent: list[tuple[Tensor, Tensor]]
    label: str


@dataclass
class Run:
    """A run on this rank: what is in flight, over all its graphs, and what came of it.

    Attributes:
        control: The group over which the ranks compare their launches.
        hold_back: Whether results are; else collectives are asynchronous as usual.
        launched: In order: the group, what is launched, and a checksum of what this rank sends.
        faults: What was done to something in flight.
        values: Per name: inputs as they are afterwards, what was returned, gradients.
        notes: What the operator with an effect saw.
        error: What was raised.
        unlike: The ranks did not launch alike, or one of them failed.
        registers: All registers that were given from part to part.
    """

    control: Any
    hold_back: bool = True
    launched: list[tuple[str, str, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    values: dict[str, Tensor] = field(default_factory=dict)
    notes: list[tuple[int, float]] = field(default_factory=list)
    error: BaseException | None = None
    unlike: bool = False
    registers: dict[int, Any] = field(default_factory=dict)
    _arriving: dict[int, _Flight] = field(default_factory=dict)
    _inside: bool = False

    @property
    def ended(self) -> bool:
        """Whether nothing was left in flight: else what is there depends on time."""
        return not self._arriving

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong with it."""
        return self.error is None and not self.unlike and not self.faults

    @property
    def effects(self) -> list[int]:
        """The operator with an effect, by the numbers it was given, as it ran: Inductor may change that (2.13)."""
        return [number for number, _ in self.notes]

    def differs_from(self, other: "Run", close: bool = False) -> str | None:
        """In what; ``None``: bitwise in nothing, or to rounding."""
        if self.values.keys() != other.values.keys():
            return "values"
        same = partial(torch.allclose, rtol=1e-3, atol=1e-5, equal_nan=True) if close else equal
        wrong = [name for name, value in self.values.items() if not same(value, other.values[name])]
        if wrong:
            return ", ".join(wrong)
        return "notes of the effect" if self.notes != other.notes else None

    def alike(self, shown: int) -> bool:
        """Whether the other rank shows the same now."""
        both = torch.tensor([shown, -shown], dtype=torch.int64)
        dist.all_reduce(both, dist.ReduceOp.MAX, group=self.control)
        return bool(both[0] == -both[1])

    def call(self, op: OpOverload, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a collective or a wait."""
        name = op._schema.name.split("::")[1]
        tensors = [args[0]] if isinstance(args[0], Tensor) else list(args[0])
        self._inside = True
        try:
            if name not in WAITS:
                return self._launch(op, name, tensors, original, args, kwargs)
            for tensor in tensors:
                self._arrive(tensor)
            return original(op, *args, **kwargs)
        finally:
            self._inside = False

    def _launch(
        self, op: OpOverload, name: str, sends: list[Tensor], original: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        where = args[-1] if "group_name" not in kwargs else kwargs["group_name"]
        group = str(getattr(where, "group_name", where))
        label = f"{name.removesuffix('_').removesuffix('_out')} {[tuple(t.shape) for t in sends]}"
        if not self.alike(zlib.crc32(f"{label} {group}".encode()) + 10):
            raise UnlikeError(f"this rank launches {label} on {group} after {len(self.launched)} launches")
        bits = b"".join(t.detach().contiguous().numpy().tobytes() for t in sends)
        self.launched.append((group, label, zlib.crc32(bits)))
        result = original(op, *args, **kwargs)
        if not self.hold_back or name == "shard_dim_alltoall":
            return result
        results = [result] if isinstance(result, Tensor) else list(result)
        for tensor in results:
            original(torch.ops._c10d_functional.wait_tensor.default, tensor.detach())
        own = {_address(tensor) for tensor in results}
        sent = [(t.detach(), t.detach().clone()) for t in sends if _address(t) not in own]
        for tensor in results:
            bare = tensor.data
            self._arriving[_address(bare)] = _Flight(bare, bare.clone(), sent, label)
            bare.copy_(_poison(bare))
        return result

    def _arrive(self, tensor: Tensor) -> None:
        flight = self._arriving.pop(_address(tensor), None)
        if flight is None:
            return
        if not equal(flight.result, _poison(flight.result)):
            self.faults.append(f"the result of {flight.label} was written while it was in flight")
        if not all(equal(now, before) for now, before in flight.sent):
            self.faults.append(f"what {flight.label} sends was written while it was in flight")
        flight.result.copy_(flight.true)


def _poison(like: Tensor) -> Tensor:
    return torch.full_like(like, float("nan") if like.is_floating_point() else -(2**30))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are bitwise equal; every NaN is one."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(a, b)) or bool(((a == b) | ((a != a) & (b != b))).all())


@contextmanager
def intercepted(flights: Run) -> Iterator[None]:
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


Part = Callable[..., tuple[Any, ...]]
_C10D = torch.ops._c10d_functional


@dataclass(frozen=True)
class World:
    """The process groups of a rank: those of programs by number, and one over which ranks compare launches."""

    names: tuple[str, ...]
    control: Any

    @classmethod
    def of_two(cls) -> "World":
        """Several groups of all ranks."""
        groups = [dist.group.WORLD, *(dist.new_group() for _ in range(GROUPS - 1))]
        operators.world = groups[0].group_name
        return cls(tuple(group.group_name for group in groups), dist.new_group())

    def all_do(self, done: bool) -> bool:
        """Whether all ranks say yes."""
        answer = torch.tensor([int(done)])
        dist.all_reduce(answer, dist.ReduceOp.MIN, group=self.control)
        return bool(answer.item())


def functions_of(program: Program, world: World, odd: bool) -> list[Part]:
    """The parts of a program as functions."""
    found = []
    for part in range(len(program.parts)):
        names: dict[str, Any] = {"torch": torch, "N": N, "more": _more, "either": torch.ops.higher_order.cond}
        names |= {"region": _region, "cond_true": _cond_true, "cond_false": _cond_false}
        for number, name in enumerate(world.names):
            names[f"G{number}"] = name
            names[f"region_gather_G{number}"], names[f"cond_gather_G{number}"] = _gathers(name)
        exec(compile(source_of(program, part, odd), "<program>", "exec"), names)
        found.append(names["part"])
    return found


def _more(x: Tensor) -> Tensor:
    """What the odd rank computes in addition."""
    return x + torch.mm(torch.mm(x, x.t()), x) * 0.001


@torch.compiler.nested_compile_region
def _region(x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(x, y) * 0.1 + torch.sin(x)


def _cond_true(x: Tensor) -> Tensor:
    return torch.mm(x, x) * 0.1


def _cond_false(x: Tensor) -> Tensor:
    return x * 0.25


def _gathers(group: str) -> tuple[Any, Any]:
    @torch.compiler.nested_compile_region
    def region(x: Tensor, y: Tensor) -> Tensor:
        return _C10D.wait_tensor.default(_C10D.all_gather_into_tensor.default(x * 2.0, 2, group)) + y

    def branch(x: Tensor) -> Tensor:
        return _C10D.wait_tensor.default(_C10D.all_gather_into_tensor.default(x[: N // 2] * 2.0, 2, group)) * 0.5

    return region, branch


def inputs_of(program: Program, rank: int) -> list[Tensor]:
    """Inputs of a program: matrices differ between the ranks, whole numbers do not."""
    own = torch.Generator().manual_seed(program.seed * 2 + rank)
    common = torch.Generator().manual_seed(program.seed)
    values = [
        torch.randint(1, N, (), generator=common)
        if letter == "i"
        else torch.rand(SHAPES[letter], generator=own) + (0.1 if letter == "s" else -0.5)
        for letter in INPUTS
    ]
    return [v.requires_grad_() if program.grad and v.dim() == 2 else v for v in values]


def run(program: Program, parts: Sequence[Part], world: World, rank: int, hold_back: bool) -> Run:
    """Run a program; both ranks must."""
    found = Run(world.control, hold_back)
    operators.notes.clear()
    torch.manual_seed(program.seed)
    inputs = inputs_of(program, rank)
    registers = found.registers = dict(enumerate(inputs))
    if program.grad:  # inputs themselves are leaves; they may be looked at, never written
        registers |= {v: x * 1.0 for v, x in registers.items() if x.requires_grad}
    last: tuple[Any, ...] = ()
    try:
        with intercepted(found):
            for number, part in enumerate(parts):
                last = part(*(registers[v] for v in read_by(program, program.parts[number])))
                registers |= dict(zip(returned(program, number), last, strict=True))
            if program.grad:
                torch.stack([x.sum() for x in last if x.requires_grad]).sum().backward()
    except Exception as error:
        found.error = error
    # a rank at its end shows something else than a launch
    found.unlike = isinstance(found.error, UnlikeError) or not found.alike(1 if found.error is None else 2)
    if not found.unlike and found.error is None:
        final = returned(program, len(parts) - 1)
        found.values = {f"r{v}": registers[v].detach().clone() for v in (*range(len(INPUTS)), *final)}
        found.values |= {f"gradient of r{v}": x.grad.clone() for v, x in enumerate(inputs) if x.grad is not None}
    found.notes = list(operators.notes)
    return found
