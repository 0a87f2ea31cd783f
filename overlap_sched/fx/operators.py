"""The traits of what a ``call_function`` node calls, found once per operator: by operator objects, not by their names.

Those of ``torch.ops`` operators come from their schemas and tags and the catalogue, those of higher-order operators
from families of ``torch.ops.higher_order``, those of Python functions from tables. Of an operator that another library
registers nothing says whether it communicates inside, but for what the user declares: where one of its arguments names
a process group it is taken for communication; all others are *opaque*: they may communicate, too.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._higher_order_ops import effects
from torch._ops import HigherOrderOperator, OpOverload

from overlap_sched.errors import OptionsError
from overlap_sched.fx.catalogue import (
    BLOCKING,
    COPIES_INPUT,
    FAMILIES,
    FENCES,
    LAST,
    LAUNCHES,
    LOCAL,
    MEANT,
    POINT_TO_POINT,
    RANDOM,
    SYNCS,
    TORCH,
    VIEWS,
    WAITS,
    WHOLE_FAMILIES,
    WRITES,
)


class Ordering(IntEnum):
    """The ordering constraint of an operator, besides its data; the weakest first."""

    NONE = 0
    RANDOM = 1
    """Draws random numbers: ordered among those that do."""
    EFFECT = 2
    """Asserts, prints, reads a value on the host: ordered among those that do."""
    BARRIER = 3
    """Unknown: ordered against everything impure and everything that touches its storages."""
    FENCE = 4
    """Changes how what follows it runs (streams, autograd mode): ordered against everything."""


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
    """
    said, name = None if op.namespace in TORCH else declared(op._schema.name), op.overloadpacket.__name__
    for role, family in ((Role.LAUNCH, LAUNCHES), (Role.WAIT, WAITS), (Role.BLOCKING, BLOCKING)):
        if said is not False and name in family.get(op.namespace, ()):
            return Comm(role, MEANT.get(name, name), name in POINT_TO_POINT, copies=op._schema.name in COPIES_INPUT)
    arguments = op._schema.arguments
    if op.namespace in FAMILIES:
        communicates = any(argument.name in ("group_name", "ranks") for argument in arguments)
    elif op.namespace in TORCH:
        communicates = op.namespace in WHOLE_FAMILIES and op._schema.name not in LOCAL
    else:
        communicates = any(map(names_a_group, arguments)) if said is None else said
    return Comm(Role.BLOCKING, name, known=said is not None or op.namespace == "symm_mem") if communicates else None


def names_a_group(argument: Any) -> bool:
    """Tell whether an argument of a schema names a process group: by what it is called and what it is."""
    kind = str(argument.type)
    return bool(_GROUP_TYPE.search(kind) or (_GROUP_NAME.fullmatch(argument.name) and _NAMED_BY.fullmatch(kind)))


def is_undeclared(op: OpOverload) -> bool:
    """Tell whether nothing but its schema says what an operator does: it may communicate, or draw random numbers."""
    listed = op.namespace in TORCH or op.overloadpacket.__name__ in BLOCKING.get(op.namespace, ())
    return not listed and declared(op._schema.name) is None


class Arg(tuple[int, str]):
    """Where an operator takes an argument: (position, name). Position -1: by name only."""

    __slots__ = ()

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], default: Any = None) -> Any:
        """The argument of a call."""
        position, name = self
        return args[position] if 0 <= position < len(args) else kwargs.get(name, default)


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


_declared: dict[str, bool] = {}


def declare_operator(op: Any, *, communicates: bool) -> None:
    """Say whether an operator of another library communicates inside; the last word counts.

    To be called before anything is compiled, alike on every rank.

    Args:
        op: ``torch.ops.library.operator``, one of its overloads, what ``torch.library.custom_op`` returns, or its name:
            ``"library::operator"``; ``"library::*"`` for all of a library that are not declared by themselves.
        communicates: ``True``: it communicates on the compute stream, and is done when it returns. It keeps its place
            among the launches of the process groups that its arguments name; where they name none, among all.
            ``False``: it does what its schema and its tags say and no more. It may pass launches, and other operators.

    Raises:
        OptionsError: That is no operator, or ``communicates`` is neither.
    """
    name = _name_of(op)
    if not re.fullmatch(r"[^.:]+::[^.:]+", name):
        raise OptionsError(f"{op!r} is no operator. Give torch.ops.library.operator, or a name: 'library::operator'.")
    if not isinstance(communicates, bool):
        raise OptionsError(f"communicates is {communicates!r}; it is True or False.")
    _declared[name] = communicates
    traits_of.cache_clear()


def declared(name: str) -> bool | None:
    """Tell whether an operator was declared to communicate (``"library::operator"``); ``None``: nothing was said."""
    return _declared.get(name, _declared.get(f"{name.partition('::')[0]}::*"))


def undeclared_text(found: Mapping[str, bool], kept: bool, apart: bool = False) -> str | None:
    """One sentence on operators of other libraries of which nothing was said; ``None``: there is nothing to tell.

    ``found``: whether they are taken for communication. ``kept``: launches keep their order, and so do the others then.
    ``apart``: process groups are kept apart, and so are the others.
    """
    where = "in its place among launches" if kept else "apart from what is in flight"
    takes, may = [n for n in sorted(found) if found[n]], [n for n in sorted(found) if not found[n] and (kept or apart)]
    said = [f"{', '.join(takes)}: takes a process group, so it is taken for communication that blocks"] if takes else []
    said += [f"{', '.join(may)}: may communicate, so it is kept {where}"] if may else []
    remedy = f"If not so: overlap_sched.declare_operator({[*takes, *may, ''][0]!r}, communicates=False)."
    return f"{'; '.join(said)}. {remedy}" if said else None


def declarations() -> tuple[tuple[str, bool], ...]:
    """All that was declared, sorted: orders depend on it."""
    return tuple(sorted(_declared.items()))


def _name_of(op: Any) -> str:
    of_overload = getattr(getattr(op, "_schema", None), "name", None)
    found = of_overload or getattr(op, "_qualified_op_name", None) or getattr(op, "_qualname", op)
    return found if isinstance(found, str) else ""


_IN_PLACE = {"delitem", "setitem", "iand", "ior"} | {f"i{name}" for name in operator.__all__}
_PURE_FUNCTIONS: frozenset[Any] = frozenset([
    *(getattr(operator, name) for name in operator.__all__ if name not in _IN_PLACE),
    *filter(callable, vars(math).values()),
    *(getattr(torch, name) for name in torch.__all__ if name.startswith("sym_")),
    *(int, float, bool, len, max, min, abs, round, pow, sum),
])  # fmt: skip
"""Functions of numbers and sizes."""
_FENCES: frozenset[Any] = frozenset({torch._C._set_grad_enabled, torch.amp._enter_autocast, torch.amp._exit_autocast})
_effect_of: Callable[[OpOverload], Any] = getattr(effects, "_get_effect", lambda op: None)  # torch 2.12
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
_RANDOM = ("graphsafe_run_with_rng_state", "run_and_save_rng_state", "run_dtensor_rng_op", "run_with_rng_state")
_WRITING = ("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation")
_EFFECT = ("call_torchbind", "print", "with_effects")


@cache
def traits_of(target: Any) -> OperatorTraits:
    """Traits of the target of a ``call_function`` node."""
    if isinstance(target, OpOverload):
        return traits_of_overload(target)
    if isinstance(target, HigherOrderOperator):
        return traits_of_higher_order(target)
    name = getattr(target, "__name__", str(target))
    if target in _PURE_FUNCTIONS:
        return OperatorTraits(name, free=True, selects=target is operator.getitem)
    if target in _FENCES:
        return OperatorTraits(name, Ordering.FENCE)
    if target in fx.node._side_effectful_functions:  # torch._assert and the like: Python functions that only look
        return OperatorTraits(name, Ordering.EFFECT, writes_all=target is operator.setitem)
    return OperatorTraits(name, Ordering.BARRIER, known=False, writes_all=True)


def _ordering_of_collective(op: OpOverload, comm: Comm) -> Ordering:
    """Return the ordering; blocks may do unseen things: symmetric operators write into memory of other ranks."""
    if op._schema.name in LAST:
        return Ordering.FENCE
    if op.namespace == "c10d":  # they return a handle: nothing in the graph shows when they end
        return Ordering.BARRIER
    unseen = comm.role is Role.BLOCKING and (op.namespace == "symm_mem" or not comm.known)
    return Ordering.EFFECT if unseen else Ordering.NONE


def traits_of_overload(op: OpOverload) -> OperatorTraits:
    """Traits of an operator, by its schema and its tags."""
    schema, name, comm = op._schema, op._schema.name, comm_of(op)
    arguments = {a.name: Arg((-1 if a.kwarg_only else i, a.name)) for i, a in enumerate(schema.arguments)}
    written = [a for a in schema.arguments if a.alias_info and a.alias_info.is_write]
    unsaid = [unsaid for unsaid in WRITES.get(name, ()) if unsaid in arguments]
    writes = tuple(arguments[one] for one in dict.fromkeys([*(a.name for a in written), *unsaid]))
    returns = _returns(op, arguments, written)
    returns_nothing = not schema.returns and not schema.is_mutable and not writes
    writes_unnamed = schema.is_mutable and not writes
    writes_out = any(position == -1 for position, _ in writes)
    aliases = tuple(arguments[a.name] for a in schema.arguments if a.alias_info)
    if comm is not None:
        return OperatorTraits(
            str(op),
            _ordering_of_collective(op, comm),
            comm,
            writes=() if comm.role is Role.WAIT and name not in WRITES else writes,
            returns=returns,
            aliases=aliases,
            writes_all=comm.point_to_point or writes_unnamed,
            writes_aliased=comm.role is Role.BLOCKING,
            overwrites=writes_out or comm.op.endswith("_out"),  # those of symm_mem take it by position
        )
    return OperatorTraits(
        str(op),
        _ordering_of(op, returns_nothing),
        writes=writes,
        returns=returns if any(returns) else (),
        writes_all=writes_unnamed or (returns_nothing and op.namespace not in _TRUSTED_NAMESPACES),
        aliases=aliases,
        writes_aliased=name not in VIEWS,
        dropout=arguments.get("dropout_p"),
        non_blocking=arguments.get("non_blocking"),
        syncs=bool({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(op.tags)) or name in SYNCS,
        free=op.overloadpacket in _EMPTIES,
        overwrites=op is _aten.copy_.default or writes_out,
    )


def _returns(op: OpOverload, arguments: Mapping[str, Arg], written: Sequence[Any]) -> tuple[Arg | None, ...]:
    """Per return value, the argument that it is or looks at, or ``None``."""
    aliased = [a for a in op._schema.arguments if a.alias_info] if _always_a_view(op) else written
    alias = {name: arguments[a.name] for a in aliased for name in a.alias_info.before_set}
    parts = next(iter(alias.values())) if len(alias) == 1 and not written else None
    return tuple(
        next((alias[name] for name in r.alias_info.before_set if name in alias), parts) if r.alias_info else None
        for r in op._schema.returns  # a list of views (``Tensor(a)[]``) has an empty set
    )


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
    if returns_nothing or handles or scalar or op in fx.node._side_effectful_functions or _effect_of(op):
        return Ordering.EFFECT
    random = torch.Tag.nondeterministic_seeded in op.tags or schema.name in RANDOM or is_undeclared(op)
    return Ordering.RANDOM if random else Ordering.NONE


def is_higher_order(target: object, *names: str) -> bool:
    """Tell whether a target is one of the operators of ``torch.ops.higher_order`` (which appear when imported)."""
    return any(getattr(torch.ops.higher_order, name, None) is target for name in names)


def only_wraps(target: object) -> bool:
    """Tell whether all that an operator does is to run one sub-graph once."""
    return is_higher_order(target, *_WRAPS)


def traits_of_higher_order(op: HigherOrderOperator) -> OperatorTraits:
    """Traits of a higher-order operator; those of what it runs are found where the node is read."""
    orderings = {_PURE: Ordering.NONE, _RANDOM: Ordering.RANDOM, _WRITING: Ordering.NONE, _EFFECT: Ordering.EFFECT}
    for names, ordering in orderings.items():
        if is_higher_order(op, *names):
            return OperatorTraits(op.name(), ordering, writes_all=names is _WRITING, nested=True)
    return OperatorTraits(op.name(), Ordering.BARRIER, known=False, writes_all=True)
