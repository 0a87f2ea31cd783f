"""The command ``overlap-sched``: which commands there are, how one is run, and what becomes of its errors.

Each command is a dataclass of its arguments (:mod:`overlap_sched.cli.arguments`) and a function that runs it, in a
module that is imported once the arguments are read. Whatever is wrong is an :class:`OverlapSchedError`: one line on
standard error, and the exit code.
"""

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from typing import Any

from overlap_sched import __version__
from overlap_sched.cli import arguments as of_commands
from overlap_sched.cli.flags import EXIT_CODES, NO_DIFF, Parser, check_files, parse, parser_of, read_choice
from overlap_sched.errors import OverlapSchedError, OverlapSchedWarning, VerificationError
from overlap_sched.report.units import complain

COMMANDS = {
    "plan": "find an order; print step, exposed time and memory before and after",
    "fit": "recompute and offload so that a step fits into less memory, at the shortest step that is found",
    "sweep": "schedule for each headroom, memory limit, network, device, number of ranks or noise",
    "explain": "say why the step is exposed, and why each collective is where it is",
    "report": "find an order; write all about it as one HTML page",
    "memory": "find the order with the lowest peak memory, and addresses",
    "calibrate": "measure how fast the machines of a job compute and communicate; write a cluster file",
    "pipeline": "compare schedules of a pipelined job: step, bubble, memory of each rank, bound",
    "capacity": "find how to train a model on so many GPUs: PP x TP x DP, micro-batches, recomputation",
    "schema": "print the JSON Schema of what a command prints with --json",
    "demo": "plan a graph that comes with the package: DeepSeek-V3-16B, backward, 64 GPUs (about ten seconds)",
}
GONE_COMMANDS = {
    "diff": NO_DIFF,
    "frontier": "ask `overlap-sched sweep GRAPH --vary headroom=0..2GiB`",
    "robust": "ask `overlap-sched sweep GRAPH --vary noise=0..30%`",
    "whatif": "ask `overlap-sched sweep GRAPH --vary network=0.25..4`",
}
"""Commands that there were once, and what to do instead."""
_MODULES = dict.fromkeys(("fit", "explain", "report", "memory", "schema", "demo"), "plan")
FELL_BACK, BAD_INPUT, BUG, INTERRUPTED, BROKEN_PIPE = 1, 2, 70, 130, 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (``argparse`` itself exits with 2 on bad usage)."""
    with _open_streams():
        return _main(list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names in any script, terminals in few
    try:
        with _one_line_warnings():
            return _run(_command_of(arguments), arguments[1:])
    except OverlapSchedError as error:
        complain(f"error: {error}")
        return FELL_BACK if isinstance(error, VerificationError) else BAD_INPUT
    except OSError as error:
        with suppress(OSError):  # Python flushes standard output once more at exit: let that succeed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        complain(f"error: {error}")
        return BAD_INPUT
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            complain("error: graph dumps and calibrate need torch: pip install 'overlap_sched[torch]'")
            return BAD_INPUT
        traceback.print_exc()
        complain("this is a bug in overlap_sched: please report the lines above, and the input if you can")
        return BUG


def _versions() -> str:
    from importlib import metadata

    torch = "without torch"
    with suppress(metadata.PackageNotFoundError):
        torch = f"torch {metadata.version('torch')}"
    return f"overlap-sched {__version__} (Python {sys.version.split()[0]}, {torch})"


def _command_of(arguments: Sequence[str]) -> str:
    """Return the name of the command."""
    listed = "\n".join(f"  {name:<10} {summary}" for name, summary in COMMANDS.items())
    parser = Parser(
        prog="overlap-sched",
        usage="overlap-sched COMMAND ...",
        description="Reorder the steps of a training graph so that communication hides behind compute, without "
        f"more memory than the original order.\n\ncommands:\n{listed}",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    versions = _versions() if "--version" in arguments else ""  # which takes a while
    parser.add_argument("--version", action="version", version=versions, help="print what is installed, and stop")
    parser.add_argument("command", metavar="COMMAND", help="COMMAND --help lists its options")
    if arguments and arguments[0] in GONE_COMMANDS:
        parser.error(f"{arguments[0]} is no command any more: {GONE_COMMANDS[arguments[0]]}.")
    return read_choice(tuple(COMMANDS), parser.parse_args(arguments[:1]).command)


def command_parser(name: str) -> Parser:
    """Return the parser of one command's arguments."""
    return parser_of(_arguments_of(name), name, COMMANDS[name])


def _arguments_of(name: str) -> Any:
    """Return the dataclass of a command's arguments."""
    return getattr(of_commands, f"{name.title()}Command")


def _run(name: str, arguments: Sequence[str]) -> int:
    """Run a command: all that it takes is imported here, once its arguments are read."""
    asked = parse(_arguments_of(name), name, COMMANDS[name], arguments)
    check_files(asked)
    run = getattr(import_module(f"overlap_sched.cli.{_MODULES.get(name, name)}"), f"run_{name}")
    from overlap_sched.report.terminal import progress, shown

    first_rank = os.environ.get("RANK", "0") == "0"  # the one that speaks, of `calibrate` under torchrun
    with progress() if first_rank else nullcontext(lambda text: None) as tell:
        printed, code = run(asked, tell)
    if printed:
        print(printed if isinstance(printed, str) else shown(*printed), flush=True)
    return int(code)


@contextmanager
def _open_streams() -> Iterator[None]:
    """Let what is written to a closed standard output or error (``>&-``) go nowhere, as in any program."""
    with ExitStack() as stack:
        for stream, redirect in ((sys.stdout, redirect_stdout), (sys.stderr, redirect_stderr)):
            if stream is None or stream.closed:
                stack.enter_context(redirect(stack.enter_context(open(os.devnull, "w"))))
        yield


@contextmanager
def _one_line_warnings() -> Iterator[None]:
    """Show our own warnings always, others as Python is told to; all without a line of source code."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        complain(f"warning: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", OverlapSchedWarning)
        warnings.showwarning = show
        yield
