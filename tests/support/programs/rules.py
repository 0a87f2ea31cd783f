"""Which programs are correct: what is in flight is not written, and nothing reads what has not arrived.

The rule goes by storages, through every alias, and over the parts of a program.
"""

from dataclasses import dataclass, field

from tests.support.programs.kinds import Kind
from tests.support.programs.program import INPUTS, Program, Step


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
        if len(takes) != len(kind.takes) or any(
            v >= len(self.letter) or self.letter[v] != letter for v, letter in zip(takes, kind.takes, strict=True)
        ):
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
            if kind.views is None:
                self.storage.append(self.storages)
                self.storages += 1
            else:
                self.storage.append(stores[kind.views])
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
        if tuple(range(len(registers.letter), len(registers.letter) + len(step.makes))) != step.makes:
            return None
        if not registers.take(step):
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
