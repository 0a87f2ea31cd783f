"""What a new node is worth, on fake tensors.

Sizes that depend on data are symbols. A call whose result has one is run as it was when the graph was traced, so that
what counts its own rows gets symbols of its own::

    whole     _local_scalar_dense(counts[0]) -> u0       all_to_all(rows, [u0, u1], ..) -> (u0 + u1, 8)
    part 0    _local_scalar_dense(..)        -> u7       all_to_all(rows, [u7, u8], ..) -> (u7 + u8, 8)

Of such a symbol is known what is known of that of the whole, as far as it is true of a part: that it is a size and not
negative; not how large it is at most, or at least. Its hint is that of the whole, divided by the number of parts.
"""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.fx.experimental.symbolic_shapes import constrain_range
from torch.utils._pytree import key_get, tree_leaves, tree_map

from overlap_sched.fx.sizes import Sizes

BINDINGS = "unbacked_bindings"
"""Metadata with which torch's compilers find where a symbol is first seen."""

_CONCLUDED = "_unbacked_replacements"
"""Where a ``ShapeEnv`` remembers which sizes are equal, once it has been asked for a hint."""


def value_of(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Compute what a call gives, straight from the meta kernels: a tenth of what a ``FakeTensorMode`` takes.

    Args:
        target: What it calls.
        args: With nodes.
        kwargs: With nodes.
    """
    values, named = _values(args), _values(kwargs)
    if target is operator.getitem:
        return target(*values)
    like = next(leaf for leaf in tree_leaves((values, named)) if isinstance(leaf, FakeTensor))
    mode, device = like.fake_mode, like.fake_device
    if named.get("device") is not None:  # what makes tensors would make real ones
        device, named = torch.device(named["device"]), {**named, "device": "meta"}
    with in_kernel_invocation_manager(mode), torch.no_grad():
        result = target(*values, **named)
    return tree_map(lambda one: FakeTensor(mode, one, device) if type(one) is torch.Tensor else one, result)


def meta_in_part(
    target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], whole: fx.Node, parts: int
) -> dict[str, Any]:
    """The value of a call in one of several parts, as metadata; with where new symbols are, where the whole says that.

    Args:
        target: What it calls.
        args: With nodes.
        kwargs: With nodes.
        whole: The call that it is a part of.
        parts: How many there are.

    Raises:
        RuntimeError: The operator does not work on these values.
    """
    values, named, of = _values(args), _values(kwargs), whole.meta["val"]
    taken, given = tree_leaves((values, named)), tree_leaves(of)
    fakes = [leaf for leaf in taken if isinstance(leaf, FakeTensor)]
    if target is operator.getitem or (fakes and not any(map(_is_symbolic, (*taken, *given)))):
        return {"val": value_of(target, args, kwargs)}
    mode = next(leaf for leaf in (*fakes, *given) if isinstance(leaf, FakeTensor)).fake_mode
    env = mode.shape_env
    pending = [] if env is None else env.pending_fresh_unbacked_symbols
    before = len(pending)
    with mode, torch.no_grad():
        value = target(*values, **named)
    if getattr(env, _CONCLUDED, None) is not None:  # the call may have shown that some sizes are equal
        setattr(env, _CONCLUDED, None)
    fresh = set(pending[before:])
    del pending[before:]  # torch would look for them in the next value that it makes
    for new, old in zip(_sizes(value), _sizes(of), strict=True):
        if isinstance(new, torch.SymInt) and isinstance(old, torch.SymInt) and new.node.expr in fresh:
            _liken(new, old, parts)
    bindings = whole.meta.get(BINDINGS)
    if not bindings:
        return {"val": value}
    return {"val": value, BINDINGS: {key_get(value, path).node.expr: path for path in bindings.values()}}


def _values(arguments: Any) -> Any:
    return fx.node.map_arg(arguments, lambda node: node.meta.get("val", ""))  # kernels look at no process group


def _is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not all(type(size) is int for size in value.shape)
    return isinstance(value, torch.SymInt)


def _sizes(value: Any) -> list[Any]:
    """All sizes in a value, in order: numbers, and shapes of tensors."""
    return [size for leaf in tree_leaves(value) for size in (leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,))]


def _liken(new: torch.SymInt, old: torch.SymInt, parts: int) -> None:
    """Tell of a symbol what is known of the whole's."""
    env, symbol, of = new.node.shape_env, new.node.expr, old.node._expr  # as it was made, not what it is known to be
    if of in env.size_like:
        env.size_like.add(symbol)
    known = env.var_to_range.get(of)
    if known is not None and known.lower >= 0:
        constrain_range(new, min=0)
    hints = getattr(env, "var_to_hint_override", None)  # torch 2.11 has none
    sizes = Sizes((), env)
    if hints is not None and not sizes.follows(of):
        hints[symbol] = -(-sizes.largest(of) // parts)
