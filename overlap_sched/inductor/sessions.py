"""When torch starts and ends to compile: Dynamo's own callbacks, and what was compiled in between.

One session is all that is compiled until Dynamo is done with a frame, or a backward with its graph. Sessions do not
nest. ``torch._dynamo.reset`` forgets all callbacks; they come back with the next graph that comes to us.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch._dynamo.callback import callback_handler
from torch._dynamo.utils import counters

from overlap_sched.distributed.uncompiled import stop
from overlap_sched.inductor.console import warn
from overlap_sched.inductor.names import dynamo_frame
from overlap_sched.inductor.summary import tally


@dataclass(frozen=True)
class Session:
    """What torch has compiled.

    Attributes:
        graphs: How many graphs Dynamo has given to the backend.
        ours: How many came to us; forward and backward are two.
        cached: How many torch found in a cache: then no pass is called.
        backend: What ``torch.compile`` was given, without torch's wrappers; ``None``: not known.
    """

    graphs: int
    ours: int
    cached: int
    backend: Any = None


class _Sessions:
    """Counts at the start of a session, and who is told at its end."""

    def __init__(self) -> None:
        self.ended = 0
        self.observers: list[Callable[[Session], None]] = []
        self._before: Session | None = None

    def start(self, _: Any) -> None:
        """For ``register_start_callback``: torch starts to compile."""
        try:
            stop()
            self._before = _counted()
        except Exception as error:
            warn("overlap_sched could not watch a compilation", error)

    def end(self, _: Any) -> None:
        """For ``register_end_callback``: torch has compiled."""
        try:
            before, after, self._before = self._before, _counted(), None
            self.ended += 1
            if before is not None:
                frame = dynamo_frame()
                session = Session(
                    after.graphs - before.graphs,
                    after.ours - before.ours,
                    after.cached - before.cached,
                    None if frame is None else frame.backend,
                )
                for observer in tuple(self.observers):
                    observer(session)
        except Exception as error:
            warn("overlap_sched could not watch a compilation", error)


def _counted() -> Session:
    cached = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    return Session(counters["stats"]["unique_graphs"], tally.seen, cached)


_sessions = _Sessions()


def listen() -> None:
    """Be told by Dynamo; again and again is as good as once."""
    if not listening():
        callback_handler.register_start_callback(_sessions.start)
        callback_handler.register_end_callback(_sessions.end)


def listening() -> bool:
    """Are we told? Not after ``torch._dynamo.reset``."""
    return _sessions.end in callback_handler.end_callbacks


def observe(observer: Callable[[Session], None]) -> Callable[[], None]:
    """Tell an observer of every session that ends; the function that comes back stops it.

    An observer is called while torch holds a lock, in the thread that compiled.
    """
    listen()
    _sessions.observers.append(observer)
    return lambda: _sessions.observers.remove(observer)


def sessions_ended() -> int:
    """How many have ended so far."""
    return _sessions.ended
