"""What each of several gloo ranks does: ``torchrun -m tests.support.inductor.recompiling FOLDER PROGRAMS [BACKEND]``.

``PROGRAMS`` are names of :data:`NAMED`, or numbers of random ones: ``logs,rows``, ``named`` for all, ``0-499``.

Random programs whose ranks compile again at random steps, each rank by itself: another batch length, one more output, a
graph break, in a loop or not, no gradients, a second function that launches the same. Each program has a store and
process groups of its own, and runs without us and with us. Writes ``FOLDER/rank<r>.json``: per program ``equal``,
``wrong``, ``stopped`` (by a :class:`~overlap_sched.errors.SequenceError`), ``left`` (by another) or ``hung``.
"""

import json
import os
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc

import overlap_sched
from overlap_sched.errors import SequenceError
from tests.support.inductor.models import own_store

WIDTH, WRONG = 256, "wrong"
STEPS = 5
LIMIT_S = 3.0
"""How long a rank waits for the others before it takes itself to be alone."""
HANG_S = 30.0


@dataclass(frozen=True)
class Choice:
    """How one rank runs one step.

    Attributes:
        rows: Of the batch; those of other ranks may differ.
        logs: Return a statistic, too.
        breaks: In front of which block the graph breaks; -1: nowhere.
        learns: The input needs a gradient: the graph is a forward, and none for inference.
    """

    rows: int = 512
    logs: bool = False
    breaks: int = -1
    learns: bool = False


@dataclass(frozen=True)
class Program:
    """What all ranks run.

    Attributes:
        blocks: What each block launches: ``m`` the mean of what it computes, ``w`` that of a weight, ``g`` a gather.
        loops: The blocks stand in a loop, where Dynamo cannot go on behind a graph break.
        twice: A second function launches the same.
        trains: Steps have a backward.
        dynamic: As for ``torch.compile``.
        choices: Per step, of the last ranks; those before are as the first of them.
    """

    blocks: str
    loops: bool
    twice: bool
    trains: bool
    dynamic: bool | None
    choices: list[list[Choice]] = field(default_factory=list)

    @classmethod
    def of(cls, seed: int, ranks: int) -> "Program":
        """The program with a number."""
        dice = random.Random(seed)
        blocks = "".join(dice.choice(["mw", "mw", "gw", "mg", "ww"]) for _ in range(dice.randint(2, 4)))
        trains = dice.random() < 0.4
        made = cls(blocks, dice.random() < 0.3, dice.random() < 0.3, trains, dice.choice([None, None, False]))
        kinds = dice.sample(["rows", "logs", "breaks", "learns"][: 3 if trains else 4], dice.randint(1, 2))
        now = [Choice(learns=trains)] * ranks
        for step in range(STEPS):
            odd = range(ranks) if dice.random() < 0.25 else [dice.randrange(ranks)]
            if step:
                for kind in kinds if dice.random() < 0.8 else ():
                    values: dict[str, Any] = {
                        "rows": dice.choice([512, 384, 640]),
                        "logs": dice.random() < 0.5,
                        "breaks": dice.choice([-1, dice.randrange(len(blocks))]),
                        "learns": dice.random() < 0.5,
                    }
                    now = [replace(one, **{kind: values[kind]}) if r in odd else one for r, one in enumerate(now)]
            made.choices.append(now)
        return made

    def function(self, group: Any, name: str = "model") -> Callable[..., Any]:
        """The function to compile."""
        lines = [f"def {name}(x, weights, breaks, logs):"]
        body = {
            "m": "x = x - all_reduce(x.detach().mean(0), 'sum', group) / 3",
            "w": "x = x * all_reduce(w.detach().square().mean(0), 'sum', group)",
            "g": "x = x + relu(x @ gather(w, 0, group)[:WIDTH])",
        }
        if self.loops:
            lines.append("    for i, w in enumerate(weights):")
            lines.append("        if breaks == i: graph_break()")
            lines.append("        x = relu(x @ w) + x")
            lines += [f"        {body[kind]}" for kind in dict.fromkeys(self.blocks[:2])]
        else:
            for i, kind in enumerate(self.blocks):
                lines += [
                    f"    if breaks == {i}: graph_break()",
                    f"    w = weights[{i}]",
                ]  # or torch joins equal launches
                lines += ["    x = relu(x @ w) + x"] * (i % 2 == 0) + [f"    {body[kind]}"]
        lines.append("    return (x, x.std()) if logs else (x,)")
        known = {"all_reduce": fc.all_reduce, "gather": fc.all_gather_tensor_autograd, "relu": torch.relu}
        known |= {"graph_break": torch._dynamo.graph_break, "group": group, "WIDTH": WIDTH}
        exec("\n".join(lines), known)
        made: Callable[..., Any] = known[name]  # type: ignore[assignment]
        return made

    def run(self, group: Any, backend: Any) -> Iterator[list[torch.Tensor]]:
        """Run all steps; what each of them gives."""
        rank = dist.get_rank()
        dice = torch.Generator().manual_seed(rank)
        weights = [
            torch.randn(WIDTH, WIDTH, generator=dice).div(16).requires_grad_(self.trains)
            for _ in range(3 if self.loops else len(self.blocks))
        ]
        batch = torch.randn(640, WIDTH, generator=dice)
        names = ["model", "second"] if self.twice else ["model"]
        compiled = [self.function(group, name) for name in names]
        if backend != "eager":
            compiled = [torch.compile(one, backend=backend, dynamic=self.dynamic) for one in compiled]
        for choices in self.choices:
            for one in compiled:
                own = choices[max(0, rank + len(choices) - dist.get_world_size())]
                x = batch[: own.rows].clone().requires_grad_(own.learns)
                with nullcontext() if own.learns else torch.no_grad():
                    out = one(x, weights, own.breaks, own.logs)
                if self.trains:
                    out[0].square().mean().backward()
                grads = [w.grad.clone() for w in weights if w.grad is not None]
                yield [out[0].detach(), *grads]


def named(**odd: Any) -> Program:
    """A program in which the last rank alone does something else from the third step on, and the first one later."""
    shape = {key: odd.pop(key) for key in ("blocks", "loops", "twice", "trains", "dynamic") if key in odd}
    whole = {"blocks": "mwmwmw", "loops": False, "twice": False, "trains": False, "dynamic": None} | shape
    usual = Choice(learns=whole["trains"])
    other = replace(usual, **odd)
    return Program(**whole, choices=[[usual], [usual], [usual, other], [usual], [other, usual], [other]])


NAMED: dict[str, Program] = {
    "logs": named(logs=True),
    "rows": named(rows=384, dynamic=False),
    "rows of any number": named(rows=384),
    "breaks": named(breaks=3),
    "breaks in front": named(breaks=0),
    "breaks in a loop": named(breaks=1, loops=True),
    "needs a gradient": named(learns=True),
    "second model": named(twice=True, logs=True),
    "trains logs": named(trains=True, blocks="mwgwmwgw", logs=True),
    "trains rows": named(trains=True, blocks="mwgwmwgw", rows=384),
    "trains breaks": named(trains=True, blocks="mwgwmwgw", breaks=3),
}


class Runner:
    """Runs programs on this rank."""

    def __init__(self, backend: str) -> None:
        self.shared, self.backend = dist.distributed_c10d._get_default_store(), backend
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()

    def outcome(self, seed: str) -> str:
        """What came of a program."""
        program = Program.of(int(seed), self.ranks) if seed.isdecimal() else NAMED[seed]
        torch._dynamo.reset()
        plain = "eager" if self.backend == "overlap_sched" else self.backend
        expected: list[list[torch.Tensor]] = []
        alone = self.attempted(f"alone {seed}", lambda group: expected.extend(program.run(group, plain)))
        if alone != "equal":
            return f"without us: {alone}"
        torch._dynamo.reset()

        def compare(group: Any) -> None:
            for found, wanted in zip(program.run(group, self.backend), expected, strict=True):
                assert all(map(torch.equal, found, wanted)), WRONG

        options = overlap_sched.Options(headroom="1GiB")
        with own_store(f"program {seed}"), overlap_sched.enabled(options, timeout_s=LIMIT_S):
            return self.attempted(f"program {seed}", compare)

    def attempted(self, name: str, run: Callable[[Any], Any]) -> str:
        """What came of running something in a process group of its own; no rank goes on before all are done."""
        group, store, began = self.group(name), self.shared, time.monotonic()
        try:
            run(group)
            found = "equal"
        except AssertionError as error:
            found = WRONG if str(error) == WRONG else "hung" + traceback.format_exc()
        except Exception as error:
            own = any(isinstance(one, SequenceError) for one in _chain(error))
            found = "stopped" if own else "left" if store.check([f"stopped/{name}"]) else "hung"
            if found == "hung":
                found += f" after {time.monotonic() - began:.1f} s: {traceback.format_exc()[-1500:]}"
        if found == "stopped":
            store.set(f"stopped/{name}", "1")
        dist.destroy_process_group(group)
        store.add(f"done/{name}", 1)
        while store.add(f"done/{name}", 0) < self.ranks:
            time.sleep(0.005)
        return found

    def group(self, name: str) -> Any:
        """A process group that gives up waiting soon, made at the same time on all ranks."""
        return dist.new_group(timeout=timedelta(seconds=HANG_S))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__ or getattr(error, "inner_exception", None)


def main(folder: str, programs: str, backend: str = "overlap_sched") -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    first, dash, last = programs.partition("-")
    names = list(map(str, range(int(first), int(last) + 1))) if dash else programs.split(",")
    names = list(NAMED) if programs == "named" else names
    runner, found = Runner(backend), dict[str, str]()
    for name in names:
        found[name] = runner.outcome(name)
        Path(folder, f"rank{runner.rank}.json").write_text(json.dumps(found))
    runner.shared.add("gone", 1)
    while runner.rank == 0 and runner.shared.add("gone", 0) < runner.ranks:  # it serves the store
        time.sleep(0.005)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
