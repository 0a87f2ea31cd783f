"""Dated records: figures, and all that is needed to read them later."""

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from llama_repro import ROOT
from overlap_sched.report.files import write_file


def provenance(command: str, packages: Sequence[str] = ("torch", "numpy", "sortedcontainers")) -> dict[str, Any]:
    """What is needed to read figures later: when, what was run, and on what."""
    return {
        "date": date.today().isoformat(),
        "command": command,
        "machine": machine(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in packages},
        "commit": _commit(),
    }


def write_record(path: Path, data: Mapping[str, Any]) -> None:
    """As JSON.

    Raises:
        OutputError: It cannot be written.
    """
    write_file(path, (json.dumps(data, indent=1) + "\n").encode())


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


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit of the checkout, and whether files differ from it; empty outside of one."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return commit.stdout.strip() + (" and changes" if changed.returncode else "")
