"""A slow link under the runtime of ``torch.distributed.pipelining``: transfers take their time, compute goes on.

Each side of a transfer tells the other when it asked for it; all ranks read one clock. So both know when it starts and
ends, and a wait sleeps until then, however fast gloo was. A link is of one of three kinds:

- ``eager``: a transfer starts when it is sent and the one before, from this rank to that, is over; as in our replay.
- ``both``: nor before the receiver asks for it, which alone has room for it.
- ``one-queue``: nor before all that the two ranks asked of each other before is over, in both directions.
"""

import time

import torch
import torch.distributed as dist

LINKS = ("eager", "both", "one-queue")


class SlowLink:
    """Between this rank and all others; ``waited_s`` is how long waits took so far, seconds."""

    def __init__(self, kind: str, latency_s: float, bytes_per_s: float) -> None:
        self.kind, self.latency_s, self.bytes_per_s, self.waited_s = kind, latency_s, bytes_per_s, 0.0
        self._last: dict[object, _Transfer] = {}

    def batch_p2p(self, ops: list[dist.P2POp]) -> "list[_Transfer]":
        """In place of the runtime's ``_batch_p2p``."""
        return [self._asked_for(op) for op in ops]

    def _asked_for(self, op: dist.P2POp) -> "_Transfer":
        queue = op.peer if self.kind == "one-queue" else (op.peer, op.op is dist.isend)
        self._last[queue] = _Transfer(self, op, self._last.get(queue))
        return self._last[queue]


class _Transfer:
    """One side of a transfer, in place of its ``dist.Work``."""

    def __init__(self, link: SlowLink, op: dist.P2POp, before: "_Transfer | None") -> None:
        self._link, self._before, self._sends = link, before, op.op is dist.isend
        self._lasts_s, self._end_s = link.latency_s + op.tensor.nbytes / link.bytes_per_s, 0.0
        self._mine, self._other = torch.tensor([time.perf_counter()], dtype=torch.float64), torch.zeros(1).double()
        self._told = dist.isend(self._mine, op.peer, tag=1 + self._sends)
        self._hears = dist.irecv(self._other, op.peer, tag=2 - self._sends)
        self._data = op.op(op.tensor, op.peer)

    def end_s(self) -> float:
        """When it is over; blocks until the other side has asked for it, as gloo does."""
        if not self._end_s:
            self._hears.wait()
            sent, wanted = (self._mine, self._other) if self._sends else (self._other, self._mine)
            start = sent if self._link.kind == "eager" else torch.maximum(sent, wanted)
            before_s = 0.0 if self._before is None else self._before.end_s()
            self._end_s, self._before = max(before_s, start.item()) + self._lasts_s, None
        return self._end_s

    def wait(self) -> None:
        """Return when it is over, on this link and on gloo."""
        began = time.perf_counter()
        self._data.wait()
        time.sleep(max(0.0, self.end_s() - time.perf_counter()))
        self._link.waited_s += time.perf_counter() - began
