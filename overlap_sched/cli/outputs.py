"""Files that a command writes: named, not the input, not each other, and writable, before anything is read."""

import argparse
import os
import stat
from pathlib import Path

from overlap_sched.errors import OptionsError
from overlap_sched.problem.file import nameable
from overlap_sched.report.files import check_writable
from overlap_sched.report.pictures import check_plot

_OUTPUTS = {
    "out": "--out",
    "plot": "--plot",
    "html": "--html",
    "trace": "--trace",
    "memory_snapshot": "--memory-snapshot",
    "addresses": "--addresses",
    "csv": "--csv",
    "save_problem": "--save-problem",
}
_INPUTS = {"problem": "the input", "job": "the input", "order": "--order", "beside": "--beside"}


def check_outputs(options: argparse.Namespace) -> None:
    """Find out before the work is done that a result could not be written, or would destroy something."""
    outputs = [
        (option, path) for name, option in _OUTPUTS.items() if (path := getattr(options, name, None)) is not None
    ]
    inputs = [(what, path) for name, what in _INPUTS.items() if (path := getattr(options, name, None)) is not None]
    inputs += [(f"--{name}", path) for name in ("profile", "merge") for path in getattr(options, name, ())]
    for option, path in outputs:
        if not path:
            raise OptionsError(f"{option}: the name of the file is empty. Name a file, or leave {option} out.")
        for what, read in inputs:
            if _same(path, read):
                raise OptionsError(f"{option} {path}: would overwrite {what}, {read}. Name another file to write to.")
    for at, (option, path) in enumerate(outputs):
        for other, taken in outputs[:at]:
            if _same(path, taken):
                raise OptionsError(
                    f"{option} {path}: would overwrite what {other} {taken} writes. Give each a file of its own."
                )
    for option, path in outputs:
        check_writable(path)
        if option == "--plot":
            check_plot(path)


def _same(one: str, other: str) -> bool:
    """Tell whether two paths lead to one file, also through links. What is no plain file (a terminal) may be shared."""
    try:
        paths = [Path(os.path.realpath(nameable(path))) for path in (one, other)]
    except OSError:  # no file at all
        return False
    try:
        found = [path.stat() for path in paths]
    except OSError:  # at least one is not there
        return paths[0] == paths[1]
    return stat.S_ISREG(found[0].st_mode) and os.path.samestat(*found)
