"""How long a schedule of a pipelined job takes.

Each rank has a compute stream that runs its items in order, a stream for gathers and reductions, and one to each other
rank. An
output is sent as soon as it is there, in the order of making, one at a time per ordered pair of ranks; sending takes
nothing from compute. An item starts when the one before it has ended and what it needs has arrived::

    rank 0   | 0F0 | 0F1 |.......................| 0B0 |          . idle
    0 -> 1         |s|   |s|
    rank 1           | 1F0 | 1B0 | 1F1 | 1B1 |
    1 -> 0                       |s|

A reduction, or a gather of a stage's parameters, starts when the compute stream has come to it and the one before it on
its rank has ended; a step waits for the reduction of its stage, what a stage computes for its parameters. Streams do
not slow each other, but where gathers, reductions and transfers go over the same links: what a rank begins to send
while it gathers or reduces takes turns with that, each at half its rate::

    rank 0   | 1UNSHARD = = = = = = = 1UNSHARD |        a transfer of 3.5 takes 7, and the gather 3.5 longer
    0 -> 1              | = = = = = = |

How many bytes are live on each rank of a replayed schedule, by the rules of :mod:`overlap_sched.pipeline.job`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple, TypeAlias

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import (
    BACKWARDS,
    BESIDE,
    COMPUTE,
    RECEIVES,
    SENDS,
    Action,
    ActionKind,
    Item,
    PipelineSchedule,
    parts,
)
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob


def block_of(job: PipelineJob, action: Action) -> PipelineBlock:
    """Look up what an action takes; its stage has such an action."""
    block = job.stages[action.stage].block(action.kind)
    assert block is not None, f"stage {action.stage} has no {action.kind}"
    return block


def item_block(job: PipelineJob, item: Item) -> PipelineBlock:
    """Look up what an item takes: of a pair as the job knows it, else as both of its actions do."""
    actions = parts(item)
    blocks = [block_of(job, action) for action in actions]
    if len(blocks) == 1:
        return blocks[0]
    ahead, back = blocks
    transient, exposed_us = ahead.transient_bytes + back.transient_bytes, ahead.exposed_us + back.exposed_us
    both = PipelineBlock(job.pair_factor * (ahead.time_us + back.time_us), transient, exposed_us=exposed_us)
    both = job.pairs.get((actions[0].stage, actions[1].stage), both)
    return replace(both, time_us=max(both.time_us, ahead.time_us, back.time_us))


def item_us(job: PipelineJob, item: Item) -> float:
    """The time of an item on its stream, in microseconds."""
    return item_block(job, item).time_us


def least_part(job: PipelineJob) -> float:
    """The least part of what a forward and a backward take apart that a pair of them takes; at most 1."""
    apart = {(f, b): job.stages[f].forward.time_us + job.stages[b].backward.time_us for f, b in job.pairs}
    known = [pair.time_us / apart[both] for both, pair in job.pairs.items() if apart[both]]
    return min([1.0, job.pair_factor, *known])


def transfer_us(job: PipelineJob, action: Action, receiver: int) -> float:
    """The time that the output of an action takes to another rank."""
    link = job.links.get((job.rank_of[action.stage], receiver), job.link)
    return link.latency_us + block_of(job, action).output_bytes / link.bytes_per_s * 1e6


class RunItem(NamedTuple):
    """An item on its rank's compute stream; a gather or a reduction on the stream beside it."""

    item: Item
    start_us: float
    end_us: float


class SentOutput(NamedTuple):
    """An output on its way to another rank.

    Attributes:
        action: That made it.
        needed_by: That needs it; a backward also where that is an input gradient.
        made_us: When it was there.
        start_us, end_us: On the stream from the one rank to the other; both ``made_us`` where it stays on its rank.
    """

    action: Action
    needed_by: Action
    made_us: float
    start_us: float
    end_us: float

    @property
    def both_ends(self) -> tuple[Action, Action]:
        """Its send and its receive."""
        way = self.action.kind is not ActionKind.FORWARD
        return self.action._replace(kind=SENDS[way]), self.needed_by._replace(kind=RECEIVES[way])


@dataclass(frozen=True)
class PipelineReplay:
    """The timeline of a schedule; tuples are indexed by rank.

    Attributes:
        items: Each rank's items in order, gathers and reductions among them.
        ran: All of them in an order in which each comes behind what it needs.
        sent: Outputs in the order in which they were made, those that stay on their rank among them.
        step_us: When all streams of all ranks are done.
        busy_us: Of the compute stream.
        exposed_us: Time that the compute stream is idle although what it waits for has been made: transfers, gathers,
        reductions.
    """

    items: tuple[tuple[RunItem, ...], ...]
    ran: tuple[RunItem, ...]
    sent: tuple[SentOutput, ...]
    step_us: float
    busy_us: tuple[float, ...]
    exposed_us: tuple[float, ...]

    @property
    def bubble_us(self) -> tuple[float, ...]:
        """Per rank, the time of the step in which its compute stream is idle."""
        return tuple(self.step_us - busy_us for busy_us in self.busy_us)

    @property
    def bubble(self) -> float:
        """The idle part of all compute streams together, 0 to 1."""
        whole = self.step_us * len(self.busy_us)
        return sum(self.bubble_us) / whole if whole else 0.0

    @property
    def own_bubble(self) -> float:
        """The idle part of the rank that takes longest from its first item to its last, 0 to 1.

        The measure of Qi et al. 2023, arXiv 2401.10241: no rank waits for the first or the last one.
        """
        spans_us = (max(run.end_us for run in own) - own[0].start_us for own in self.items)
        whole, busy_us = max(zip(spans_us, self.busy_us, strict=True), key=lambda one: one[0])
        return max(1.0 - busy_us / whole, 0.0) if whole else 0.0


NONE = -1
Orders = list[list[int]]
"""Per rank, the numbers of its items."""


class PipelineClock:
    """Times schedules of one job, whose items it numbers as it meets them.

    A token is an input of an item: of an action the output of another stage and its parameters, the last that were
    gathered, of a step the reduction of its gradients.

    Attributes:
        post_validation: A step is the time of the longest rank, from its first item to the end of its last.
        items: By number. time_us: What each takes.
        needs: By item, the tokens that it needs.
        start_us, end_us: By item, of the schedule that was timed last, as are all of these:
        maker: By token, the item that made it. sent_us, there_us: When its transfer began, and when it was there.
        ran: Items in an order in which each comes behind what it needs.
    """

    def __init__(self, job: PipelineJob, post_validation: bool = False) -> None:
        self.post_validation, self.job, self.items, self.number = post_validation, job, list[Item](), dict[Item, int]()
        self.time_us, self.needs, self.ran = list[float](), list[list[int]](), list[int]()
        self._tokens, self._streams, self._beside = dict[Action, int](), dict[tuple[int, int], int](), list[bool]()
        self._makes: list[list[tuple[int, int, float, Action]]] = []  # per item: token, stream, time of transfer, maker

    def orders_of(self, schedule: PipelineSchedule) -> Orders:
        """Number the items of a schedule."""
        for order in schedule.orders:
            for item in order:
                if item not in self.number:
                    self._add(item)
        return [[self.number[item] for item in order] for order in schedule.orders]

    def schedule_of(self, orders: Orders, name: str) -> PipelineSchedule:
        """Return the schedule of such numbers."""
        return PipelineSchedule(name, tuple(tuple(self.items[k] for k in order) for order in orders))

    def _add(self, item: Item) -> None:
        job = self.job
        self.number[item] = len(self.items)
        self.items.append(item)
        self.time_us.append(item_block(job, item).time_us)
        self._beside.append(parts(item)[0].kind in BESIDE)
        needs, makes = list[int](), list[tuple[int, int, float, Action]]()
        for action in parts(item):
            kind, s, m = action
            back = ActionKind.BACKWARD if kind in BACKWARDS else kind
            if kind in BESIDE:
                makes.append((self._token(Action(kind, s)), NONE, 0.0, action))
            elif kind is ActionKind.STEP and job.stages[s].reduce is not None:
                needs.append(self._token(Action(ActionKind.REDUCE, s)))
            if kind in COMPUTE and job.stages[s].unshard is not None:
                needs.append(self._token(Action(ActionKind.UNSHARD, s)))
            if job.needs_from(action) is not None:
                needs.append(self._token(Action(back, s, m)))
            if (to := job.gives_to(action)) is not None:
                ranks, stream, us = (job.rank_of[s], job.rank_of[to]), NONE, 0.0
                if ranks[0] != ranks[1]:
                    stream = self._streams.setdefault(ranks, len(self._streams))
                    us = transfer_us(job, action, ranks[1])
                makes.append((self._token(Action(back, to, m)), stream, us, action))
        self.needs.append(needs)
        self._makes.append(makes)

    def _token(self, needed_by: Action) -> int:
        return self._tokens.setdefault(needed_by, len(self._tokens))

    def step_us(self, orders: Orders) -> float:
        """Time a schedule, linear in items; infinite: its ranks wait for each other."""
        ranks, tokens = len(orders), len(self._tokens)
        at, clock, beside = [0] * ranks, [0.0] * ranks, [0.0] * ranks
        there, waiting, free = [-1.0] * tokens, [NONE] * tokens, [0.0] * len(self._streams)
        self.start_us, self.end_us = [0.0] * len(self.items), [0.0] * len(self.items)
        self.sent_us, self.maker, self.there_us = [0.0] * tokens, [NONE] * tokens, there
        start_us, end_us, time_us, sent_us, maker = self.start_us, self.end_us, self.time_us, self.sent_us, self.maker
        needs, makes, on_side, shared = self.needs, self._makes, self._beside, self.job.shared_links
        ran = self.ran = list[int]()
        ready = deque(range(ranks))
        while ready:
            rank = ready.popleft()
            order, k, now = orders[rank], at[rank], clock[rank]
            while k < len(order):
                one, start = order[k], now
                for token in needs[one]:
                    came = there[token]
                    if came > start:
                        start = came
                    elif came < 0.0:
                        waiting[token] = rank
                        break
                else:
                    k += 1
                    ran.append(one)
                    if on_side[one]:
                        start_us[one] = start = max(now, beside[rank])
                        end = beside[rank] = end_us[one] = start + time_us[one]
                    else:
                        start_us[one] = start
                        end = now = end_us[one] = start + time_us[one]
                    for token, stream, us, _ in makes[one]:
                        begin = end
                        if stream >= 0:
                            begin = max(end, free[stream])
                            if shared and (more := min(us, beside[rank] - begin)) > 0.0:
                                self._delay(order[:k], begin, more)
                                beside[rank] += more
                                us += more
                            free[stream] = begin + us
                        sent_us[token], there[token], maker[token] = begin, begin + us, one
                        if waiting[token] >= 0:
                            ready.append(waiting[token])
                    continue
                break
            at[rank], clock[rank] = k, now
        if len(ran) < sum(map(len, orders)):
            return inf
        return max(map(self.span_us, orders)) if self.post_validation else max([*clock, *beside, *free])

    def _delay(self, run: list[int], from_us: float, by_us: float) -> None:
        """Delay gathers and reductions that end later than an instant, each by what it has left until all is lost."""
        lost_us = 0.0
        for one in run:
            if self._beside[one] and self.end_us[one] > from_us:
                left_us = self.end_us[one] - max(self.start_us[one], from_us)
                self.start_us[one] += lost_us if self.start_us[one] > from_us else 0.0
                lost_us = min(lost_us + left_us, by_us)
                self.end_us[one] += lost_us
                self.there_us[self._makes[one][0][0]] += lost_us

    def span_us(self, order: list[int]) -> float:
        """The time until all items of a rank have ended; where ranks do not wait for each other, from its first."""
        return max(self.end_us[one] for one in order) - (self.start_us[order[0]] if self.post_validation else 0.0)

    def replay(self, schedule: PipelineSchedule) -> PipelineReplay:
        """Time a schedule; raises as :func:`replay_pipeline`."""
        job, orders = self.job, self.orders_of(schedule)
        step_us = self.step_us(orders)
        if step_us == inf:
            rank, one = next((rank, k) for rank, order in enumerate(orders) for k in order if k not in set(self.ran))
            raise PipelineError(
                f"{schedule.name}: rank {rank} waits at {self.items[one]} for what is never made: a deadlock."
            )
        end_us, needed_by = self.end_us, list(self._tokens)
        runs = {k: RunItem(self.items[k], self.start_us[k], end_us[k]) for k in self.ran}
        sent = [
            SentOutput(action, needed_by[token], end_us[k], self.sent_us[token], self.there_us[token])
            for k in self.ran
            for token, _, _, action in self._makes[k]
            if not self._beside[k]
        ]
        busy, exposed = [0.0] * job.ranks, [0.0] * job.ranks
        for rank, order in enumerate(orders):
            now = last = 0.0
            for k in order:
                last = max(last, end_us[k])
                if not self._beside[k]:
                    makers = [one for token in self.needs[k] if not self._beside[one := self.maker[token]]]
                    exposed[rank] += self.start_us[k] - max([now, *(end_us[one] for one in makers)])
                    busy[rank] += self.time_us[k]
                    now = end_us[k]
            exposed[rank] += last - now
        items, ran = tuple(tuple(runs[k] for k in order) for order in orders), tuple(runs.values())
        return PipelineReplay(items, ran, tuple(sent), step_us, tuple(busy), tuple(exposed))


def replay_pipeline(job: PipelineJob, schedule: PipelineSchedule) -> PipelineReplay:
    """Run a schedule in simulated time; linear in actions.

    Raises:
        PipelineError: It cannot run to its end: an item waits for what is never made.
    """
    return PipelineClock(job).replay(schedule)


class RankPeak(NamedTuple):
    """The most bytes live on a rank at once.

    Attributes:
        bytes: All, what is static among them.
        at_us: The first instant at which they are.
        item: What the rank computes then; of an idle one, what begins to be live.
    """

    bytes: int
    at_us: float
    item: Item


_Level: TypeAlias = tuple[float, int, Item]
"""From an instant on, the bytes that are live, and what began or ended to be."""


def pipeline_peaks(job: PipelineJob, replay: PipelineReplay) -> tuple[RankPeak, ...]:
    """The peak of each rank; sorts what is live by time."""
    return tuple(map(_peak, _levels(job, replay), replay.items))


def _peak(levels: Sequence[_Level], items: tuple[RunItem, ...]) -> RankPeak:
    at_us, most, owner = max(levels, key=lambda level: level[1])
    running = [run.item for run in items if run.start_us <= at_us < run.end_us]
    return RankPeak(most, at_us, running[-1] if running else owner)


def excess_bytes(job: PipelineJob, replay: PipelineReplay) -> list[int]:
    """Per rank, the bytes by which its peak is above its limit."""
    if job.memory_limit_bytes is None:
        return [0] * job.ranks
    peaks = pipeline_peaks(job, replay)
    return [max(peak.bytes - limit, 0) for peak, limit in zip(peaks, job.memory_limit_bytes, strict=True)]


def memory_curves(job: PipelineJob, replay: PipelineReplay) -> tuple[tuple[tuple[float, int], ...], ...]:
    """Per rank, the bytes that are live from each instant (microseconds) at which they change, from 0 on."""
    return tuple(tuple({us: now for us, now, _ in levels}.items()) for levels in _levels(job, replay))


def _levels(job: PipelineJob, replay: PipelineReplay) -> list[list[_Level]]:
    """Per rank, from 0 on, in time; what ends at an instant is over before what begins there, unless it began there."""
    changes: list[list[tuple[float, int, int, Item]]] = [[] for _ in range(job.ranks)]
    gathered = dict[int, float]()
    times = {action: run for items in replay.items for run in items for action in parts(run.item)}
    times |= {action._replace(kind=ActionKind.BACKWARD): times[action] for action in times if action.kind in BACKWARDS}

    def hold(rank: int, start_us: float, end_us: float, nbytes: int, owner: Item) -> None:
        changes[rank] += (start_us, 1, nbytes, owner), (end_us, 0 if end_us > start_us else 2, -nbytes, owner)

    for rank, items in enumerate(replay.items):
        for item, start_us, end_us in items:
            hold(rank, start_us, end_us, item_block(job, item).transient_bytes, parts(item)[0])
            for kind, s, m in parts(item):
                stage = job.stages[s]
                if kind is ActionKind.FORWARD:
                    back = times[Action(ActionKind.BACKWARD, s, m)]
                    hold(rank, start_us, back.end_us, stage.saved_bytes, Action(kind, s, m))
                elif kind is ActionKind.INPUT_GRADIENT:
                    weights = times[Action(ActionKind.WEIGHT_GRADIENT, s, m)]
                    hold(rank, end_us, weights.end_us, stage.kept_bytes, Action(kind, s, m))
                elif kind is ActionKind.UNSHARD:
                    gathered[s] = start_us
                elif kind is ActionKind.RESHARD and stage.unshard is not None:
                    hold(rank, gathered[s], start_us, stage.unshard.output_bytes, Action(ActionKind.UNSHARD, s, m))
    for output in replay.sent:
        (send, receive), used_us = output.both_ends, times[output.needed_by].start_us
        sender, receiver = job.rank_of[send.stage], job.rank_of[receive.stage]
        block, stays = block_of(job, output.action), sender == receiver
        end_us = used_us if stays else output.end_us
        if end_us > output.made_us:
            hold(sender, output.made_us, end_us, block.buffer_bytes, output.action if stays else send)
        if used_us > output.start_us and not stays:
            hold(receiver, output.start_us, used_us, block.output_bytes, receive)
    found = list[list[_Level]]()
    for static, items, own in zip(job.static_bytes, replay.items, changes, strict=True):
        found.append([(0.0, static, items[0].item)])
        for time_us, _, nbytes, owner in sorted(own):
            found[-1].append((time_us, found[-1][-1][1] + nbytes, owner))
    return found
