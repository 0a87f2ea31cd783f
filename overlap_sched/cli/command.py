"""The command ``overlap-sched``: plan a step, or explain where its collectives went and why.

Problem files are read without torch; graph dumps need it (``pip install 'overlap_sched[torch]'``).
"""

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from types import ModuleType

from rich.console import RenderableType

from overlap_sched.cli import calibrate, diff, explain, fit, frontier, memory, plan, report, robust, whatif
from overlap_sched.cli.arguments import command_parser
from overlap_sched.cli.input import load, save
from overlap_sched.cli.outputs import check_outputs
from overlap_sched.cli.schemas import schema_text
from overlap_sched.cli.source import Loaded, check_input, options_of, source_of
from overlap_sched.errors import OverlapSchedError, OverlapSchedWarning, VerificationError
from overlap_sched.problem import Problem
from overlap_sched.report.console import shown
from overlap_sched.report.progress import progress
from overlap_sched.report.units import printable
from overlap_sched.report.words.profile import profile_table
from overlap_sched.scheduler.pipeline import schedule
from overlap_sched.scheduler.result import Schedule
from overlap_sched.transform.plan import Plan

FINE, FELL_BACK, BAD_INPUT, FAILED, LIVE_BYTES_ALONE, BUG, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 4, 70, 130, 141
Tell = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (``argparse`` itself exits with 2 on bad usage)."""
    with _open_streams():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names in any script, terminals in few
    options = command_parser().parse_args(arguments)
    try:
        with _one_line_warnings():
            return _run(options)
    except VerificationError as error:
        _complain(f"error: {error}")
        return FELL_BACK
    except OverlapSchedError as error:
        _complain(f"error: {error}")
        return BAD_INPUT
    except OSError as error:
        with suppress(OSError):  # Python flushes standard output once more at exit: let that succeed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        _complain(f"error: {error}")
        return BAD_INPUT
    except KeyboardInterrupt:
        _complain("interrupted")
        return INTERRUPTED
    except Exception:
        traceback.print_exc()
        _complain("this is a bug in overlap_sched: please report the lines above, and the input if you can")
        return BUG


def _run(options: argparse.Namespace) -> int:
    if options.command == "schema":
        print(schema_text(options.of), flush=True)
        return FINE
    if options.command == "calibrate":
        return _calibrate(options)
    check_input(options)
    check_outputs(options)
    return _COMMANDS[options.command](options)


def _calibrate(options: argparse.Namespace) -> int:
    """``calibrate``: see :mod:`overlap_sched.cli.calibrate`."""
    request = calibrate.request_of(options)
    with progress() if calibrate.is_first_rank() else nullcontext(lambda text: None) as tell:
        told = calibrate.answer(request, tell)
    if told:
        _print((told,))
    return FINE


def _plan(options: argparse.Namespace) -> int:
    """``plan``: see :mod:`overlap_sched.cli.plan`."""
    plan.check_left_out(options)
    real = plan.measured(options)
    with progress() as tell:
        if options.rewrites:
            loaded, made = _rewritten(options, tell)
            told = plan.answer(options, loaded, made.schedule, tell, made, real)
            fell_back = made.fell_back or made.without.fell_back
        else:
            loaded = _read(options, tell)
            result = _scheduled(options, loaded.problem, tell)
            told, fell_back = plan.answer(options, loaded, result, tell, None, real), result.fell_back
    _print(told)
    return FINE if fell_back is None else FELL_BACK


def _rewritten(options: argparse.Namespace, tell: Tell) -> tuple[Loaded, Plan]:
    """Read the input, rewrite and schedule it; what ``--save-problem`` writes is the graph that the order is of."""
    wanted = options_of(options)
    loaded = _read(options, tell, saves=False)
    wanted = replace(wanted, memory_model=options.memory_model or loaded.problem.memory_model)
    tell(f"scheduling {len(loaded.problem.nodes):,} nodes, with rewrites")
    made = plan.rewritten(options, wanted, loaded)
    if loaded.model is None:
        _complain(f"note: {plan.repriced(options)}")
    if options.save_problem:
        tell(f"writing {options.save_problem}")
        save(made.schedule.problem, options.save_problem, redact=options.redact)
    elif options.out and made.rewrites:
        _complain("note: the order is of the rewritten graph: write that, too, with --save-problem OUT.json")
    return loaded, made


def _explain(options: argparse.Namespace) -> int:
    """``explain``: see :mod:`overlap_sched.cli.explain`."""
    explain.check(options)
    if options.costs:
        with progress() as tell:
            loaded = _read(options, tell)
        _print(explain.costs(options, loaded))
        return FINE
    with progress() as tell:
        if options.rewrites:
            loaded, made = _rewritten(options, tell)
            told, fell_back = explain.rewritten(options, loaded, made, tell), made.fell_back or made.without.fell_back
        else:
            result = _scheduled(options, _loaded(options, tell), tell)
            told, fell_back = explain.answer(options, result), result.fell_back
    _print(told)
    return FINE if fell_back is None else FELL_BACK


def _report(options: argparse.Namespace) -> int:
    """``report``: see :mod:`overlap_sched.cli.report`."""
    report.check(options)
    with progress() as tell:
        if options.rewrites:
            loaded, made = _rewritten(options, tell)
            told, fell_back = report.answer(options, loaded, made.schedule, tell, made), made.fell_back
        else:
            loaded = _read(options, tell)
            result = _scheduled(options, loaded.problem, tell)
            told, fell_back = report.answer(options, loaded, result, tell), result.fell_back
    _print(told)
    return FINE if fell_back is None else FELL_BACK


def _memory(options: argparse.Namespace) -> int:
    """``memory``: see :mod:`overlap_sched.cli.memory`."""
    memory.check(options)
    with progress() as tell:
        problem = _loaded(options, tell)
        if options.slowdown or options.link:
            _complain("note: --slowdown and --link change nothing here: memory does not depend on times")
        told = memory.answer(options, problem, tell)
    _print(told)
    return FINE


def _diff(options: argparse.Namespace) -> int:
    """``diff``: see :mod:`overlap_sched.cli.diff`."""
    request = diff.request_of(options)
    with progress() as tell:
        found = diff.answer(request, _loaded(options, tell) if request.of_orders else None)
    _print(found.shown)
    for line in found.failed:
        _complain(line)
    return FAILED if found.failed else FINE


def _frontier(options: argparse.Namespace) -> int:
    """``frontier``: see :mod:`overlap_sched.cli.frontier`."""
    return _answered(options, frontier)


def _fit(options: argparse.Namespace) -> int:
    """``fit``: see :mod:`overlap_sched.cli.fit`; what ``--save-problem`` writes is the rewritten graph."""
    request = fit.request_of(options)
    with progress() as tell:
        found, shown = fit.answer(request, _read(options, tell, saves=False), tell)
        if options.save_problem:
            tell(f"writing {options.save_problem}")
            save(found.best.problem, options.save_problem, redact=options.redact)
        elif options.out and found.best.rewrites:
            _complain("note: the order is of the rewritten graph: write that, too, with --save-problem OUT.json")
    _print(shown)
    if found.fell_back is not None:
        return FELL_BACK
    return FINE if found.fits else LIVE_BYTES_ALONE


def _robust(options: argparse.Namespace) -> int:
    """``robust``: see :mod:`overlap_sched.cli.robust`."""
    return _answered(options, robust)


def _whatif(options: argparse.Namespace) -> int:
    """``whatif``: see :mod:`overlap_sched.cli.whatif`."""
    return _answered(options, whatif)


def _answered(options: argparse.Namespace, command: ModuleType) -> int:
    """A command whose module checks the request before the input is read, and answers it."""
    request = command.request_of(options)
    with progress() as tell:
        told = command.answer(request, _loaded(options, tell), tell)
    _print(told)
    return FINE


def _scheduled(options: argparse.Namespace, problem: Problem, tell: Tell) -> Schedule:
    """Schedule what was read."""
    wanted = options_of(options)
    tell(f"scheduling {len(problem.nodes):,} nodes")
    return schedule(problem, replace(wanted, memory_model=options.memory_model or problem.memory_model))


def _loaded(options: argparse.Namespace, tell: Tell) -> Problem:
    return _read(options, tell).problem


def _read(options: argparse.Namespace, tell: Tell, *, saves: bool = True) -> Loaded:
    """Read the input, and save it where that is asked for; notes on how it was read go to standard error.

    Args:
        options: As given.
        tell: Hears what is being done.
        saves: Whether ``--save-problem`` is about the graph as it is read.
    """
    tell(f"reading {options.problem}")
    loaded = load(source_of(options), tell)
    for note in loaded.notes:
        _complain(f"note: {note}")
    if loaded.profile is not None:
        print(shown(profile_table(loaded.profile)), file=sys.stderr)
    if options.save_problem and saves:
        tell(f"writing {options.save_problem}")
        save(loaded.problem, options.save_problem, redact=options.redact)
    return loaded


def _print(answer: str | tuple[RenderableType, ...]) -> None:
    """JSON, and the like, as it is; tables and text for the width of the terminal."""
    print(answer if isinstance(answer, str) else shown(*answer), flush=True)


@contextmanager
def _open_streams() -> Iterator[None]:
    """Where standard output or error is closed (``>&-``), what is written there goes nowhere, as in any program."""
    with ExitStack() as stack:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if stream is None or stream.closed:
                stack.enter_context(redirect(stack.enter_context(open(os.devnull, "w"))))
        yield


def _complain(text: str) -> None:
    """One line on standard error, whatever is in the text."""
    with suppress(BrokenPipeError):
        print(f"overlap-sched: {' '.join(printable(line) for line in text.splitlines())}", file=sys.stderr)


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Our own warnings always, others as Python is told to; all without a line of source code."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        _complain(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", OverlapSchedWarning)
        warnings.showwarning = show
        yield


_COMMANDS = {
    "plan": _plan,
    "frontier": _frontier,
    "fit": _fit,
    "robust": _robust,
    "whatif": _whatif,
    "explain": _explain,
    "report": _report,
    "memory": _memory,
    "diff": _diff,
}
