"""What a step of a program can be: its source, what it reads, writes, launches and awaits.

Values have one of few shapes, so that most steps can follow any other: ``f`` is a matrix (N, N), ``h`` its upper half
(N/2, N), ``r`` has a number of rows that only the data knows, ``s`` is a vector (N,), ``i`` a whole number in a tensor.

Programs as values, and their source.

Registers are numbered in the order in which they are made; the first are the inputs of :data:`INPUTS`. A program may
have several parts, each captured and compiled by itself: what one has launched another may await.

Which programs are correct: what is in flight is not written, and nothing reads what has not arrived.

The rule goes by storages, through every alias, and over the parts of a program.

A program for every seed.

The least program that still fails: steps are dropped, with all that needs them, while it does.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

N = 16
SHAPES = {"f": (N, N), "h": (N // 2, N), "s": (N,), "i": ()}

Capture = Literal["make_fx", "dynamo"]


@dataclass(frozen=True)
class Kind:
    """One kind of step.

    Attributes:
        name: Of the kind.
        family: What it is counted as in summaries.
        takes: A letter per argument: its shape.
        makes: A letter per result.
        text: Source, one statement a line. ``{a} {b} {c}``: the arguments; ``{x} {y}``: the results; ``{g}``: the name
            of a process group; ``{k}``: a small number; ``{t}``: a name of the step's own.
        writes: Arguments that it writes.
        views: The argument at which its result looks.
        sends: Arguments that are in flight after it, until all of its results have been awaited.
        receives: Arguments that arrive in flight; ``launches``: so do its results.
        again: Each wait for one of its results writes all of them: so gloo does it.
        waits: Its argument has arrived after it.
        weight: How often.
        ways: By which ways programs with it are captured.
        grad: Whether it can stand in a program that is differentiated.
    """

    name: str
    family: str
    takes: str
    makes: str
    text: str
    writes: tuple[int, ...] = ()
    views: int | None = None
    sends: tuple[int, ...] = ()
    receives: tuple[int, ...] = ()
    launches: bool = False
    again: bool = False
    waits: bool = False
    weight: float = 1.0
    ways: tuple[Capture, ...] = ("make_fx", "dynamo")
    grad: bool = False


_OWN = "torch.ops.progs"
_MAKE_FX: tuple[Capture, ...] = ("make_fx",)
_DYNAMO: tuple[Capture, ...] = ("dynamo",)


def _of(family: str, *kinds: tuple[Any, ...], **all_have: Any) -> Iterator[Kind]:
    """Kinds of a family: name, takes, makes, source, and what else is said of it."""
    for name, takes, makes, text, *more in kinds:
        yield Kind(name, family, takes, makes, text, **{**all_have, **(more[0] if more else {})})


def _c10d(family: str, *kinds: tuple[Any, ...], **all_have: Any) -> Iterator[Kind]:
    """Functional collectives of which the source says only the call."""
    for name, takes, makes, call, *more in kinds:
        results = ("", "{x} = ", "{x}, {y} = ")[len(makes)]
        yield from _of(family, (name, takes, makes, f"{results}torch.ops._c10d_functional.{call}", *more), **all_have)


_CUT = "{t} = {b}.item()\ntorch._check({t} >= 0)\ntorch._check({t} <= N)\n"
_WAIT, _IN_PLACE = "wait_tensor.default({a})", {"ways": _MAKE_FX, "receives": (0,)}
_OUT = {"ways": _MAKE_FX, "writes": (1,), "sends": (0,), "receives": (1,)}
_FAMILIES = (
    _of(
        "compute",
        ("mm", "ff", "f", "{x} = torch.mm({a}, {b}) * 0.1", {"weight": 4}),
        ("mms", "f", "f", "{x} = torch.mm(torch.mm({a}, {a}), {a}) * 0.01", {"weight": 3}),
        ("add", "ff", "f", "{x} = {a} + 0.5 * {b}", {"weight": 2}),
        ("relu", "f", "f", "{x} = torch.relu({a})"),
        ("turn", "f", "f", "{x} = {a}.t().contiguous() * 0.5"),
        ("cat", "hh", "f", "{x} = torch.cat([{a}, {b}])"),
        ("scale", "h", "h", "{x} = {a} * 0.5 + 0.1"),
        ("outer", "ss", "f", "{x} = torch.outer({a}, {b}) * 0.1", {"weight": 0.5, "grad": False}),
        ("sub", "fs", "f", "{x} = {a} - {b}", {"weight": 0.7}),
        grad=True,
    ),
    _of(
        "view",
        ("upper", "f", "h", "{x} = {a}[: N // 2]", {"weight": 1.5}),
        ("lower", "f", "h", "{x} = {a}[N // 2 :]", {"weight": 1.5}),
        ("flat", "f", "f", "{x} = {a}.view(-1).view(N, N)"),
        ("t", "f", "f", "{x} = {a}.t()", {"weight": 0.5}),
        views=0,
        grad=True,
    ),
    _of(
        "in place",
        ("add_", "ff", "", "{a}.add_({b}, alpha=0.25)", {"weight": 1.5}),
        ("mul_", "f", "", "{a}.mul_(0.5)"),
        ("half_", "h", "", "{a}.add_(0.125)", {"weight": 1.5}),
        ("copy_", "ff", "", "{a}.copy_({b})", {"weight": 1.5}),
        ("row_", "fs", "", "{a}[{k}].copy_({b})"),
        ("diagonal_", "f", "", "{a}.view(-1)[:: N + 1].mul_(0.5)"),
        ("index_put", "ff", "", "{a}[torch.arange(0, N, 2)] = {b}[: N // 2]", {"weight": 0.5}),
        ("stat_", "sf", "", "{a}.add_({b}[0], alpha=0.5)", {"weight": 0.5}),
        ("mm_out", "fff", "", "torch.mm({b}, {c}, out={a})", {"weight": 0.5, "ways": _MAKE_FX}),
        writes=(0,),
    ),
    _c10d(
        "collective",
        ("all_gather", "h", "f", "all_gather_into_tensor.default({a}, 2, {g})", {"weight": 4, "grad": True}),
        ("reduce_scatter", "f", "h", "reduce_scatter_tensor.default({a}, 'sum', 2, {g})", {"weight": 3, "grad": True}),
        ("all_reduce", "f", "f", "all_reduce.default({a}, 'sum', {g})", {"weight": 3}),
        (
            "all_to_all",
            "f",
            "f",
            "all_to_all_single.default({a}, [N // 2] * 2, [N // 2] * 2, {g})",
            {"weight": 2, "grad": True},
        ),
        ("broadcast", "f", "f", "broadcast.default({a}, 0, {g})"),
        sends=(0,),
        launches=True,
    ),
    _c10d(
        "coalesced",
        ("gathers", "hh", "ff", "all_gather_into_tensor_coalesced.default([{a}, {b}], 2, {g})"),
        ("scatters", "ff", "hh", "reduce_scatter_tensor_coalesced.default([{a}, {b}], 'sum', 2, {g})", {"again": True}),
        ("reduces", "ff", "ff", "all_reduce_coalesced.default([{a}, {b}], 'sum', {g})"),
        sends=(0, 1),
        launches=True,
    ),
    _c10d(
        "collective in place",
        ("gather_out", "hf", "", "all_gather_into_tensor_out.default({a}, 2, {g}, out={b})", _OUT),
        (
            "scatter_out",
            "fh",
            "",
            "reduce_scatter_tensor_out.default({a}, 'sum', 2, {g}, out={b})",
            {**_OUT, "weight": 0.7},
        ),
        ("all_reduce_", "f", "", "all_reduce_.default({a}, 'sum', {g})", _IN_PLACE),
        ("broadcast_", "f", "", "broadcast_.default({a}, 0, {g})", {**_IN_PLACE, "weight": 0.5}),
        writes=(0,),
    ),
    _of(
        "blocking collective",
        (
            "shard_dim",
            "f",
            "f",
            "{x} = torch.ops._dtensor.shard_dim_alltoall.default({a}, 0, 1, {g}).reshape(N, N).clone()",
            {"weight": 1.5},
        ),
    ),
    _c10d(
        "wait",
        ("wait_f", "f", "f", _WAIT, {"weight": 9, "grad": True}),
        ("wait_h", "h", "h", _WAIT, {"weight": 6, "grad": True}),
        ("wait_r", "r", "r", _WAIT, {"weight": 3}),
        views=0,
        waits=True,
    ),
    _of(
        "custom operator",
        ("plain", "f", "f", "{x} = " + _OWN + ".plain({a})"),
        ("plain_into", "ff", "", _OWN + ".plain_into({a}, {b})", {"writes": (0,)}),
    ),
    _of(
        "hidden communication",
        ("hidden", "f", "f", "{x} = " + _OWN + ".hidden({a}, {g})", {"weight": 1.5}),
        ("hidden_mute", "f", "f", "{x} = " + _OWN + ".hidden_mute({a})", {"weight": 0.7}),
        ("hidden_into", "ff", "", _OWN + ".hidden_into({a}, {b}, {g})", {"writes": (0,)}),
    ),
    _of("effect", ("noted", "f", "f", "{x} = " + _OWN + ".noted({a}, {k})", {"weight": 1.5})),
    _of(
        "random",
        ("noise", "f", "f", "{x} = {a} + torch.rand_like({a}) * 0.1", {"weight": 1.5}),
        ("dropout", "f", "f", "{x} = torch.nn.functional.dropout({a}, 0.3, True)"),
        ("normal_", "f", "", "{a}.normal_()", {"writes": (0,), "weight": 0.5}),
    ),
    _of(
        "batch norm",
        ("batch_norm", "fss", "f", "{x} = torch.nn.functional.batch_norm({a}, {b}, {c}, training=True)"),
        writes=(1, 2),
        weight=1.5,
    ),
    _of(
        "unbacked size",
        ("rows", "fi", "r", _CUT + "{x} = {a}.narrow(0, 0, {t}) * 0.5"),
        (
            "rows_gather",
            "fi",
            "r",
            _CUT
            + "{x} = torch.ops._c10d_functional.all_gather_into_tensor.default({a}.narrow(0, 0, {t}).clone(), 2, {g})",
            {"launches": True},
        ),
        ("fold", "fr", "f", "{x} = {a} + {b}.sum(0)", {"weight": 1.5}),
        (
            "nonzero",
            "ff",
            "f",
            "{t} = torch.nonzero({b} > 0.5)\n{x} = {a} * 0.5 + {t}.to(torch.float32).sum() * 0.001",
            {"weight": 0.7},
        ),
        ("item", "ff", "f", "{t} = {b}.sum().item()\n{x} = {a} + {t} * 0.001", {"weight": 0.7}),
    ),
    _of(
        "sub-graph",
        ("region", "ff", "f", "{x} = region({a}, {b})", {"ways": _DYNAMO}),
        ("cond", "fi", "f", "{x} = either({b} > {k}, cond_true, cond_false, ({a},))"),
    ),
    _of(
        "sub-graph with communication",
        ("region_gather", "hf", "f", "{x} = region_gather_{g}({a}, {b})", {"ways": _DYNAMO}),
        ("cond_gather", "fi", "f", "{x} = either({b} > {k}, cond_gather_{g}, cond_false, ({a},))"),
        weight=1.5,
    ),
)
KINDS: dict[str, Kind] = {kind.name: kind for kinds in _FAMILIES for kind in kinds}


INPUTS = "ffffhhssi"
"""A letter per input: its shape."""


@dataclass(frozen=True)
class Step:
    """One step.

    Attributes:
        kind: Of :data:`tests.support.programs.program.KINDS`.
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
        words = dict(zip("abcxy", [*names, *"abc"[len(names) :], *(f"r{v}" for v in step.makes)], strict=False))
        lines += step.is_of.text.format(**words, g=f"G{step.group}", k=step.number, t=f"t{at}").split("\n")
    return lines


def read_by(program: Program, part: range) -> list[int]:
    """Registers that a part takes from those in front of it; the inputs are there for the first alone if not read."""
    before = len(INPUTS) + sum(len(step.makes) for step in program.steps[: part.start])
    read = {v for at in part for v in program.steps[at].takes if v < before}
    return sorted(read)


def source_of(program: Program, number: int, odd: bool = False) -> str:
    """A function of a part: it takes the registers that it reads, and gives some of those that it makes."""
    takes = ", ".join(f"r{v}" for v in read_by(program, program.parts[number]))
    result = "".join(f"r{v}, " for v in returned(program, number))
    body = [*lines_of(program, program.parts[number], odd), f"return ({result})"]
    return "\n    ".join([f"def part({takes}):", *body]) + "\n"


def describe(program: Program) -> str:
    """For people: source, and how the ranks differ."""
    head = f"# seed {program.seed}; r0..r{len(INPUTS) - 1} are inputs {INPUTS!r}; gradients: {program.grad}"
    odd = [f"# rank 1 computes more on argument {k} of {program.steps[at].kind} (step {at})" for at, k in program.odd]
    return "\n".join([head, *odd, *(source_of(program, number) for number in range(len(program.parts)))])


@dataclass
class Registers:
    """All registers after some steps.

    Attributes:
        letter: Per register, its shape.
        storage: Per register, its storage; a view has that of what it looks at.
        arriving: Per storage that has not arrived, the launch that brings it.
        sent: Per launch of which not all results have arrived, the storages that it sends, or writes once more.
        compact: Per register, whether its elements lie one after the other.
    """

    letter: list[str] = field(default_factory=lambda: list(INPUTS))
    storage: list[int] = field(default_factory=lambda: list(range(len(INPUTS))))
    arriving: dict[int, int] = field(default_factory=dict)
    sent: dict[int, tuple[int, ...]] = field(default_factory=dict)
    compact: list[bool] = field(default_factory=lambda: [True] * len(INPUTS))
    launches: int = 0
    storages: int = len(INPUTS)

    def allows(self, kind: Kind, takes: tuple[int, ...]) -> bool:
        """Whether a step of this kind may come next with these arguments."""
        if any(v >= len(self.letter) for v in takes) or "".join(self.letter[v] for v in takes) != kind.takes:
            return False
        stores = [self.storage[v] for v in takes]
        if not kind.waits and kind.views is None and any(s in self.arriving for s in stores):
            return False
        if not all(self.compact[v] for v in takes) and (kind.family not in ("compute", "view") or kind.name == "flat"):
            return False
        busy = {s for sent in self.sent.values() for s in sent}
        written = [stores[i] for i in kind.writes]
        if any(s in busy for s in written):
            return False
        others = [s for i, s in enumerate(stores) if i not in kind.writes]
        return len(set(written)) == len(written) and set(written).isdisjoint(others)

    def older_names(self, wait: Step) -> set[int]:
        """Registers, inputs apart, that had what a wait completes before it."""
        storage = self.storage[wait.takes[0]]
        return {v for v, found in enumerate(self.storage[: wait.makes[0]]) if found == storage and v >= len(INPUTS)}

    def take(self, step: Step) -> bool:
        """Do a step; whether it was allowed."""
        kind = step.is_of
        if not self.allows(kind, step.takes):
            return False
        stores = [self.storage[v] for v in step.takes]
        if kind.waits:
            launch = self.arriving.pop(stores[0], None)
            if launch is not None and launch not in self.arriving.values():
                del self.sent[launch]
        for letter in kind.makes:
            self.letter.append(letter)
            self.compact.append(kind.name != "t" and (kind.views is None or self.compact[step.takes[kind.views]]))
            self.storage.append(self.storages if kind.views is None else stores[kind.views])
            self.storages += kind.views is None
        if kind.launches or kind.receives:
            arrive = [*(stores[i] for i in kind.receives), *(self.storage[len(self.storage) - len(kind.makes) :])]
            self.arriving |= dict.fromkeys(arrive if kind.launches else arrive[: len(kind.receives)], self.launches)
            again = arrive if kind.again else []
            self.sent[self.launches] = (*(stores[i] for i in kind.sends), *again)
            self.launches += 1
        return True


def after(program: Program, steps: int) -> Registers | None:
    """Registers after so many steps; ``None``: one of them is not allowed."""
    registers = Registers()
    for step in program.steps[:steps]:
        first = len(registers.letter)
        if tuple(range(first, first + len(step.makes))) != step.makes or not registers.take(step):
            return None
    return registers


def correct(program: Program) -> bool:
    """Whether a program is."""
    return after(program, len(program.steps)) is not None


def reads_by_older_names(program: Program) -> bool:
    """Whether anything takes a value that has arrived by a name that it had before its wait.

    Inductor may read such a value before it has arrived, or write over it: to it a wait's result is new memory.
    """
    registers, older = Registers(), set[int]()
    for step in program.steps:
        if older.intersection(step.takes):
            return True
        if step.is_of.waits:
            older |= registers.older_names(step)
        registers.take(step)
    return False


def returned(program: Program, number: int) -> list[int]:
    """What a part of a program gives back: what later parts read, of the last one every other that is whole."""
    part = program.parts[number]
    before = len(INPUTS) + sum(len(s.makes) for s in program.steps[: part.start])
    registers = after(program, part.stop)
    assert registers is not None
    made = range(before, len(registers.letter))
    later = {v for step in program.steps[part.stop :] for v in step.takes}
    read = {v for step in program.steps for v in step.takes}
    whole = [v for v in made if registers.storage[v] not in registers.arriving]
    kept = [v for v in whole if (v not in read or (v * 7 + program.seed) % 5 == 0) and registers.letter[v] != "r"]
    return sorted({*(v for v in later if v in made), *kept})


GROUPS = 3
TRIES = 30
"""Choices of arguments for one step."""


def generate(seed: int) -> Program:
    """The program of a seed."""
    rng = random.Random(f"program {seed}")
    way: Capture = rng.choice(("make_fx", "make_fx", "make_fx", "dynamo"))
    grad = way == "dynamo" and rng.random() < 0.2
    kinds = [kind for kind in KINDS.values() if way in kind.ways and (kind.grad or not grad)]
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
    several = rng.random() < 0.25 and not grad
    program = Program(seed, tuple(steps), grad=grad)
    if not several or rng.random() < 0.86:
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
    places = []
    for at, kind in enumerate(step.is_of for step in program.steps):
        only_read = [k for k in range(len(kind.takes)) if k not in kind.writes and k != kind.views]
        places += [(at, k) for k in only_read if kind.takes[k] in "fh"]
    return tuple(sorted(rng.sample(places, min(len(places), rng.randint(1, 3)))))


def shrunk(program: Program, fails: Callable[[Program], bool], tries: int = 80) -> Program:
    """A program of which nothing can be dropped; ``fails`` is asked so often at most."""
    for smaller in _smaller(program):
        if tries and smaller.steps and correct(smaller):
            tries -= 1
            if fails(smaller):
                return shrunk(smaller, fails, tries)
    return program


def _smaller(program: Program) -> Iterator[Program]:
    for cut in program.cuts:
        yield replace(program, cuts=tuple(c for c in program.cuts if c != cut))
    for odd in program.odd:
        yield replace(program, odd=tuple(o for o in program.odd if o != odd))
    for size in (max(1, len(program.steps) // 4), 2, 1):
        for at in reversed(range(0, len(program.steps), size)):
            yield without(program, range(at, min(at + size, len(program.steps))))


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
    cuts = {sum(p < cut for p in place) for cut in program.cuts} - {0, len(steps)}
    odd = tuple((place[at], which) for at, which in program.odd if at in place)
    return replace(program, steps=tuple(steps), cuts=tuple(sorted(cuts)), odd=odd)
