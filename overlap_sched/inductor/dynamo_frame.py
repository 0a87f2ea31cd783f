"""What Dynamo compiles right now: found on Python's own stack, where ``torch._dynamo.convert_frame._compile`` runs.

torch hands neither the function nor the backend to a pass or to a callback. Both are used for messages alone: where
they are not found, less is said.
"""

import sys
from types import CodeType
from typing import Any, NamedTuple


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
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "_compile" and frame.f_globals.get("__name__") == "torch._dynamo.convert_frame":
            known = frame.f_locals
            code, of_frame = known.get("code"), known.get("locals")
            if not isinstance(code, CodeType):
                return None
            owner = of_frame.get("self") if isinstance(of_frame, dict) else None
            return DynamoFrame(code, owner, _unwrapped(known.get("compiler_fn")))
        frame = frame.f_back  # type: ignore[assignment]
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
