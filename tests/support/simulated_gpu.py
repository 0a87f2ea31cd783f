"""A GPU that only keeps time: streams with clocks, kernels that advance them; numbers are computed on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from llama_repro.gpu import check, measure, program

CYCLES_PER_US = 1000
COPY_US = 0.25


class Stream:
    """A clock in microseconds."""

    def __init__(self) -> None:
        self.clock = 0.0

    def wait_stream(self, other: "Stream") -> None:
        self.clock = max(self.clock, other.clock)

    def wait_event(self, event: "Event") -> None:
        self.clock = max(self.clock, event.at)


class Gpu:
    """What ``torch.cuda`` is asked for."""

    def __init__(self) -> None:
        self.compute = self.current = Stream()

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def sleep(self, cycles: int) -> None:
        self.current.clock += cycles / CYCLES_PER_US


GPU = Gpu()


class Event:
    """A moment of the stream that it was recorded on."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at, self.timed = 0.0, enable_timing

    def record(self) -> None:
        self.at = GPU.current.clock

    def synchronize(self) -> None:
        """It is over already."""

    def elapsed_time(self, end: "Event") -> float:
        assert self.timed
        assert end.timed
        return (end.at - self.at) / 1e3


def simulate(patch: pytest.MonkeyPatch, kernel_us: dict[Any, float]) -> None:
    """Let the CPU pass for a GPU on which operators take ``kernel_us`` by their targets, and others none."""
    replaced = {
        "Stream": Stream,
        "Event": Event,
        "stream": GPU.on,
        "current_stream": lambda: GPU.current,
        "_sleep": GPU.sleep,
        "memory_stats": dict,
        "memory_reserved": lambda: 0,
        "max_memory_reserved": lambda: 0,
        **dict.fromkeys(("synchronize", "empty_cache", "reset_peak_memory_stats"), lambda: None),
    }
    for name, value in replaced.items():
        patch.setattr(torch.cuda, name, value)
    evaluated, emulate = program._evaluated, program.emulate

    def kernel(node: Any, env: Any, device: Any) -> Any:
        GPU.current.clock += kernel_us.get(node.target, 0.0)
        return evaluated(node, env, device)

    def copy(taken: Any, out: Any) -> None:
        GPU.current.clock += COPY_US
        emulate(taken, out)

    patch.setattr(program, "_evaluated", kernel)
    patch.setattr(program, "emulate", copy)
    patch.setattr(check, "has_streams", lambda device: True)
    patch.setattr(measure, "WARM_UPS", 1)
