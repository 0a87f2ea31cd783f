"""V-Min and V-Half as their authors make them, on slots of a table: shares nothing with what it is held against.

Source: Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", arXiv 2405.15362, section 3 and appendix;
``scheduler/zbv_greedy.py`` of github.com/sail-sg/zero-bubble-pipeline-parallelism: a block that is repeated every six
slots, then passes that go to earlier free slots of their rank where that needs no more memory.
"""

from overlap_sched.pipeline.action import Action, ActionKind, PipelineSchedule

F, G, H, I = range(4)  # noqa: E741
"""Forward of the stage on the way down and up, then the input gradients of the one on the way up and down."""
Rows = list[list[list[int]]]
"""Per rank and pass (weight gradients fifth, of both stages), the slot of each micro-batch."""


def published(kind: str, ranks: int, micro_batches: int) -> PipelineSchedule:
    """Two stages per rank, down and up again."""
    p = ranks
    if kind == "v-min":
        late = 2 if p % 3 == 0 else 0
        block = [[i, 2 * p - i - 1, 2 * p + late + i, 4 * p + late - i - 1] for i in range(p)]
    else:
        late = 0 if p % 2 else 3
        block = [[2 * i, 3 * p - i - 2, 3 * p + late + 2 * i - 1, 6 * p + late - i - 2] for i in range(p)]
    rows = [[[slot + 6 * m for m in range(micro_batches)] for slot in rank] for rank in block]
    rows = [rank[:4] for rank in _earlier([_with_weights(rank) for rank in rows], weights=True)]
    rows = [rank[:4] for rank in _earlier(rows, weights=False)]
    orders = []
    for rank, row in enumerate(rows):
        stages = rank, 2 * p - 1 - rank
        order, waiting = list[Action](), [list[int](), list[int]()]
        passes = {slot: (kind, m) for kind, slots in enumerate(row) for m, slot in enumerate(slots)}

        def weights(stages: tuple[int, int] = stages, waiting: list[list[int]] = waiting) -> list[Action]:
            here = next((k for k in (0, 1) if waiting[k]), None)  # of the stage on the way up first
            return [] if here is None else [Action(ActionKind.WEIGHT_GRADIENT, stages[1 - here], waiting[here].pop(0))]

        for slot in range(max(passes) + 1):
            if slot not in passes:
                order += weights()
                continue
            what, m = passes[slot]
            way = ActionKind.FORWARD if what < H else ActionKind.INPUT_GRADIENT
            order.append(Action(way, stages[what in (G, H)], m))
            if what >= H:
                waiting[what - H].append(m)
        while more := weights():
            order += more
        orders.append(tuple(order))
    return PipelineSchedule(kind, tuple(orders))


def _with_weights(rank: list[list[int]]) -> list[list[int]]:
    """With a weight gradient in each free slot behind an input gradient."""
    passes = {slot: kind for kind, slots in enumerate(rank) for slot in slots}
    slots, waiting, slot = list[int](), 0, 0
    while slot <= max(passes) or waiting:
        if slot in passes:
            waiting += passes[slot] >= H
        elif waiting:
            slots.append(slot)
            waiting -= 1
        slot += 1
    return [*rank, slots]


def _most(rank: list[list[int]]) -> int:
    """The most activations at once, weight gradients where they are, or in the first free slots."""
    with_weights = rank if len(rank) > 4 else _with_weights(rank)
    change = {slot: (1, 1, 0, 0, -1)[kind] for kind, slots in enumerate(with_weights) for slot in slots}
    now = most = 0
    for slot in sorted(change):
        now += change[slot]
        most = max(most, now)
    return most


def _earlier(rows: Rows, *, weights: bool) -> Rows:
    """Move passes to free slots in front of them, in the order of their slots; the steady middle stays."""
    most, last = max(map(_most, rows)), len(rows[0][0]) - 1
    order = sorted(
        (s, r, kind, m) for r, row in enumerate(rows) for kind, slots in enumerate(row) for m, s in enumerate(slots)
    )
    taken: list[set[int]] = [set() for _ in rows]
    phase = 0
    for slot, r, kind, m in order:
        row = rows[r]
        phase += phase == 0 and (r, kind) == (0, I)
        if phase == 1 or (phase == 0 and not weights):
            phase += phase == 1 and (kind, m) == (F, last)
            taken[r].add(slot)
            continue
        first = [-1]
        if kind < 4 and 0 <= (near := r + (1 if kind in (G, I) else -1)) < len(rows):
            first.append(rows[near][kind][m])
        if kind in (G, H, I):
            first.append(row[kind - 1][m])
        if kind == 4:
            first.append(sorted(row[H] + row[I])[m])
        if m:
            first.append(row[kind][m - 1])
        for earlier in range(max(first) + 1, slot):
            if earlier not in taken[r]:
                row[kind][m] = earlier
                if _most(row) <= most:
                    break
        else:
            row[kind][m] = slot
        taken[r].add(row[kind][m])
    return rows
