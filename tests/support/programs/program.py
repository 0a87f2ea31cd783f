"""Programs as values, and their source.

Registers are numbered in the order in which they are made; the first are the inputs of :data:`INPUTS`. A program may
have several parts, each captured and compiled by itself: what one has launched another may await.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.support.programs.kinds import KINDS, Kind

INPUTS = "ffffhhssi"
"""A letter per input: its shape."""


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        kind: Of :data:`tests.support.programs.kinds.KINDS`.
        takes: Registers.
        makes: Registers, new ones.
        group: Number of a process group, for kinds that communicate.
        number: A small number.
    """

    kind: str
    takes: tuple[int, ...]
    makes: tuple[int, ...] = ()
    group: int = 0
    number: int = 0

    @property
    def is_of(self) -> Kind:
        """Its kind."""
        return KINDS[self.kind]


@dataclass(frozen=True)
class Program:
    """A program of one seed.

    Attributes:
        seed: From which it was made.
        steps: In order.
        cuts: Numbers of steps before which another part begins.
        odd: Steps (their number, and which of its arguments) that on the last rank take an argument to which some
            compute was done: ranks that differ in compute, and launch alike.
        grad: Whether it is differentiated.
    """

    seed: int
    steps: tuple[Step, ...]
    cuts: tuple[int, ...] = ()
    odd: tuple[tuple[int, int], ...] = ()
    grad: bool = False

    @property
    def parts(self) -> list[range]:
        """Numbers of the steps of each part."""
        ends = [0, *self.cuts, len(self.steps)]
        return [range(a, b) for a, b in pairwise(ends)]

    @property
    def families(self) -> set[str]:
        """What is in it."""
        also = {"several graphs": self.cuts, "ranks differ": self.odd, "gradients": self.grad}
        return {step.is_of.family for step in self.steps} | {name for name, there in also.items() if there}


def lines_of(program: Program, part: range, odd: bool) -> list[str]:
    """Statements of a part, on the rank that is odd or on another."""
    lines: list[str] = []
    for at in part:
        step = program.steps[at]
        names = [f"r{v}" for v in step.takes]
        for number, (where, which) in enumerate(program.odd if odd else ()):
            if where == at:
                lines.append(f"odd{number}_{at} = more({names[which]})")
                names[which] = f"odd{number}_{at}"
        words = {
            **dict(zip("abc", names, strict=False)),
            **{letter: f"r{v}" for letter, v in zip("xy", step.makes, strict=False)},
            "g": f"G{step.group}",
            "k": step.number,
            "t": f"t{at}",
        }
        lines += step.is_of.text.format(**words).split("\n")
    return lines


def read_by(program: Program, part: range) -> list[int]:
    """Registers that a part takes from those in front of it; the inputs are there for the first alone if not read."""
    before = len(INPUTS) + sum(len(step.makes) for step in program.steps[: part.start])
    read = {v for at in part for v in program.steps[at].takes if v < before}
    return sorted(read)


def source_of(program: Program, part: range, gives: Sequence[int], odd: bool = False) -> str:
    """A function of a part: it takes the registers that it reads, and gives some of those that it makes."""
    takes = ", ".join(f"r{v}" for v in read_by(program, part))
    result = "".join(f"r{v}, " for v in gives)
    body = [*lines_of(program, part, odd), f"return ({result})"]
    return "\n    ".join([f"def part({takes}):", *body]) + "\n"


def shown(program: Program, gives: Callable[[Program, int], Sequence[int]]) -> str:
    """For people: source, and how the ranks differ."""
    head = f"# seed {program.seed}; r0..r{len(INPUTS) - 1} are inputs {INPUTS!r}; gradients: {program.grad}"
    odd = [
        f"# rank 1 computes more on argument {which} of {program.steps[at].kind} (step {at})"
        for at, which in program.odd
    ]
    texts = [source_of(program, part, gives(program, number)) for number, part in enumerate(program.parts)]
    return "\n".join([head, *odd, *texts])
