"""The arguments of ``overlap-sched``: its subcommands, and the options that they share."""

import argparse
from typing import TYPE_CHECKING, TypeAlias, get_args

from overlap_sched.cli import frontier, memory, robust
from overlap_sched.options import Base, Options

if TYPE_CHECKING:
    Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

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


def command_parser() -> argparse.ArgumentParser:
    """Of the whole command; the subcommand's name is ``command`` of what it parses."""
    parser = argparse.ArgumentParser(
        prog="overlap-sched",
        description="Reorder the steps of a training graph so that communication hides behind compute, without "
        "more memory than the original order.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", title="commands", required=True, metavar="COMMAND")
    plan = _command(commands, "plan", "schedule a problem; print step, exposed time and memory before and after")
    plan.add_argument("--out", metavar="ORDER.json", help="write the order as a JSON list of node names")
    plan.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    plan.add_argument("--plot", metavar="OUT.png", help="draw memory and streams, before and after (.png, .svg, .pdf)")
    plan.add_argument("--trace", metavar="OUT.json", help="write a trace for ui.perfetto.dev or chrome://tracing")
    frontier.add_options(_command(commands, "frontier", "the shortest step for each peak: what another GiB buys"))
    robust.add_options(_command(commands, "robust", "the step of each order when predicted times are wrong"))
    explain = _command(commands, "explain", "say why each collective is where it is, the most exposed first")
    explain.add_argument("collective", nargs="?", metavar="COLLECTIVE", help="only this one, by its node name")
    explain.add_argument("--peak", action="store_true", help="say instead what is live at the peak, and why")
    memory.add_arguments(_reader(commands, "memory", "find the order with the lowest peak, and addresses"))
    return parser


def _command(commands: "Commands", name: str, what: str) -> argparse.ArgumentParser:
    """A subcommand that schedules; defaults are those of :class:`Options`."""
    parser = _reader(commands, name, what)
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


def _reader(commands: "Commands", name: str, what: str) -> argparse.ArgumentParser:
    """A subcommand that reads a problem or a dump."""
    parser = commands.add_parser(
        name, help=what, description=what, epilog=_EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("problem", metavar="PROBLEM_OR_DUMP", help="a problem file (.json, .json.gz) or a torch graph dump (.py, .txt)")
    add("--comm-scale", type=float, default=1.0, metavar="X", help="make every collective X times as long")
    add(
        "--slowdown",
        action="append",
        default=[],
        metavar="KIND=FACTOR",
        help="compute takes FACTOR times as long while a collective is in flight whose operator begins with KIND "
        "(all_gather=1.1); FACTOR alone: every kind; repeat for more",
    )
    add(
        "--link",
        action="append",
        default=[],
        metavar="LINK=GROUP,GROUP",
        help="these process groups share a link: while collectives of k of them are in flight, each takes k times as "
        "long (rail=0,513); repeat for more",
    )
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
