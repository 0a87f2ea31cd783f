"""The text of a dump, however it was saved: gzipped, coloured, logged.

A line that torch logs begins with its rank, time, process and origin::

    [rank0]:V1126 10:00:00.000000 17 torch/_functorch/aot.py:5] [0/0] [__aot_graphs] class GraphModule(torch.nn.Module):

Ranks of one job write into one file, line by line. Each graph is given with the lines of its process alone, where they
are in the file, so that errors name its lines.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from overlap_sched.errors import DumpError
from overlap_sched.problem.file import DEFAULT_LIMITS, DamagedError, Limits, read_bytes

_DUMP = b"class Repro"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m|\^\[\[[0-9;]*m")
"""As terminals read them, and as ``cat -v`` shows them."""
_PREFIX = re.compile(
    r"^(?:\[[A-Za-z_]+\d*\]:)*?(?:\[rank(?P<rank>\d+)\]:)?[VDIWEC]\d{4} \d\d:\d\d:\d\d\.\d+ (?P<process>\d+) [^\]]+\] ?"
    r"(?:\[[!\d/_-]+\] ?)?(?:\[__\w+\] ?)?"
)
_TITLE = re.compile(r"^ *===== *(.+?) *=====")
_CLASS = re.compile(r"^(?: ?\S.*\s)?class +([^\s(]+)\(torch\.nn\.Module\):\s*$")
"""torch logs the file of a class in front of it."""
_NODES = re.compile(r"^ ?graph\(.*\):\s*$")
"""How ``str(graph)`` begins."""
_OVERLOAD = re.compile(r"torch\.ops\.\w+\.\w+\.\w+[(\]]")
_LISTED = 20


@dataclass(frozen=True)
class GraphText:
    """One graph in a file.

    Attributes:
        title: What torch calls it: ``"Forward graph 0"``; else the name of its class.
        rank: That wrote it; ``None``: the file does not say.
        numbers: The indices of its lines.
        texts: Its lines.
        of: How many lines the file has.
    """

    title: str
    rank: int | None
    numbers: Sequence[int]
    texts: Sequence[str]
    of: int

    @property
    def start(self) -> int:
        """The index of its first line."""
        return self.numbers[0]

    @property
    def lines(self) -> list[str]:
        """All lines of the file, those empty that are not of this graph."""
        lines = [""] * self.of
        for number, text in zip(self.numbers, self.texts, strict=True):
            lines[number] = text
        return lines

    @property
    def lowered(self) -> bool:
        """Tell whether it calls operators with their overloads, as AOTAutograd's graphs do and Dynamo's do not."""
        return any(_OVERLOAD.search(line) for line in self.texts)

    def __str__(self) -> str:
        """``Forward graph 0 (rank 0, line 133)``."""
        rank = "" if self.rank is None else f"rank {self.rank}, "
        return f"{self.title} ({rank}line {self.start + 1:,})"


def read_lines(path: str | Path, limits: Limits = DEFAULT_LIMITS) -> list[str]:
    """The lines of a file, whatever ends them.

    Bytes that are not UTF-8 are let through where the file is a dump all the same: torch copies environment variables
    and comments into it as they are.

    Raises:
        DumpError: It cannot be read, or is not text.
        InputTooLargeError: It is larger than the limit.
    """
    try:
        data = read_bytes(path, limits)
        text = data.decode("utf-8-sig", "replace" if _DUMP in data else "strict")
    except OSError as error:
        reason = error.strerror or str(error)
        raise DumpError(
            f"{path}: cannot be read ({reason}). Check the path, and the download if it is gzipped."
        ) from None
    except DamagedError:
        raise DumpError(f"{path}: the gzip data is cut short or damaged. Fetch the file again.") from None
    except UnicodeDecodeError as error:
        raise DumpError(
            f"{path}: is not text (byte {error.start} is not UTF-8). A dump is a Python file. Save it as UTF-8."
        ) from None
    return re.split(r"\r\n|\r|\n", _COLOUR.sub("", text) if "[" in text else text)


def graphs_in(lines: Sequence[str]) -> list[GraphText]:
    """The graphs that are printed to be read, in the order of the file."""
    found = []
    for rank, numbers, texts in _streams(lines):
        starts = [i for i in range(len(texts)) if _starts(texts, i)]
        for start, end in zip(starts, [*starts, len(texts)][1:], strict=True):
            begins = _CLASS.match(texts[start])
            head = f"class {begins[1]}(torch.nn.Module):" if begins else texts[start]
            titled = _TITLE.match(texts[start - 1]) if start else None
            title = titled[1] if titled else begins[1] if begins else "graph"
            own = [head, *texts[start + 1 : end]]
            found.append(GraphText(title, rank, numbers[start:end], own, len(lines)))
    return sorted(found, key=lambda graph: graph.start)


def listed(graphs: Sequence[GraphText]) -> str:
    """``1 Forward graph 0 (rank 0, line 133), 2 ...``."""
    shown = ", ".join(f"{i} {graph}" for i, graph in enumerate(graphs[:_LISTED], 1))
    return shown + (f" and {len(graphs) - _LISTED:,} more" if len(graphs) > _LISTED else "")


def _streams(lines: Sequence[str]) -> list[tuple[int | None, list[int], list[str]]]:
    """Per process its rank, its lines without their prefixes, and where they are; one for all where none has any."""
    streams: dict[tuple[str | None, str], tuple[list[int], list[str]]] = {}
    for i, line in enumerate(lines):
        match = _PREFIX.match(line)
        if match is not None:
            numbers, texts = streams.setdefault((match["rank"], match["process"]), ([], []))
            numbers.append(i)
            texts.append(line[match.end() :])
    if not streams:
        return [(None, list(range(len(lines))), list(lines))]
    return [(None if rank is None else int(rank), *both) for (rank, _), both in streams.items()]


def _starts(texts: Sequence[str], i: int) -> bool:
    if _NODES.match(texts[i]):
        return i + 1 < len(texts) and texts[i + 1].lstrip().startswith("%")
    follows = texts[i + 1] if i + 1 < len(texts) else ""
    return bool(_CLASS.match(texts[i])) and follows.startswith("    def forward(")
