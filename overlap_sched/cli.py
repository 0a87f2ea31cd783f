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
from typing import get_args

from rich.console import Console, RenderableType

from overlap_sched import cli_frontier, cli_memory, cli_robust
from overlap_sched.cli_input import load, options_of, source_of
from overlap_sched.errors import OverlapSchedError, OverlapSchedWarning, VerificationError
from overlap_sched.memory.peak import explain_peak
from overlap_sched.options import Base, Options
from overlap_sched.problem import Problem
from overlap_sched.report import explanation, figures, summary, write_trace
from overlap_sched.report.files import check_writable, write_file
from overlap_sched.report.peak_text import peak_text
from overlap_sched.report.progress import progress
from overlap_sched.report.units import printable
from overlap_sched.result import Schedule
from overlap_sched.schedule import schedule

FINE, FELL_BACK, BAD_INPUT, BUG, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 70, 130, 141

_EXIT_CODES = """\
exit codes:
  0    fine
  1    the original order was kept because the new one failed verification (with --strict: an error, nothing written)
  2    bad usage, bad input, or a file that cannot be written; one line on standard error says which
  70   a bug in overlap_sched, with a traceback
  130  interrupted (Ctrl-C)
  141  whoever read the output stopped reading

All times and memory are simulated: one compute stream, one stream per process group.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (``argparse`` itself exits with 2 on bad usage)."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names in any script, terminals in few
    options = _parser().parse_args(arguments)
    try:
        with _one_line_warnings():
            code: int = options.run(options)
            return code
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
        from overlap_sched.report.plot import check_plot, plot_schedule

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
        print(peak_text(explain_peak(result.problem, result.order)), flush=True)
    else:
        print(explanation(result, options.collective), flush=True)
    return FINE if result.fell_back is None else FELL_BACK


def _memory(options: argparse.Namespace) -> int:
    """``memory``: the order with the lowest peak; see :mod:`overlap_sched.cli_memory`."""
    with progress() as tell:
        shown = cli_memory.run(options, _loaded(options, tell), tell)
    print(shown, flush=True)
    return FINE


def _frontier(options: argparse.Namespace) -> int:
    """``frontier``: see :mod:`overlap_sched.cli_frontier`."""
    return _answered(options, cli_frontier)


def _robust(options: argparse.Namespace) -> int:
    """``robust``: see :mod:`overlap_sched.cli_robust`."""
    return _answered(options, cli_robust)


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
    console = Console(file=sys.stdout)
    with console.capture() as captured:
        for part in parts:
            console.print(part, markup=False, highlight=False)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="overlap-sched",
        description="Reorder the steps of a training graph so that communication hides behind compute, without "
        "more memory than the original order.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    plan = _command(commands, "plan", _plan, "schedule a problem; print step, exposed time and memory before and after")
    plan.add_argument("--out", metavar="ORDER.json", help="write the order as a JSON list of node names")
    plan.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    plan.add_argument("--plot", metavar="OUT.png", help="draw memory and streams, before and after (.png, .svg, .pdf)")
    plan.add_argument("--trace", metavar="OUT.json", help="write a trace for ui.perfetto.dev or chrome://tracing")
    frontier = _command(commands, "frontier", _frontier, "the shortest step for each peak: what another GiB buys")
    cli_frontier.add_options(frontier)
    robust = _command(commands, "robust", _robust, "the step of each order when predicted times are wrong")
    cli_robust.add_options(robust)
    explain = _command(commands, "explain", _explain, "say why each collective is where it is, the most exposed first")
    explain.add_argument("collective", nargs="?", metavar="COLLECTIVE", help="only this one, by its node name")
    explain.add_argument("--peak", action="store_true", help="say instead what is live at the peak, and why")
    cli_memory.add_arguments(_reader(commands, "memory", _memory, "find the order with the lowest peak, and addresses"))
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], int],
    what: str,
) -> argparse.ArgumentParser:
    """A subcommand that schedules; defaults are those of :class:`Options`."""
    parser = _reader(commands, name, run, what)
    add, default = parser.add_argument, Options()
    add(
        "--headroom",
        default=str(default.headroom),
        metavar="SIZE",
        help="memory allowed above the original: 0 (default), 500MB, 1GiB, or 5%% of the original peak",
    )
    add(
        "--budget",
        choices=("peak", "profile"),
        default=default.budget,
        help="what the headroom is added to: the original peak (default), or its memory position by position",
    )
    add(
        "--base",
        choices=get_args(Base),
        default=default.base,
        help="the order to start from: the original (default), or the one with the lowest peak that is found; with "
        "memory-peak, headroom is counted from that peak",
    )
    add(
        "--preserve-collective-order",
        choices=("none", "group", "all"),
        default=default.preserve_collective_order,
        help="keep the original launch order within each process group, or across all (default: none)",
    )
    add(
        "--effort",
        type=int,
        default=default.effort,
        metavar="N",
        help=f"scheduling runs at most, the best kept (default: {default.effort}); counted, not timed",
    )
    add("--strict", action="store_true", help="fail rather than keep the original order when verification fails")
    return parser


def _reader(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], int],
    what: str,
) -> argparse.ArgumentParser:
    """A subcommand that reads a problem or a dump."""
    parser = commands.add_parser(
        name, help=what, description=what, epilog=_EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("problem", metavar="PROBLEM_OR_DUMP", help="a problem file (.json, .json.gz) or a torch graph dump (.py, .txt)")
    add("--comm-scale", type=float, default=1.0, metavar="X", help="make every collective X times as long")
    add(
        "--memory-model",
        choices=("runtime", "tracker"),
        help="what is counted; default: as the problem file says; runtime for a dump",
    )
    add(
        "--group",
        type=_group,
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="of a dump: a process group and its size, or its ranks (NAME=0,8,16,24); repeat for more",
    )
    add(
        "--size",
        type=_size,
        action="append",
        default=[],
        metavar="NAME=N",
        help="of a dump: a size that only the data knows, by its symbol (u0=4096) or node; repeat for more",
    )
    add(
        "--import",
        dest="packages",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="of a dump: import this Python package first, for operators that it registers; repeat for more",
    )
    add("--device", metavar="NAME", help="of a dump: the device to take times of (default: H100)")
    return parser


def _group(text: str) -> tuple[str, int | tuple[int, ...]]:
    """``fsdp=64`` or, with its ranks, ``fsdp=0,8,16,24``."""
    name, _, given = text.rpartition("=")
    numbers = given.split(",")
    if not name or not all(number.isdecimal() for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=SIZE or NAME=RANK,RANK,...")
    return name, int(given) if len(numbers) == 1 else tuple(map(int, numbers))


def _size(text: str) -> tuple[str, int]:
    """``u0=4096``."""
    name, _, number = text.rpartition("=")
    if not name or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=N")
    return name, int(number)
