"""The arguments of each command, as dataclasses: :mod:`overlap_sched.cli.flags` makes flags of them.

What cannot be is refused here, before anything is read. Nothing here imports what runs a command, so that ``--help`` is
quick.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from overlap_sched.cli.flags import SCHEDULING, Flag, limit_bytes, refuse, whole_number
from overlap_sched.options import Options
from overlap_sched.pipeline.csv_file import CsvFormat
from overlap_sched.problem import MemoryModel
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.file import DEFAULT_LIMITS, Limits
from overlap_sched.problem.precedence import Preserve
from overlap_sched.problem.sizes import parse_size, size_bytes

_MAX_RANKS = 2**31 - 1
LEFT = "left"
"""As a headroom: what memory limits leave."""
_SIZE = "a size with a unit: 64GiB"


def _group(text: str) -> tuple[str, int | tuple[int, ...] | str]:
    """Read ``fsdp=64``, with its ranks ``fsdp=0,8,16,24``, or with its dimension ``513=ep``."""
    name, _, given = text.rpartition("=")
    if not name or not given:
        raise ValueError(text)
    if not given[0].isdigit() and "," not in given:
        return name, given
    ranks = tuple(whole_number(number, 0, _MAX_RANKS) for number in given.split(","))
    return name, ranks[0] if len(ranks) == 1 else ranks


def _mesh(text: str) -> tuple[tuple[str, int], ...]:
    """Read ``fsdp=8,tp=8``."""
    pairs = [[word.strip() for word in part.partition("=")[::2]] for part in text.split(",")]
    found = {name: whole_number(size, 1, _MAX_RANKS) for name, size in pairs if name}
    if len(found) < len(pairs):
        raise ValueError(text)
    return tuple(found.items())


def _named_size(text: str) -> tuple[str, int]:
    """Read ``u0=4096``."""
    name, _, number = text.rpartition("=")
    if not name:
        raise ValueError(text)
    return name, whole_number(number, 0)


def _bytes(text: str) -> int:
    return size_bytes(text.replace("%", "?"), 0) or whole_number("")


def _slowdown(text: str) -> tuple[str, float]:
    """Read ``all_gather=1.1``, or ``1.1`` for every kind."""
    kind, equals, number = (part.strip() for part in text.rpartition("="))
    if (equals and not kind) or not 1.0 <= float(number) < math.inf:
        raise ValueError(text)
    return kind, float(number)


def _link(text: str) -> tuple[tuple[str, str], ...]:
    """Read ``rail=fsdp,ep``: of each group its link."""
    link, _, named = (part.strip() for part in text.partition("="))
    groups = [group.strip() for group in named.split(",")]
    if not link or not all(groups):
        raise ValueError(text)
    return tuple((group, link) for group in groups)


def _percent(text: str) -> float:
    """Read ``5%``: 0.05."""
    number = float(text.strip().removesuffix("%"))
    if not text.strip().endswith("%") or not 0 <= number <= 100:
        raise ValueError(text)
    return number / 100


def _host_bytes(text: str) -> int:
    return whole_number("") if "%" in text else parse_size("it", text, 0, _SIZE)


def _division(text: str) -> tuple[int, int]:
    """Read ``8`` or ``8/4``."""
    size, slash, stride = text.partition("/")
    return whole_number(size, 1, _MAX_RANKS), whole_number(stride if slash else "1", 1, _MAX_RANKS)


def _sizes(text: str) -> tuple[int, int]:
    """Read ``4KiB..64MiB``."""
    smallest, largest = map(_bytes, text.split(".."))
    if smallest > largest:
        raise ValueError(text)
    return smallest, largest


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures."""

    json: bool = False
    """print the figures as one JSON object (`overlap-sched schema COMMAND`; of explain --costs: `schema costs`)"""


@dataclass(frozen=True, kw_only=True)
class InputLimits:
    """Limits of the input."""

    max_input_bytes: Annotated[int, Flag(_bytes, "a size: write 500MB or 2GiB")] = DEFAULT_LIMITS.input_bytes
    """SIZE: refuse a file that is larger once decompressed"""
    max_nodes: Annotated[int, Flag(whole_number, "a whole number of 1 or more")] = DEFAULT_LIMITS.nodes
    """N: refuse a graph with more nodes; each part of a split or an unbind counts as one"""

    given: str = ""

    @property
    def limits(self) -> Limits:
        """Both."""
        return Limits(self.max_input_bytes, self.max_nodes)


@dataclass(frozen=True, kw_only=True)
class Input(InputLimits):
    """Input and its prices.

    Raises:
        OptionsError: A value is wrong by itself, or beside another one.
    """

    problem: Annotated[str, Flag(positional=True, file="in")]
    """PROBLEM_OR_DUMP: a problem file (.json, .json.gz) or a torch graph dump (.py, .txt, .log, plain or .gz)"""
    comm_scale: float = 1.0
    """X: multiply the time of every collective by X"""
    slowdown: Annotated[tuple[tuple[str, float], ...], Flag(_slowdown, "KIND=FACTOR nor FACTOR (from 1 on)")] = ()
    """KIND=FACTOR: compute takes FACTOR times as long while a collective is in flight whose operator begins with KIND
    (all_gather=1.1); FACTOR alone applies to every kind; can be repeated"""
    link: Annotated[tuple[tuple[tuple[str, str], ...], ...], Flag(_link, "LINK=GROUP,GROUP")] = ()
    """LINK=GROUP,GROUP: these process groups share a network link: while collectives of k of them are in flight, each
    takes k times as long (rail=0,513); can be repeated"""
    profile: Annotated[tuple[str, ...], Flag(many=True, file="in")] = ()
    """TRACE.json: take the times of nodes from these traces of torch.profiler (.json, .json.gz; record_shapes=True),
    one per rank, of the same steps; with several ranks, waiting for late ones is taken out of collectives"""
    memory_model: MemoryModel | None = None
    """how memory is counted: as NCCL and torch's allocator hold it (runtime, the default), or as torch's MemoryTracker
    counts it; a problem file names its own, and asking for the other is an error"""
    group: Annotated[tuple[tuple[str, int | tuple[int, ...] | str], ...], Flag(_group, "NAME=SIZE or NAME=RANKS")] = ()
    """NAME=SIZE: of a dump, the number of ranks of a process group, its ranks (NAME=0,8,16,24), or the dimension of the
    mesh that it is (NAME=tp, or neighbours: NAME=fsdp+tp); can be repeated"""
    size: Annotated[tuple[tuple[str, int], ...], Flag(_named_size, "NAME=N")] = ()
    """NAME=N: of a dump, the value of a data-dependent size, by its symbol (u0=4096) or by the node that reads it;
    can be repeated"""
    graph: Annotated[int | None, Flag(whole_number, "a whole number of 1 or more")] = None
    """N: of a dump, read the N-th of several graphs in the file, as logs of TORCH_LOGS hold them (default: the first
    that calls ATen's operators; a note lists all)"""
    packages: Annotated[tuple[str, ...], Flag(name="--import")] = ()
    """PACKAGE: import this Python package first, because it registers operators of a dump; can be repeated"""
    device: str | None = None
    """NAME: of a dump, the device whose speed gives the times (default: H100)"""
    fusion: Literal["none", "inductor"] | None = None
    """price nodes of a dump by the kernels that TorchInductor would make of them (inductor, the default), or one by
    one, for a graph that runs without it (none)"""
    cluster: str | None = None
    """FILE_OR_NAME: price a dump for this cluster: a cluster file (TOML), or the name of one that is shipped (default:
    that of the device, dgx-h100; none with --profile)"""
    mesh: Annotated[tuple[tuple[str, int], ...] | None, Flag(_mesh, "NAME=SIZE,NAME=SIZE,...")] = None
    """NAME=SIZE,...: the dimensions of its device mesh, outermost first (fsdp=8,tp=8): where groups are whose ranks are
    not known"""
    no_contention: bool = False
    """compute and communication do not slow each other down, whatever the cluster file says"""
    save_problem: Annotated[str | None, Flag(file="out")] = None
    """OUT.json: write the graph that was read as a problem file (.json, or .json.gz), with the times that were used"""
    redact: bool = False
    """with --save-problem: replace the names of the graph, its nodes, groups and compute operators by neutral ones; the
    order found is the same"""

    backward: str | None = None  # of a dump of a forward graph, that of its backward graph: both are read as one step

    def __post_init__(self) -> None:
        refuse(
            (not 0 <= self.comm_scale < math.inf, f"--comm-scale is {self.comm_scale}; it is a factor, 0 or more."),
            (
                self.cluster and self.device,
                f"--cluster {self.cluster} has its own device. Leave --device out.",
            ),
            (self.redact and not self.save_problem, "--redact is for --save-problem OUT.json: give that, too."),
        )

    @property
    def contention(self) -> Contention:
        """The contention of ``--slowdown`` and ``--link``: replaces the file's, key by key; the last given counts."""
        return Contention(dict(self.slowdown), dict(pair for pairs in self.link for pair in pairs))


@dataclass(frozen=True, kw_only=True)
class Rewriting(Input):
    """What is done to a graph."""

    options: Annotated[Options, (*SCHEDULING, "rewrites")]
    order: Annotated[str | None, Flag(file="in")] = None
    """ORDER.json: take this order, as `plan --out` wrote it or another tool did, instead of searching for one"""

    def __post_init__(self) -> None:
        super().__post_init__()
        rewrites = self.options.rewrites
        refuse(
            (rewrites and self.profile, "--rewrites: merged collectives are in no trace. Leave --profile out."),
            (rewrites and self.order, "--order is of the graph as it is, --rewrites changes it. Leave one out."),
        )


@dataclass(frozen=True, kw_only=True)
class PlanCommand(Rewriting, Figures):
    """Find an order."""

    out: Annotated[str | None, Flag(file="out")] = None
    """ORDER.json: write the order found as a JSON list of node names"""
    plot: Annotated[str | None, Flag(file="out")] = None
    """OUT.png: draw memory and streams, before and after (.png, .svg, .pdf)"""
    trace: Annotated[str | None, Flag(file="out")] = None
    """OUT.json: write a trace for ui.perfetto.dev or chrome://tracing"""


@dataclass(frozen=True, kw_only=True)
class ExplainCommand(Rewriting, Figures):
    """Say why the step is exposed."""

    collective: Annotated[str | None, Flag(positional=True)] = None
    """COLLECTIVE: explain only this collective, by the name of its node"""
    top: Annotated[int | None, Flag(lambda text: whole_number(text, 0), "a number, 0 or more", group="which")] = None
    """N: explain the N most exposed collectives, after the totals by cause (default: 10; 0: only the totals)"""
    all: Annotated[bool, Flag(group="which")] = False
    """explain every collective, the most exposed first"""
    peak: Annotated[bool, Flag(group="instead")] = False
    """explain instead what is live at the memory peak, and why"""
    costs: Annotated[bool, Flag(group="instead")] = False
    """list instead what every node costs, the longest first: its time, where that comes from, what bounds it; --top and
    --all count nodes"""

    def __post_init__(self) -> None:
        super().__post_init__()
        listed, one = self.top is not None or self.all, self.collective is not None
        given = "--peak" if self.peak else "--costs"
        as_it_is = self.options.rewrites and (self.peak or self.costs)
        refuse(
            (as_it_is, f"{given} explains the graph as it is, --rewrites changes it. Leave one out."),
            (one and (self.costs or listed), "--costs, --top and --all list several, but one is named. Leave one out."),
            (self.peak and (self.json or one or listed), "--peak has no COLLECTIVE, --top, --all nor --json."),
        )


@dataclass(frozen=True, kw_only=True)
class ReportCommand(Rewriting):
    """Write a page."""

    html: Annotated[str, Flag(file="out")]
    """OUT.html: write one HTML file that loads nothing: figures, streams and memory in time, before and after, and why
    each collective is where it is"""
    beside: Annotated[str | None, Flag(file="in")] = None
    """ORDER.json: also another order of the graph, a JSON list of node names: torch's (`scripts/torch_order.py`), or
    what `plan --out` wrote"""


@dataclass(frozen=True, kw_only=True)
class SweepCommand(Input, Figures):
    """Schedule for many settings."""

    options: Annotated[Options, SCHEDULING]
    vary: Annotated[tuple[str, ...], Flag(many=True)]
    """WHAT=VALUES: what to vary: FIRST..LAST in powers of two, or A,B,C; all combinations are scheduled. headroom,
    memory_limit: sizes or percent of the original peak (0..2GiB); network, inside, compute: factors on a speed
    (0.25..4); noise: errors of the durations, for which each order is replayed (0..30%)"""
    plot: Annotated[str | None, Flag(file="out")] = None
    """OUT.png: draw the step over what is varied first (.png, .svg, .pdf)"""


@dataclass(frozen=True, kw_only=True)
class MemoryCommand(Input, Figures):
    """Find the lowest peak."""

    effort: Annotated[int, Flag(lambda text: whole_number(text, 0, 30), "a whole number, 0 to 30")] = 2
    """N: how hard to search: each unit doubles the work (default: 2; 0: simple orders only; at most 30)"""
    preserve_collective_order: Preserve = "none"
    """keep the original launch order within each process group, across all, or across all and each wait behind those
    that it followed"""
    exact: bool = False
    """if the search cannot prove its order optimal, solve an integer program (pip install 'overlap_sched[exact]')"""
    time_limit: float = 60.0
    """S: seconds that the solver of --exact may take"""
    limit: str | None = None
    """SIZE: with --exact: stop at any order whose peak is at most this: 20GiB, or 90% of the original peak"""
    addresses: Annotated[str | None, Flag(file="out")] = None
    """OUT.json: place all storages in one arena and write their offsets"""
    align: Annotated[int, Flag(lambda text: whole_number(text, 1, 2**40), "a number of bytes, 1 to 2**40")] = 512
    """BYTES: alignment of --addresses (default: 512, as torch aligns on CUDA)"""
    peak: bool = False
    """also print what is live at the peak of the new order, and why"""
    out: Annotated[str | None, Flag(file="out")] = None
    """ORDER.json: write the order found as a JSON list of node names"""
    plot: Annotated[str | None, Flag(file="out")] = None
    """OUT.png: draw memory over the steps, before and after (.png, .svg, .pdf)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit is not None:
            limit_bytes("--limit", self.limit, 0)
        refuse(
            (self.limit and not self.exact, "--limit asks for a proof or an order: give --exact, too."),
            (not self.time_limit < math.inf, f"--time-limit is {self.time_limit}; it is finite, and above 0."),
        )


@dataclass(frozen=True, kw_only=True)
class FitCommand(Input, Figures):
    """Fit a step into less memory."""

    backward: Annotated[str | None, Flag(positional=True, file="in")] = None
    """BACKWARD_DUMP: the dump of the backward graph, where the first is that of its forward graph: both are one step"""
    memory_limit: Annotated[str | None, Flag(group="question!")] = None
    """SIZE: look for the shortest step within so much memory: 40GiB, 24GB, or 60% of the original peak"""
    max_slowdown: Annotated[
        float | None, Flag(_percent, "percent of the best order's step, 0% to 100%: 5%", group="question!")
    ] = None
    """PERCENT: look for the lowest peak at which the step is at most so much longer than the best order: 5%"""
    host_memory: Annotated[int | None, Flag(_host_bytes, _SIZE)] = None
    """SIZE: use at most so much pinned host memory: 64GiB (default: as much as helps; 0: none)"""
    host_link: Literal["pcie5", "pcie4"] = "pcie5"
    """the link between device and host (default: pcie5, 51.2 GB/s in each direction; pcie4: 25.6)"""
    kinds: str = "recompute,offload,fission"
    """KINDS: what may be done, joined by commas; of dumps only: fission, and batch: the graph in parts along its batch,
    whose gradients are added up, which rounds otherwise"""
    effort: Annotated[int, Flag(lambda text: whole_number(text, 0, 2), "0, 1 or 2")] = 2
    """N: how much to try: 0, 1 or 2 (default); counted, not timed"""
    html: Annotated[str | None, Flag(file="out")] = None
    """OUT.html: write one HTML file of what was found, beside the graph as it was"""
    out: Annotated[str | None, Flag(file="out")] = None
    """ORDER.json: write the order found, of the rewritten graph, as a list of node names"""
    strict: bool = False
    """fail rather than keep the graph as it is when the search fails"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory_limit is not None:
            limit_bytes("--memory-limit", self.memory_limit, 0)


@dataclass(frozen=True, kw_only=True)
class CalibrateCommand:
    """Measure machines."""

    out: Annotated[str, Flag(file="out")]
    """CLUSTER.toml: the cluster file that is written"""
    graph: Annotated[tuple[str, ...], Flag(file="in")] = ()
    """PROBLEM_OR_DUMP: measure the matrix products and the attention of this dump, and the collectives of this dump or
    problem file whose groups fit, instead of a grid of shapes; can be repeated"""
    group: Annotated[tuple[tuple[int, int], ...], Flag(_division, "SIZE or SIZE/STRIDE: write 8, or 4/8")] = ()
    """SIZE[/STRIDE]: measure collectives in groups of SIZE ranks that are STRIDE apart (default stride: 1); can be
    repeated (default: all ranks, those of each machine, one of each machine)"""
    bytes: Annotated[tuple[int, int] | None, Flag(_sizes, "FROM..TO: write 4KiB..64MiB")] = None
    """FROM..TO: sizes of collectives, in steps of 4 (default: 4KiB..64MiB on a CPU, 4KiB..1GiB on GPUs)"""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """of the grid's matrix products"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """what is measured (default: a GPU for each process with NCCL, else the CPU with gloo)"""


@dataclass(frozen=True, kw_only=True)
class PipelineCommand(InputLimits, Figures):
    """Compare schedules."""

    job: Annotated[str, Flag(positional=True, file="in")]
    """JOB.toml: a pipelined job: its stages, ranks, micro-batches, links and memory limits"""
    schedules: str = ""
    """NAMES: compare these, joined by commas: gpipe, 1f1b, interleaved:V (V stages per rank), interleaved-zb:V, zb-h1,
    zbv, v-min, v-half, v-zb, waves, dualpipe, dualpipev (default: all that the job can have)"""
    find: Annotated[int | None, Flag(const=1)] = None
    """EFFORT: also search for the shortest schedule within the memory limits, with the stages of the file joined and
    recomputed as it suits; more is tried with an effort above 1; small jobs are solved exactly where OR-tools is
    installed"""
    post_validation: bool = False
    """have --find shorten the time of the longest rank from its first action to its last, not the step: with post-
    validation of optimizer steps (arXiv 2401.10241) no rank waits for the others"""
    order_graphs: Annotated[str | None, Flag(const=LEFT)] = None
    """HEADROOM: order the graphs that the job names before they are measured, and interleave those that run together,
    with so much memory above their peaks (0, 1GiB, 5%; default: what the memory limits leave)"""
    vary: Annotated[tuple[str, ...], Flag(many=True)] = ()
    """WHAT=VALUES: also the best schedule for other micro_batches or ranks (8,16,32) or for links between stages of
    another bandwidth (a factor: 0.5,1,2); all combinations are tried"""
    csv: Annotated[str | None, Flag(file="out")] = None
    """OUT.csv: write one schedule as torch.distributed.pipelining reads it (_load_csv)"""
    schedule: str = ""
    """NAME: the schedule that --csv writes"""
    csv_format: CsvFormat = "compute_only"
    """of --csv: compute alone, to which torch adds sends and receives (default); with them; or with them and the waits
    that torch 2.15 asks for"""
    html: Annotated[str | None, Flag(file="out")] = None
    """OUT.html: write one HTML file with a picture of each schedule: ranks by time, and memory"""

    def __post_init__(self) -> None:
        near = f" Did you mean --schedules {self.schedule}, which compares?" if self.schedule else ""
        refuse(
            (bool(self.csv) != bool(self.schedule),
             f"--csv writes one schedule: give both --csv OUT.csv and --schedule NAME.{near}"),
            (self.find is not None and self.find < 1, f"--find {self.find}: an effort is 1 or more."),
        )  # fmt: skip
        if self.order_graphs not in (None, LEFT):
            Options(headroom=self.order_graphs or "")


@dataclass(frozen=True, kw_only=True)
class CapacityCommand(InputLimits, Figures):
    """Find layouts."""

    question: Annotated[str, Flag(positional=True, file="in")]
    """QUESTION.toml: GPUs, batch, sequence, a model by name, by dimensions or by dumps of it, and ranges"""
    csv: Annotated[str | None, Flag(file="out")] = None
    """OUT.csv: write the schedule of the best as torch.distributed.pipelining reads it (_load_csv)"""
    html: Annotated[str | None, Flag(file="out")] = None
    """OUT.html: write one HTML file with a picture of the best: ranks by time, and memory"""


@dataclass(frozen=True, kw_only=True)
class SchemaCommand:
    """Print a schema."""

    of: Annotated[
        Literal["plan", "sweep", "explain", "memory", "costs", "fit", "pipeline", "capacity"], Flag(positional=True)
    ]
    """COMMAND: plan, sweep, explain, memory, fit, pipeline, capacity, or costs: what explain --costs prints"""


@dataclass(frozen=True)
class DemoCommand:
    """Plan a graph that comes with the package."""
