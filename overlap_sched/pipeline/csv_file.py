"""Schedules as torch's CSV: a row per rank, a cell per item, read there by ``_PipelineScheduleRuntime._load_csv``.

Formats (:data:`CsvFormat`), the first two named as there (``torch/distributed/pipelining/schedules.py``,
``_dump_csv``):

- ``compute_only``: F, B, I, W and pairs; torch adds sends, receives, gathers and reductions.
- ``compute_comms``: with them; nothing is added. A reduction also scales a stage's gradients there: each stage has one.
- ``compute_comms_waits``: the same with a wait for each send and reduction; torch 2.15 wants them, 2.13 has none.
"""

from collections.abc import Sequence
from math import inf
from typing import Literal

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.action import GATHERS, SENDS, UPDATES, Action, Item, PipelineSchedule, last_gradients, parts
from overlap_sched.pipeline.job import PipelineJob
from overlap_sched.pipeline.replay import PipelineReplay


def with_transfers(job: PipelineJob, schedule: PipelineSchedule, replay: PipelineReplay) -> PipelineSchedule:
    """The schedule of which this is the replay, with sends and receives; what stays on its rank is not sent.

    What starts at one time stays in the order of the replay, in which each comes behind what it needs; gathers and
    reductions that wait for their turn are where compute has come to them.
    """
    come_us = dict[Item, float]()
    for items in replay.items:
        us = inf
        for run in reversed(items):
            us = come_us[run.item] = min(us, run.start_us)
    sent = {one.action: one.both_ends for one in replay.sent}
    orders: list[list[Item]] = [[] for _ in range(job.ranks)]
    for item, _, _ in sorted(replay.ran, key=lambda run: come_us[run.item]):
        own = orders[job.rank_of[parts(item)[0].stage]]
        own.append(item)
        for send, receive in (sent[action] for action in parts(item) if action in sent):
            other = orders[job.rank_of[receive.stage]]
            if other is not own:
                own.append(send)
                other.append(receive)
    return PipelineSchedule(schedule.name, tuple(map(tuple, orders)))


CsvFormat = Literal["compute_only", "compute_comms", "compute_comms_waits"]


def schedule_csv(job: PipelineJob, schedule: PipelineSchedule, replay: PipelineReplay, form: CsvFormat) -> str:
    """The schedule as torch reads it; the step of the optimizer, which is the training loop's, is left out.

    Args:
        job: What the schedule is of.
        schedule: Valid.
        replay: Of it. Sends, receives and waits are in the order of its times.
        form: See the head of this module.

    Raises:
        PipelineError: torch cannot have such a job: it sends from each stage to that of the next number.
    """
    if [route.stages for route in job.routes] != [tuple(range(len(job.stages)))]:
        raise PipelineError(
            f"{job.name}: torch's schedules go one way, by stages 0, 1, 2, ... Choose another schedule."
        )
    plain, waits = form == "compute_only", form == "compute_comms_waits"
    left_out = (*UPDATES, *GATHERS) if plain else UPDATES
    orders = (schedule if plain else with_transfers(job, schedule, replay)).orders
    kept = [[item for item in order if parts(item)[0].kind not in left_out] for order in orders]
    rows = [list(map(str, order)) if plain else _cells(order, replay, waits) for order in kept]
    return "".join(f"{','.join(row)}\r\n" for row in rows)


def _cells(order: Sequence[Item], replay: PipelineReplay, waits: bool) -> list[str]:
    """A row with a reduction behind each stage's last gradient of weights, sends first; perhaps with waits.

    A send is waited for in front of the first item that starts when it is over; a reduction in front of the next one,
    or at the end, as torch's ``_add_reduce_grad`` does where it defers.
    """
    starts = {run.item: run.start_us for run in replay.ran}
    ends = {one.both_ends[0]: one.end_us for one in replay.sent}
    cells: list[str] = []
    sending: list[tuple[float, str]] = []
    reducing, deferred = list[str](), list[int]()  # waited for later; begun when what has been made is sent
    for item, done in (*last_gradients(order), (None, [])):
        sends = isinstance(item, Action) and item.kind in SENDS
        for stage in [] if sends else deferred:
            cells += [*reducing, f"{stage}REDUCE_GRAD"]
            reducing = [f"{stage}WAIT_REDUCE_GRAD"]
        deferred = deferred if sends else []
        if item is None:
            break
        over = [wait for end_us, wait in sending if end_us <= starts.get(item, -1.0)]
        sending = [(end_us, wait) for end_us, wait in sending if wait not in over]
        cells += [*over, str(item)]
        if isinstance(item, Action) and sends:
            sending.append((ends[item], str(item).replace("SEND", "WAIT_SEND")))
        deferred += done
    cells += [*(wait for _, wait in sending), *reducing]
    return cells if waits else [cell for cell in cells if "WAIT" not in cell]
