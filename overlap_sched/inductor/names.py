"""Names that a person knows of graphs, and what is compiled: found on Python's own stack.

torch hands neither the function nor the backend to a pass or to a callback. They stand where
``torch._dynamo.convert_frame._compile`` runs. All is used for messages alone: where it is not found, less
is said.
"""

import re
import sys
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import nn
from torch._guards import CompileContext

_RESUMED = re.compile(r"torch_dynamo_resume_in_(?P<function>.*)_at_(?P<line>\d+)")
_subjects: "WeakKeyDictionary[Any, str]" = WeakKeyDictionary()


def graph_name(kind: str, inner: str = "", number: Any = None) -> str:
    """Return the name of what is being compiled.

    ``"forward 0/0 of Transformer"``, ``"backward 2/1 of train_step"``, ``"inference 3/0 of Block (from line 37)"``,
    ``"backward !0/2/0 of compiled autograd"``. A backward graph may be compiled when its function is long gone from the
    stack; it has the compile context of its forward, so names are kept by that.

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


class DynamoFrame(NamedTuple):
    """What is compiled.

    Attributes:
        code: The function.
        owner: Its ``self``; ``None``: it has none.
        backend: What ``torch.compile`` was given, without torch's wrappers.
    """

    code: CodeType
    owner: Any
    backend: Any


def dynamo_frame() -> DynamoFrame | None:
    """Return the frame compiled in this thread; ``None``: nothing, or torch has changed."""
    for module, frame in _frames():
        if frame.f_code.co_name == "_compile" and module == "torch._dynamo.convert_frame":
            known = frame.f_locals
            code, of_frame = known.get("code"), known.get("locals")
            if not isinstance(code, CodeType):
                return None
            owner = of_frame.get("self") if isinstance(of_frame, dict) else None
            return DynamoFrame(code, owner, _unwrapped(known.get("compiler_fn")))
    return None


def _unwrapped(backend: Any) -> Any:
    """The backend inside of Dynamo's wrappers, and of the one that cuts graphs for DDP."""
    for _ in range(10):
        of_ddp = getattr(getattr(backend, "__self__", None), "backend_compile_fn", None)
        inner = of_ddp or getattr(backend, "_torchdynamo_orig_backend", None)
        if inner is None:
            break
        backend = inner
    return backend


def _frames() -> Iterator[tuple[str, FrameType]]:
    """Yield the frames of this thread with the names of their modules, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield str(frame.f_globals.get("__name__", "")), frame
        frame = frame.f_back
