"""What items and transfers of a job take, for the planner; the judge looks it up by itself."""

from overlap_sched.pipeline.action import Action, ActionKind, Item, Pair, parts
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob

_BLOCK = {
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.INPUT_GRADIENT: "input_gradient",
    ActionKind.WEIGHT_GRADIENT: "weight_gradient",
    ActionKind.REDUCE: "reduce",
    ActionKind.STEP: "step",
}
_SENT = (ActionKind.FORWARD, ActionKind.INPUT_GRADIENT)


def block_of(job: PipelineJob, action: Action) -> PipelineBlock:
    """Look up what an action takes; its stage has such an action."""
    block = getattr(job.stages[action.stage], _BLOCK[action.kind])
    assert isinstance(block, PipelineBlock), f"stage {action.stage} has no {_BLOCK[action.kind]}"
    return block


def item_us(job: PipelineJob, item: Item) -> float:
    """The time of an item on its stream, in microseconds."""
    if not isinstance(item, Pair):
        return block_of(job, item).time_us
    one, other = (block_of(job, action).time_us for action in item)
    known = pair_block(job, item)
    return max(one, other, job.pair_factor * (one + other) if known is None else known.time_us)


def inside_us(job: PipelineJob, item: Item) -> float:
    """The part of an item's time in which compute waits for collectives of its graphs; microseconds."""
    known = pair_block(job, item) if isinstance(item, Pair) else None
    return sum(block_of(job, action).exposed_us for action in parts(item)) if known is None else known.exposed_us


def pair_block(job: PipelineJob, pair: Pair) -> PipelineBlock | None:
    """Look up what a pair takes, if that is known."""
    return job.pairs.get((pair.forward.stage, pair.backward.stage))


def least_part(job: PipelineJob) -> float:
    """The least part of what a forward and a backward take apart that a pair of them takes; at most 1."""
    apart = {(f, b): job.stages[f].forward.time_us + job.stages[b].backward.time_us for f, b in job.pairs}
    known = [pair.time_us / apart[both] for both, pair in job.pairs.items() if apart[both]]
    return min([1.0, job.pair_factor, *known])


def transfers_us(job: PipelineJob) -> list[float]:
    """List what the transfers between ranks take for one micro-batch, of forwards and of input gradients."""
    batch = job.routes[0].micro_batches[0]
    actions = [Action(kind, s, batch) for s in range(len(job.stages)) for kind in _SENT]
    return [
        transfer_us(job, action, job.rank_of[to])
        for action in actions
        if (to := job.gives_to(action)) is not None and job.rank_of[to] != job.rank_of[action.stage]
    ]


def transfer_us(job: PipelineJob, action: Action, receiver: int) -> float:
    """The time that the output of an action takes to another rank."""
    link = job.links.get((job.rank_of[action.stage], receiver), job.link)
    return link.latency_us + block_of(job, action).output_bytes / link.bytes_per_s * 1e6
