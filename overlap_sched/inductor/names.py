"""Names of graphs that a person knows: the direction, torch's compile id, and what is compiled.

``"forward 0/0 of Transformer"``, ``"backward 2/1 of train_step"``, ``"inference 3/0 of Block (from line 37)"``,
``"backward !0/2/0 of compiled autograd"``. A backward graph may be compiled when its function is long gone from the
stack; it has the compile context of its forward, so names are kept by that.
"""

import re
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch._guards import CompileContext

from overlap_sched.inductor.dynamo_frame import dynamo_frame

_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.*)_at_(?P<line>\d+)")
_subjects: "WeakKeyDictionary[Any, str]" = WeakKeyDictionary()


def graph_name(kind: str, inner: str = "", number: Any = None) -> str:
    """Return the name of what is being compiled.

    Args:
        kind: ``"forward"``, ``"backward"`` or ``"inference"``.
        inner: Which graph inside of it, where there are several.
        number: Stands for the compile id where there is none.
    """
    compile_id = str(CompileContext.current_compile_id() or ("" if number is None else number))
    kind, subject = ("backward", "compiled autograd") if compile_id.startswith("!") else (kind, _subject())
    named = " ".join(part for part in (kind, compile_id, inner) if part)
    return f"{named} of {subject}" if subject else named


def _subject() -> str:
    """The module or function that is compiled; nothing where it is not known. A name must not stop a compilation."""
    try:
        context, frame = CompileContext.try_get(), dynamo_frame()
        if frame is not None:
            found = _called(frame.code.co_name, frame.code.co_qualname, frame.owner)
            if context is not None:
                _subjects[context] = found
            return found
        return "" if context is None else _subjects.get(context, "")
    except Exception:
        return ""


def _called(name: str, qualified: str, owner: Any) -> str:
    """A module by its class, a function by its name; where it goes on after a graph break, from which line on."""
    resumed = _RESUMED.fullmatch(name)
    line = ""
    if resumed is not None:
        line = f" (from line {resumed['line']})"
        name, qualified = resumed["function"], qualified.replace(name, resumed["function"])
    if isinstance(owner, nn.Module):
        module = type(owner).__qualname__.rpartition("<locals>.")[2]
        return f"{module}{line}" if name == "forward" else f"{module}.{name}{line}"
    return f"{qualified.rpartition('<locals>.')[2]}{line}"
