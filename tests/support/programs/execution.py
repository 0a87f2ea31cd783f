"""Programs executed: functions of their parts, inputs, and what comes of a run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tests.support.programs import operators
from tests.support.programs.flight import Flights, Record, UnlikeError, equal, intercepted
from tests.support.programs.generate import GROUPS
from tests.support.programs.kinds import SHAPES, N
from tests.support.programs.program import INPUTS, Program, read_by, source_of
from tests.support.programs.rules import returned

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
    return [
        _function(source_of(program, part, given, odd), world) for part, given in zip(program.parts, gives, strict=True)
    ]


def _function(source: str, world: World) -> Part:
    names: dict[str, Any] = {"torch": torch, "N": N, "more": _more, "either": _either, "region": _region}
    for number, name in enumerate(world.names):
        names[f"G{number}"] = name
        names[f"region_gather_G{number}"], names[f"cond_gather_G{number}"] = _gathers(name)
    names["cond_true"], names["cond_false"] = _cond_true, _cond_false
    exec(compile(source, "<program>", "exec"), names)
    part: Part = names["part"]
    return part


def _more(x: Tensor) -> Tensor:
    """What the odd rank computes in addition."""
    return x + torch.mm(torch.mm(x, x.t()), x) * 0.001


def _either(pred: Tensor, yes: Any, no: Any, operands: tuple[Tensor, ...]) -> Any:
    return torch.ops.higher_order.cond(pred, yes, no, operands)


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
    values = []
    for letter in INPUTS:
        if letter == "i":
            values.append(torch.randint(1, N, (), generator=common))
        else:
            values.append(torch.rand(SHAPES[letter], generator=own) + (0.1 if letter == "s" else -0.5))
    if program.grad:
        values = [v.requires_grad_() if v.dim() == 2 else v for v in values]
    return values


@dataclass
class Run:
    """What came of a run on this rank.

    Attributes:
        values: Per name: inputs as they are afterwards, what was returned, gradients.
        notes: What the operator with an effect saw.
        launched: See :class:`~tests.support.programs.flight.Flights`.
        faults: The same.
        error: What was raised.
        unlike: The ranks did not launch alike, or one of them failed.
        registers: All registers that were given from part to part.
        record: See :class:`~tests.support.programs.flight.Flights`; ``None``: it is unclear on a rank.
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
    program: Program,
    parts: Sequence[Part],
    world: World,
    rank: int,
    hold_back: bool = True,
    record: Record | None = None,
) -> Run:
    """Run a program; both ranks must. See :class:`~tests.support.programs.flight.Flights`."""
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
