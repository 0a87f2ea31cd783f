"""What ``--json`` prints: one struct per answer, of which its JSON Schema is made (``overlap-sched schema COMMAND``).

Units are in the names: microseconds, bytes, percent, seconds; all times but ``schedule_s`` are simulated. The number at
the end of ``"schema": "overlap-sched/plan/1"`` goes up when a key is taken away or changes its meaning.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from overlap_sched.cost import Price
from overlap_sched.errors import ProblemError
from overlap_sched.fit.answer import Fit, Held
from overlap_sched.options import Concurrent
from overlap_sched.peak_memory.addresses import AddressPlan
from overlap_sched.peak_memory.best import MemoryPlan
from overlap_sched.pipeline.best import FoundPipeline
from overlap_sched.pipeline.capacity import CapacityPlan, Question
from overlap_sched.pipeline.compare import PlannedPipeline
from overlap_sched.pipeline.graphs import JobGraphs, MeasuredGraph
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.problem import Kind, MemoryModel, Problem
from overlap_sched.problem.contention import Contention
from overlap_sched.problem.pins import pinned
from overlap_sched.report.pipeline import Varied, find_shortest
from overlap_sched.report.words.rewrites import costs
from overlap_sched.report.words.schedule import Cause, Reserved, causes, gap_percent, most_exposed
from overlap_sched.scheduler.driver import Schedule
from overlap_sched.scheduler.explain import Decision
from overlap_sched.transform.plan import Plan, records_json
from overlap_sched.transform.rewrites import to_json

Made = TypeVar("Made", bound=Struct)
_NOT_REPLAYED = SimpleNamespace(original_reserved_bytes=None, reserved_bytes=None)


class _Part(Struct, frozen=True, forbid_unknown_fields=True):
    """A part of an answer."""


def _fill(kind: type[Made], /, *sources: object, **given: Any) -> Made:
    """Return a struct of what is given, and else of the attribute of the same name of the first source that has it."""
    for name in kind.__struct_fields__:
        for source in sources:
            if name not in given and hasattr(source, name):
                given[name] = getattr(source, name)
    return kind(**given)


class _Order(_Part, frozen=True):
    step_us: float
    exposed_us: float
    peak_bytes: int


class _Graph(_Part, frozen=True, kw_only=True):
    name: str
    memory_model: MemoryModel
    contention: Contention | None


class _Scheduled(_Graph, frozen=True, kw_only=True):
    step_us: float
    exposed_us: float
    fell_back: bool
    pins: "list[PinFigures]"


class PinFigures(_Part, frozen=True):
    """A pin, and how many nodes it is about."""

    pin: str
    nodes: int


class PriceSource(_Part, frozen=True):
    """Where the times come from: a problem file has its own; the nodes of a dump are priced for a device and a cluster.

    Attributes:
        cluster: null: a formula of latency and bandwidth prices collectives.
        traces: Traces of a profiler whose times replace predicted ones.
    """

    source: Literal["problem file", "dump"] = field(name="from")
    comm_scale: float
    traces: int
    device: str | UnsetType = UNSET
    cluster: str | UnsetType | None = UNSET
    fusion: Literal["none", "inductor"] | UnsetType = UNSET


class BeforeAfter(_Part, frozen=True):
    """Pairs of collectives of groups that share more than one rank, in flight together."""

    original: int
    scheduled: int


class TriedPlan(_Part, frozen=True):
    """A plan that was tried: its step, and why it was not taken."""

    what: str
    step_us: float | None
    why_not: str


class PlanAnswer(_Scheduled, frozen=True, kw_only=True, tag_field="schema", tag="overlap-sched/plan/1"):
    """A schedule, all of it simulated.

    Attributes:
        bound_us: No order's step is shorter. budget_bound_us: nor that of any order within the budget.
        memory_limit_bytes: The device asked for. short_bytes: what it lacks for the order.
        gain_range: How many times as fast ours is: nine of ten draws of prices lie between; null: the original order
            stayed.
        original_reserved_bytes, reserved_bytes: By a replay of torch's caching allocator; null: none was replayed.
        rewrites: Kind, names, and microseconds less on its stream, microseconds more compute, bytes more at once.
    """

    nodes: int
    original_step_us: float
    lower_bound_us: float = field(name="bound_us")
    gap_percent: float
    budget_bound_us: float
    gap_within_budget_percent: float
    gain_range: tuple[float, float] | None
    original_peak_bytes: int
    peak_bytes: int
    headroom_bytes: int
    prices: PriceSource
    groups_together: BeforeAfter
    concurrent_groups: Concurrent
    unrestricted_us: float | None = field(name="unrestricted_step_us")
    schedule_s: float
    memory_limit_bytes: int | None
    short_bytes: int
    original_reserved_bytes: int | None
    reserved_bytes: int | None
    rewrites: list[dict[str, Any]] | UnsetType = UNSET
    step_without_rewrites_us: float | UnsetType = UNSET
    bound_without_rewrites_us: float | UnsetType = UNSET
    not_rewritten: list[str] | UnsetType = UNSET
    tried: list[TriedPlan] | UnsetType = UNSET


def plan_answer(
    schedule: Schedule,
    made: Plan | None,
    reserved: Reserved | None,
    prices: PriceSource | UnsetType = UNSET,
    gain: tuple[float, float] | None = None,
) -> PlanAnswer:
    """Return the answer of a schedule; ``made``: the plan that it is of. What is not given is left out."""
    before, after = schedule.original, schedule.scheduled
    more: dict[str, Any] = {}
    if made is not None:
        tried = [TriedPlan(one.what, one.step_us if one.order else None, one.why_not) for one in made.trials]
        more = {"rewrites": records_json(made.records), "tried": tried, "not_rewritten": list(made.refused)}
        more["step_without_rewrites_us"] = made.without.scheduled.step_us
        more["bound_without_rewrites_us"] = made.without.lower_bound_us
    return _fill(
        PlanAnswer,
        *(schedule.problem, after, schedule, reserved or _NOT_REPLAYED),
        nodes=len(schedule.problem.nodes),
        original_step_us=before.step_us,
        gap_percent=gap_percent(after.step_us, schedule.lower_bound_us),
        gap_within_budget_percent=gap_percent(after.step_us, schedule.budget_bound_us),
        gain_range=gain,
        original_peak_bytes=before.peak_bytes,
        groups_together=BeforeAfter(before.groups_together, after.groups_together),
        prices=prices,
        concurrent_groups=schedule.options.concurrent_groups,
        **_shared(schedule),
        **more,
    )


def _shared(schedule: Schedule) -> dict[str, Any]:
    return {
        "contention": schedule.problem.contention or None,
        "fell_back": schedule.fell_back is not None,
        "pins": [PinFigures(one.pin.text, len(one.nodes)) for one in pinned(schedule.problem, schedule.options.pins)],
    }


class CollectiveFigures(_Part, frozen=True):
    """A collective: where it is launched, when it runs, what hides it and what keeps it from an earlier launch."""

    name: str
    op: str
    group: str
    bytes: int
    exposed_us: float
    hidden_us: float
    position: int
    original_position: int
    launch_us: float
    start_us: float
    finish_us: float
    wait_us: float
    reason: str
    blocked_by: str
    blocking_node: str | None
    under: list[str]
    over_budget_bytes: int


def collective_figures(problem: Problem, d: Decision) -> CollectiveFigures:
    """Return the record of a decision, nodes by name."""
    nodes = problem.nodes
    return _fill(
        CollectiveFigures,
        *(nodes[d.collective], d),
        blocked_by=d.held_by,
        blocking_node=None if d.held_node is None else nodes[d.held_node].name,
        under=[nodes[v].name for v in d.under],
        over_budget_bytes=d.over_bytes,
    )


class ExplainAnswer(_Scheduled, frozen=True, kw_only=True, tag_field="schema", tag="overlap-sched/explain/1"):
    """Why a step is exposed."""

    collectives: int
    causes: tuple[Cause, ...]
    most_exposed: list[CollectiveFigures]


def explain_answer(schedule: Schedule, collective: str | None = None, top: int | None = None) -> ExplainAnswer:
    """Return the answer; arguments as of :func:`overlap_sched.report.words.schedule.explanation`."""
    most = [collective_figures(schedule.problem, d) for d in most_exposed(schedule, top, collective)]
    number, found, of = len(schedule.decisions), causes(schedule), (schedule.problem, schedule.scheduled)
    return _fill(ExplainAnswer, *of, collectives=number, causes=found, most_exposed=most, **_shared(schedule))


class SourceTotal(_Part, frozen=True):
    """All nodes of a kind whose times come from one source; percent of all nodes of that kind."""

    source: str
    kind: Kind
    nodes: int
    time_us: float
    percent: float


class NodeCost(_Part, frozen=True):
    """The time of a node, where it comes from, what bounds it, and whose kernel it is part of."""

    name: str
    op: str
    kind: Kind
    group: str | None
    time_us: float
    source: str
    bound: str | None
    part_of: str | None
    flops: int
    bytes: int


class CostsAnswer(_Part, frozen=True, tag_field="schema", tag="overlap-sched/costs/1"):
    """What every node costs, the longest first."""

    name: str
    nodes: int
    compute_us: float
    collective_us: float
    sources: list[SourceTotal]
    costs: list[NodeCost]


def costs_answer(problem: Problem, prices: Sequence[Price], top: int | None = None) -> CostsAnswer:
    """Return the ``top`` longest nodes (``None``: all with a time), and totals, the largest first."""
    timed = [(node, price) for node, price in zip(problem.nodes, prices, strict=True) if node.time_us]
    us = {kind: sum(node.time_us for node, _ in timed if node.kind is kind) for kind in Kind}
    by_source = defaultdict[tuple[Kind, str], list[float]](list)
    for node, price in timed:
        by_source[node.kind, price.source].append(node.time_us)
    totals = [
        SourceTotal(source, kind, len(found), sum(found), 100 * sum(found) / us[kind])
        for (kind, source), found in by_source.items()
    ]
    longest = sorted(timed, key=lambda one: -one[0].time_us)[:top]
    return CostsAnswer(
        name=problem.name,
        nodes=len(problem.nodes),
        compute_us=us[Kind.COMPUTE],
        collective_us=us[Kind.COLLECTIVE],
        sources=sorted(totals, key=lambda one: (-one.time_us, one.kind, one.source)),
        costs=[_fill(NodeCost, *of, bound=of[1].bound or None, part_of=of[1].part_of or None) for of in longest],
    )


class MemoryAnswer(_Part, frozen=True, tag_field="schema", tag="overlap-sched/memory/1"):
    """The order with the lowest peak that was found; with ``--addresses``, the arena and its unused share."""

    name: str
    nodes: int
    memory_model: MemoryModel
    original_bytes: int = field(name="original_peak_bytes")
    peak_bytes: int
    bound_bytes: int
    optimal: bool
    found_by: str
    original_reserved_bytes: int | None
    reserved_bytes: int | None
    arena_bytes: int | UnsetType = UNSET
    fragmentation: float | UnsetType = UNSET


def memory_answer(plan: MemoryPlan, addresses: AddressPlan | None, reserved: Reserved | None) -> MemoryAnswer:
    """Return the answer; bytes reserved are null where nothing was replayed."""
    of = (plan.problem, plan, addresses, reserved or _NOT_REPLAYED)
    return _fill(MemoryAnswer, *of, nodes=len(plan.problem.nodes))


class PlanPoint(_Order, frozen=True):
    """A plan by its peak and step."""

    host_bytes: int
    rewrites: int


class FitRewrite(_Part, frozen=True):
    """A rewrite: bytes that need not be kept, microseconds of compute and of copies."""

    rewrite: dict[str, Any]
    bytes: int
    compute_us: float
    copy_us: float


class FitAnswer(_Part, frozen=True, tag_field="schema", tag="overlap-sched/fit/1"):
    """The plan picked, beside the original and the best order without rewrites; points: none dominates another."""

    name: str
    limit_bytes: int | None
    limit_us: float | None
    fits: bool
    live_bytes_fit: bool
    slowdown_percent: float
    original: PlanPoint
    without: PlanPoint
    picked: PlanPoint
    points: list[PlanPoint]
    rewrites: list[FitRewrite]
    reserved: Held | None
    tried: int


def fit_answer(found: Fit) -> FitAnswer:
    """Return the answer."""
    points = [found.original, found.without, found.best, *found.points]
    original, without, picked, *others = (_fill(PlanPoint, one, rewrites=len(one.rewrites)) for one in points)
    return _fill(
        FitAnswer,
        found,
        name=found.best.problem.name,
        slowdown_percent=100 * found.slowdown,
        original=original,
        without=without,
        picked=picked,
        points=others,
        rewrites=[
            FitRewrite(to_json([one.rewrite])[0], -one.held_bytes, one.compute_us, -one.stream_us)
            for one, _ in costs(found)
        ],
        reserved=found.held,
    )


class StageFigures(_Part, frozen=True):
    """What a stage takes and holds for a micro-batch; null: it has no halves."""

    forward_us: float
    backward_us: float
    input_gradient_us: float | None
    weight_gradient_us: float | None
    saved_bytes: int
    kept_bytes: int


class RankFigures(_Part, frozen=True):
    """A rank of a pipeline."""

    busy_us: float
    bubble_us: float
    exposed_us: float
    inside_us: float
    peak_bytes: int
    peak_at: str


class RankLack(_Part, frozen=True):
    """The rank that lacks most, and at which action."""

    rank: int
    bytes: int
    at: str


class PipelineScheduleFigures(_Part, frozen=True):
    """A schedule of a pipeline; ``own_bubble``: of the longest rank; ``cut`` and ``recomputed`` by stage."""

    name: str
    step_us: float
    bound_us: float
    gap_percent: float
    bubble: float
    own_bubble: float
    cut: list[int]
    recomputed: list[int]
    ranks: list[RankFigures]
    lacks: RankLack | None


class NoSchedule(_Part, frozen=True):
    """A schedule that the job cannot have."""

    name: str
    why: str


class VariedSchedule(_Part, frozen=True):
    """The shortest schedule that fits where the job is changed; null: none does."""

    changed: dict[str, float]
    schedule: PipelineScheduleFigures | None


class PipelineAnswer(_Part, frozen=True, tag_field="schema", tag="overlap-sched/pipeline/1"):
    """Schedules of a pipelined job, and the graphs that its blocks run, before and after they were ordered."""

    name: str
    stages: int
    ranks: int
    micro_batches: int
    memory_limit_bytes: list[int] | None
    schedules: list[PipelineScheduleFigures]
    cannot: list[NoSchedule]
    found: dict[str, Any] | None
    graphs: list[dict[str, Any]]
    pairs: list[dict[str, Any]]
    varied: list[VariedSchedule]
    blocks: list[StageFigures]
    offered: dict[str, list[str]]
    """By graph of a backward that has no halves, nodes that may make the gradient of its input."""


def pipeline_answer(
    job: PipelineJob,
    planned: Sequence[PlannedPipeline],
    cannot: Mapping[str, str],
    found: FoundPipeline | None,
    graphs: JobGraphs,
    varied: Varied,
) -> PipelineAnswer:
    """Return the answer; ``varied``: the schedules of each changed job."""
    kinds = "forward", "backward", "input_gradient", "weight_gradient"
    made = found and {key: getattr(found, key) for key in ("made_from", "bound_us", "proved")}
    return _fill(
        PipelineAnswer,
        job,
        graphs,
        stages=len(job.stages),
        blocks=[
            _fill(StageFigures, one, **{f"{kind}_us": getattr(getattr(one, kind), "time_us", None) for kind in kinds})
            for one in job.stages
        ],
        schedules=[_schedule_figures(one) for one in planned],
        cannot=[NoSchedule(*why) for why in cannot.items()],
        found=found and made and {**made, "any_cut_bound_us": found.any_cut_us},
        graphs=[{"name": name, **_graph_figures(one)} for name, one in graphs.graphs.items()],
        pairs=[
            {"forward": ahead, "backward": back, **_graph_figures(one)} for (ahead, back), one in graphs.pairs.items()
        ],
        varied=[
            VariedSchedule(dict(change), None if one is None else _schedule_figures(one))
            for change, one in ((change, find_shortest(of)) for change, of in varied)
        ],
    )


def _schedule_figures(one: PlannedPipeline) -> PipelineScheduleFigures:
    run, lack = one.replay, one.shortage
    ranks = zip(run.busy_us, run.bubble_us, run.exposed_us, one.inside_us, one.peaks, strict=True)
    return _fill(
        PipelineScheduleFigures,
        *(one, run),
        gap_percent=gap_percent(run.step_us, one.bound_us),
        ranks=[RankFigures(busy, idle, out, inside, at.bytes, str(at.item)) for busy, idle, out, inside, at in ranks],
        lacks=lack and RankLack(lack.rank, lack.bytes, str(lack.item)),
    )


def _graph_figures(one: MeasuredGraph) -> dict[str, Any]:
    before, ordered = (
        _Order(run.timeline.step_us, run.timeline.exposed_us, max(run.profile)) for run in (one.before, one.ordered)
    )
    return {"nodes": len(one.problem.nodes), "before": before, "ordered": ordered}


class SweptOrder(_Order, frozen=True):
    """An order at one point: microseconds and bytes.

    Attributes:
        median_us, p95_us: Of the step in 100 replays with wrong durations; null where no noise was asked for.
    """

    median_us: float | None
    p95_us: float | None


class SweepPoint(_Part, frozen=True):
    """A combination, the original order there and the one that was found.

    Attributes:
        varied: Bytes of headroom and memory_limit, factors on speeds, noise as a share (0.3: 30 %).
        lower_bound_us: No order's step is shorter.
        gain_range: How many times as fast ours is, as of ``plan``; null where noise was asked for, too.
        short_bytes: What the device of ``memory_limit`` lacks for the order; 0: nothing.
        fell_back: Whether the original order was kept because the new one failed verification.
    """

    varied: dict[str, float]
    original: SweptOrder
    scheduled: SweptOrder
    lower_bound_us: float
    gap_percent: float
    short_bytes: int
    fell_back: bool
    gain_range: tuple[float, float] | None = None


class SweepAnswer(_Graph, frozen=True, kw_only=True, tag_field="schema", tag="overlap-sched/sweep/1"):
    """The step for each combination of what was varied; cluster: that collectives are priced for anew."""

    cluster: str | None
    points: tuple[SweepPoint, ...]


class CapacityAnswer(_Part, frozen=True, tag_field="schema", tag="overlap-sched/capacity/1"):
    """The fastest layouts that fit, the best first: their mesh, ways and schedule, and what they reach."""

    gpus: int
    global_batch: int
    sequence: int
    layouts: list[dict[str, Any]]


def capacity_answer(question: Question, found: Sequence[CapacityPlan]) -> CapacityAnswer:
    """Return the answer."""
    figures = ("tokens_per_s", "mfu", "peak_bytes", "losses", "binds")
    layouts = [
        one.layout._asdict()
        | {"mesh": one.layout.mesh._asdict(), "schedule": one.planned.name}
        | {"micro_batches": one.planned.job.micro_batches, "step_us": one.planned.replay.step_us}
        | {name: getattr(one, name) for name in figures}
        for one in found
    ]
    return _fill(CapacityAnswer, question, layouts=layouts)


ANSWERS: dict[str, type[Struct]] = {
    str(one.__struct_config__.tag).split("/")[1]: one
    for one in (
        PlanAnswer,
        SweepAnswer,
        ExplainAnswer,
        MemoryAnswer,
        CostsAnswer,
        FitAnswer,
        PipelineAnswer,
        CapacityAnswer,
    )
}
"""``costs``: what ``explain --costs`` prints."""


def schema_text(command: str) -> str:
    """Return the JSON Schema of a command's output."""
    return json.dumps(msgspec.json.schema(ANSWERS[command]), indent=2)


def as_json(answer: Struct) -> str:
    """Return an answer on one line, the name of its schema in front.

    Raises:
        ProblemError: A figure is not finite.
    """
    try:
        return json.dumps(msgspec.to_builtins(answer), allow_nan=False)
    except ValueError:
        raise ProblemError(
            "a figure of the result is not a finite number: the times are too large to be added up. "
            "Are they in microseconds?"
        ) from None
