"""A program for every seed."""

import random
from collections.abc import Collection
from dataclasses import replace

from tests.support.programs.kinds import KINDS, Capture, Kind
from tests.support.programs.program import INPUTS, Program, Step
from tests.support.programs.rules import Registers

GROUPS = 3
STALE = "reads by older names"
"""Of what a wait completes, by the name that it had before, or by a view made before."""
TRIES = 30
"""Choices of arguments for one step."""


def generate(seed: int, without: Collection[str] = ()) -> Program:
    """The program of a seed.

    Args:
        seed: Any number.
        without: Families and kinds of steps that are left out, and :data:`STALE`.
    """
    rng = random.Random(f"program {seed}")
    way: Capture = rng.choice(("make_fx", "make_fx", "make_fx", "dynamo"))
    grad = way == "dynamo" and rng.random() < 0.2
    kinds = [kind for kind in KINDS.values() if way in kind.ways and (kind.grad or not grad)]
    kinds = [kind for kind in kinds if not {kind.family, kind.name}.intersection(without)]
    weights = {kind.name: kind.weight for kind in kinds}
    for kind in kinds:  # each program has its own flavour: some kinds often, some never
        weights[kind.name] *= rng.choice((0, 1, 1, 3)) if kind.family not in ("wait", "compute") else 1
    registers, steps = Registers(), []
    late = rng.random()  # how late it waits
    for _ in range(rng.randint(6, 26)):
        step = _next(rng, registers, kinds, weights, late)
        if step is not None:
            assert registers.take(step)
            steps.append(step)
            if step.is_of.waits and STALE in without:
                for v in registers.older_names(step):
                    registers.letter[v] = "."  # which no kind takes
    several = rng.random() < 0.25 and not grad
    open_ends = several and rng.random() < 0.7
    program = Program(seed, tuple(steps), grad=grad)
    if not open_ends or rng.random() < 0.8:
        program = _awaited(program, registers)
    if several and len(program.steps) > 4:
        program = replace(program, cuts=(rng.randint(2, len(program.steps) - 2),))
    if rng.random() < 0.4:
        program = replace(program, odd=_odd(rng, program))
    return program


def _next(
    rng: random.Random, registers: Registers, kinds: list[Kind], weights: dict[str, float], late: float
) -> Step | None:
    for _ in range(TRIES):
        kind = rng.choices(kinds, [weights[kind.name] for kind in kinds])[0]
        if kind.waits and registers.arriving and rng.random() < late:
            continue
        takes = _arguments(rng, registers, kind)
        if takes is None:
            continue
        first = len(registers.letter)
        makes = tuple(range(first, first + len(kind.makes)))
        return Step(kind.name, takes, makes, rng.randrange(GROUPS), rng.randint(1, 12))
    return None


def _arguments(rng: random.Random, registers: Registers, kind: Kind) -> tuple[int, ...] | None:
    """Registers that a step of a kind may take; the later they were made the sooner."""
    chosen = []
    for letter in kind.takes:
        fitting = [v for v, found in enumerate(registers.letter) if found == letter]
        if kind.waits:  # mostly for what has not arrived; a wait of a wait is allowed
            open_ = [v for v in fitting if registers.storage[v] in registers.arriving]
            waited = [v for v in fitting if v >= len(INPUTS)]
            fitting = open_ if open_ and rng.random() < 0.93 else waited if rng.random() < 0.15 else []
        if not fitting:
            return None
        chosen.append(fitting[max(rng.randrange(len(fitting)), rng.randrange(len(fitting)))])
    takes = tuple(chosen)
    return takes if registers.allows(kind, takes) else None


def _awaited(program: Program, registers: Registers) -> Program:
    """With waits at its end for all that has not arrived."""
    steps = list(program.steps)
    for v in range(len(registers.letter)):
        if registers.storage[v] in registers.arriving and f"wait_{registers.letter[v]}" in KINDS:
            step = Step(f"wait_{registers.letter[v]}", (v,), (len(registers.letter),))
            if registers.take(step):
                steps.append(step)
    return replace(program, steps=tuple(steps))


def _odd(rng: random.Random, program: Program) -> tuple[tuple[int, int], ...]:
    """Where the last rank computes more: arguments that are only read."""
    places = [
        (at, which)
        for at, step in enumerate(program.steps)
        for which, letter in enumerate(step.is_of.takes)
        if letter in "fh" and which not in step.is_of.writes and which != step.is_of.views
    ]
    return tuple(sorted(rng.sample(places, min(len(places), rng.randint(1, 3)))))
