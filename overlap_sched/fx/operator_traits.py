"""The traits of an operator: what is known of it before looking at a node. The vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch._ops import OpOverload

from overlap_sched.fx.collectives import Comm, Role
from overlap_sched.fx.hazards import Ordering


class Arg(tuple[int, str]):
    """Where an operator takes an argument: (position, name). Position -1: by name only."""

    __slots__ = ()

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], default: Any = None) -> Any:
        """The argument of a call."""
        position, name = self
        if 0 <= position < len(args):
            return args[position]
        return kwargs.get(name, default)


def arguments_of(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names that its schema gives them, but for those left to their defaults."""
    return {**dict(zip((a.name for a in op._schema.arguments), args, strict=False)), **kwargs}


@dataclass(frozen=True, slots=True)
class OperatorTraits:
    """What an operator does to its arguments and to the world.

    Attributes:
        op: Its name for people: ``"aten.mm.default"``.
        ordering: See :class:`Ordering`.
        comm: Set for collectives and waits.
        known: Whether we know it; unknown ones are barriers and are counted.
        writes: Arguments that it writes.
        returns: Per return value, the argument that it is (``Tensor(a!)``) or looks at (``Tensor(a)``), or ``None``.
        writes_all: It may write any of its tensors.
        aliases: Arguments of which its schema says that it writes them, or may return them or views of them.
        writes_aliased: To return any other argument means that it writes that (not so for views, waits and launches).
        dropout: Argument that, when 0, makes it draw no random numbers.
        non_blocking: Argument that says that a copy between devices need not be finished when it returns.
        syncs: The host waits for the device.
        free: Takes no time, even though it allocates.
        selects: Takes one out of a list of values: looks at what it returns, not at the whole list.
        overwrites: What it writes it does not read first (``copy_``, ``out=``).
        nested: Runs other operators: a subgraph, or one named in its arguments.
        plain: A pure function of its arguments: nothing to look at in the node itself.
        role: What it does with the communication streams; ``None``: it does not communicate.
    """

    op: str
    ordering: Ordering = Ordering.NONE
    comm: Comm | None = None
    known: bool = True
    writes: tuple[Arg, ...] = ()
    returns: tuple[Arg | None, ...] = ()
    aliases: tuple[Arg, ...] = ()
    writes_all: bool = False
    writes_aliased: bool = False
    dropout: Arg | None = None
    non_blocking: Arg | None = None
    syncs: bool = False
    free: bool = False
    selects: bool = False
    overwrites: bool = False
    nested: bool = False
    plain: bool = field(init=False)
    role: Role | None = field(init=False)

    def __post_init__(self) -> None:
        demands = (self.ordering, self.comm, self.writes, self.writes_all, self.syncs, self.non_blocking, self.nested)
        object.__setattr__(self, "plain", not any(demands))
        object.__setattr__(self, "role", None if self.comm is None else self.comm.role)


UNKNOWN_CALL = OperatorTraits("", Ordering.BARRIER, known=False, writes_all=True)
"""A ``call_module`` or ``call_method``: it can do anything."""

NO_CALL = OperatorTraits("", free=True)
"""Inputs, attributes, outputs."""
