"""What became of every compiled graph, and how the plug-ins speak: reports, log lines, warnings that never raise.

- ``overlap_sched.reports()``: the last 256 in this process.
- The logger ``overlap_sched``: one line per graph on rank 0 (INFO), the whole report (DEBUG). It is a name that torch's
  own logging takes: ``TORCH_LOGS="overlap_sched"`` or ``TORCH_LOGS="+overlap_sched"``.
- One line on all graphs on rank 0, where the plug-in is switched off or the process ends. It is a WARNING where
  something can be repaired, else INFO, and goes to standard error where nobody has set up logging.

torch hands the name of the function to no pass. It stands on the stack, where ``torch._dynamo.convert_frame._compile``
runs; where it is not found, graphs have shorter names.
"""

import atexit
import logging
import os
import sys
import warnings
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from textwrap import shorten
from types import CodeType, FrameType
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import nn
from torch._guards import CompileContext

from overlap_sched.errors import OverlapSchedWarning
from overlap_sched.fx.apply import NO_COLLECTIVES, Report
from overlap_sched.report.units import count, duration, from_to, size
from overlap_sched.report.words.graph import sizes_assumed
from overlap_sched.report.words.schedule import collectives_text

log = logging.getLogger("overlap_sched")

_warned: set[str] = set()


def say(message: str, level: int = logging.INFO) -> None:
    """Log a line; where nobody has set up logging, print it to standard error. Never raises."""
    with suppress(Exception):  # standard error is closed, or a handler of the user's fails: a job is running
        if log.hasHandlers() or not log.isEnabledFor(max(level, logging.WARNING)):
            log.log(level, "%s", message)
        else:
            print(message, file=sys.stderr)


def describe_error(error: Exception | None) -> str:
    """Return the type of an error and its text."""
    return f"{type(error).__name__}: {error}"


def warn(message: str, error: Exception | None = None, subject: str = "") -> None:
    """Warn, the same sentence once, and never raise: where warnings are errors it is logged, since a job is running.

    Args:
        message: The sentence.
        error: What is added to it after a colon; ``None``: nothing.
        subject: Of the sentences on one subject only the first is shown; ``""``: each is a subject of its own.
    """
    message = message if error is None else f"{message}: {describe_error(error)}"
    if (subject or message) in _warned:
        return
    _warned.add(subject or message)
    try:
        warnings.warn(message, OverlapSchedWarning, stacklevel=3)
    except OverlapSchedWarning:
        log.warning("%s", message)


@contextmanager
def guard(doing: str) -> Iterator[None]:
    """Warn of what fails inside, and go on: a job is running, and what it runs is settled."""
    try:
        yield
    except Exception as error:
        warn(f"overlap_sched {doing}", error)


def communicates(report: Report) -> bool:
    """Tell whether a graph has collectives, or may: it was not lifted."""
    if report.schedule is not None:
        return bool(report.schedule.problem.collectives)
    return not (report.reason or "").startswith(NO_COLLECTIVES)


def rank() -> int:
    """This process's rank; before anything is distributed, the one that ``torchrun`` gave it; 0 without either."""
    if dist.is_initialized():
        return int(dist.get_rank())
    given = os.environ.get("RANK", "")
    return int(given) if given.isdecimal() else 0


def several_ranks() -> bool:
    """Tell whether more than one rank compiles (with torch's ``fake`` process group one process stands for all)."""
    return dist.is_initialized() and dist.get_world_size() > 1 and dist.get_backend() != "fake"


_subjects: "WeakKeyDictionary[Any, str]" = WeakKeyDictionary()


def name_graph(kind: str, inner: str = "", number: Any = None) -> str:
    """Return the name of what is being compiled.

    ``"forward 0/0 of Transformer"``, ``"backward 2/1 of train_step"``, behind a graph break ``"inference 3/0 of
    Block.torch_dynamo_resume_in_forward_at_37"``, ``"backward !0/2/0 of compiled autograd"``. A backward graph may be
    compiled when its function is long gone from the stack; it has the compile context of its forward, so names are kept
    by that.

    Args:
        kind: ``"forward"``, ``"backward"`` or ``"inference"``.
        inner: Which graph inside of it, where there are several.
        number: Stands for the compile id where there is none.
    """
    compile_id = str(CompileContext.current_compile_id() or ("" if number is None else number))
    kind, subject = ("backward", "compiled autograd") if compile_id.startswith("!") else (kind, _subject())
    named = " ".join(part for part in (kind, compile_id, inner) if part)
    return f"{named} of {subject}" if subject else named


def _subject() -> str:
    """The module or function that is compiled; nothing where it is not known. A name must not stop a compilation."""
    with suppress(Exception):
        context, found, called = CompileContext.try_get(), dynamo_frame(), ""
        if found is not None:
            code, owner = found
            module = isinstance(owner, nn.Module)
            name = f"{type(owner).__qualname__}.{code.co_name}".removesuffix(".forward") if module else code.co_qualname
            called = name.rpartition("<locals>.")[2]
        if called and context is not None:
            _subjects[context] = called
        return called or ("" if context is None else _subjects.get(context, ""))
    return ""


def dynamo_frame() -> tuple[CodeType, Any] | None:
    """Return the function compiled in this thread, and its ``self``; ``None``: nothing, or torch has changed."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_compile" and frame.f_globals.get("__name__") == "torch._dynamo.convert_frame":
            code, of_frame = frame.f_locals.get("code"), frame.f_locals.get("locals")
            owner = of_frame.get("self") if isinstance(of_frame, dict) else None
            return (code, owner) if isinstance(code, CodeType) else None
        frame = frame.f_back
    return None


HOOKS = (
    "fully_shard, DDP and other hooks launch collectives outside of the graph. Use overlap_sched.distributed.shard, "
    'or with DDP torch._dynamo.config.optimize_ddp = "python_reducer"'
)
NEVER_CALLED = (
    "none reached it. Only Inductor, torch.compile's default backend, calls it; backend='overlap_sched' runs graphs "
    "without lowering them"
)
_FINE = ("no better order was found", "no other order was looked for")
LONGEST_REASON = 120
"""Characters of the reason in the line on all graphs."""


CACHED, CHANGED = "out of torch's caches", "reordered or rewritten"


@dataclass
class Tally:
    """What became of the graphs of this process since the last line. Rank 0 speaks for all.

    Attributes:
        seen: Graphs that came to us, or were compiled without us; never forgotten.
        became: How many became what: ``CACHED``, ``CHANGED``, without collectives, or why they are as they were.
        exposed_us: Of those that changed, the predicted exposed time before and after, for ``devices``.
        communicates: One of them has collectives, or it is not known.
        missed: Graphs that were compiled without us.
        several: Whether there are several ranks: the process group may be gone when the line is written.
        speaks: Whether this is rank 0.
    """

    seen: int = 0
    became: Counter[str] = field(default_factory=Counter)
    exposed_us: tuple[float, float] = (0.0, 0.0)
    devices: dict[str, None] = field(default_factory=dict)
    communicates: bool = False
    missed: int = 0
    several: bool = False
    speaks: bool = False

    def add(self, report: Report, priced_for: str = "", communicating: bool = True) -> None:
        """Count a graph that came to us, or that torch has found in its caches."""
        self._look()
        self.communicates |= communicating and communicates(report)
        became, exposed = report.reason or "", report.exposed_us
        if report.cached or not communicates(report):
            became = CACHED if report.cached else NO_COLLECTIVES
        elif exposed is not None:
            became, self.devices[priced_for] = CHANGED, None
            self.exposed_us = (self.exposed_us[0] + exposed[0], self.exposed_us[1] + exposed[1])
        self.became[became] += 1

    def miss(self, graphs: int) -> None:
        """Count graphs that were compiled without us."""
        self._look(graphs)
        self.missed += graphs

    def _look(self, graphs: int = 1) -> None:
        self.seen += graphs
        self.several, self.speaks = self.several or several_ranks(), rank() == 0

    def say(self) -> None:
        """Say the line, if there is anything to say, and count anew. Never raises."""
        with suppress(Exception):  # words for people must not end a job
            if self.speaks and (self.became or self.missed):
                say(*self.line())
        vars(self).update(vars(Tally(seen=self.seen)))

    def line(self) -> tuple[str, int]:
        """One line, and its level of :mod:`logging`: ``5 graphs, 3 with collectives, 2 changed (...), 1 not: ...``."""
        reasons, parts = self.became.copy(), []
        cached = reasons.pop(CACHED, 0)
        if graphs := reasons.total():
            alone, changed = reasons.pop(NO_COLLECTIVES, 0), reasons.pop(CHANGED, 0)
            text = f"{count(graphs, 'graph')}, {graphs - alone or 'none'} with collectives"
            if changed:
                exposed, devices = from_to(*map(duration, self.exposed_us)), " and ".join(filter(None, self.devices))
                text += f", {changed:,} {CHANGED} (exposed {exposed} predicted{f' for {devices}' if devices else ''})"
            if reasons:
                (reason, most), others = reasons.most_common(1)[0], reasons.total()
                first = shorten(reason.partition(". ")[0].rstrip("."), LONGEST_REASON, placeholder=" ...")
                text += f", {others:,} not: {first}{'' if most == others else f' ({most:,}), and other reasons'}"
            parts.append(text)
        if cached:
            parts.append(f"{count(cached, 'graph')} {CACHED}")
        repairable = not parts or (graphs and any(not reason.startswith(_FINE) for reason in reasons))
        if self.missed:
            parts.append(f"{count(self.missed, 'graph')} compiled{' without it' if parts else f', {NEVER_CALLED}'}")
        elif self.several and not self.communicates:
            parts.append(f"nothing to reorder. {HOOKS}")
            repairable = True
        level = logging.WARNING if repairable else logging.INFO
        return f"overlap_sched: {'; '.join(parts)}{'. Details: overlap_sched.reports()' if graphs else ''}", level


tally = Tally()
"""Of this process."""
atexit.register(tally.say)


Stage = Literal["inductor", "post_grad", "backend", "titan", "deepspeed"]
"""Where a graph was scheduled: Inductor's scheduler nodes; the FX graph before lowering; the FX graph that runs, of
``backend="overlap_sched"``, of torchtitan or of DeepSpeed."""

KEPT = 256
_reports: "deque[GraphReport]" = deque(maxlen=KEPT)
_notes: "OrderedDict[str, dict[str, Any]]" = OrderedDict()
"""By the names of graphs, fields of their reports that are known before their order is: how they were rewritten."""


@dataclass(frozen=True)
class GraphReport:
    """What became of one compiled graph.

    Attributes:
        name: ``"backward 0/0 of Transformer"``: what it is, and torch's compile id.
        stage: Where it was scheduled.
        report: Figures, order, decisions; or why the graph is as it was.
        settings: What was switched for it: torch's own reorderers that are off, passes that run before ours.
        priced_for: For which device its times are predicted; ``""``: not known.
    """

    name: str
    stage: Stage
    report: Report
    settings: tuple[str, ...] = ()
    priced_for: str = ""

    @property
    def line(self) -> str:
        """One line for the log."""
        report, plan = self.report, self.report.schedule
        kept = "" if report.kept is None else f"; {report.kept}"
        if not report.changed or plan is None:
            gain = report.exposed_us
            became = report.became if gain is None else f"{report.became}; exposed {from_to(*map(duration, gain))}"
            return f"{self.name} ({self.stage}): {became}{kept}"
        kept += f"; {sizes_assumed(report.sizes)}" if report.sizes else ""
        before, after = plan.original, plan.scheduled
        exposed = from_to(duration(before.exposed_us), duration(after.exposed_us))
        step = from_to(duration(before.step_us), duration(after.step_us))
        peak = from_to(size(before.peak_bytes), size(after.peak_bytes))
        return (
            f"{self.name} ({self.stage}): {collectives_text(plan.problem)}, exposed {exposed} of a step of {step}, "
            f"peak {peak} ({self._predicted}){kept}"
        )

    @property
    def _predicted(self) -> str:
        return f"predicted for {self.priced_for}" if self.priced_for else "predicted"

    def __str__(self) -> str:
        """All of it."""
        times = [f"  times are {self._predicted}"] if self.report.schedule is not None else []
        return "\n".join([f"{self.stage}: {self.report}", *times, *(f"  setting: {one}" for one in self.settings)])


def reports() -> tuple[GraphReport, ...]:
    """Report what became of the graphs compiled in this process, oldest first; the last 256 are kept."""
    return tuple(_reports)


def clear_reports() -> None:
    """Forget them; what was warned of may be warned of again."""
    _reports.clear()
    _notes.clear()
    _warned.clear()


def note(name: str, **fields: Any) -> None:
    """Keep fields of a graph's :class:`~overlap_sched.fx.apply.Report` until the report on its order, which follows."""
    _notes.setdefault(name, {}).update(fields)
    while len(_notes) > KEPT:  # compilations that failed behind it
        _notes.popitem(last=False)


def record_cached(name: str, stage: Stage, kept: str | None = None, communicates: bool = True) -> None:
    """Keep and log that torch has found the code of a graph in its caches."""
    record(GraphReport(name, stage, Report(name, kept=kept, cached=True)), communicates)


def record(report: GraphReport, communicating: bool = True) -> None:
    """Keep, log and trace. To be called when the order is settled: nothing that fails here changes it any more."""
    with guard(f"could not report on {report.name!r}"):
        report = replace(report, report=replace(report.report, **_notes.pop(report.name, {})))
        _reports.append(report)
        tally.add(report.report, report.priced_for, communicating)
        if rank() == 0:
            if report.report.on_undeclared is not None:
                warn(f"overlap_sched: {report.report.on_undeclared}")
            log.info("%s", report.line)
        log.debug("%s", report)
