"""A dated record of a benchmark: figures, and all that is needed to read them later."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from llama_repro.bench.scale import Size, growth
from llama_repro.errors import RecordError
from llama_repro.harness.judge import Row

_ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("torch", "numpy", "sortedcontainers")


def record(command: str, rows: Sequence[Row], sizes: Sequence[Size], resident_mib: float) -> dict[str, Any]:
    """Everything, as JSON takes it."""
    return {
        "date": date.today().isoformat(),
        "command": command,
        "machine": machine(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "resident_mib": round(resident_mib),
        "rows": [asdict(row) for row in rows],
        "sizes": [asdict(size) for size in sizes],
        "growth": {name: growth(mine) for name, mine in _by_network(sizes).items()},
    }


def machine() -> dict[str, Any]:
    """The processor as the system names it, cores, memory, and what else ran (load over the last minute)."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    cpu = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    cpu = {name.strip(): value.strip() for name, value in cpu.items()}
    family = f" (family {cpu['cpu family']}, model {cpu['model']})" if "cpu family" in cpu else ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cpu": cpu.get("model name", platform.processor()) + family,
        "system": f"{platform.system()}, {platform.machine()}",
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "load": round(os.getloadavg()[0], 2),
    }


def read_record(path: Path) -> Mapping[str, Any]:
    """A record that this or an earlier version wrote.

    Raises:
        RecordError: It is not there, or is none.
    """
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise RecordError(
            f"{path}: cannot be read as a record ({error}). scripts/bench.py --json writes one."
        ) from None
    if not isinstance(data, dict) or not isinstance(data.get("rows"), list):
        raise RecordError(f"{path}: holds no rows. scripts/bench.py --json writes a record.")
    return data


def _by_network(sizes: Sequence[Size]) -> dict[str, list[Size]]:
    result: dict[str, list[Size]] = {}
    for size in sizes:
        result.setdefault(size.network, []).append(size)
    return result


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit of the checkout, and whether files differ from it; empty outside of one."""
    git = ["git", "-C", str(_ROOT)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit.stdout.strip() + (" and changes" if changed.returncode else "")
