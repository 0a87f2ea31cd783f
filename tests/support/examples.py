"""How often properties are tried: less in the fast part, more at night; the command; and files as modules."""

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast

import pytest
from hypothesis import settings

# The command in this process, as from a shell: its exit code, and what it printed.


def run(*arguments: str) -> int:
    """The exit code, also where ``argparse`` raises it."""
    from overlap_sched.cli.command import main  # not for tests without it: it imports much

    try:
        return main(arguments)
    except SystemExit as stopped:
        return int(stopped.code or 0)


class Command:
    """Runs the command, and gives what it printed on standard output, or the error that it ended with."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def out(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        assert run(*arguments) == code
        return self._capsys.readouterr().out

    def words(self, *arguments: str) -> str:
        """The same without line breaks and columns."""
        return " ".join(self.out(*arguments).split())

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.out(*arguments, "--json", code=code))

    def refused(self, *arguments: str) -> str:
        """The one line of a command that prints nothing else."""
        self._capsys.readouterr()
        assert run(*arguments) == 2
        out, err = self._capsys.readouterr()
        assert out == ""
        assert err.startswith("overlap-sched: error: ")
        assert err.count("\n") == 1
        return err.removeprefix("overlap-sched: error: ").removesuffix("\n")


# Python files that are not in a package: scripts, and the independent judge.


def module_at(path: Path) -> ModuleType:
    """The file as a module of its own name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Run = Literal["fast", "whole", "nightly"]
RUN = "OVERLAP_SCHED_TESTS"
"""Set before test modules are imported: their decorators say on how many examples."""
TIMES: dict[Run, float] = {"fast": 0.2, "whole": 1.0, "nightly": 5.0}


def often(count: int = 100) -> int:
    """Examples of a property that each commit tries so often."""
    return max(5, int(count * TIMES[cast(Run, os.environ.get(RUN, "whole"))]))


def examples(count: int, others: settings | None = None) -> settings:
    """Settings of a property that each commit tries so often."""
    return settings(others, max_examples=often(count))


def at_night(*values: object, id: str | None = None) -> Any:
    """A case that takes long and is like others that each commit tries."""
    return pytest.param(*values, marks=(pytest.mark.slow, pytest.mark.nightly), id=id)
