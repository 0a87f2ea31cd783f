"""The arguments of ``overlap-sched``: its subcommands, and the options that they share."""

import argparse
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from overlap_sched import __version__
from overlap_sched.cli import (
    calibrate,
    explain,
    fit,
    memory,
    pipeline,
    plan,
    report,
    schemas,
    sweep,
)
from overlap_sched.cli.input_arguments import add_input_options, add_limits
from overlap_sched.cli.parser import Parser
from overlap_sched.options import Base, Concurrent, Options
from overlap_sched.problem.precedence import Preserve

if TYPE_CHECKING:
    Commands: TypeAlias = "argparse._SubParsersAction[Parser]"

_EXIT_CODES = """\
exit codes:
  0    fine
  1    the original order was kept because the new one failed verification (with --strict: an error, nothing written)
  2    bad usage, bad input, or a file that cannot be written; one line on standard error says which
  4    no order (`fit`: no plan) was found that runs in --memory-limit
  70   a bug in overlap_sched, with a traceback
  130  interrupted (Ctrl-C)
  141  whoever read the output stopped reading

All times and memory are simulated: one compute stream, one stream per process group.
"""


class _Version(argparse.Action):
    """Print what is installed, and stop; looked up only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        print(version_text())
        parser.exit()


def command_parser() -> Parser:
    """Return the parser of the whole command; the subcommand's name is ``command`` of what it parses."""
    parser = Parser(
        prog="overlap-sched",
        description="Reorder the steps of a training graph so that communication hides behind compute, without "
        "more memory than the original order.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the versions of what is installed, and stop")
    commands = parser.add_subparsers(dest="command", title="commands", required=True, metavar="COMMAND")
    plan.add_options(
        _scheduler(commands, "plan", "find an order; print step, exposed time and memory before and after")
    )
    what = "recompute and offload so that a step fits into less memory, at the shortest step that is found"
    fit.add_options(_reader(commands, "fit", what))
    what = "schedule for each headroom, memory limit, network, device, number of ranks or error of the times"
    sweep.add_options(_scheduler(commands, "sweep", what))
    explain.add_options(
        _scheduler(commands, "explain", "say why the step is exposed, and why each collective is where it is")
    )
    report.add_options(_scheduler(commands, "report", "find an order; write all about it as one HTML page"))
    memory.add_options(_reader(commands, "memory", "find the order with the lowest peak memory, and addresses"))
    what = "measure how fast the machines of a job compute and communicate; write a cluster file"
    calibrate.add_options(_plain(commands, "calibrate", what))
    staged = _plain(
        commands, "pipeline", "compare schedules of a pipelined job: step, bubble, memory of each rank, bound"
    )
    pipeline.add_options(staged)
    add_limits(staged.add_argument_group("limits of the input"))
    _schema(commands)
    what = "plan a graph that comes with the package: DeepSeek-V3-16B, backward, 64 GPUs; takes some ten seconds"
    commands.add_parser("demo", help=what, description=what)
    return parser


def _schema(commands: "Commands") -> None:
    what = "print the JSON Schema of what a command prints with --json"
    parser = commands.add_parser("schema", help=what, description=what)
    parser.add_argument("of", choices=schemas.COMMANDS, metavar="COMMAND", help=f"one of {', '.join(schemas.COMMANDS)}")


def _scheduler(commands: "Commands", name: str, what: str) -> argparse.ArgumentParser:
    """A subcommand that schedules; defaults are those of :class:`Options`."""
    parser = _reader(commands, name, what)
    add, default = parser.add_argument, Options()
    add(
        "--headroom",
        default=str(default.headroom),
        metavar="SIZE",
        help="memory allowed above the original peak: 0 (default), 500MB, 1GiB, or 5%% of that peak",
    )
    add(
        "--memory-limit",
        metavar="SIZE",
        help="the device on which the order is to run, by live bytes and by a replay of torch's CUDA caching "
        "allocator: 80GB, 40GiB, or 105%% of what the original order needs",
    )
    add(
        "--budget",
        choices=("peak", "profile"),
        default=default.budget,
        help="what the headroom is added to: the original peak (default), or the original memory at each position of "
        "the order",
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
        choices=get_args(Preserve),
        default=default.preserve_collective_order,
        help="keep the original launch order within each process group, across all, or across all and each wait behind "
        "those that it followed (default: none)",
    )
    add(
        "--concurrent-groups",
        choices=get_args(Concurrent),
        default=default.concurrent_groups,
        help="process groups whose collectives may be in flight together: any (default), disjoint ones (that share at "
        "most one rank), or one at a time",
    )
    add(
        "--effort",
        type=int,
        default=default.effort,
        metavar="N",
        help=f"how many orders to try, at most; the best is kept (default: {default.effort}); counted, not timed",
    )
    add(
        "--allocator",
        default=default.allocator,
        metavar="KIND",
        help="the allocator that is replayed: plain or expandable segments, or settings as in PYTORCH_ALLOC_CONF; "
        "environment: as that says here, plain where it says nothing (default); none: no allocator",
    )
    add(
        "--pins",
        nargs="+",
        action="extend",
        default=[],
        metavar="PIN",
        help="what every order keeps besides: 'not before MODULE', 'not after MODULE', 'together', 'as written', "
        "'in flight SIZE' or 'apart', each with ': NODES in MODULE' behind it",
    )
    add("--strict", action="store_true", help="fail rather than keep the original order when verification fails")
    return parser


def _reader(commands: "Commands", name: str, what: str) -> argparse.ArgumentParser:
    """A subcommand that reads a problem or a dump."""
    parser = _plain(commands, name, what)
    add_input_options(parser)
    return parser


def _plain(commands: "Commands", name: str, what: str) -> argparse.ArgumentParser:
    """A subcommand with no options yet."""
    return commands.add_parser(
        name, help=what, description=what, epilog=_EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def version_text() -> str:
    """``overlap-sched 0.2.0 (Python 3.11.9, torch 2.13.0)``."""
    torch = _installed("torch")
    return (
        f"overlap-sched {__version__} "
        f"(Python {platform.python_version()}, {f'torch {torch}' if torch else 'without torch'})"
    )


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
