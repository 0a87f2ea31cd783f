"""The traits of what a ``call_function`` node calls, found once per operator.

Those of ``torch.ops`` operators come from their schemas and tags, those of higher-order operators from families of
``torch.ops.higher_order``, those of Python functions from tables.
"""

import math
import operator
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from overlap_sched.fx.catalogue import FENCES, LAST, RANDOM, SYNCS, VIEWS, WRITES
from overlap_sched.fx.collectives import Comm, Role, comm_of, is_undeclared
from overlap_sched.fx.hazards import Ordering
from overlap_sched.fx.operator_traits import Arg, OperatorTraits

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
_TRUSTED_NAMESPACES = ("aten", "prims", "profiler")
"""Their schemas declare all that they write, but for :data:`~overlap_sched.fx.catalogue.WRITES`."""
# they run one sub-graph once, and do nothing else
_WRAPS = (
    "control_deps", "dynamo_bypassing_wrapper", "hints_wrapper", "invoke_quant", "invoke_quant_packed",
    "invoke_subgraph", "local_map_hop", "strict_mode", "tag_activation_checkpoint", "wrap",
    "wrap_activation_checkpoint", "wrap_with_autocast", "wrap_with_set_grad_enabled",
)  # fmt: skip
# pure as far as their subgraphs are, which the reader of the graph looks into
_PURE = (
    *_WRAPS, "associative_scan", "auto_functionalized", "auto_functionalized_v2", "cond", "flex_attention",
    "flex_attention_backward", "foreach_map", "inline_asm_elementwise", "map_impl", "out_dtype", "scan", "while_loop",
    "while_loop_stack_output",
)  # fmt: skip
_RANDOM = (
    "graphsafe_run_with_rng_state", "run_and_save_rng_state", "run_dtensor_rng_op", "run_with_rng_state",
)  # fmt: skip
_WRITING = ("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation")
_EFFECT = ("call_torchbind", "print", "with_effects")


@cache
def traits_of(target: Any) -> OperatorTraits:
    """Traits of the target of a ``call_function`` node."""
    if isinstance(target, OpOverload):
        comm = comm_of(target)
        return traits_of_overload(target) if comm is None else traits_of_collective(target, comm)
    if isinstance(target, HigherOrderOperator):
        return traits_of_higher_order(target)
    name = getattr(target, "__name__", str(target))
    if target is operator.getitem:
        return OperatorTraits(name, free=True, selects=True)
    if target in _PURE_FUNCTIONS:
        return OperatorTraits(name, free=True)
    if target in _FENCES:
        return OperatorTraits(name, Ordering.FENCE)
    if target in fx.node._side_effectful_functions:  # torch._assert and the like: Python functions that only look
        return OperatorTraits(name, Ordering.EFFECT, writes_all=target is operator.setitem)
    return OperatorTraits(name, Ordering.BARRIER, known=False, writes_all=True)


def traits_of_collective(op: OpOverload, comm: Comm) -> OperatorTraits:
    """Traits of a collective or a wait."""
    schema = _Schema(op)
    return OperatorTraits(
        str(op),
        _ordering_of_collective(op, comm),
        comm,
        writes=() if comm.role is Role.WAIT and op._schema.name not in WRITES else schema.writes,
        returns=schema.returns,
        aliases=schema.aliases,
        writes_all=comm.point_to_point or schema.writes_unnamed,
        writes_aliased=comm.role is Role.BLOCKING,
        overwrites=schema.writes_out or comm.op.endswith("_out"),  # those of symm_mem take it by position
    )


def _ordering_of_collective(op: OpOverload, comm: Comm) -> Ordering:
    """Return the ordering; blocks may do unseen things: symmetric operators write into memory of other ranks."""
    if op._schema.name in LAST:
        return Ordering.FENCE
    if op.namespace == "c10d":  # they return a handle: nothing in the graph shows when they end
        return Ordering.BARRIER
    unseen = comm.role is Role.BLOCKING and (op.namespace == "symm_mem" or not comm.known)
    return Ordering.EFFECT if unseen else Ordering.NONE


def traits_of_overload(op: OpOverload) -> OperatorTraits:
    """Traits of any other operator."""
    schema, tags, name = _Schema(op), op.tags, op._schema.name
    returns_nothing = not op._schema.returns and not op._schema.is_mutable and not schema.writes
    may_write_all = returns_nothing and op.namespace not in _TRUSTED_NAMESPACES
    return OperatorTraits(
        str(op),
        _ordering_of(op, returns_nothing),
        writes=schema.writes,
        returns=schema.returns if any(schema.returns) else (),
        writes_all=schema.writes_unnamed or may_write_all,
        aliases=schema.aliases,
        writes_aliased=name not in VIEWS,
        dropout=schema.arguments.get("dropout_p"),
        non_blocking=schema.arguments.get("non_blocking"),
        syncs=torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags or name in SYNCS,
        free=op.overloadpacket in _EMPTIES,
        overwrites=op is _aten.copy_.default or schema.writes_out,
    )


class _Schema:
    """What a schema says of its arguments.

    Attributes:
        arguments: Where the operator takes them, by name.
        aliases: Those that it writes, or may return.
        writes: Those that it writes.
        returns: Per return value, the argument that it is or looks at, or ``None``.
        writes_unnamed: It writes, but not which arguments.
        writes_out: It writes an argument that is given by name only: ``out=``.
    """

    def __init__(self, op: OpOverload) -> None:
        schema = op._schema
        self.arguments = {a.name: Arg((-1 if a.kwarg_only else i, a.name)) for i, a in enumerate(schema.arguments)}
        self.aliases = tuple(self.arguments[a.name] for a in schema.arguments if a.alias_info)
        written = [a for a in schema.arguments if a.alias_info and a.alias_info.is_write]
        unseen = [name for name in WRITES.get(schema.name, ()) if name in self.arguments]
        self.writes = tuple(self.arguments[name] for name in dict.fromkeys([*(a.name for a in written), *unseen]))
        aliased = [a for a in schema.arguments if a.alias_info] if _always_a_view(op) else written
        alias = {name: self.arguments[a.name] for a in aliased for name in a.alias_info.before_set}
        parts = next(iter(alias.values())) if len(alias) == 1 and not written else None
        self.returns = tuple(
            next((alias[name] for name in r.alias_info.before_set if name in alias), parts) if r.alias_info else None
            for r in schema.returns  # a list of views (``Tensor(a)[]``) has an empty set
        )
        self.writes_unnamed = schema.is_mutable and not self.writes
        self.writes_out = any(position == -1 for position, _ in self.writes)


def _always_a_view(op: OpOverload) -> bool:
    """Tell whether what its schema calls a view is one: what is composed of other operators (``reshape``) may copy."""
    try:
        return not op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
    except RuntimeError:  # of TorchScript alone (``aten::add_.t``): not in the dispatcher
        return False


def _ordering_of(op: OpOverload, returns_nothing: bool) -> Ordering:
    if op.namespace in FENCES:
        return Ordering.FENCE
    schema = op._schema
    handles = any(a.type.kind() == "ClassType" for a in (*schema.arguments, *schema.returns))
    scalar = op is _aten._local_scalar_dense.default
    if returns_nothing or handles or scalar or op in fx.node._side_effectful_functions or _has_effect(op):
        return Ordering.EFFECT
    random = torch.Tag.nondeterministic_seeded in op.tags or schema.name in RANDOM or is_undeclared(op)
    return Ordering.RANDOM if random else Ordering.NONE


def _has_effect(op: OpOverload) -> bool:
    try:
        from torch._higher_order_ops.effects import _get_effect
    except ImportError:
        return False
    return _get_effect(op) is not None


def is_higher_order(target: object, *names: str) -> bool:
    """Tell whether a target is one of the operators of ``torch.ops.higher_order`` (which appear when imported)."""
    return any(getattr(torch.ops.higher_order, name, None) is target for name in names)


def only_wraps(target: object) -> bool:
    """Tell whether all that an operator does is to run one sub-graph once."""
    return is_higher_order(target, *_WRAPS)


def traits_of_higher_order(op: HigherOrderOperator) -> OperatorTraits:
    """Traits of a higher-order operator; those of what it runs are found where the node is read."""
    families = (
        (_PURE, Ordering.NONE, False),
        (_RANDOM, Ordering.RANDOM, False),
        (_WRITING, Ordering.NONE, True),
        (_EFFECT, Ordering.EFFECT, False),
    )
    for names, ordering, writes_all in families:
        if is_higher_order(op, *names):
            return OperatorTraits(op.name(), ordering, writes_all=writes_all, nested=True)
    return OperatorTraits(op.name(), Ordering.BARRIER, known=False, writes_all=True)
