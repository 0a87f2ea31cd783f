"""Emulated collectives: a copy and a wait on a stream of their own per process group.

On a GPU the wait is a kernel that spins (``torch.cuda._sleep``), so it takes a little of one multiprocessor, less than
NCCL's kernels would. On the CPU there are no streams: the copy is made only when the collective, or a later one of its
group, is waited for. Who reads the output too early finds what ``torch.empty`` left there, and who overwrote or freed
the input too early is found out as well.
"""

import statistics
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import fx

Ticket = Any
"""What a launch returns and a wait takes."""


class Streams(Protocol):
    """Where collectives run."""

    device: torch.device

    def launch(self, node: fx.Node, group: str, copy: Callable[[], None], us: float) -> Ticket:
        """Start a collective of ``us`` microseconds behind what was launched on the compute stream so far."""

    def wait(self, ticket: Ticket) -> None:
        """Let the compute stream wait for a collective."""

    def finish(self) -> None:
        """Let the compute stream wait for all."""


class EmulatedStreams:
    """On the CPU, without time: copies are deferred until they are waited for."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._queues: dict[str, deque[tuple[int, Callable[[], None]]]] = {}
        self._launched = 0

    def launch(self, node: fx.Node, group: str, copy: Callable[[], None], us: float) -> Ticket:
        """Put the copy at the end of its group's queue."""
        self._launched += 1
        self._queues.setdefault(group, deque()).append((self._launched, copy))
        return group, self._launched

    def wait(self, ticket: Ticket) -> None:
        """Make all copies of the group up to this one."""
        group, number = ticket
        queue = self._queues[group]
        while queue and queue[0][0] <= number:
            queue.popleft()[1]()

    def finish(self) -> None:
        """Make all copies."""
        for queue in self._queues.values():
            while queue:
                queue.popleft()[1]()


OnLaunch = Callable[[fx.Node, Any, Any], None]
"""Called with the node of a collective and the events before and after it on its stream; for profiling."""


class CudaStreams:
    """On one GPU.

    Args:
        device: Which.
        cycles_per_us: See :func:`calibrated`.
        copy_us: Per launch node, how long its copy alone takes: spinning makes up the rest. ``None``: copies alone.
        on_launch: Called at each launch.
    """

    def __init__(
        self,
        device: torch.device,
        cycles_per_us: float,
        copy_us: Mapping[fx.Node, float] | None,
        on_launch: OnLaunch | None = None,
    ) -> None:
        self.device = device
        self._cycles_per_us, self._copy_us, self._on_launch = cycles_per_us, copy_us, on_launch
        self._streams: dict[str, Any] = {}

    def launch(self, node: fx.Node, group: str, copy: Callable[[], None], us: float) -> Ticket:
        """Copy, then spin until ``us`` are over."""
        if group not in self._streams:
            self._streams[group] = torch.cuda.Stream()
        stream, timed = self._streams[group], self._on_launch is not None
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            before, after = (torch.cuda.Event(enable_timing=timed) for _ in range(2))
            before.record()
            copy()
            if self._copy_us is not None:
                self.spin(us - self._copy_us[node])
            after.record()
        if self._on_launch is not None:
            self._on_launch(node, before, after)
        return after

    def spin(self, us: float) -> None:
        """Keep the current stream busy for so many microseconds; negative: not at all."""
        if us > 0.0:
            torch.cuda._sleep(int(us * self._cycles_per_us))

    def wait(self, ticket: Ticket) -> None:
        """By an event, as ``work.wait()`` of NCCL does."""
        torch.cuda.current_stream().wait_event(ticket)

    def finish(self) -> None:
        """Wait for every group's stream."""
        for stream in self._streams.values():
            torch.cuda.current_stream().wait_stream(stream)


def has_streams(device: torch.device) -> bool:
    """Whether collectives can run beside compute there, and be timed."""
    return device.type == "cuda"


def calibrated() -> float:
    """Cycles of ``torch.cuda._sleep`` per microsecond, at the clock that the GPU runs at now.

    From the difference of two lengths, so that launching cancels out; the median of several.
    """
    few, many = 2_000_000, 12_000_000
    torch.cuda._sleep(many)
    pairs = [(_sleep_us(few), _sleep_us(many)) for _ in range(5)]
    return statistics.median((many - few) / (long - short) for short, long in pairs)


def _sleep_us(cycles: int) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    torch.cuda._sleep(cycles)
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) * 1e3
