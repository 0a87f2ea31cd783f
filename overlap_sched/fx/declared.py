"""What the user says of operators that torch does not know.

Of an operator that another library registers nothing says whether it communicates inside. Where one of its arguments
names a process group it is taken for communication; all others are *opaque*: they may communicate, too.
"""

from collections.abc import Mapping
from typing import Any

from overlap_sched.errors import OptionsError

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
    library, _, operator = name.partition("::")
    if not library or not operator or "." in name:
        raise OptionsError(
            f"{op!r} is no operator. Give torch.ops.library.operator, or a name: 'library::operator', 'library::*'."
        )
    if not isinstance(communicates, bool):
        raise OptionsError(f"communicates is {communicates!r}; it is True or False.")
    _declared[name] = communicates
    from overlap_sched.fx.operators import traits_of

    traits_of.cache_clear()


def declared(name: str) -> bool | None:
    """Tell whether an operator was declared to communicate (``"library::operator"``); ``None``: nothing was said."""
    return _declared.get(name, _declared.get(f"{name.partition('::')[0]}::*"))


def undeclared_text(found: Mapping[str, bool], kept: bool, apart: bool = False) -> str | None:
    """One sentence on operators of other libraries of which nothing was said; ``None``: there is nothing to tell.

    ``found``: whether they are taken for communication. ``kept``: launches keep their order, and so do the others then.
    ``apart``: process groups are kept apart, and so are the others.
    """
    communicates = [name for name in sorted(found) if found[name]]
    may = [name for name in sorted(found) if not found[name]] if kept or apart else []
    parts = []
    if communicates:
        takes = "take process groups: they are" if len(communicates) > 1 else "takes a process group: it is"
        parts.append(f"{', '.join(communicates)} {takes} taken for communication that blocks")
    if may:
        keep = "keep their places" if len(may) > 1 else "keeps its place"
        keep = f"{keep} among the launches" if kept else "kept apart from what is in flight"
        parts.append(f"{', '.join(may)} may communicate: {keep}")
    if not parts:
        return None
    one = (communicates + may)[0]
    return f"{'; '.join(parts)}. If not so: overlap_sched.declare_operator({one!r}, communicates=False)."


def declarations() -> tuple[tuple[str, bool], ...]:
    """All that was declared, sorted: orders depend on it."""
    return tuple(sorted(_declared.items()))


def _name_of(op: Any) -> str:
    if isinstance(op, str):
        return op
    schema = getattr(op, "_schema", None)  # of an overload
    found = getattr(schema, "name", None) or getattr(op, "_qualified_op_name", None) or getattr(op, "_qualname", None)
    return found if isinstance(found, str) else ""
