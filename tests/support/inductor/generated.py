"""Reads the code that Inductor generated: what runs in which order, and what is live while it does."""

import math
import re
from collections.abc import Iterable
from typing import NamedTuple

from overlap_sched.problem import Kind, Order, Problem

ITEM_BYTES = 4
"""All tensors of the test models are float32."""

_CALL = "def call(self, args):"
_LAUNCH = re.compile(r"(\w+) = torch\.ops\._c10d_functional\.(\w+)\.default\(")
_LAUNCH_INTO = re.compile(r"torch\.ops\._c10d_functional\.\w+\.default\((?:.*out=)?(\w+)")
_WAIT = re.compile(r"torch\.ops\._c10d_functional\.wait_tensors?\.default\(\[?(\w+)")
_PART = re.compile(r"(\w+) = (?:reinterpret_tensor\()?(\w+)(?:\[\d+\]|, \(|;)")
_MATMUL = re.compile(r"extern_kernels\.\w+\(")
_KERNEL = re.compile(r"cpp_fused_\w+\(")
_ALLOCATION = re.compile(r"(\w+) = empty_strided_cpu\(\((.*?),?\), \(.*\), torch\.float32\)")
_REUSE = re.compile(r"(\w+) = (?:reinterpret_tensor\()?(\w+).*; del (\w+)  # reuse")
_SIZE = re.compile(r"(?:assert_size_stride|assert_tensor_metadata)\((\w+), \((.*?),?\), ")
_FREE = re.compile(r"del (\w+)$")


class Event(NamedTuple):
    """One step of the program: ``launch``, ``wait``, ``matmul`` or ``kernel``; for the first two, the buffer."""

    kind: str
    buffer: str = ""


def body(code: str) -> list[str]:
    """The lines of the generated ``call``."""
    lines = code[code.index(_CALL) :].split("\n")
    end = next(at for at, line in enumerate(lines) if line.strip().startswith("return ("))
    return [line.strip() for line in lines[: end + 1]]


def events(code: str) -> list[Event]:
    """What the program does, in order."""
    found = []
    whole: dict[str, str] = {}  # of parts, views and buffers that live on under another name
    for line in body(code):
        if match := _LAUNCH.match(line):
            found.append(Event("launch", match[1]))
        elif match := _WAIT.match(line):
            found.append(Event("wait", whole.get(match[1], match[1])))
        elif match := _LAUNCH_INTO.match(line):
            found.append(Event("launch", whole.get(match[1], match[1])))
        elif match := _PART.match(line):
            whole[match[1]] = whole.get(match[2], match[2])
        elif _MATMUL.match(line):
            found.append(Event("matmul"))
        elif _KERNEL.match(line):
            found.append(Event("kernel"))
    return found


def planned(problem: Problem, order: Order) -> list[Event]:
    """What an order of a problem says that the program does; buffers are named by their collective."""
    found: list[Event] = []
    for v in order:
        node = problem.nodes[v]
        if node.kind is Kind.COLLECTIVE:
            found.append(Event("launch", node.name))
        elif node.kind is Kind.WAIT and node.collective is not None:
            found.append(Event("wait", problem.nodes[node.collective].name))
        elif node.kind is Kind.COMPUTE:
            found.append(Event("matmul" if "mm.default" in node.op else "kernel"))
    return found


def numbered(program: list[Event]) -> list[Event]:
    """The same with buffers numbered by their launches, so that two programs can be compared."""
    number: dict[str, str] = {}
    return [Event(e.kind, number.setdefault(e.buffer, str(len(number))) if e.buffer else "") for e in program]


def matmuls_under(program: list[Event]) -> list[int]:
    """Per collective, in the order of launches, how many matmuls run between its launch and its wait (or the end)."""
    counts = []
    for at, event in enumerate(program):
        if event.kind == "launch":
            wait = Event("wait", event.buffer)
            until = program.index(wait, at) if wait in program[at:] else len(program)
            counts.append(sum(e.kind == "matmul" for e in program[at:until]))
    return counts


def matmuls_under_way(codes: Iterable[str]) -> int:
    """Matmuls between launch and wait, added up over collectives and over programs; C++ programs are not read."""
    return sum(sum(matmuls_under(events(code))) for code in codes if _CALL in code)


def peak_bytes(code: str, problem: Problem) -> int:
    """Most bytes live at once while the program runs, counted line by line.

    Args:
        code: What was generated.
        problem: Says how large the inputs are, and which of them the caller keeps although the program lets go of them.
    """
    live: dict[str, int] = {}
    kept = 0
    for node in problem.nodes:
        if node.kind is Kind.INPUT:
            storage = problem.storages[node.alloc[0]]
            kept += storage.bytes if storage.pinned else 0
            live[node.name] = 0 if storage.pinned else storage.bytes
    peak = 0
    lines = body(code)
    for at, line in enumerate(lines):
        if match := _ALLOCATION.match(line):
            live[match[1]] = _bytes(match[2])
        elif match := _REUSE.match(line):
            assert match[2] == match[3]
            live[match[1]] = live.pop(match[2])
        elif match := _LAUNCH.match(line):
            size = _SIZE.match(lines[at + 1])
            assert size is not None
            live[match[1]] = _bytes(size[2])
        elif match := _FREE.match(line):
            live.pop(match[1])
        peak = max(peak, kept + sum(live.values()))
    return peak


def _bytes(sizes: str) -> int:
    return ITEM_BYTES * math.prod(int(size) for size in sizes.split(",") if size)
