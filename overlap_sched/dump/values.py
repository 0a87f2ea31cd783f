"""Give every node of a parsed graph its value, by running torch's fake kernels on it.

Tensors are fake and on the devices of the dump, so that each operator picks the same path as in the job; where this
build has no such device, an operator that asks for it in Python is run once more on aliases of its inputs that claim
to be on the CPU (same storages), and its results claim the device again. Nothing is allocated, no kernel runs.
"""

import contextlib
import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_structure

from overlap_sched.dump import guess
from overlap_sched.dump.counting import ValueCount
from overlap_sched.dump.graph import MODES, ParsedGraph
from overlap_sched.dump.groups import DumpGroup, collective_result
from overlap_sched.dump.higher_order import hop_result
from overlap_sched.dump.operators import UnknownOp
from overlap_sched.errors import DumpError, InputTooLargeError

_CPU = torch.device("cpu")
_LARGEST_INTEGER = 2**63
_aten = torch.ops.aten
_CHECKS = frozenset(
    {
        _aten._assert_scalar.default,
        _aten._assert_async.msg,
        _aten._assert_async.default,
        _aten._assert_tensor_metadata.default,
        _aten.sym_constrain_range.default,
        _aten.sym_constrain_range_for_size.default,
    }
)
"""Run-time checks of data-dependent sizes: they have no result, and guessed sizes need not pass them."""


class Opaque(torch.nn.Module):
    """An attribute that the dump does not hold: the body of an attention's score function, a constant without shape."""


class MisfitError(Exception):
    """The value that was assumed for a data-dependent size does not fit a node: another one may.

    Attributes:
        sizes: Those of the node's inputs.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__(f"sizes {list(sizes)} do not fit")
        self.sizes = sizes


@dataclass(eq=False)
class Values:
    """Values of nodes by node, computed on demand.

    Attributes:
        parsed: The graph.
        placeholder: Gives the value of a placeholder.
        attribute: Gives the value of a get_attr node.
        submodule: Gives the graph of a submodule's body, or None.
        size: The value to assume for a data-dependent size.
        printed_size: The value of a size in an annotation, or None.
        groups: The process groups of the graph.
        notes: What was guessed, counted; added to.
        strict: Raise MisfitError where the value of a data-dependent size does not fit.
        count: Counts the values.
        results: Runs operators.
        of: Values that are known.
    """

    parsed: ParsedGraph
    placeholder: Callable[[fx.Node], Any]
    attribute: Callable[[fx.Node], Any]
    submodule: Callable[[Any, Sequence[Any]], Any]
    size: Callable[[fx.Node], int]
    printed_size: Callable[[str], int | None]
    groups: Mapping[str, DumpGroup]
    notes: dict[str, int]
    strict: bool
    count: ValueCount
    results: "Results"
    of: dict[fx.Node, Any] = field(default_factory=dict)
    _guessed: set[fx.Node] = field(default_factory=set)

    def note(self, text: str, count: int = 1) -> None:
        """Count something that was guessed."""
        self.notes[text] = self.notes.get(text, 0) + count

    def mark_guessed(self, node: fx.Node) -> None:
        """Its sizes are not known but taken."""
        self._guessed.add(node)

    def evaluate(self, node: fx.Node) -> Any:
        """The value of a node whose inputs have theirs."""
        if node in self.of:
            return self.of[node]
        match node.op:
            case "placeholder":
                value = self.placeholder(node)
            case "get_attr":
                value = self.attribute(node)
            case "output":
                value = fx.node.map_arg(node.args[0], self.of.__getitem__)
            case _:
                value = self._call(node)
        self.of[node] = value
        self.count.add(lambda: self.parsed.place(node), value)
        if node.op != "output" and not isinstance(value, torch.nn.Module):
            node.meta["val"] = value
        return value

    def _call(self, node: fx.Node) -> Any:
        if node.target in _CHECKS or node.target in MODES.values():
            return None
        if any(source in self._guessed for source in node.all_input_nodes):
            self._guessed.add(node)
        args = fx.node.map_arg(node.args, self.of.__getitem__)
        kwargs = fx.node.map_arg(node.kwargs, self.of.__getitem__)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if torch.Tag.inplace_view in getattr(node.target, "tags", ()):
            self._keep_metadata(node)
        reason = None
        self.count.check_parts(lambda: self.parsed.place(node), node.target, args, kwargs)
        try:
            value = self._run(node.target, args, kwargs, tensors)
        except InputTooLargeError:  # of a body that it runs
            raise
        except Exception as error:  # a fake kernel may raise anything; all of it becomes one message
            value, reason = NotImplemented, str(error).strip().splitlines()[:1]
        text = self.parsed.annotations.get(node.name)
        fixed = text is not None and not guess.depends_on_symbols(text)
        if reason is not None and self.strict and node in self._guessed and not fixed:
            raise MisfitError([n for tensor in tensors for n in tensor.shape])
        if text is not None and fixed and _may_change(node.target) and guess.contradicts(text, value):
            value = self._printed(node, tensors)
            self.note("results whose shape is another in this torch: taken from the printed annotation")
        if value is NotImplemented:
            value = self._guess(node, args, tensors, reason[0] if reason else guess.missing(node))
        value, count = guess.concrete(value, node.target, tensors, lambda: self.size(node))
        if count:
            self._guessed.add(node)
            self.note(f"data-dependent sizes, taken as {self.size(node)}", count)
        return value

    def _keep_metadata(self, node: fx.Node) -> None:
        """The operator changes the sizes of its argument: what was seen of it before stays as it was."""
        for source in node.all_input_nodes:
            if isinstance(value := self.of[source], torch.Tensor):
                source.meta["val"] = value.detach()

    def _run(self, target: Any, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]) -> Any:
        if isinstance(target, UnknownOp):
            return NotImplemented
        if isinstance(target, torch._ops.HigherOrderOperator):
            return hop_result(target._name, args, kwargs, self.submodule)
        if (result := collective_result(target, args, self.groups)) is not NotImplemented:
            return result
        if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return self.results.run(target, args, kwargs, tensors)
        if target is not operator.getitem and any(isinstance(leaf, str) for leaf in tree_leaves((args, kwargs))):
            raise TypeError("an operator on text")
        if target in (operator.mul, operator.add) and any(isinstance(arg, list | tuple) for arg in args):
            raise TypeError("an operator on a list")
        if target in (operator.pow, operator.lshift) and not -64 <= args[1] <= 64:
            raise OverflowError("the exponent is too large")
        value = target(*args, **kwargs)
        if isinstance(value, int) and abs(value) >= _LARGEST_INTEGER:
            raise OverflowError("the number does not fit in 64 bits")
        return value

    def _guess(self, node: fx.Node, args: Any, tensors: Sequence[torch.Tensor], reason: str) -> Any:
        """A value from what is printed, or for a node that depends on a guessed size, from its inputs."""
        value = self._printed(node, tensors)
        if value is not None:
            self.note("results whose shape was taken from the printed annotation")
            return value
        if not node.users and guess.operator_missing(node) is not None:
            return None  # as of what writes its arguments alone (``fsdp.set_`` of torch 2.5)
        if node in self._guessed:
            with contextlib.suppress(RuntimeError, TypeError, ValueError):
                value = guess.result_like(node.target, args, tensors)
        if value is not None:
            self.note("results that did not fit a data-dependent size: shaped like their largest input")
            return value
        raise DumpError(
            f"{self.parsed.place(node)}: the shape of its result cannot be found: {reason.rstrip('.')}. "
            + guess.mend(node, [one for one in node.all_input_nodes if isinstance(self.of[one], Opaque)])
        )

    def _printed(self, node: fx.Node, tensors: Sequence[torch.Tensor]) -> Any:
        def one(item: fx.Node) -> Any:
            text = self.parsed.annotations.get(item.name)
            return None if text is None else guess.annotated(text, device, self.printed_size)

        device = tensors[0].device if tensors else _CPU
        own = one(node)
        if own is not None or not node.users:
            return own
        parts = {user.args[1]: one(user) for user in node.users if user.target is operator.getitem}
        if len(parts) < len(node.users) or any(part is None for part in parts.values()):
            return None
        if all(isinstance(key, int) for key in parts):
            return tuple([parts.get(i) for i in range(max(key for key in parts if isinstance(key, int)) + 1)])
        return parts


def _may_change(target: Any) -> bool:
    """Tell whether an operator may give other shapes in another torch than that which wrote the file; ATen's do not."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace not in ("aten", "prims")


class _New(NamedTuple):
    """A tensor that has a storage of its own, without a gap."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Results:
    """Runs operators; one that was run on tensors of the same shapes, strides, dtypes and devices is not run again.

    Layers repeat: of ten operators nine are like one before. Kept is only what ATen's schemas call new, and what is.
    """

    def __init__(self) -> None:
        self._known: dict[Any, _New] = {}

    def run(self, target: Any, args: Any, kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
        """Call an operator under the fake mode."""
        key = _likeness(target, args, kwargs)
        if key in self._known:
            return fake_tensor(*self._known[key])
        value = run_operator(target, args, kwargs, tensors)
        new = None if key is None else _as_new(value, tensors)
        if new is not None:
            self._known[key] = new
        return value


def _likeness(target: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """The key of an operator's result; ``None``: the result may be something else than new tensors."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims"):
        return None
    schema = target._schema
    if any(item.alias_info is not None for item in (*schema.arguments, *schema.returns)):
        return None

    def strides(tensor: torch.Tensor) -> tuple[int, ...]:
        return tensor.stride() if tensor.layout is torch.strided else ()

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.layout, leaf.shape, leaf.dtype, leaf.device, leaf.is_conj(), leaf.is_neg(), strides(leaf)
        return type(leaf), leaf

    key = (target, *map(one, tree_leaves(args)), tree_structure(args), *map(one, tree_leaves(kwargs)), tuple(kwargs))
    with contextlib.suppress(TypeError):  # an argument without a hash
        hash(key)
        return key


def _as_new(value: Any, tensors: Sequence[torch.Tensor]) -> _New | None:
    """How to make a result anew; ``None``: it is a view, has a gap, or is no single tensor."""
    if not isinstance(value, FakeTensor) or value.layout is not torch.strided or value.constant is not None:
        return None
    if any(type(n) is not int for n in (*value.shape, *value.stride())):
        return None
    new = _New(tuple(value.shape), value.stride(), value.dtype, value.device)
    storage = value.untyped_storage()
    if any(tensor.untyped_storage()._cdata == storage._cdata for tensor in tensors):
        return None
    return new if storage.nbytes() == _bytes(new) and not (value.is_conj() or value.is_neg()) else None


def _bytes(new: _New) -> int:
    return torch._prims_common.compute_required_storage_length(new.shape, new.stride, 0) * new.dtype.itemsize


def fake_tensor(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A new fake tensor; several times as fast as ``torch.empty_strided`` under the fake mode."""
    mode = active_fake_mode()
    assert mode is not None
    with _disable_current_modes():
        return FakeTensor(mode, torch.empty_strided(shape, stride, dtype=dtype, device="meta"), device)


def run_operator(target: Any, args: Any, kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> Any:
    """Call an operator under the fake mode; once more on the CPU if this build lacks the device."""
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}  # not all fake kernels take it
    try:
        return target(*args, **kwargs)
    except Exception:  # whatever it is, the second try decides
        devices = {tensor.device for tensor in tensors} | {
            leaf for leaf in tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.device)
        }
        elsewhere = sorted((device for device in devices if device.type != "cpu"), key=str)
        if not elsewhere:
            raise
        return _run_on_cpu(target, args, kwargs, elsewhere[0])


def _run_on_cpu(target: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
    aliases: dict[int, torch.Tensor] = {}
    originals: dict[int, torch.Tensor] = {}

    def to_cpu(leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return _CPU
        if not isinstance(leaf, FakeTensor):
            return leaf
        if id(leaf) not in aliases:
            aliases[id(leaf)] = claimed(leaf, _CPU)
            originals[id(aliases[id(leaf)])] = leaf
        return aliases[id(leaf)]

    def back(leaf: Any) -> Any:
        if not isinstance(leaf, FakeTensor):
            return leaf
        return originals[id(leaf)] if id(leaf) in originals else claimed(leaf, device)

    return tree_map(back, target(*tree_map(to_cpu, args), **tree_map(to_cpu, kwargs)))


def claimed(tensor: FakeTensor, device: torch.device) -> FakeTensor:
    """An alias of a fake tensor, on the same storage, that says it is on `device`."""
    mode = tensor.fake_mode
    with in_kernel_invocation_manager(mode):
        return FakeTensor(mode, tensor, device)


@contextlib.contextmanager
def fake_execution() -> Iterator[FakeTensorMode]:
    """A fake mode in which nothing real can run: no kernel for want of a fake one, no gradient."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(allow_fallback_kernels=False, shape_env=ShapeEnv())
    log = logging.getLogger("torch._subclasses.fake_tensor")
    silent = log.disabled
    log.disabled = True  # a fake kernel that raises is tried again or reported: its traceback says nothing to users
    try:
        with torch.no_grad(), mode:
            yield mode
    finally:
        log.disabled = silent
