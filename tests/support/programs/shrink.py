"""The least program that still fails: steps are dropped, with all that needs them, while it does."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.support.programs.program import INPUTS, Program, Step
from tests.support.programs.rules import correct


def shrunk(program: Program, fails: Callable[[Program], bool], tries: int = 80) -> Program:
    """A program of which nothing can be dropped; ``fails`` is asked so often at most."""
    left = tries
    again = True
    while again:
        again = False
        for smaller in _smaller(program):
            if left == 0:
                return program
            if not smaller.steps or not correct(smaller):
                continue
            left -= 1
            if fails(smaller):
                program, again = smaller, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    for cut in program.cuts:
        yield replace(program, cuts=tuple(c for c in program.cuts if c != cut))
    for odd in program.odd:
        yield replace(program, odd=tuple(o for o in program.odd if o != odd))
    size = max(1, len(program.steps) // 4)
    while size:
        for at in reversed(range(0, len(program.steps), size)):
            yield without(program, range(at, min(at + size, len(program.steps))))
        size //= 2


def without(program: Program, dropped: range) -> Program:
    """A program without some steps, and without those that need them."""
    number = {v: v for v in range(len(INPUTS))}  # of registers that stay
    steps: list[Step] = []
    place: dict[int, int] = {}
    for at, step in enumerate(program.steps):
        if at in dropped or not all(v in number for v in step.takes):
            continue
        makes = tuple(range(len(number), len(number) + len(step.makes)))
        number |= dict(zip(step.makes, makes, strict=True))
        place[at] = len(steps)
        steps.append(replace(step, takes=tuple(number[v] for v in step.takes), makes=makes))
    cuts = {sum(p < cut for p in place) for cut in program.cuts}
    return replace(
        program,
        steps=tuple(steps),
        cuts=tuple(sorted(cut for cut in cuts if 0 < cut < len(steps))),
        odd=tuple((place[at], which) for at, which in program.odd if at in place),
    )
