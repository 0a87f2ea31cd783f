"""What a node may be, by its kind and the name of its operator: what runs again, what writes, what is a view.

::

    h -> a = gelu(h) -> mm ... | ... grad(a)              a is live from gelu to grad
    h -> a = gelu(h) -> mm ... | ... again_a = gelu(h), grad(again_a)

What runs again reads what it read the first time. So it must be a pure function: no random numbers, nothing written,
no collective (that is ``Regather``).
"""

from overlap_sched.problem import OF_HOST, Kind, Node

_RANDOM = ("bernoulli", "dropout", "exponential", "multinomial", "normal", "poisson", "rand", "seed", "uniform")
"""Parts of names of operators that draw random numbers, or hand out seeds."""


def refusal(node: Node) -> str:
    """Why a node may never run again, as far as its name and kind tell; ``""``: nothing speaks against it."""
    if node.kind is not Kind.COMPUTE or node.op in OF_HOST:
        return f"is {article(node.kind.value)}"
    if node.launches:
        return f"communicates, or may ({node.op})"
    if draws(node.op):
        return f"draws random numbers ({node.op})"
    return f"writes to what it is given ({node.op})" if writes(node) else ""


def article(kind: str) -> str:
    """``"input"`` -> ``"an input"``."""
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def draws(op: str) -> bool:
    """Tell whether an operator of this name draws random numbers (attention may, too: that its name does not say)."""
    name = _name(op)
    return any(part in name for part in _RANDOM) and "backward" not in name and name != "layer_norm"


def writes(node: Node) -> bool:
    """Tell whether a compute node writes to what it is given: by its name, or as it takes time and makes nothing."""
    name = _name(node.op)
    in_place = (name.endswith("_") and not name.endswith("__")) or node.op.endswith(("out", "auto_functionalized"))
    return node.kind is Kind.COMPUTE and node.op not in OF_HOST and (in_place or (not node.alloc and node.time_us > 0))


def _name(op: str) -> str:
    parts = op.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def is_view(node: Node) -> bool:
    """Tell whether a node looks at a storage of another one: it makes nothing and takes no time."""
    return node.kind is Kind.COMPUTE and not node.alloc and not node.time_us and not writes(node)
