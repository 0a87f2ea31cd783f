"""What each of two gloo ranks does in the loop of faults: ``python -m tests.support.inductor.fault_runs COUNT FOLDER``.

One training step is compiled again and again, each time with one fault on one rank or on both. Writes what came of each
run to ``FOLDER/rank<r>.json``. ``COUNT`` 0: each fault there is, once.
"""

import json
import os
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import fx
from torch._inductor.graph import GraphLowering

import overlap_sched
from overlap_sched import Options
from overlap_sched.distributed import agreement
from overlap_sched.errors import AgreementError, UnsupportedError, VerificationError
from overlap_sched.inductor import caches, eager, fx_stage, kernel_graph
from overlap_sched.inductor.switch import SchedulerPass
from tests.support.agreement_ranks import FaultyStore
from tests.support.inductor.generated import events
from tests.support.inductor.models import Lonely, OtherSwapped, Pair, Swapped, step

# Faults for the plug-ins: at every function of the package that a compilation enters, and at every store operation.
#
# Which functions there are is not written down anywhere: one compilation is watched (``sys.settrace``), and a fault is
# raised where the function would have begun. So a new boundary has its fault as soon as it is there.


PACKAGE = Path(overlap_sched.__file__).parent
ERRORS: tuple[type[BaseException], ...] = (
    RuntimeError,
    MemoryError,
    RecursionError,
    KeyError,
    OSError,
    StopIteration,
    AssertionError,
    UnsupportedError,
    VerificationError,
    AgreementError,
)
ENTRIES = {"SchedulerPass.__call__", "order_kernels", "SchedulerPass.__reduce__", "_read_back"}
ENTRIES |= {"may_use", "may_save"}
ENTRIES |= {"rewrite_and_schedule", "rewrite_fx", "schedule_fx", "decide", "put_in_force"}
"""What torch calls, and what does nothing but try something else. A fault before they begin is their caller's."""
SETTLED = {"Pending.commit", "Pending.undo", "Draft.undo", "link", "guard"}
"""What is left once the ranks have agreed, or have not: it only links nodes; and what only catches."""


@dataclass
class Watch:
    """Sees the package's functions begin while torch is inside one of its entries, and lets one of them fail.

    Attributes:
        fails: The function that fails: ``"inductor/lifting.py:lift_kernels"``.
        error: With what.
        entry: Which time that it is entered, counted from 1.
        seen: The functions that have begun, by first time, and how often.
        orders: Per graph, what it runs in order: its nodes as the plug-in left them, or the events of generated code.
        launches: Per graph, those of them that launch a collective.
        struck: Whether the function has failed.
    """

    fails: str = ""
    error: type[BaseException] = RuntimeError
    entry: int = 1
    seen: dict[str, int] = field(default_factory=dict)
    orders: list[tuple[str, ...]] = field(default_factory=list)
    launches: list[tuple[str, ...]] = field(default_factory=list)
    struck: bool = False

    def _trace(self, frame: Any, event: str, arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)) and code.co_qualname not in ENTRIES | SETTLED:
            place = f"{Path(code.co_filename).relative_to(PACKAGE)}:{code.co_qualname}"
            self.seen[place] = self.seen.get(place, 0) + 1
            if place == self.fails and self.seen[place] == self.entry:
                self.struck = True
                raise self.error("injected")

    def _inside(self, entry: Callable[..., Any], nodes: Callable[..., list[Any]] | None) -> Callable[..., Any]:
        def watched(*arguments: Any, **more: Any) -> Any:
            sys.settrace(self._trace)
            try:
                result = entry(*arguments, **more)
            finally:
                sys.settrace(None)
            if nodes is not None:
                left = nodes(arguments, result)
                self.orders.append(tuple(node.name for node in left))
                self.launches.append(tuple(node.name for node in left if _launches(node)))
            return result

        return watched

    def _code(self, code: str) -> None:
        """What torch is going to run: just generated, or from a cache."""
        program = events(code)
        self.orders.append(tuple(f"{event.kind} {event.buffer}" for event in program))
        self.launches.append(tuple(event.buffer for event in program if event.kind == "launch"))

    @contextmanager
    def on(self) -> Iterator[None]:
        """While it is on, torch enters the package through us."""
        called = self._inside(SchedulerPass.__call__, None)
        reduced = self._inside(SchedulerPass.__reduce__, None)
        before_lowering = self._inside(fx_stage.rewrite_and_schedule, _fx_nodes)
        with (
            mock.patch.object(SchedulerPass, "__call__", lambda self, nodes: called(self, nodes)),
            mock.patch.object(kernel_graph, "order_kernels", self._inside(kernel_graph.order_kernels, None)),
            mock.patch.object(kernel_graph, "_read_back", self._inside(kernel_graph._read_back, None)),
            mock.patch.object(SchedulerPass, "__reduce__", lambda self: reduced(self)),
            mock.patch.object(eager, "rewrite_and_schedule", before_lowering),
            mock.patch.object(caches, "may_use", self._inside(caches.may_use, None)),
            mock.patch.object(caches, "may_save", self._inside(caches.may_save, None)),
            mock.patch.object(GraphLowering, "save_output_code", self._code),
        ):
            yield


def _fx_nodes(arguments: Any, result: Any) -> list[Any]:
    return list(arguments[0].graph.nodes)


def _launches(node: fx.Node) -> bool:
    """By its name, and not by what we make of it."""
    return str(node.target).startswith("_c10d_functional.") and "wait_tensor" not in str(node.target)


CACHED = "inductor, found in a cache"
REWRITTEN = "backend, with rewrites"
WAYS = ("backend", "inductor", CACHED, REWRITTEN)
DIFFERENT = ", ranks differ"
"""After a way: rank 1 has other options, so all keep their launches and plan a second time."""
UNLIKE = "backend, graphs differ"
"""Rank 1 has an operator more, so all launch as one of them does."""
MORE = "backend, launches differ"
"""Rank 1 has a collective more, so each keeps its launches, and its waits behind them."""
FAULT_WAY = "FAULT_WAY"
"""Only ways with this in their names."""
WIDTH = 8
LIMIT_S = 1.0
"""How long a rank waits for one that cannot be heard; a test's backoff, not a user's."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong in one run.

    Attributes:
        way: How the step is compiled.
        kind: ``"function"``: one of the package's fails. ``"interrupt"``: the same with Ctrl-C. ``"store"``: an
            operation of the store goes wrong. ``"lie"``: the scheduler gives a wrong order.
        where: Which function, operation or lie.
        how: Which error, or in which way.
        on: The rank on which it happens; ``None``: on both.
        entry: Which time that the function is entered.
    """

    way: str
    kind: str
    where: str
    how: str
    on: int | None
    entry: int = 1


Outcome = dict[str, Any]
"""What came of one run on one rank.

    equal        loss and gradients are bitwise those without us
    struck       the fault has happened here
    orders       per graph, the names of its nodes in the order in which they ran
    launches     per graph, those that launch a collective
    moved        per graph, whether it launches in another order than without us
    reordered    graphs that have another order than without us
    interrupted  Ctrl-C came through
"""


def wrong(plan: Any, lie: str, rank: int) -> Any:
    """What a scheduler that lies makes of its result; ``plan`` is an order and the peak it is held to."""
    best, base_bytes = plan
    order = list(best.order)
    lies: dict[str, Any] = {
        "backwards": order[::-1],
        "a node short": order[:-1],
        "a node twice": [order[0], *order[:-1]],
        "no numbers": ["a"] * len(order),
        "empty": [],
        "beyond": [*order[:-1], len(order)],
    }
    return (None if lie == "nothing" else replace(best, order=tuple(lies[lie]))), base_bytes


LIES = ("backwards", "a node short", "a node twice", "no numbers", "empty", "beyond", "nothing")


class Runner:
    """Compiles and runs one step after the other; every run has a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.caches = folder / f"cache{dist.get_rank()}", folder / f"copy{dist.get_rank()}"
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.model, self.other = (kind(WIDTH, self.ranks) for kind in (Swapped, OtherSwapped))
        self.shared = agreement.membership_of()
        assert self.shared is not None
        alone = [dist.new_group([rank]) for rank in range(self.ranks)][self.rank].group_name
        self.lonely = Lonely(WIDTH, self.ranks, alone) if self.rank else Pair(WIDTH, self.ranks)
        self.runs = 0
        self.plain = {way: self._plain(way) for way in (*WAYS, UNLIKE, MORE)}
        self.plain |= {way + DIFFERENT: plain for way, plain in self.plain.items()}

    def _plain(self, way: str) -> tuple[list[torch.Tensor], Outcome]:
        """Results without us; the orders of the graphs as they were, from a pass that leaves all as it was."""
        results = self._step(way, plain=True)
        with mock.patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": str(self.caches[1])}):
            outcome, _, _ = self.run(Fault(way, "none", "", "", None), Options(effort=0), results)
            assert outcome["equal"]
            if way == CACHED:  # what all other runs find
                self.run(Fault(way, "none", "", "", None), None, results)
                shutil.copytree(self.caches[1], self.caches[0])
        return results, outcome

    def run(
        self, fault: Fault, options: Options | None = None, plain: Any = None
    ) -> tuple[Outcome, Watch, FaultyStore]:
        """One step with one fault."""
        here = fault.on in (None, self.rank)
        watch, store = Watch(), self._store(fault if here and fault.kind == "store" else None)
        if here and fault.kind in ("function", "interrupt"):
            error = next(e for e in (*ERRORS, KeyboardInterrupt) if e.__name__ == fault.how)
            watch = Watch(fault.where, error, fault.entry)
        overlap_sched.clear_reports()
        interrupted = False
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            placed = replace(self.shared, store=store)  # type: ignore[type-var]
            stack.enter_context(mock.patch.object(agreement, "membership_of", return_value=placed))
            stack.enter_context(watch.on())
            if here and fault.kind == "lie":
                pipeline: Any = sys.modules["overlap_sched.scheduler.driver"]
                right = pipeline.best_order
                lied = mock.patch.object(pipeline, "best_order", lambda *a: wrong(right(*a), fault.where, self.rank))
                stack.enter_context(lied)
                watch.struck = True
            headroom = "49%" if fault.way.endswith(DIFFERENT) and self.rank else "50%"
            rewrites = ("bucket",) if fault.way.startswith(REWRITTEN) else ()
            how = options or Options(headroom=headroom, effort=1, rewrites=rewrites)
            limit_s = LIMIT_S if fault.kind != "none" else 10 * LIMIT_S  # all can be heard, on a busy machine, too
            stack.enter_context(overlap_sched.enabled(how, timeout_s=limit_s))
            stack.enter_context(self._caches(fault.way))
            try:
                results = self._step(fault.way)
            except KeyboardInterrupt:
                interrupted = True
                watch.orders.clear()
                watch.launches.clear()
                results = self._step(fault.way)
        known = {"orders": [], "launches": []} if plain is not None else self.plain[fault.way][1]
        results_plain = self.plain[fault.way][0] if plain is None else plain
        outcome = {
            "equal": len(results) == len(results_plain) and all(map(torch.equal, results, results_plain)),
            "struck": watch.struck or 0 < store.at <= store.calls,
            "orders": watch.orders,
            "launches": watch.launches,
            "moved": [a != b for a, b in zip(watch.launches, known["launches"], strict=False)],
            "reordered": sum(a != b for a, b in zip(watch.orders, known["orders"], strict=False)),
            "interrupted": interrupted,
        }
        return outcome, watch, store

    def _step(self, way: str, plain: bool = False) -> list[torch.Tensor]:
        torch._dynamo.reset()
        model = self.lonely if way == MORE else self.other if way == UNLIKE and self.rank else self.model
        return step(model, torch.compile(model, backend=_backend_of(way, plain)), WIDTH)

    @contextmanager
    def _caches(self, way: str) -> Iterator[None]:
        """torch's caches as the first run has left them, or none."""
        found = way.removesuffix(DIFFERENT) == CACHED
        here, copy = self.caches
        if found and here.exists():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(here, copy)
        with (
            mock.patch.dict(os.environ, {"TORCHINDUCTOR_CACHE_DIR": str(copy)} if found else {}),
            torch._inductor.config.patch(fx_graph_cache=found),
            torch._functorch.config.patch(enable_autograd_cache=found),
        ):
            yield

    def _store(self, fault: Fault | None) -> FaultyStore:
        self.runs += 1
        own = dist.PrefixStore(f"run {self.runs}", self.shared.store)  # type: ignore[union-attr]
        return FaultyStore(own, int(fault.where) if fault else 0, fault.how if fault else "")


def _backend_of(way: str, plain: bool = False) -> str | Callable[..., Any]:
    if way.removesuffix(DIFFERENT) in ("inductor", CACHED):
        return "inductor"
    return "aot_eager" if plain else overlap_sched.backend


def faults(runner: Runner) -> Iterator[Fault]:
    """Every fault there is; which functions and operations there are, a run without faults shows (on any rank)."""
    turn = 0
    ways = (*WAYS, *(way + DIFFERENT for way in WAYS), UNLIKE, MORE)
    for way in filter(lambda way: os.environ.get(FAULT_WAY, "") in way, ways):
        without = Fault(way, "none", "", "", None)
        if way in (UNLIKE, MORE):
            yield without  # each fault that is picked may keep these ranks from reordering
        _, watch, store = runner.run(without)
        seen: list[Any] = [None] * runner.ranks
        dist.all_gather_object(seen, (watch.seen, store.calls, store.standing))
        functions = list(dict.fromkeys(f for each in seen for f in each[0] if "<" not in f))  # no parts of functions
        for where in functions:
            turn += 1
            error, on = ERRORS[turn % len(ERRORS)].__name__, (0, 1, None)[turn % 3]
            yield Fault(way, "function", where, error, on)
            if way.endswith((DIFFERENT, UNLIKE, MORE)) and min(each[0].get(where, 0) for each in seen) > 1:
                yield Fault(way, "function", where, error, on, 2)  # while it plans for the second time
        # Ctrl-C ends a rank's step: only where both ranks are at the same place whatever the clock says, not where one
        # of them happens to see first that both wait, or logs what rank 0 alone logs, and the other goes on with a step
        # that nobody else is in
        steady = [f for f in functions if not f.startswith("distributed/") and all(f in each[0] for each in seen)]
        if way == UNLIKE:  # ranks with other graphs are at other places
            steady = []
        for turn, where in enumerate(steady[:: max(1, len(steady) // 8)]):
            yield Fault(way, "interrupt", where, "KeyboardInterrupt", (0, 1, None)[turn % 3])
        for rank in range(runner.ranks):
            for at in range(1, seen[rank][1] + 1):
                hows = ["before", "after", "garbage", "slow"] + ["for good"] * (at < (seen[rank][2] or at + 1))
                yield from (Fault(way, "store", str(at), how, rank) for how in hows)
        stands = min(each[2] for each in seen)  # from there on nothing helps: one may have read what the other cannot
        yield from (Fault(way, "store", str(at), "for good", None) for at in range(1, stands))
        if way != CACHED:  # where the scheduler is not asked
            yield from (Fault(way, "lie", lie, "", on) for lie in LIES for on in (0, 1, None))


def picked(every: list[Fault], count: int) -> list[Fault]:
    """One of each kind and way of compiling, and for the rest evenly."""
    rare = list({(fault.kind, fault.way): fault for fault in every}.values())
    count -= len(rare)
    return rare + [every[i * len(every) // count] for i in range(count)]


def main() -> None:
    """See the module."""
    count, folder = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    runner = Runner(folder)
    every = list(faults(runner))
    chosen = every if not count else picked(every, count)
    done = []
    log = (folder / f"rank{runner.rank}.log").open("w", buffering=1)
    for fault in chosen:
        dist.barrier()
        print(fault, file=log)  # the last line is the one that hangs
        outcome, _, _ = runner.run(fault)
        done.append((fault, outcome))
    kinds = Counter(fault.kind for fault in every)
    (folder / f"rank{runner.rank}.json").write_text(
        json.dumps({"there are": kinds, "done": [[asdict(fault), outcome] for fault, outcome in done]})
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
