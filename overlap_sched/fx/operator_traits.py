"""What is known of an operator before looking at a node: from its schema and tags, once per operator."""

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from overlap_sched.fx.collectives import Comm, Role, comm_of


class Keeps(IntEnum):
    """What an operator must keep its place against, besides its data; the weakest first."""

    NOTHING = 0
    RANDOM = 1
    """Draws random numbers: keeps its place among those that do."""
    EFFECT = 2
    """Asserts, prints, reads a value on the host: keeps its place among those that do."""
    BARRIER = 3
    """Unknown: keeps its place against everything impure and everything that touches its storages."""
    FENCE = 4
    """Changes how what follows it runs (streams, autograd mode): everything keeps its side of it."""


class Arg(tuple[int, str]):
    """Where an operator takes an argument: (position, name). Position -1: by name only."""

    __slots__ = ()

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], default: Any = None) -> Any:
        """The argument of a call."""
        position, name = self
        if 0 <= position < len(args):
            return args[position]
        return kwargs.get(name, default)


@dataclass(frozen=True, slots=True)
class OpFacts:
    """What an operator does to its arguments and to the world.

    Attributes:
        op: Its name for people: ``"aten.mm.default"``.
        keeps: See :class:`Keeps`.
        comm: Set for collectives and waits.
        known: Whether we know it; unknown ones are barriers and are counted.
        writes: Arguments that it writes.
        returns: Per return value, the argument that it is (``Tensor(a!)``), or ``None``.
        writes_all: It may write any of its tensors.
        writes_aliased: Aliasing that its schema does not tell means that it writes there (not so for views).
        dropout: Argument that, when 0, makes it draw no random numbers.
        non_blocking: Argument that says that a copy between devices need not be finished when it returns.
        syncs: The host waits for the device.
        free: Takes no time, even though it allocates.
        selects: Takes one out of a list of values: looks at what it returns, not at the whole list.
        overwrites: What it writes it does not read first (``copy_``, ``out=``).
        nested: Runs other operators: a subgraph, or one named in its arguments.
        plain: A pure function of its arguments: nothing to look at in the node itself.
    """

    op: str
    keeps: Keeps = Keeps.NOTHING
    comm: Comm | None = None
    known: bool = True
    writes: tuple[Arg, ...] = ()
    returns: tuple[Arg | None, ...] = ()
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

    def __post_init__(self) -> None:
        demands = (self.keeps, self.comm, self.writes, self.writes_all, self.syncs, self.non_blocking, self.nested)
        object.__setattr__(self, "plain", not any(demands))


_IN_PLACE = {"delitem", "setitem", "iand", "ior"} | {f"i{name}" for name in operator.__all__}
_PURE_FUNCTIONS: frozenset[Any] = frozenset(
    f
    for f in (
        *(getattr(operator, name) for name in operator.__all__ if name not in _IN_PLACE),
        *vars(math).values(),
        *(getattr(torch, name) for name in torch.__all__ if name.startswith("sym_")),
        *(int, float, bool, len, max, min, abs, round, pow, sum),
    )
    if callable(f)
)
"""Functions of numbers and sizes."""
_FENCES: frozenset[Any] = frozenset({torch._C._set_grad_enabled, torch.amp._enter_autocast, torch.amp._exit_autocast})
_aten = torch.ops.aten
_EMPTIES = frozenset(
    {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided, _aten.empty_permuted}
)
_HONEST_NAMESPACES = ("aten", "prims", "profiler")
"""Their schemas tell all that they write."""


@cache
def facts_of(target: Any) -> OpFacts:
    """Facts of the target of a ``call_function`` node."""
    if isinstance(target, OpOverload):
        return _facts_of_overload(target, comm_of(target))
    if isinstance(target, HigherOrderOperator):
        return _facts_of_higher_order(target)
    name = getattr(target, "__name__", str(target))
    if target is operator.getitem:
        return OpFacts(name, free=True, selects=True)
    if target in _PURE_FUNCTIONS:
        return OpFacts(name, free=True)
    if target in _FENCES:
        return OpFacts(name, Keeps.FENCE)
    if target in fx.node._side_effectful_functions:  # torch._assert and the like: Python functions that only look
        return OpFacts(name, Keeps.EFFECT, writes_all=target is operator.setitem)
    return OpFacts(name, Keeps.BARRIER, known=False, writes_all=True)


UNKNOWN_CALL = OpFacts("", Keeps.BARRIER, known=False, writes_all=True)
"""A ``call_module`` or ``call_method``: it can do anything."""

NO_CALL = OpFacts("", free=True)
"""Inputs, attributes, outputs."""


def _facts_of_overload(op: OpOverload, comm: Comm | None) -> OpFacts:
    schema, tags = op._schema, op.tags
    places = [Arg((-1 if a.kwarg_only else i, a.name)) for i, a in enumerate(schema.arguments)]
    where = {a.name: place for a, place in zip(schema.arguments, places, strict=True)}
    writes = tuple(p for a, p in zip(schema.arguments, places, strict=True) if a.alias_info and a.alias_info.is_write)
    is_write_alias = {
        name: place
        for a, place in zip(schema.arguments, places, strict=True)
        if a.alias_info and a.alias_info.is_write
        for name in a.alias_info.before_set
    }
    returns = tuple(
        next((is_write_alias[n] for n in r.alias_info.before_set if n in is_write_alias), None)
        if r.alias_info
        else None
        for r in schema.returns
    )
    nothing_told = not writes and not schema.is_mutable
    if comm is not None:
        return OpFacts(
            str(op),
            Keeps.EFFECT if op.namespace == "symm_mem" and comm.role is Role.BLOCKING else Keeps.NOTHING,
            comm,
            writes=() if comm.role is Role.WAIT else writes,
            returns=returns,
            writes_all=comm.point_to_point or (schema.is_mutable and not writes),
            overwrites=any(position == -1 for position, _ in writes),
        )
    returns_nothing = not schema.returns and nothing_told
    return OpFacts(
        str(op),
        _keeps(op, returns_nothing),
        writes=writes,
        returns=returns if any(returns) else (),
        writes_all=(schema.is_mutable and not writes) or (returns_nothing and op.namespace not in _HONEST_NAMESPACES),
        writes_aliased=op is not _aten._unsafe_view.default and not any(a.alias_info for a in schema.arguments),
        dropout=where.get("dropout_p"),
        non_blocking=where.get("non_blocking"),
        syncs=torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags,
        free=op.overloadpacket in _EMPTIES,
        overwrites=op is _aten.copy_.default or any(position == -1 for position, _ in writes),
    )


def _keeps(op: OpOverload, returns_nothing: bool) -> Keeps:
    if op.namespace == "streams":
        return Keeps.FENCE
    if op.namespace == "c10d":  # collectives that return a handle: nothing in the graph tells when they end
        return Keeps.BARRIER
    schema = op._schema
    handles = any(a.type.kind() == "ClassType" for a in (*schema.arguments, *schema.returns))
    scalar = op is _aten._local_scalar_dense.default
    if returns_nothing or handles or scalar or op in fx.node._side_effectful_functions or _has_effect(op):
        return Keeps.EFFECT
    return Keeps.RANDOM if torch.Tag.nondeterministic_seeded in op.tags else Keeps.NOTHING


def _has_effect(op: OpOverload) -> bool:
    try:
        from torch._higher_order_ops.effects import _get_effect
    except ImportError:
        return False
    return _get_effect(op) is not None


# pure as far as their subgraphs are, which the reader of the graph looks into
_PURE_HIGHER_ORDER = (
    "associative_scan", "cond", "flex_attention", "flex_attention_backward", "foreach_map", "inline_asm_elementwise",
    "invoke_quant", "invoke_quant_packed", "invoke_subgraph", "map_impl", "out_dtype", "scan", "strict_mode",
    "tag_activation_checkpoint", "while_loop", "while_loop_stack_output", "wrap", "wrap_activation_checkpoint",
    "auto_functionalized", "auto_functionalized_v2",
)  # fmt: skip
_RANDOM_HIGHER_ORDER = (
    "graphsafe_run_with_rng_state", "run_and_save_rng_state", "run_dtensor_rng_op", "run_with_rng_state",
)  # fmt: skip
_WRITING_HIGHER_ORDER = ("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation")
_EFFECT_HIGHER_ORDER = ("call_torchbind", "print", "with_effects")


def is_higher_order(target: object, *names: str) -> bool:
    """Whether a target is one of these operators of ``torch.ops.higher_order`` (which appear as they are imported)."""
    return any(getattr(torch.ops.higher_order, name, None) is target for name in names)


def _facts_of_higher_order(op: HigherOrderOperator) -> OpFacts:
    families = (
        (_PURE_HIGHER_ORDER, Keeps.NOTHING, False),
        (_RANDOM_HIGHER_ORDER, Keeps.RANDOM, False),
        (_WRITING_HIGHER_ORDER, Keeps.NOTHING, True),
        (_EFFECT_HIGHER_ORDER, Keeps.EFFECT, False),
    )
    for names, keeps, writes_all in families:
        if is_higher_order(op, *names):
            return OpFacts(op.name(), keeps, writes_all=writes_all, nested=True)
    return OpFacts(op.name(), Keeps.BARRIER, known=False, writes_all=True)
