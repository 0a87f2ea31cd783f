"""The traits of ``torch.ops`` operators, from their schemas and tags."""

import torch
from torch import fx
from torch._ops import OpOverload

from overlap_sched.fx.catalogue import FENCES, RANDOM, SYNCS, VIEWS, WRITES
from overlap_sched.fx.collectives import Comm, Role, is_undeclared
from overlap_sched.fx.operator_traits import Arg, OperatorTraits
from overlap_sched.fx.ordering import Ordering

_aten = torch.ops.aten
_EMPTIES = frozenset(
    {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided, _aten.empty_permuted}
)
_TRUSTED_NAMESPACES = ("aten", "prims", "profiler")
"""Their schemas declare all that they write, but for :data:`~overlap_sched.fx.catalogue.WRITES`."""


def traits_of_collective(op: OpOverload, comm: Comm) -> OperatorTraits:
    """Traits of a collective or a wait."""
    schema = _Schema(op)
    return OperatorTraits(
        str(op),
        _ordering_of_collective(op, comm),
        comm,
        writes=() if comm.role is Role.WAIT and op._schema.name not in WRITES else schema.writes,
        returns=schema.returns,
        writes_all=comm.point_to_point or schema.writes_unnamed,
        overwrites=schema.writes_out or comm.op.endswith("_out"),  # those of symm_mem take it by position
    )


def _ordering_of_collective(op: OpOverload, comm: Comm) -> Ordering:
    """Return the ordering; blocks may do unseen things: symmetric operators write into memory of other ranks."""
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
        writes_aliased=name not in VIEWS and not any(a.alias_info for a in op._schema.arguments),
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
        writes: Those that it writes.
        returns: Per return value, the argument that it is or looks at, or ``None``.
        writes_unnamed: It writes, but not which arguments.
        writes_out: It writes an argument that is given by name only: ``out=``.
    """

    def __init__(self, op: OpOverload) -> None:
        schema = op._schema
        self.arguments = {a.name: Arg((-1 if a.kwarg_only else i, a.name)) for i, a in enumerate(schema.arguments)}
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
