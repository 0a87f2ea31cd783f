"""The command in this process, as from a shell: its exit code, and what it printed."""

import json
from typing import Any

import pytest

from overlap_sched.cli.command import main


def run(*arguments: str) -> int:
    """The exit code, also where ``argparse`` raises it."""
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
