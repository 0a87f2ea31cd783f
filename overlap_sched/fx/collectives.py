"""Which operators are collectives and waits: by operator objects, never by how they print."""

import re
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from overlap_sched.fx.catalogue import (
    BLOCKING,
    COPIES_INPUT,
    FAMILIES,
    LAUNCHES,
    LOCAL,
    MEANT,
    POINT_TO_POINT,
    TORCH,
    WAITS,
    WHOLE_FAMILIES,
)
from overlap_sched.fx.declared import declared


class Role(Enum):
    """What an operator does with the communication streams."""

    LAUNCH = "launch"
    """Starts a collective and returns at once; a wait makes its output valid."""
    WAIT = "wait"
    """Makes the compute stream wait for the collective whose output it is given."""
    BLOCKING = "blocking"
    """Communicates on the compute stream: done when it returns."""


class Comm(NamedTuple):
    """A communication operator.

    Attributes:
        role: See :class:`Role`.
        op: Its name without namespace and overload, where torch has one of the kind that: ``"all_gather_into_tensor"``.
        point_to_point: Sends or receives: must meet its partner, so it keeps its order among its group's collectives.
        known: Whether it is listed or declared, or is taken for communication by its family and its arguments.
        copies: Copies what it is given: that is free when it returns, not only behind the wait.
    """

    role: Role
    op: str
    point_to_point: bool = False
    known: bool = True
    copies: bool = False


_GROUP_NAME = re.compile(r"(?:.*_)?(?:process_)?(?:group|pg)(?:_name)?s?")
_GROUP_TYPE = re.compile(r"ProcessGroup|DeviceMesh")
_NAMED_BY = re.compile(r"(?:str|Any|PyObject|Optional\[str\]|List\[str\])")
"""How the arguments that name a process group are called, and what they are."""


def comm_of(op: OpOverload) -> Comm | None:
    """Return what a communication operator does; ``None`` for all others.

    An operator of a family of collectives that is not listed counts as blocking: what is not known to return early
    must not be thought to. (torch 2.16 plans such ones, for collectives with a ``config``: done on the calling stream
    when they return, https://github.com/pytorch/pytorch/pull/194826.) So does one of a namespace that is not torch's
    where it takes a process group, or is declared to communicate.

    Looked up once per operator and not kept in a table: some are registered only when their module is imported.
    """
    said = None if op.namespace in TORCH else declared(op._schema.name)
    for role, family in ((Role.LAUNCH, LAUNCHES), (Role.WAIT, WAITS), (Role.BLOCKING, BLOCKING)):
        for name in () if said is False else family.get(op.namespace, ()):
            if getattr(getattr(torch.ops, op.namespace), name, None) is op.overloadpacket:
                copies = op._schema.name in COPIES_INPUT
                return Comm(role, MEANT.get(name, name), name in POINT_TO_POINT, copies=copies)
    arguments = op._schema.arguments
    if op.namespace in FAMILIES:
        communicates = any(argument.name in ("group_name", "ranks") for argument in arguments)
    elif op.namespace in TORCH:
        communicates = op.namespace in WHOLE_FAMILIES and op._schema.name not in LOCAL
    else:
        communicates = any(map(names_a_group, arguments)) if said is None else said
    return Comm(Role.BLOCKING, op.overloadpacket.__name__, known=said is not None) if communicates else None


def names_a_group(argument: Any) -> bool:
    """Tell whether an argument of a schema names a process group: by what it is called and what it is."""
    kind = str(argument.type)
    return bool(_GROUP_TYPE.search(kind) or (_GROUP_NAME.fullmatch(argument.name) and _NAMED_BY.fullmatch(kind)))


def is_undeclared(op: OpOverload) -> bool:
    """Tell whether nothing but its schema says what an operator does: it may communicate, or draw random numbers."""
    listed = op.namespace in TORCH or op.overloadpacket.__name__ in BLOCKING.get(op.namespace, ())
    return not listed and declared(op._schema.name) is None
