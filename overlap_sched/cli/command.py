"""The command ``overlap-sched``: plan a step, or explain where its collectives went and why.

Problem files are read without torch; graph dumps need it (``pip install 'overlap_sched[torch]'``). Each command checks
its options before it reads its input. Whatever is wrong in one or the other is an :class:`OverlapSchedError`: one line
on standard error, and the exit code.
"""

import argparse
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from rich.console import RenderableType

from overlap_sched.cli import calibrate, explain, fit, memory, pipeline, plan, report, sweep
from overlap_sched.cli.arguments import command_parser
from overlap_sched.cli.input import load, save
from overlap_sched.cli.outputs import check_outputs
from overlap_sched.cli.schemas import schema_text
from overlap_sched.cli.source import Loaded, check_input, options_for, source_of
from overlap_sched.errors import OverlapSchedError, OverlapSchedWarning, VerificationError
from overlap_sched.problem import Problem
from overlap_sched.report.console import shown
from overlap_sched.report.progress import progress, told_stages
from overlap_sched.report.units import printable
from overlap_sched.report.words.profile import profile_table
from overlap_sched.scheduler.driver import Schedule, schedule
from overlap_sched.transform.plan import Plan

DEMO = Path(__file__).parent / "shipped/demo.json.gz"
FINE, FELL_BACK, BAD_INPUT, DOES_NOT_FIT, BUG, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 4, 70, 130, 141
Tell = Callable[[str], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (``argparse`` itself exits with 2 on bad usage)."""
    with _open_streams():
        return _main(arguments)


def _main(arguments: Sequence[str] | None) -> int:
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names in any script, terminals in few
    options = command_parser().parse_args(arguments)
    options.as_given = shlex.join(("overlap-sched", *(sys.argv[1:] if arguments is None else arguments)))
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
    if options.command == "demo":
        return _demo()
    if options.command not in ("calibrate", "pipeline"):
        check_input(options)
    if options.command != "calibrate":
        check_outputs(options)
    return _COMMANDS[options.command](options)


def _demo() -> int:
    """``demo``: the plan of a graph that comes with the package, and what else may be asked of it."""
    done = _main(["plan", str(DEMO)])
    print(f"\nOn a page: overlap-sched report {DEMO} --html demo.html")
    print("Of a dump of your own: overlap-sched plan --help", flush=True)
    return done


def _calibrate(options: argparse.Namespace) -> int:
    calibrate.check(options)
    with progress() if calibrate.is_first_rank() else nullcontext(lambda text: None) as tell:
        told = calibrate.answer(options, tell)
    return _print((told,)) if told else FINE


def _plan(options: argparse.Namespace) -> int:
    plan.check_left_out(options)
    real = plan.measured(options)
    with progress() as tell:
        loaded, result, made = _scheduled(options, tell)
        told = plan.answer(options, loaded, result, tell, made, real)
    return _print(told, _fell_back(result, made)) or (DOES_NOT_FIT if result.short_bytes else FINE)


def _explain(options: argparse.Namespace) -> int:
    explain.check(options)
    if options.costs:
        with progress() as tell:
            loaded = _read(options, tell)
        return _print(explain.costs(options, loaded))
    with progress() as tell:
        loaded, result, made = _scheduled(options, tell)
        told = explain.answer(options, loaded, result, tell, made)
    return _print(told, _fell_back(result, made))


def _report(options: argparse.Namespace) -> int:
    report.check(options)
    with progress() as tell:
        loaded, result, made = _scheduled(options, tell)
        told = report.answer(options, loaded, result, tell, made)
    return _print(told, _fell_back(result, made))


def _memory(options: argparse.Namespace) -> int:
    memory.check(options)
    with progress() as tell:
        problem = _read(options, tell).problem
        if options.slowdown or options.link:
            _complain("note: --slowdown and --link change nothing here: memory does not depend on times")
        told = memory.answer(options, problem, tell)
    return _print(told)


def _fit(options: argparse.Namespace) -> int:
    """``fit``: what ``--save-problem`` writes is the rewritten graph."""
    fit.check(options)
    with progress() as tell:
        found, told = fit.answer(options, _read(options, tell, saves=False), tell)
        _save_rewritten(options, found.best.problem, bool(found.best.rewrites), tell)
    if _print(told, found.fell_back is not None) == FELL_BACK:
        return FELL_BACK
    return FINE if found.fits else DOES_NOT_FIT


def _pipeline(options: argparse.Namespace) -> int:
    pipeline.check(options)
    with progress() as tell:
        told = pipeline.answer(options, tell)
    return _print(told)


def _sweep(options: argparse.Namespace) -> int:
    sweep.check(options)
    with progress() as tell:
        told = sweep.answer(options, _read(options, tell), tell)
    return _print(told)


def _scheduled(options: argparse.Namespace, tell: Tell) -> tuple[Loaded, Schedule, Plan | None]:
    """Read the input and schedule it; with ``--rewrites`` also the plan that the schedule is of."""
    loaded = _read(options, tell, saves=not options.rewrites)
    wanted, many = options_for(options, loaded.problem), f"{len(loaded.problem.nodes):,} nodes"
    if not options.rewrites:
        tell(f"scheduling {many}")
        return loaded, schedule(loaded.problem, wanted, stages=told_stages(tell, f"scheduling {many}")), None
    tell(f"scheduling {many}, with rewrites")
    made = plan.rewritten(options, wanted, loaded)
    if loaded.model is None:
        _complain(f"note: {plan.repriced(options)}")
    _save_rewritten(options, made.schedule.problem, bool(made.rewrites), tell)
    return loaded, made.schedule, made


def _fell_back(result: Schedule, made: Plan | None) -> bool:
    return (result.fell_back if made is None else made.fell_back or made.without.fell_back) is not None


def _read(options: argparse.Namespace, tell: Tell, *, saves: bool = True) -> Loaded:
    """Read the input, and save it if ``saves``; notes on how it was read go to standard error."""
    tell(f"reading {options.problem}")
    loaded = load(source_of(options), tell)
    for note in loaded.notes:
        _complain(f"note: {note}")
    if loaded.profile is not None:
        print(shown(profile_table(loaded.profile)), file=sys.stderr)
    if options.save_problem and saves:
        _save(options, loaded.problem, tell)
    return loaded


def _save_rewritten(options: argparse.Namespace, problem: Problem, rewritten: bool, tell: Tell) -> None:
    """Save the graph that the order found is of, or say that only this file would tell which it is."""
    if options.save_problem:
        _save(options, problem, tell)
    elif options.out and rewritten:
        _complain("note: the order is of the rewritten graph: write that, too, with --save-problem OUT.json")


def _save(options: argparse.Namespace, problem: Problem, tell: Tell) -> None:
    tell(f"writing {options.save_problem}")
    save(problem, options.save_problem, redact=options.redact)


def _print(answer: str | tuple[RenderableType, ...], fell_back: bool = False) -> int:
    """Print JSON, and the like, as it is; tables and text for the width of the terminal. Returns the exit code."""
    print(answer if isinstance(answer, str) else shown(*answer), flush=True)
    return FELL_BACK if fell_back else FINE


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


_COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "plan": _plan,
    "fit": _fit,
    "sweep": _sweep,
    "explain": _explain,
    "report": _report,
    "memory": _memory,
    "calibrate": _calibrate,
    "pipeline": _pipeline,
}
