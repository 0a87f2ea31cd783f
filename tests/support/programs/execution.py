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

Programs executed: functions of their parts, inputs, and what comes of a run.

What a graph launches, read from the graph: at every depth, custom operators included.
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
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.utils._pytree import tree_leaves

from tests.support.programs import operators
from tests.support.programs.program import GROUPS, INPUTS, SHAPES, N, Program, read_by, returned, source_of

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
    gives = [returned(program, number) for number in range(len(program.parts))]
    found = []
    for part, given in zip(program.parts, gives, strict=True):
        names: dict[str, Any] = {"torch": torch, "N": N, "more": _more, "either": torch.ops.higher_order.cond}
        names |= {"region": _region, "cond_true": _cond_true, "cond_false": _cond_false}
        for number, name in enumerate(world.names):
            names[f"G{number}"] = name
            names[f"region_gather_G{number}"], names[f"cond_gather_G{number}"] = _gathers(name)
        exec(compile(source_of(program, part, given, odd), "<program>", "exec"), names)
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


@dataclass
class Run:
    """What came of a run on this rank.

    Attributes:
        values: Per name: inputs as they are afterwards, what was returned, gradients.
        notes: What the operator with an effect saw.
        launched: See :class:`~tests.support.programs.execution.Flights`.
        faults: The same.
        error: What was raised.
        unlike: The ranks did not launch alike, or one of them failed.
        registers: All registers that were given from part to part.
        record: See :class:`~tests.support.programs.execution.Flights`; ``None``: it is unclear on a rank.
        ended: Nothing was left in flight: else what is there depends on time.
    """

    values: dict[str, Tensor] = field(default_factory=dict)
    notes: list[tuple[int, float]] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    error: BaseException | None = None
    unlike: bool = False
    registers: dict[int, Any] = field(default_factory=dict)
    record: Record | None = None
    ended: bool = True

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


def run(
    program: Program, parts: Sequence[Part], world: World, rank: int, hold_back: bool, record: Record | None
) -> Run:
    """Run a program; both ranks must. See :class:`~tests.support.programs.execution.Flights`."""
    found = Run()
    flights = Flights(world.control, hold_back, record)
    operators.notes.clear()
    torch.manual_seed(program.seed)
    inputs = inputs_of(program, rank)
    registers: dict[int, Any] = dict(enumerate(inputs))
    if program.grad:  # inputs themselves are leaves; they may be looked at, never written
        registers |= {v: x * 1.0 for v, x in registers.items() if x.requires_grad}
    last: tuple[Any, ...] = ()
    try:
        with intercepted(flights):
            for number, part in enumerate(parts):
                takes = [registers[v] for v in read_by(program, program.parts[number])]
                last = part(*takes)
                registers |= dict(zip(returned(program, number), last, strict=True))
            if program.grad:
                torch.stack([x.sum() for x in last if x.requires_grad]).sum().backward()
    except UnlikeError as error:
        found.unlike, found.error = True, error
    except Exception as error:
        found.error = error
    if not (found.unlike or flights.finish(found.error is not None)):
        found.unlike = True
    if not found.unlike and found.error is None:
        final = returned(program, len(parts) - 1)
        found.values = {f"r{v}": registers[v].detach().clone() for v in (*range(len(INPUTS)), *final)}
        found.values |= {f"gradient of r{v}": x.grad.clone() for v, x in enumerate(inputs) if x.grad is not None}
    found.notes, found.launched, found.faults = list(operators.notes), flights.launched, flights.faults
    found.ended = not flights.in_flight
    found.registers, found.record = registers, flights.recorded if world.all_do(not flights.unclear) else None
    return found


def launches_of(gm: fx.GraphModule, groups: Sequence[str]) -> list[tuple[str, str]]:
    """In order: a group, and what is launched there (its node's name)."""
    found: list[tuple[str, str]] = []
    for node in (node for node in gm.graph.nodes if node.op == "call_function"):
        arguments = tree_leaves((node.args, node.kwargs))
        for argument in arguments:
            inner = getattr(gm, str(argument.target), None) if isinstance(argument, fx.Node) else None
            if isinstance(inner, fx.GraphModule):
                found += [(group, f"{node.name}/{name}") for group, name in launches_of(inner, groups)]
        called = [op for op in (node.target, *arguments) if isinstance(op, OpOverload)]
        if any(map(_communicates, called)):
            named = [str(a) for a in arguments if isinstance(a, str) and a in groups]
            found.append(((named or [operators.world])[-1], node.name))
    return found


def _communicates(op: OpOverload) -> bool:
    name = op._schema.name.split("::")[1]
    if op.namespace == "progs":
        return name.startswith("hidden")
    return op.namespace == "_dtensor" or (op.namespace == "_c10d_functional" and name not in WAITS)


def by_group(launches: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Launches of each group, in order."""
    found: dict[str, list[str]] = {}
    for group, name in launches:
        found.setdefault(group, []).append(name)
    return found
