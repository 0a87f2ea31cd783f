"""The command ``overlap-sched``: plan a step, or explain where its collectives went and why.

Problem files are read without torch; graph dumps need it (``pip install 'overlap_sched[torch]'``).
"""

import argparse
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import ModuleType

from rich.console import Console, RenderableType

from overlap_sched.cli import frontier, memory, robust
from overlap_sched.cli.arguments import command_parser
from overlap_sched.cli.input import load, options_of, source_of
from overlap_sched.errors import OverlapSchedError, OverlapSchedWarning, VerificationError
from overlap_sched.peak_memory.peak import explain_peak
from overlap_sched.problem import Problem
from overlap_sched.report import explanation, figures, summary, write_trace
from overlap_sched.report.contention_text import with_contention_line
from overlap_sched.report.files import check_writable, write_file
from overlap_sched.report.peak_text import peak_text
from overlap_sched.report.progress import progress
from overlap_sched.report.units import printable
from overlap_sched.scheduler.pipeline import schedule
from overlap_sched.scheduler.result import Schedule

FINE, FELL_BACK, BAD_INPUT, BUG, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 70, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (``argparse`` itself exits with 2 on bad usage)."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names in any script, terminals in few
    options = command_parser().parse_args(arguments)
    try:
        with _one_line_warnings():
            return _COMMANDS[options.command](options)
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


def _plan(options: argparse.Namespace) -> int:
    """``plan``: schedule, write the files asked for, print the figures."""
    for path in filter(None, (options.out, options.plot, options.trace)):
        check_writable(path)
    if options.plot:
        from overlap_sched.report.picture import check_plot
        from overlap_sched.report.plot import plot_schedule

        check_plot(options.plot)
    with progress() as tell:
        result = _scheduled(options, tell)
        if options.out:
            tell(f"writing {options.out}")
            names = result.problem.names(result.order)
            write_file(options.out, (json.dumps(names, separators=(",", ":")) + "\n").encode())
        if options.plot:
            tell(f"drawing {options.plot}")
            plot_schedule(result, options.plot)
        if options.trace:
            tell(f"writing {options.trace}")
            write_trace(result, options.trace)
        tell("computing the lower bound")
        shown = json.dumps(figures(result), allow_nan=False) if options.json else _table(result)
    print(shown, flush=True)
    return FINE if result.fell_back is None else FELL_BACK


def _explain(options: argparse.Namespace) -> int:
    """``explain``: schedule, print why each collective is where it is."""
    with progress() as tell:
        result = _scheduled(options, tell)
    if options.peak:
        peak = peak_text(explain_peak(result.problem, result.order))
        print(with_contention_line(peak, result.problem.contention), flush=True)
    else:
        print(explanation(result, options.collective), flush=True)
    return FINE if result.fell_back is None else FELL_BACK


def _memory(options: argparse.Namespace) -> int:
    """``memory``: the order with the lowest peak; see :mod:`overlap_sched.cli.memory`."""
    with progress() as tell:
        problem = _loaded(options, tell)
        if options.slowdown or options.link:
            _complain("note: --slowdown and --link change nothing here: memory does not depend on times")
        shown = memory.run(options, problem, tell)
    print(shown, flush=True)
    return FINE


def _frontier(options: argparse.Namespace) -> int:
    """``frontier``: see :mod:`overlap_sched.cli.frontier`."""
    return _answered(options, frontier)


def _robust(options: argparse.Namespace) -> int:
    """``robust``: see :mod:`overlap_sched.cli.robust`."""
    return _answered(options, robust)


def _answered(options: argparse.Namespace, command: ModuleType) -> int:
    """A command whose module checks the request before the input is read, and answers it."""
    request = command.request_of(options)
    with progress() as tell:
        shown = command.answer(request, _loaded(options, tell), tell)
    print(shown if isinstance(shown, str) else _shown(*shown), flush=True)
    return FINE


def _scheduled(options: argparse.Namespace, tell: Callable[[str], None]) -> Schedule:
    """Read the input and schedule it."""
    wanted = options_of(options)
    problem = _loaded(options, tell)
    tell(f"scheduling {len(problem.nodes):,} nodes")
    return schedule(problem, replace(wanted, memory_model=options.memory_model or problem.memory_model))


def _loaded(options: argparse.Namespace, tell: Callable[[str], None]) -> Problem:
    """Read the input; notes on how it was read go to standard error."""
    tell(f"reading {options.problem}")
    loaded = load(source_of(options), tell)
    for note in loaded.notes:
        _complain(f"note: {note}")
    return loaded.problem


def _table(result: Schedule) -> str:
    if result.fell_back is None:
        return _shown(summary(result))
    return _shown(summary(result), f"The original order was kept: {result.fell_back}")


def _shown(*parts: RenderableType) -> str:
    """Tables, and text as it is."""
    console = Console(file=sys.stdout, markup=False, emoji=False, highlight=False)  # titles hold names from files
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return captured.get().rstrip("\n")


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


_COMMANDS = {"plan": _plan, "frontier": _frontier, "robust": _robust, "explain": _explain, "memory": _memory}
