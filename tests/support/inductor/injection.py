"""Faults for the plug-ins: at every function of the package that a compilation enters, and at every store operation.

Which functions there are is not written down anywhere: one compilation is watched (``sys.settrace``), and a fault is
raised where the function would have begun. So a new boundary has its fault as soon as it is there.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from torch import fx
from torch._inductor.graph import GraphLowering

import overlap_sched
from overlap_sched.errors import AgreementError, UnsupportedError, VerificationError
from overlap_sched.inductor import caches, eager, fx_stage, scheduler_pass
from overlap_sched.inductor.scheduler_pass import SchedulerPass
from tests.support.inductor.generated import events

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
ENTRIES = {"SchedulerPass.__call__", "SchedulerPass.order", "SchedulerPass.__reduce__", "read_back"}
ENTRIES |= {"_may_load", "_may_save"}
ENTRIES |= {"rewrite_and_schedule", "rewrite_fx", "schedule_fx", "decide", "put_in_force"}
"""What torch calls, and what does nothing but try something else. A fault before they begin is their caller's."""
SETTLED = {"Pending.commit", "Pending.undo", "Draft.undo", "link"}
"""What is left once the ranks have agreed, or have not: it only links nodes."""


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
        ordered = self._inside(SchedulerPass.order, None)
        reduced = self._inside(SchedulerPass.__reduce__, None)
        before_lowering = self._inside(fx_stage.rewrite_and_schedule, _fx_nodes)
        with (
            mock.patch.object(SchedulerPass, "__call__", lambda self, nodes: called(self, nodes)),
            mock.patch.object(SchedulerPass, "order", lambda self, *nodes, **more: ordered(self, *nodes, **more)),
            mock.patch.object(scheduler_pass, "read_back", self._inside(scheduler_pass.read_back, None)),
            mock.patch.object(SchedulerPass, "__reduce__", lambda self: reduced(self)),
            mock.patch.object(eager, "rewrite_and_schedule", before_lowering),
            mock.patch.object(caches, "_may_load", self._inside(caches._may_load, None)),
            mock.patch.object(caches, "_may_save", self._inside(caches._may_save, None)),
            mock.patch.object(GraphLowering, "save_output_code", self._code),
        ):
            yield


def _fx_nodes(arguments: Any, result: Any) -> list[Any]:
    return list(arguments[0].graph.nodes)


def _launches(node: fx.Node) -> bool:
    """By its name, and not by what we make of it."""
    return str(node.target).startswith("_c10d_functional.") and "wait_tensor" not in str(node.target)


@dataclass
class FaultyStore:
    """A store of which one operation goes wrong, or all from that one on.

    Attributes:
        store: The real one.
        at: Which operation, counted from 1; 0: none.
        how: ``"before"`` it is done, ``"after"`` it is done, ``"garbage"`` comes back, ``"slow"``, ``"for good"``.
        calls: How many there were.
        standing: Which operation made this rank stand waiting: the first at which others may count on it; 0: none.
    """

    store: Any
    at: int = 0
    how: str = "before"
    calls: int = 0
    standing: int = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operation = getattr(self.store, name)

        def perform(key: Any, *rest: Any) -> Any:
            self.calls += 1
            if name == "set" and "/at/" in str(key) and not self.standing:
                self.standing = self.calls
            hit = self.calls == self.at or (self.how == "for good" and 0 < self.at <= self.calls)
            if hit and self.how in ("before", "for good"):
                raise RuntimeError("Broken pipe")
            result = operation(key, *rest)
            if hit and self.how == "after":
                raise RuntimeError("Broken pipe")
            if hit and self.how == "slow":
                time.sleep(0.2)
            return b"garbage" if hit and self.how == "garbage" and isinstance(result, bytes) else result

        return perform
