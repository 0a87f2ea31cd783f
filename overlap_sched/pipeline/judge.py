"""Is a schedule of a pipelined job allowed? The first rule that is broken, in words.

A step that no schedule of a job with this placement of stages can beat, in any memory or within its limits.

For stage s let F be its forward, D the least time until its gradient goes on (I or B), and T the least of its whole
backward (B or I + W); with all transfers between ranks on the way::

    head(s)   F of the stages in front of s
    tail(s)   D of the stages in front of s, but T of the first one, then its reduction and step; of the first T - D

    step >= (a) per stage: head(s) + F and D of all its micro-batches, or of one + tail(s)
            (b) per rank: least head + F and D of all its stages + least tail
            (c) per rank: least head + F and T of all its stages + the steps of its stages, or the least of a reduction
                and step

A forward and a backward that run together (a pair) may take less than both: per forward, the most that any pair saves
is taken off. Nothing runs on a rank before its least head, and all that is counted runs one at a time; F precedes the
D of its micro-batch, so that after the last D of a rank its way to the first stage is still to come.

Within memory limits also, with h the least time from the start of a stage's F to the end of its D, by way of the last
stage, in which what it saves is live, and K how often that fits beside what is static, and either the transient of its
F or D, or the gradient that D receives::

    step >= (d) per stage: the least start of its last F + h + tail(s)

In (d) an F begins with n <= K micro-batches in flight, when the D of the n-th before it has ended, h behind its F, and
the W of that as many further back as there is room for what is kept. A rank has little to run before the first D of
stage s begins, and after the last F of it::

             head + h - D                                                      h + tail
    rank    |......F F F F..........|D  what is not before and not behind |F ...............D ...|
             before: no more F than there is room for                      behind: D and W of what is live

    step >= (e) head(s) + h - D + F and T of all that is not before
            (f) where micro-batches are more than K: head(s) + h - D + all that is neither + h + tail(s)

The most that there is room for, before and behind, is that of the best mix of micro-batches, each as far as it may be.
"""

from collections.abc import Iterator, Sequence, Set
from itertools import accumulate, chain, combinations, pairwise
from math import gcd, inf
from typing import NamedTuple, TypeAlias

from overlap_sched.pipeline.action import BACKWARDS, GATHERS, UPDATES, Action, ActionKind, Pair, PipelineSchedule, parts
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob

_Held: TypeAlias = tuple[int, float]
"""Bytes that a micro-batch holds on a rank, and microseconds that it has run there, or has yet to."""

_RUNS_BEFORE = {
    ActionKind.BACKWARD: ActionKind.FORWARD,
    ActionKind.INPUT_GRADIENT: ActionKind.FORWARD,
    ActionKind.WEIGHT_GRADIENT: ActionKind.INPUT_GRADIENT,
}


def violation(job: PipelineJob, schedule: PipelineSchedule) -> str | None:
    """The first rule that a schedule without sends and receives breaks, or ``None`` if it can run.

    Every action once, on the rank of its stage: F and either B or both I and W per stage and micro-batch, one reduction
    and one step of stages that have them, behind all their gradients. F before B and I, I before W. What a sharded
    stage computes stands between an UNSHARD and a RESHARD, which alternate. No ring of ranks that wait for each other,
    where outputs are sent as soon as they are made and nobody waits to send: all items are run, without a clock.
    """
    if len(schedule.orders) != job.ranks:
        return f"there are orders for {len(schedule.orders)} ranks; the job has {job.ranks}"
    wanted, done, at, moved = list(_wanted(job)), set[Action](), [0] * job.ranks, True
    known = {action for ways in wanted for way in ways for action in way}
    sharded = missing = frozenset(s for s, stage in enumerate(job.stages) if stage.unshard is not None)
    while moved:
        moved = False
        for rank, order in enumerate(schedule.orders):
            for item in order[at[rank] :]:
                if isinstance(item, Pair) and [one.kind for one in item] != [ActionKind.FORWARD, ActionKind.BACKWARD]:
                    return f"rank {rank} runs {item} together; a pair is a forward and a whole backward"
                for action in parts(item):
                    if action not in known and (action.kind not in GATHERS or action.stage not in sharded):
                        return f"rank {rank} runs {action}; the job has no such action"
                    for wrong in _broken_rules(job, rank, action, done, missing):
                        return f"rank {rank} runs {wrong}"
                if not all(_has_input(job, action, done) for action in parts(item)):
                    break
                missing ^= {action.stage for action in parts(item) if action.kind in GATHERS}
                done.update(parts(item))
                at[rank], moved = at[rank] + 1, True
    stuck = [f"rank {rank} at {order[k]}" for rank, order in enumerate(schedule.orders) if (k := at[rank]) < len(order)]
    if stuck:
        return f"ranks wait for each other: {', '.join(stuck)}"
    for ways in wanted:
        if not any(done.issuperset(way) for way in ways):
            return f"{' or '.join(' and '.join(map(str, way)) for way in ways)} never runs"
        if sum(not done.isdisjoint(way) for way in ways) > 1:
            return f"{' and '.join(str(action) for way in ways for action in way if action in done)} all run"
    return f"{min(sharded - missing)}RESHARD never runs" if sharded - missing else None


def _wanted(job: PipelineJob) -> Iterator[list[tuple[Action, ...]]]:
    """Yield what has to run, in the ways in which it may."""
    halves = ActionKind.INPUT_GRADIENT, ActionKind.WEIGHT_GRADIENT
    for s in (stage for route in job.routes for stage in route.stages):
        for m in job.route_of[s].micro_batches:
            yield [(Action(ActionKind.FORWARD, s, m),)]
            apart = [tuple(Action(kind, s, m) for kind in halves)] if job.stages[s].splits else []
            yield [(Action(ActionKind.BACKWARD, s, m),), *apart]
        for kind in UPDATES:
            if job.stages[s].block(kind) is not None:
                yield [(Action(kind, s),)]


def _broken_rules(job: PipelineJob, rank: int, action: Action, done: Set[Action], missing: Set[int]) -> Iterator[str]:
    """Yield the rules that an action breaks here, behind what is done; stages lack parameters that are missing."""
    kind, stage, m = action
    if job.rank_of[stage] != rank:
        yield f"{action}, but stage {stage} is on rank {job.rank_of[stage]}"
    if action in done:
        yield f"{action} again"
    if kind not in UPDATES and (stage in missing) is not (kind is ActionKind.UNSHARD):
        yield f"{action} where its parameters are {'not ' * (stage in missing)}there"
    if kind in _RUNS_BEFORE and (earlier := Action(_RUNS_BEFORE[kind], stage, m)) not in done:
        yield f"{action} before {earlier}"
    late = () if kind in GATHERS else UPDATES if m is not None else UPDATES[1:]
    yield from (f"{update} before {action}" for of in late if (update := Action(of, stage)) in done)


def _has_input(job: PipelineJob, action: Action, done: Set[Action]) -> bool:
    """Tell whether another stage has made what an action needs."""
    stage, kinds = job.needs_from(action), BACKWARDS if action.kind in BACKWARDS else (action.kind,)
    return stage is None or any(Action(kind, stage, action.micro_batch) in done for kind in kinds)


def pipeline_bound_us(job: PipelineJob, post_validation: bool = False) -> float:
    """The bound in any memory, in microseconds; linear in stages, quadratic in the stages of one rank.

    ``post_validation``: of the longest rank from its first action to its last, not of the step.
    """
    ways, bounds = _ways(job, post_validation), list[float]()
    for s, way in ways.items():
        once_us = job.stages[s].forward.time_us + job.stages[s].down_us
        bounds.append(way.head_us + max(once_us, _least_us(job, s, [s], "down_us")) + way.tail_us)
    for stages in job.stages_of:
        head_us, tail_us = (min(getattr(ways[s], f"{way}_us") for s in stages) for way in ("head", "tail"))
        down_us, whole_us = (sum(_least_us(job, s, stages, f"{of}_us") for s in stages) for of in ("down", "whole"))
        updates = [[_time_us(job.stages[s].block(kind)) for kind in UPDATES] for s in stages]
        end_us = max(sum(step for _, step in updates), min(map(sum, updates)))
        bounds += [head_us + down_us + tail_us, head_us + whole_us + end_us]
    return max(bounds)


def limited_bound_us(job: PipelineJob, post_validation: bool = False) -> float:
    """The bound within the limits; infinite where a rank has no room for one micro-batch of a stage."""
    bounds, ways = [pipeline_bound_us(job, post_validation)], _ways(job, post_validation)
    for rank, limit in enumerate(job.memory_limit_bytes or ()):
        room = limit - job.static_bytes[rank]
        for s in job.stages_of[rank]:
            stage, count, way = job.stages[s], len(job.route_of[s].micro_batches), ways[s]
            free = room - _beside_bytes(job, s)
            if free < stage.saved_bytes * (way.held_us > 0):
                return inf
            if stage.saved_bytes and way.held_us and count > (most := free // stage.saved_bytes):
                beside = 0 if _paired(job, s) else stage.forward.transient_bytes
                bounds.append(_in_turn_us(job, s, way, most, room - beside))
        bounds += _filled_us(job, ways, rank, room)
    return max(bounds)


def _paired(job: PipelineJob, s: int) -> bool:
    """Tell whether pairs have transient bytes of their own, so that those of a stage say nothing."""
    return any(s in both for both in job.pairs)


def _beside_bytes(job: PipelineJob, s: int) -> int:
    """The least bytes that are live beside what a stage saves when its F begins, and until a D does."""
    stage, after = job.stages[s], job.after[s]
    found = [0 if _paired(job, s) else stage.forward.transient_bytes]
    if not job.pairs and job.pair_factor >= 1.0:  # else an F may begin with a D
        found.append(min(block.transient_bytes if block.time_us else 0 for block in stage.backs))
        if after is not None and _transfer_us(job, after, s, job.stages[after].backs):
            found.append(min(block.output_bytes for block in job.stages[after].backs))
    return max(found)


class _StageWays(NamedTuple):
    """Microseconds from and to a stage: head and tail as the head of this module says.

    ``held_us``: from the start of its F to the end of its D (h).
    """

    head_us: float
    tail_us: float
    held_us: float


def _ways(job: PipelineJob, post_validation: bool) -> dict[int, _StageWays]:
    """``post_validation``: without what comes before a rank's first action or behind its last."""
    found: dict[int, _StageWays] = {}
    for route in job.routes:
        first = job.stages[route.stages[0]]
        tail_us = first.whole_us - first.down_us + _time_us(first.reduce) + _time_us(first.step)
        there_us, back_us = list[float](), list[float]()  # from one neighbour to the next, and D on the way back
        for s, after in pairwise(route.stages):
            there_us.append(job.stages[s].forward.time_us + _transfer_us(job, s, after, [job.stages[s].forward]))
            back_us.append(job.stages[s].down_us + _transfer_us(job, after, s, job.stages[after].backs))
        heads, backs = (list(accumulate(times, initial=0.0)) for times in (there_us, back_us))
        last = job.stages[route.stages[-1]]
        for s, head_us, way_us in zip(route.stages, heads, backs, strict=True):
            held_us = heads[-1] - head_us + backs[-1] - way_us + last.forward.time_us + last.down_us
            found[s] = _StageWays(*(0.0, 0.0) if post_validation else (head_us, way_us + tail_us), held_us)
    return found


def _least_us(job: PipelineJob, s: int, stages: Sequence[int], counted: str) -> float:
    """The least time of all forwards of a stage beside backwards of these stages, and of what is counted of its own."""
    stage, most = job.stages[s], 0.0
    for back in stages:
        one, other, known = stage.forward.time_us, job.stages[back].backward.time_us, job.pairs.get((s, back))
        together = job.pair_factor * (one + other) if known is None else known.time_us
        most = max(most, one + getattr(job.stages[back], counted) - max(one, other, together))
    return len(job.route_of[s].micro_batches) * (stage.forward.time_us + getattr(stage, counted) - most)


def _filled_us(job: PipelineJob, ways: dict[int, _StageWays], rank: int, room: int) -> Iterator[float]:
    """Yield (e) and (f) of each stage of a rank."""
    for route in job.routes:
        own, count = [s for s in route.stages if job.rank_of[s] == rank], len(route.micro_batches)
        stages = [job.stages[s] for s in own]
        held = list(accumulate((one.saved_bytes for one in stages), initial=0))
        ahead = list(accumulate((one.forward.time_us for one in stages), initial=0.0))
        back = list(accumulate((one.whole_us for one in stages), initial=0.0))
        waits = [(one.kept_bytes, max(one.whole_us - one.backs[-1].time_us, 0.0)) for one in stages]
        all_us = sum(_least_us(job, s, job.stages_of[rank], "whole_us") for s in own)
        for k, s in enumerate(own, 1):
            way, inner_us, free = ways[s], ahead[-1] - ahead[k] + back[-1] - back[k], room - _beside_bytes(job, s)
            most = min(count, free // held[k]) if held[k] else count
            ways_up = list(zip(held[:k], ahead[:k], strict=True))
            before_us = _most_us(ways_up, (held[k], ahead[k] + inner_us), free, count, most)
            begins_us = way.head_us + way.held_us - job.stages[s].down_us + all_us - before_us
            yield begins_us
            if count > most:
                ways_left = [
                    (held[j] + sum(size for size, _ in some), back[j] + sum(us for _, us in some))
                    for j in range(k)
                    for some in chain.from_iterable(combinations(waits[j:], n) for n in range(len(own) - j + 1))
                ]
                left_us = _most_us(ways_left, (held[k], back[k] + inner_us), room - held[k], count - 1, most - 1)
                behind_us = ahead[-1] + back[-1] - ahead[k - 1] + left_us  # from the start of the last F of s on
                yield max(begins_us - behind_us, begins_us - all_us + before_us) + way.held_us + way.tail_us


def _most_us(ways: Sequence[_Held], full: _Held, room: int, count: int, most: int) -> float:
    """The most time of so many micro-batches within some bytes, each in one of these ways or in the full one.

    At most ``most`` are in the full one; those that are in others may be parts of some.
    """
    unit = gcd(*(size for size, _ in ways)) or 1
    return max(
        n * full[1] + _shared_us(ways, (room - n * full[0]) // unit * unit, count - n) for n in range(max(most, 0) + 1)
    )


def _shared_us(ways: Sequence[_Held], room: int, count: int) -> float:
    if not count or room < 0:
        return 0.0
    each = room / count
    less, more = ([one for one in ways if (one[0] <= each) == small] for small in (True, False))
    best = max((us for _, us in less), default=0.0)
    for size, us in less:
        best = max([best, *(us + (other - us) * (each - size) / (bigger - size) for bigger, other in more)])
    return count * best


def _in_turn_us(job: PipelineJob, s: int, way: _StageWays, most: int, room: int) -> float:
    """Return (d): the least start of each F of a stage, one after the other, and the end of what is left then.

    Args:
        job: The job.
        s: The stage.
        way: Its ways.
        most: Micro-batches that it may have in flight.
        room: For them and for weight gradients that wait, when an F begins.
    """
    stage, count = job.stages[s], len(job.route_of[s].micro_batches)
    f_us, d_us, w_us = stage.forward.time_us, stage.down_us, stage.whole_us - stage.down_us
    alone, begins = job.pair_factor >= 1.0 and not job.pairs, list[float]()
    for k in range(count):
        found = list[float]()
        for down in range(k + 1 - min(most, k + 1), k + 1):  # so many D have run
            waits = (room - (k + 1 - down) * stage.saved_bytes) // stage.kept_bytes if stage.kept_bytes else k
            over, us = max(down - waits, 0), begins[-1] + f_us if k else way.head_us
            if down:
                run_us = max(k - most, 0) * f_us + down * d_us + over * w_us
                us = max(us, begins[down - 1] + way.held_us, (way.head_us + way.held_us - d_us + run_us) * alone)
            found.append(max(us, begins[over - 1] + way.held_us + w_us) if over else us)
        begins.append(min(found))
    return begins[-1] + way.held_us + way.tail_us


def _time_us(block: PipelineBlock | None) -> float:
    return 0.0 if block is None else block.time_us


def _transfer_us(job: PipelineJob, stage: int, to: int, blocks: Sequence[PipelineBlock]) -> float:
    """The least time of an output between two stages."""
    sender, receiver = job.rank_of[stage], job.rank_of[to]
    if sender == receiver:
        return 0.0
    link = job.links.get((sender, receiver), job.link)
    return link.latency_us + min(block.output_bytes for block in blocks) / link.bytes_per_s * 1e6
