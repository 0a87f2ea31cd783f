"""argparse's errors in one line instead of usage and an error, with what may be meant."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from overlap_sched.options import GONE, Options, close_to

_NO_DIFF = "compare the figures of two `overlap-sched plan --json` with jq, which can also fail a build"
GONE_COMMANDS = {
    "diff": _NO_DIFF,
    "frontier": "ask `overlap-sched sweep GRAPH --vary headroom=0..2GiB`",
    "robust": "ask `overlap-sched sweep GRAPH --vary noise=0..30%`",
    "whatif": "ask `overlap-sched sweep GRAPH --vary network=0.25..4`",
}
"""Commands that there were once, and what to do instead."""
_GONE_FLAGS = {**GONE, "fail_if": f"{_NO_DIFF}.", "frontier": f"{GONE_COMMANDS['frontier']}."}
_CHOICE = re.compile(r"(?P<before>.*invalid choice: '(?P<given>.*)') \(choose from (?P<known>.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` whose errors are a line; subcommands get the same."""

    def error(self, message: str) -> NoReturn:
        """Say it, and exit with 2."""
        choice = _CHOICE.fullmatch(message)
        if choice is not None:  # versions of Python differ in the quotes
            given, known = choice["given"], re.findall(r"[^\s',]+", choice["known"])
            message = f"{choice['before']} (choose from {', '.join(known)}).{close_to(given, known)}"
            if given in GONE_COMMANDS and message.startswith("argument COMMAND:"):
                message = f"{given} is no command any more: {GONE_COMMANDS[given]}."
        self.exit(2, f"overlap-sched: error: {' '.join(message.split())}\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse does; what no option takes is an error that names what it is like."""
        parsed, extra = self.parse_known_args(args, namespace)
        if extra:
            for text in extra:
                if (name := text.partition("=")[0].removeprefix("--").replace("-", "_")) in _GONE_FLAGS:
                    self.error(in_flags(f"{text.partition('=')[0]} is no option any more: {_GONE_FLAGS[name]}"))
            flags = list(self._subcommand(parsed)._option_string_actions)[2:]  # without -h, --help
            near = [close_to(text.partition("=")[0], flags) for text in extra if text.startswith("--")]
            self.error(f"unrecognized arguments: {' '.join(extra)}.{''.join(near)}")
        return parsed

    def _subcommand(self, parsed: argparse.Namespace) -> "Parser":
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return action.choices[parsed.command]
        return self


def in_flags(text: str) -> str:
    """Return what :class:`~overlap_sched.options.Options` says of its fields, as of the command line's options."""
    for field in Options.__dataclass_fields__:
        flag = f"--{field.replace('_', '-')}"
        text = re.sub(rf"\b{field} (is|of) ", rf"{flag} \1 ", text)
        text = re.sub(rf"\b{field}=\(\)", f"no {flag}", text)
        text = re.sub(rf"\b{field}='([\w-]+)'", rf"{flag} \1", text)
    return text
