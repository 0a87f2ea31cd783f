"""The options that say what is read and how: the same for every command that reads a problem or a dump."""

import argparse

from overlap_sched.cli.sizes import shortened
from overlap_sched.cost.cluster import MeshDimension
from overlap_sched.problem.file import DEFAULT_LIMITS
from overlap_sched.problem.sizes import size_bytes

_MAX_RANKS = 2**31 - 1
_MAX_SIZE = 2**63 - 1


def add_input_options(parser: argparse.ArgumentParser) -> None:
    """The input, how times are changed, its limits, what a dump needs, and where a copy goes."""
    parser.add_argument(
        "problem",
        metavar="PROBLEM_OR_DUMP",
        help="a problem file (.json, .json.gz) or a torch graph dump (.py, .txt, .log, plain or .gz)",
    )
    _times(parser.add_argument_group("times"))
    _profile(parser.add_argument_group("measured times"))
    _dumps(parser.add_argument_group("only for a dump"))
    _cluster(parser.add_argument_group("where a dump runs"))
    add_limits(parser.add_argument_group("limits of the input"))
    _copy(parser.add_argument_group("a copy of the input as a problem file"))


def _times(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--comm-scale",
        type=float,
        default=1.0,
        metavar="X",
        help="multiply the time of every collective by X (default: 1)",
    )
    add(
        "--slowdown",
        action="append",
        default=[],
        metavar="KIND=FACTOR",
        help="compute takes FACTOR times as long while a collective is in flight whose operator begins with KIND "
        "(all_gather=1.1); FACTOR alone applies to every kind; can be repeated",
    )
    add(
        "--link",
        action="append",
        default=[],
        metavar="LINK=GROUP,GROUP",
        help="these process groups share a network link: while collectives of k of them are in flight, each takes k "
        "times as long (rail=0,513); can be repeated",
    )


def _profile(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--profile",
        nargs="+",
        action="extend",
        default=[],
        metavar="TRACE.json",
        help="take the times of nodes from these traces of torch.profiler (.json, .json.gz; record_shapes=True), one "
        "per rank, of the same steps; with several ranks, waiting for late ones is taken out of collectives",
    )


def _dumps(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--memory-model",
        choices=("runtime", "tracker"),
        help="how memory is counted: as NCCL and torch's allocator hold it (runtime, the default), or as torch's "
        "MemoryTracker counts it; a problem file names its own, and asking for the other is an error",
    )
    add(
        "--group",
        type=_group,
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="the number of ranks of a process group, its ranks (NAME=0,8,16,24), or the dimension of the mesh that it "
        "is (NAME=tp, or neighbours: NAME=fsdp+tp); can be repeated",
    )
    add(
        "--size",
        type=_size,
        action="append",
        default=[],
        metavar="NAME=N",
        help="the value of a data-dependent size, by its symbol (u0=4096) or by the node that reads it; can be "
        "repeated",
    )
    add(
        "--graph",
        type=_positive,
        metavar="N",
        help="read the N-th of several graphs in the file, as logs of TORCH_LOGS hold them (default: the first that "
        "calls ATen's operators; a note lists all)",
    )
    add(
        "--import",
        dest="packages",
        action="append",
        default=[],
        metavar="PACKAGE",
        help="import this Python package first, because it registers operators of the graph; can be repeated",
    )
    add("--device", metavar="NAME", help="the device whose speed gives the times (default: H100)")
    add(
        "--fusion",
        choices=("none", "inductor"),
        help="price nodes by the kernels that TorchInductor would make of them (inductor, the default), or one by one, "
        "for a graph that runs without it (none)",
    )


def _cluster(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--cluster",
        metavar="FILE_OR_NAME",
        help="price it for this cluster: a cluster file (TOML), or the name of one that is shipped (default: "
        "that of the device, dgx-h100; none with --profile)",
    )
    add(
        "--mesh",
        type=_mesh,
        metavar="NAME=SIZE,...",
        help="the dimensions of its device mesh, outermost first (fsdp=8,tp=8): where groups are whose ranks are not "
        "known",
    )
    add(
        "--no-contention",
        action="store_true",
        help="compute and communication do not slow each other down, whatever the cluster file says",
    )


def add_limits(group: argparse._ArgumentGroup) -> None:
    """How large an input may be."""
    default = DEFAULT_LIMITS
    group.add_argument(
        "--max-input-bytes",
        type=_bytes,
        default=default.input_bytes,
        metavar="SIZE",
        help=f"refuse a file that is larger once decompressed (default: {default.input_bytes // 2**20}MiB)",
    )
    group.add_argument(
        "--max-nodes",
        type=_positive,
        default=default.nodes,
        metavar="N",
        help="refuse a graph with more nodes; each part of a split or an unbind counts as one "
        f"(default: {default.nodes})",
    )


def _copy(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--save-problem",
        metavar="OUT.json",
        help="write the graph that was read as a problem file (.json, or .json.gz), with the times that were used",
    )
    group.add_argument(
        "--redact",
        action="store_true",
        help="with --save-problem: replace the names of the graph, its nodes, groups and compute operators by neutral "
        "ones; the order found is the same",
    )


def _group(text: str) -> tuple[str, int | tuple[int, ...] | str]:
    """``fsdp=64``, with its ranks ``fsdp=0,8,16,24``, or with its dimension ``513=ep``."""
    name, _, given = text.rpartition("=")
    if name and given and not given[0].isdigit() and "," not in given:
        return name, given
    numbers = given.split(",")
    if not name or not all(map(_is_number, numbers)) or any(int(number) > _MAX_RANKS for number in numbers):
        raise argparse.ArgumentTypeError(f"{shortened(text)!r} is not NAME=SIZE or NAME=RANK,RANK,...")
    return name, int(given) if len(numbers) == 1 else tuple(map(int, numbers))


def _mesh(text: str) -> tuple[MeshDimension, ...]:
    """``fsdp=8,tp=8``."""
    found = []
    for part in text.split(","):
        name, _, size = part.partition("=")
        if not name.strip() or not _is_number(size.strip()) or not 1 <= int(size) <= _MAX_RANKS:
            raise argparse.ArgumentTypeError(f"{shortened(text)!r} is not NAME=SIZE,NAME=SIZE,...")
        found.append(MeshDimension(name.strip(), int(size)))
    if len({dimension.name for dimension in found}) != len(found):
        raise argparse.ArgumentTypeError(f"{shortened(text)!r} names a dimension twice")
    return tuple(found)


def _size(text: str) -> tuple[str, int]:
    """``u0=4096``."""
    name, _, number = text.rpartition("=")
    if not name or not _is_number(number) or int(number) > _MAX_SIZE:
        raise argparse.ArgumentTypeError(f"{shortened(text)!r} is not NAME=N")
    return name, int(number)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= 100


def _bytes(text: str) -> int:
    found = None if "%" in text else size_bytes(text, 0)
    if not found:
        raise argparse.ArgumentTypeError(f"{shortened(text)!r} is not a size: write 500MB or 2GiB")
    return found


def _positive(text: str) -> int:
    if not _is_number(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{shortened(text)!r} is not a whole number of 1 or more")
    return int(text)
