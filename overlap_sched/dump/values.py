"""Give every node of a parsed graph its value, by running torch's fake kernels on it.

Tensors are fake and on the devices of the dump, so that each operator picks the same path as in the job; where this
build has no such device, an operator that asks for it in Python is run once more on aliases of its inputs that claim
to be on the CPU (same storages), and its results claim the device again. Nothing is allocated, no kernel runs.
"""

import contextlib
import logging
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._guards import active_fake_mode
from torch._higher_order_ops.flex_attention import flex_attention_backward_fake_tensor_mode, flex_attention_fake_impl
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._dtype_abbrs import dtype_abbrs
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map

from overlap_sched.dump.graph import MODES, ParsedGraph, UnknownOp, device_named
from overlap_sched.dump.groups import DumpGroup, collective_result
from overlap_sched.errors import DumpError, InputTooLargeError
from overlap_sched.fx.operators import arguments_of
from overlap_sched.fx.sizes import RANGES
from overlap_sched.problem.file import too_large

_aten = torch.ops.aten
_PARTS: Mapping[str, Callable[[int, int], int]] = {
    **dict.fromkeys(("unbind", "unbind_copy"), lambda length, _: length),
    **dict.fromkeys(("split", "split_copy", "unsafe_split"), lambda length, size: -(-length // max(size, 1))),
    **dict.fromkeys(("chunk", "unsafe_chunk"), min),
    **dict.fromkeys(("tensor_split", "hsplit", "vsplit", "dsplit"), lambda _, sections: sections),
}
"""How many parts an operator makes of a dimension of some length, by its number."""


def parts_made(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """How many parts an operator makes of its first argument; 0: none, or as many as the file lists."""
    op = getattr(target, target.overloads()[0]) if isinstance(target, torch._ops.OpOverloadPacket) else target
    if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten" or op._opname not in _PARTS:
        return 0
    given = arguments_of(op, args, kwargs)
    source, dim = given.pop(op._schema.arguments[0].name, None), given.pop("dim", 0)
    if not isinstance(source, torch.Tensor) or type(dim) is not int or not -source.dim() <= dim < source.dim():
        return 0
    length, how = source.shape[dim], next(iter(given.values()), 0)
    return _PARTS[op._opname](length, how) if type(length) is int and type(how) is int else 0


Body = Callable[[Any, Sequence[Any]], Any]
"""Runs the printed body of a submodule on values; returns None where the dump has no body for it."""


def hop_result(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], body: Body) -> Any:
    """The value of ``torch.ops.higher_order.<name>(*args, **kwargs)``, to be called under the fake mode.

    A Triton kernel's results look like the tensors passed. Returns NotImplemented for operators whose result cannot be
    told.
    """
    results = [body(*call) for call in _BODIES[name](args)] if name in _BODIES else [None]
    if name in _RULES:
        return run_operator(_RULES[name], args, kwargs, tensors_in(args, kwargs))
    if name in _CALLERS:
        return _result_of_call(name, args, kwargs)
    return NotImplemented if results[0] is None else results[0]


def _result_of_call(name: str, given: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what an operator gives that only calls another one."""
    op, *args = given[_CALLERS[name] :]
    known, bases = isinstance(op, torch._ops.OpOverload), kwargs.get("_all_bases")
    if known and name.startswith("auto_functionalized"):
        return getattr(torch.ops.higher_order, name)(op, **kwargs)
    if not known:  # what it writes may be known all the same, and most such return nothing else
        return NotImplemented if bases is None else (None, *map(_clone, bases))
    result = op(*args, **{key: value for key, value in kwargs.items() if key != "rng_state"})
    if name == "run_and_save_rng_state":
        return torch.empty(16, dtype=torch.uint8, device="cpu"), result
    if name == "with_effects":
        token = torch.empty_like(given[0]) if isinstance(given[0], torch.Tensor) else torch.empty(0)
        return (token, *(result if isinstance(result, tuple) else (result,)))
    return result


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor with its strides, gaps included."""
    needed = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1 if tensor.numel() else 0
    return tensor.new_empty(needed).as_strided(tensor.shape, tensor.stride())


_RULES: Mapping[str, Callable[..., Any]] = {
    "triton_kernel_wrapper_functional": lambda *, kwargs, tensors_to_clone, **_: {
        name: _clone(kwargs[name]) for name in kwargs if name in tensors_to_clone
    },
    "triton_kernel_wrapper_mutation": lambda **_: None,
    "flex_attention": flex_attention_fake_impl,
    "flex_attention_backward": flex_attention_backward_fake_tensor_mode,
    # what looks like the loop's input: its body may not change shapes
    "while_loop": lambda cond, body, carried, *_: tuple(
        [_clone(item) if isinstance(item, torch.Tensor) else item for item in carried]
    ),
    "print": lambda *_, **__: None,
}
_CALLERS = {
    **dict.fromkeys(("with_effects", "run_with_rng_state"), 1),
    **dict.fromkeys(("run_and_save_rng_state", "graphsafe_run_with_rng_state"), 0),
    **dict.fromkeys(("auto_functionalized", "auto_functionalized_v2"), 0),
}
"""Operators that call another one: where it stands among their arguments."""

# what is called with what: (submodule, its operands), the one that gives the result first
_BODIES: Mapping[str, Callable[[Sequence[Any]], list[tuple[Any, Sequence[Any]]]]] = {
    "invoke_subgraph": lambda args: [(args[0], args[2:])],
    "cond": lambda args: [(args[1], args[3]), (args[2], args[3])],
    "control_deps": lambda args: [(args[1], args[2:])],
    "while_loop": lambda args: [(run, [*args[2], *(args[3] if len(args) > 3 else ())]) for run in args[:2]],
    **dict.fromkeys(
        ("local_map_hop", "tag_activation_checkpoint", "wrap", "wrap_activation_checkpoint"),
        lambda args: [(args[0], args[1:])],
    ),
}


_DTYPES = {short: dtype for dtype, short in dtype_abbrs.items()}
_TENSOR = re.compile(r"^(?:\w+\()?(\w+)\[([^\]]*)\](?:\[([^\]]*)\])?(\w+(?::\d+)?)?")
_COMMA = re.compile(r",(?![^()]*\))")
"""Between sizes, not between the arguments of ``Max(1, s0)``."""
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def annotated(text: str, device: torch.device, size_of: Callable[[str], int | None]) -> torch.Tensor | int | None:
    """The value that an annotation such as ``bf16[8, 4][4, 1]cuda:0`` or ``Sym(s0)`` describes; None: none.

    To be called under the fake mode.
    """
    if text.startswith("Sym(") and text.endswith(")"):
        return int(text[4:-1]) if text[4:-1].isdecimal() else size_of(text[4:-1])
    match = _TENSOR.match(text)
    if match is None or match[1] not in _DTYPES:
        return None
    shape = _sizes(match[2], size_of)
    stride = None if match[3] is None else _sizes(match[3], size_of)
    if shape is not None and (stride is None or len(stride) == len(shape)):
        with contextlib.suppress(RuntimeError):
            return fake_tensor(shape, stride, _DTYPES[match[1]], device_named(match[4]) if match[4] else device)
    return None


def contradicts(text: str, value: Any) -> bool:
    """Tell whether an annotation without symbols gives a tensor another shape or type than it has."""
    match = _TENSOR.match(text)
    if match is None or match[1] not in _DTYPES or not isinstance(value, torch.Tensor):
        return False
    return _sizes(match[2], lambda _: None) != list(value.shape) or _DTYPES[match[1]] is not value.dtype


def depends_on_symbols(text: str) -> bool:
    """Tell whether an annotation has sizes with names in them."""
    match = _TENSOR.match(text)
    return match is None or bool(re.search(r"[A-Za-z]", f"{match[2]},{match[3] or ''}"))


def _sizes(text: str, size_of: Callable[[str], int | None]) -> list[int] | None:
    parts = [part.strip() for part in _COMMA.split(text) if part.strip()]
    sizes = [int(part) if part.isdecimal() else size_of(part) for part in parts]
    return None if None in sizes else [size for size in sizes if size is not None]


def concrete(value: Any, target: Any, inputs: Sequence[torch.Tensor], size_of: Callable[[], int]) -> Any:
    """`value` with every data-dependent size replaced.

    A result never gets more rows than the largest input has elements, except where an operator repeats.
    """

    def one(item: Any) -> Any:
        if not any(isinstance(n, _SYMBOLIC) for n in (item.shape if isinstance(item, torch.Tensor) else (item,))):
            return item
        size = size_of()
        if isinstance(item, torch.SymInt):
            return size
        if not isinstance(item, torch.Tensor):
            return True if isinstance(item, torch.SymBool) else 1.0
        limiting = () if target is _aten.repeat_interleave.Tensor else inputs
        most = max([tensor.numel() for tensor in limiting], default=size)
        shape = [min(size, most) if isinstance(n, torch.SymInt) else n for n in item.shape]
        return torch.empty(shape, dtype=item.dtype, device=item.device)

    return one(value) if isinstance(value, torch.Tensor) else tree_map(one, value)


def result_like(target: Any, args: Sequence[Any], tensors: Sequence[torch.Tensor]) -> Any:
    """Return what an operator would return if its data-dependent sizes did fit; None where nothing is known.

    For nodes that refuse sizes which were guessed: a view takes the sizes it asks for, the rest follow their
    largest input.
    """
    if not tensors or not isinstance(target, torch._ops.OpOverload):
        return None
    first = tensors[0]
    if target in (_aten.split_with_sizes.default, _aten.split_with_sizes_copy.default):
        dim = args[2] if len(args) > 2 else 0
        shapes = [[n if i != dim % first.dim() else part for i, n in enumerate(first.shape)] for part in args[1]]
        return [first.new_empty(shape) for shape in shapes]
    if target in (_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default, _aten.expand.default):
        known = math.prod(n for n in args[1] if n >= 0)
        return first.new_empty([n if n >= 0 else max(first.numel() // max(known, 1), 1) for n in args[1]])
    if len(target._schema.returns) == 1 and str(target._schema.returns[0].type) == "Tensor":
        return torch.empty_like(max(tensors, key=lambda tensor: tensor.numel()))
    return None


def _explain(node: fx.Node, constants: Sequence[fx.Node]) -> tuple[str, str]:
    """Say why fake execution has no value for a node, and what the user can do about it.

    ``constants``: those of its inputs that the file describes nowhere.
    """
    parts = [user.name for user in node.users if user.target is operator.getitem]
    it, name = ("each of its parts", parts[0]) if parts else ("it", node.name)
    annotate = f'annotate {it} by hand (`{name}: "bf16[8, 4]" = ...`).'
    why = "this torch build cannot tell the shapes of its results"
    if missing := operator_missing(node):
        repair = f"Import the package that registers it first (--import PACKAGE on the command line), or {annotate}"
        return f"this torch build does not know the operator {missing}", repair
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        repair = f"Load the graph as tlparse prints it for reading, bodies included (aot_forward_graph), or {annotate}"
        return "the dump does not hold the body that this higher-order operator runs", repair
    if constants:
        name = str(constants[0].target)
        return why, f'torch has not written self.{name}: annotate it by hand (`{name}: "i64[4]" = self.{name}`).'
    return why, f"Load it with the torch that wrote it, or {annotate}"


def operator_missing(node: fx.Node) -> str | None:
    """Return the name of the operator that this torch lacks: the node's own, or that which a higher-order one calls."""
    return next((item.__name__ for item in (node.target, *node.args) if isinstance(item, UnknownOp)), None)


_CPU = torch.device("cpu")
_ASSERTS = (_aten._assert_scalar.default, _aten._assert_async.msg, _aten._assert_async.default)
_CHECKS = frozenset((*_ASSERTS, *RANGES, _aten._assert_tensor_metadata.default))
"""Run-time checks of data-dependent sizes: they have no result, and guessed sizes need not pass them."""


class Opaque(torch.nn.Module):
    """An attribute that the dump does not hold: the body of an attention's score function, a constant without shape."""


class MisfitError(Exception):
    """The value that was assumed for a data-dependent size does not fit a node: another one may.

    Its arguments are the sizes of the node's inputs.
    """


class Values:
    """Values of the nodes of a dump, computed on demand. Subclasses say what is an input, a constant, and a size.

    ``placeholder`` gives the value of an input, ``attribute`` that of a constant or a submodule, ``size`` the value to
    assume for a data-dependent size, ``printed_size`` that of a size in an annotation, or None.

    Args:
        graphs: The graph, and those that it runs.
        groups: Their process groups.
        results: Runs operators.
        limit: Of the number of values: a short dump can ask for ten million, or run one body again and again. Each part
            of a list of results counts as one.
        strict: Raise MisfitError where the value of a data-dependent size does not fit.

    Attributes:
        of: Values that are known.
        notes: What was guessed.
    """

    def __init__(
        self,
        graphs: Iterable[ParsedGraph],
        groups: Mapping[str, DumpGroup],
        results: "Results",
        limit: int,
        strict: bool,
    ) -> None:
        self._parsed = {parsed.graph: parsed for parsed in graphs}
        self._main = next(iter(self._parsed))
        self._groups, self._results, self._strict = groups, results, strict
        self._limit, self._count = limit, 0
        self.of: dict[fx.Node, Any] = {}
        self.notes: dict[str, None] = {}
        self.guessed_nodes: set[fx.Node] = set()
        self._before: dict[fx.Node, torch.Tensor] = {}

    printed_size: Callable[[str], int | None]
    placeholder: Callable[[fx.Node], Any]
    attribute: Callable[[fx.Node], Any]
    size: Callable[[str], int]

    def evaluate(self, node: fx.Node) -> Any:
        """The value of a node whose inputs have theirs."""
        if node in self.of:
            return self.of[node]
        match node.op:
            case "placeholder":
                value = self.placeholder(node)
            case "get_attr":
                value = self.attribute(node) if node.graph is self._main else Opaque()
            case "output":
                value = fx.node.map_arg(node.args[0], self.of.__getitem__)
            case _:
                value = self._call(node)
        self.of[node] = value
        made = len(value) if isinstance(value, list | tuple) else 1
        self._check_count(node, made, "with this node")
        self._count += made
        return value

    def write_meta(self) -> None:
        """Put the values into ``meta["val"]`` of the nodes; of what an operator changes in place, those before."""
        for node, value in {**self.of, **self._before}.items():
            if node.op != "output" and not isinstance(value, torch.nn.Module):
                node.meta["val"] = value

    def _run_body(self, module: Any, operands: Sequence[Any]) -> Any:
        """Run the printed body of a submodule; None where there is none."""
        if not isinstance(module, fx.GraphModule):
            return None
        given, result = iter(operands), None
        for node in module.graph.nodes:
            self.of.pop(node, None)
            if node.op == "placeholder":
                self.of[node] = next(given, None)
            result = self.evaluate(node)
        return tuple(result) if isinstance(result, list) else result

    def _call(self, node: fx.Node) -> Any:
        if node.target in _CHECKS or node.target in MODES.values():
            return None
        if not self.guessed_nodes.isdisjoint(node.all_input_nodes):
            self.guessed_nodes.add(node)
        args = fx.node.map_arg(node.args, self.of.__getitem__)
        kwargs = fx.node.map_arg(node.kwargs, self.of.__getitem__)
        tensors = tensors_in(args, kwargs)
        if torch.Tag.inplace_view in getattr(node.target, "tags", ()):  # the sizes of its argument change
            for source in node.all_input_nodes:
                if isinstance(self.of[source], torch.Tensor):
                    self._before.setdefault(source, self.of[source].detach())
        reason, parsed = None, self._parsed[node.graph]
        parts = parts_made(node.target, args, kwargs)
        self._check_count(node, parts, f"its result has {parts:,} parts; with them")
        try:
            value = self._run(node.target, args, kwargs, tensors)
        except InputTooLargeError:  # of a body that it runs
            raise
        except Exception as error:  # a fake kernel may raise anything; all of it becomes one message
            value, reason = NotImplemented, str(error).strip().splitlines()[:1]
        text = parsed.annotations.get(node.name)
        fixed = text is not None and not depends_on_symbols(text)
        if reason is not None and self._strict and node in self.guessed_nodes and not fixed:
            raise MisfitError(*(n for tensor in tensors for n in tensor.shape))
        ours = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in ("aten", "prims")
        if text is not None and fixed and not ours and contradicts(text, value):  # another torch has written the file
            value = self._printed(node, tensors)
            self.notes["results whose shape is another in this torch: taken from the printed annotation"] = None
        if value is NotImplemented:
            value = self._guess(node, args, tensors, reason)

        def size_of() -> int:
            self.guessed_nodes.add(node)
            return self.size(node.name)

        return concrete(value, node.target, tensors, size_of)

    def _check_count(self, node: fx.Node, more: int, what: str) -> None:
        if self._count + more > self._limit:
            fault = f"{what} the graph has more than {self._limit:,} nodes, which is the limit"
            raise too_large(f"{self._parsed[node.graph].place(node)}: {fault}", "nodes")

    def _run(self, target: Any, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]) -> Any:
        if isinstance(target, UnknownOp):
            return NotImplemented
        if isinstance(target, torch._ops.HigherOrderOperator):
            return hop_result(target._name, args, kwargs, self._run_body)
        if (result := collective_result(target, args, self._groups)) is not NotImplemented:
            return result
        if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return self._results.run(target, args, kwargs, tensors)
        if target is not operator.getitem and any(isinstance(leaf, str) for leaf in tree_leaves((args, kwargs))):
            raise TypeError("an operator on text")
        if target in (operator.mul, operator.add) and any(isinstance(arg, list | tuple) for arg in args):
            raise TypeError("an operator on a list")
        if target in (operator.pow, operator.lshift) and not -64 <= args[1] <= 64:
            raise OverflowError("the exponent is too large")
        value = target(*args, **kwargs)
        if isinstance(value, int) and abs(value) >= 2**63:
            raise OverflowError("the number does not fit in 64 bits")
        return value

    def _guess(self, node: fx.Node, args: Any, tensors: Sequence[torch.Tensor], reason: Sequence[str] | None) -> Any:
        """A value from what is printed, or for a node that depends on a guessed size, from its inputs."""
        value = self._printed(node, tensors)
        if value is not None:
            self.notes["results whose shape was taken from the printed annotation"] = None
            return value
        if not node.users and operator_missing(node):
            return None  # as of what writes its arguments alone
        if node in self.guessed_nodes:
            with contextlib.suppress(RuntimeError, TypeError, ValueError):
                value = result_like(node.target, args, tensors)
        if value is not None:
            self.notes["results that did not fit a data-dependent size: shaped like their largest input"] = None
            return value
        why, repair = _explain(node, [one for one in node.all_input_nodes if isinstance(self.of[one], Opaque)])
        why, place = (reason[0] if reason else why).rstrip("."), self._parsed[node.graph].place(node)
        raise DumpError(f"{place}: the shape of its result cannot be found: {why}. {repair}")

    def _printed(self, node: fx.Node, tensors: Sequence[torch.Tensor]) -> Any:
        device, texts = tensors[0].device if tensors else _CPU, self._parsed[node.graph].annotations

        def one(item: fx.Node) -> Any:
            return annotated(texts[item.name], device, self.printed_size) if item.name in texts else None

        own = one(node)
        if own is not None or not node.users:
            return own
        parts = {user.args[1]: one(user) for user in node.users if user.target is operator.getitem}
        if len(parts) < len(node.users) or any(part is None for part in parts.values()):
            return None
        return tuple([parts.get(i) for i in range(max(parts) + 1)]) if all(type(key) is int for key in parts) else parts


class Results:
    """Runs operators; one that was run on tensors of the same shapes, strides, dtypes and devices is not run again.

    Layers repeat: of ten operators nine are like one before. Kept are single tensors, new ones and views.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, ...]] = {}

    def run(self, target: Any, args: Any, kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
        """Call an operator under the fake mode."""
        key = (target, _likeness(args), _likeness(kwargs)) if _is_pure(target) else None
        try:
            shape, stride, dtype, device, source, offset = self._known[key]
        except (KeyError, TypeError):  # not seen before, or an argument without a hash
            value = run_operator(target, args, kwargs, tensors)
            if key is not None and (found := _described(value, tensors)) is not None:
                with contextlib.suppress(TypeError):
                    self._known[key] = found
            return value
        storage = None if source is None else tensors[source].untyped_storage()
        return fake_tensor(shape, stride, dtype, device, storage, offset)


@cache
def _is_pure(target: Any) -> bool:
    """Tell whether an operator writes none of its arguments, nor what only it knows."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims", "_c10d_functional"):
        return False
    infos = [item.alias_info for item in (*target._schema.arguments, *target._schema.returns)]
    return not any(info is not None and info.is_write for info in infos)


def _likeness(value: Any) -> Any:
    """List what of an argument decides how the result looks."""
    if isinstance(value, torch.Tensor):
        strides = (value.stride(), value.storage_offset()) if value.layout is torch.strided else value.layout
        return value.shape, strides, value.dtype, value.device, value.is_conj(), value.is_neg()
    if isinstance(value, list | tuple):
        return type(value), *map(_likeness, value)
    if isinstance(value, dict):
        return tuple(value), *map(_likeness, value.values())
    return type(value), value


def _described(value: Any, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...] | None:
    """How to make a result anew, on which argument's storage; ``None``: it has a gap, or is no single plain tensor."""
    if not isinstance(value, FakeTensor) or value.layout is not torch.strided or value.constant is not None:
        return None
    offset = value.storage_offset()
    if any(type(n) is not int for n in (*value.shape, *value.stride(), offset)) or value.is_conj() or value.is_neg():
        return None
    shape, storage = tuple(value.shape), value.untyped_storage()
    sources = [i for i, tensor in enumerate(tensors) if tensor.untyped_storage()._cdata == storage._cdata]
    needed = torch._prims_common.compute_required_storage_length(shape, value.stride(), 0) * value.dtype.itemsize
    if not sources and (offset or storage.nbytes() != needed):
        return None
    return shape, value.stride(), value.dtype, value.device, next(iter(sources), None), offset


def tensors_in(*values: Any) -> list[torch.Tensor]:
    """The tensors among arguments."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def fake_tensor(
    shape: Sequence[int],
    stride: Sequence[int] | None,
    dtype: torch.dtype,
    device: torch.device,
    storage: torch.UntypedStorage | None = None,
    offset: int = 0,
) -> torch.Tensor:
    """A fake tensor, new or on a storage, which grows to what it needs; faster than by operators under the fake mode.

    Without strides it is contiguous.
    """
    mode = active_fake_mode()
    assert mode is not None
    with no_dispatch():
        if stride is None:
            stride = torch.empty(shape, device="meta").stride()
        if storage is None:
            made = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        else:
            made = torch.empty(0, dtype=dtype, device="meta").set_(storage, offset, shape, stride)
        return FakeTensor(mode, made, device)


def run_operator(target: Any, args: Any, kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
    """Call an operator under the fake mode; once more on the CPU if this build lacks the device."""
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}  # not all fake kernels take it
    try:
        return target(*args, **kwargs)
    except Exception:  # whatever it is, the second try decides
        leaves = (leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.device))
        devices = {*leaves, *(tensor.device for tensor in tensors)}
        elsewhere = sorted((device for device in devices if device.type != "cpu"), key=str)
        if not elsewhere:
            raise
    given = {id(one): one for one in tensors}
    on_cpu = {key: _claimed(one, _CPU) for key, one in given.items()}
    originals = {id(alias): given[key] for key, alias in on_cpu.items()}

    def to_cpu(leaf: Any) -> Any:
        return _CPU if isinstance(leaf, torch.device) else on_cpu.get(id(leaf), leaf)

    def back(leaf: Any) -> Any:
        return originals[id(leaf)] if id(leaf) in originals else _claimed(leaf, elsewhere[0])

    return tree_map(back, target(*tree_map(to_cpu, args), **tree_map(to_cpu, kwargs)))


def _claimed(leaf: Any, device: torch.device) -> Any:
    """An alias of a fake tensor, on the same storage, that says it is on `device`; what else there is, itself."""
    if not isinstance(leaf, FakeTensor):
        return leaf
    with in_kernel_invocation_manager(leaf.fake_mode):
        return FakeTensor(leaf.fake_mode, leaf, device)


@contextlib.contextmanager
def fake_execution() -> Iterator[FakeTensorMode]:
    """A fake mode in which nothing real can run: no kernel for want of a fake one, no gradient."""
    mode = FakeTensorMode(allow_fallback_kernels=False, shape_env=ShapeEnv())
    log = logging.getLogger("torch._subclasses.fake_tensor")
    silent = log.disabled
    log.disabled = True  # a fake kernel that raises is tried again or reported: its traceback says nothing to users
    try:
        with torch.no_grad(), mode:
            yield mode
    finally:
        log.disabled = silent
