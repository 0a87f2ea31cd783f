"""A schedule of a pipelined job: per rank, what it does in which order."""

from dataclasses import dataclass

from overlap_sched.pipeline.action import Action, Item, parts


@dataclass(frozen=True)
class PipelineSchedule:
    """Orders of all ranks; nothing in it is checked, see :func:`overlap_sched.pipeline.judge.validate.violation`.

    Attributes:
        name: For people.
        orders: Per rank, its items in the order in which its compute stream runs them.
    """

    name: str
    orders: tuple[tuple[Item, ...], ...]

    def actions(self, rank: int) -> list[Action]:
        """The actions of a rank, pairs taken apart."""
        return [action for item in self.orders[rank] for action in parts(item)]
