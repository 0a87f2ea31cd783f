"""A slow link under the runtime of ``torch.distributed.pipelining``: transfers take their time, compute goes on.

Each side of a transfer tells the other when it asked for it (one clock: all ranks are on one machine). From that both
know when it starts and ends, and a wait sleeps until then, however fast gloo was. :data:`Link` names what starts it:

- ``eager``: it starts when it is sent and the one before, from this rank to that one, is over. So is our replay.
- ``both``: not before the receiver has asked for it, too: nowhere else is room for it.
- ``one-queue``: and not before all that the two ranks asked of each other before is over, in both directions: one
  communicator per pair of ranks, whose operations run on one stream, as NCCL's do.
"""

import time
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist

Link = Literal["eager", "both", "one-queue"]
LINKS = get_args(Link)
_OF_SENDER, _OF_RECEIVER = 1, 2
"""Tags of the moments that the sides tell each other; what is sent itself has tag 0."""


class Transfer:
    """One side of a transfer; what the runtime has as its ``dist.Work``."""

    def __init__(self, link: "SlowLink", op: dist.P2POp, before: "Transfer | None") -> None:
        self._link, self._before, self._end_s = link, before, None
        self._lasts_s = link.latency_s + op.tensor.nbytes / link.bytes_per_s
        self._asked = torch.tensor([time.perf_counter()], dtype=torch.float64)
        self._other = torch.zeros(1, dtype=torch.float64)
        sends = op.op is dist.isend
        mine, others = (_OF_SENDER, _OF_RECEIVER) if sends else (_OF_RECEIVER, _OF_SENDER)
        self._told = dist.isend(self._asked, op.peer, tag=mine)
        self._hears = dist.irecv(self._other, op.peer, tag=others)
        self._data = op.op(op.tensor, op.peer)
        self._mine_alone = sends and link.kind == "eager"

    def end_s(self) -> float:
        """When it is over, by the clock; blocks until the other side has asked, where that matters."""
        if self._end_s is None:
            asked = [self._asked.item()]
            if not self._mine_alone:
                self._hears.wait()
                asked = [self._other.item(), *(asked if self._link.kind != "eager" else [])]
            before_s = 0.0 if self._before is None else self._before.end_s()
            self._end_s, self._before = max(before_s, *asked) + self._lasts_s, None
        return self._end_s

    def wait(self) -> None:
        """Return when it is over on the emulated link, and over gloo."""
        began = time.perf_counter()
        self._data.wait()
        time.sleep(max(0.0, self.end_s() - time.perf_counter()))
        self._link.waited_s += time.perf_counter() - began


class SlowLink:
    """Between this rank and all others: latency in seconds, bandwidth in bytes per second.

    Attributes:
        waited_s: How long waits took.
    """

    def __init__(self, kind: Link, latency_s: float, bytes_per_s: float) -> None:
        self.kind, self.latency_s, self.bytes_per_s, self.waited_s = kind, latency_s, bytes_per_s, 0.0
        self._last: dict[Any, Transfer] = {}

    def batch_p2p(self, ops: list[dist.P2POp], desc: str | None = None) -> list[Transfer]:
        """In place of the runtime's ``_batch_p2p``."""
        return [self._start(op) for op in ops]

    def _start(self, op: dist.P2POp) -> Transfer:
        queue = op.peer if self.kind == "one-queue" else (op.peer, op.op is dist.isend)
        self._last[queue] = transfer = Transfer(self, op, self._last.get(queue))
        return transfer
