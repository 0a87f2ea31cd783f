"""A schedule for fewer micro-batches than it was made for."""

from collections.abc import Callable, Iterable

from overlap_sched.pipeline.action import Action, Item, Pair, parts


def below(micro_batches: int) -> Callable[[Action], Action | None]:
    """Leave out micro-batches from this number on."""

    def kept(action: Action) -> Action | None:
        return action if (action.micro_batch or 0) < micro_batches else None

    return kept


def only(order: Iterable[Item], kept: Callable[[Action], Action | None]) -> tuple[Item, ...]:
    """The items of an order as ``kept`` gives them (``None``: left out); of a pair, perhaps one of its two alone."""
    found: list[Item] = []
    for item in order:
        there = [action for action in map(kept, parts(item)) if action is not None]
        if len(there) == 2:
            found.append(Pair(*there))
        else:
            found.extend(there)
    return tuple(found)
