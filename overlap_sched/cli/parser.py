"""What is wrong with a command line, in one line and in its own words, instead of usage and Python's."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from overlap_sched.options import GONE, Options, close_to

_CHOICE = re.compile(r"invalid choice: (?P<given>.*) \(choose from (?P<known>.*)\)", re.DOTALL)
_VALUE = re.compile(r"invalid (?P<type>\w+) value: (?P<given>.*)", re.DOTALL)
_MEANT = {"int": "; it is a whole number", "float": "; it is a number"}


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` whose errors are a line; subcommands get the same."""

    def error(self, message: str) -> NoReturn:
        """Say it, and exit with 2."""
        self.exit(2, f"overlap-sched: error: {' '.join(self._words(message).split())}\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse does; what no option takes is an error that names what it is like."""
        parsed, extra = self.parse_known_args(args, namespace)
        if extra:
            of = self._subcommand(parsed)
            flag = next((text.partition("=")[0] for text in extra if text.startswith("-")), None)
            if flag is None:
                self.error(f"{extra[0]!r} is one argument too many for `{of.prog}`.")
            if (name := flag.removeprefix("--").replace("-", "_")) in GONE:
                self.error(in_flags(f"{flag} is no option any more: {GONE[name]}"))
            self.error(
                f"{flag} is no option of `{of.prog}`.{close_to(flag, of.flags)} `{of.prog} --help` lists its options."
            )
        return parsed

    @property
    def flags(self) -> list[str]:
        """All options: ``--headroom``."""
        return list(self._option_string_actions)

    def _subcommand(self, parsed: argparse.Namespace) -> "Parser":
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return action.choices[parsed.command]
        return self

    def _words(self, message: str) -> str:
        if message.startswith("argument "):
            name, _, what = message.removeprefix("argument ").partition(": ")
            return self._of_argument(name, what)
        if message.startswith("the following arguments are required: "):
            return f"`{self.prog}` lacks {message.partition(': ')[2]}. `{self.prog} --help` says what that is."
        if message.startswith("one of the arguments "):
            names = message.removeprefix("one of the arguments ").removesuffix(" is required").split()
            return f"`{self.prog}` lacks one of {' and '.join(names)}."
        if message.startswith("ambiguous option: "):
            given, _, could = message.removeprefix("ambiguous option: ").partition(" could match ")
            return f"{given} may be {could.replace(', ', ' or ')}. Write one of them."
        return message

    def _of_argument(self, name: str, what: str) -> str:
        choice, value = _CHOICE.fullmatch(what), _VALUE.fullmatch(what)
        if choice is not None:
            known = [text.strip().strip("'") for text in choice["known"].split(",")]
            near, names = close_to(choice["given"].strip("'"), known), ", ".join(known)
            if name == "COMMAND":
                return f"{choice['given']} is no command.{near} Commands are {names}."
            return f"{name} is {choice['given']}; it is one of {names}.{near}"
        if value is not None:
            return f"{name} is {value['given']}{_MEANT.get(value['type'], ', which is not understood')}."
        if what.startswith("expected "):
            action = self._option_string_actions.get(name.split("/")[0])
            return f"{name} stands without its value. Write {name} {action.metavar if action else 'VALUE'}."
        if what.startswith("not allowed with argument "):
            return f"{name} and {what.removeprefix('not allowed with argument ')} exclude each other. Leave one out."
        return f"{name}: {what}{'' if what.endswith('.') else '.'}"


def in_flags(text: str) -> str:
    """Return what :class:`~overlap_sched.options.Options` says of its fields, as of the command line's options."""
    for field in Options.__dataclass_fields__:
        flag = f"--{field.replace('_', '-')}"
        text = re.sub(rf"\b{field} (is|of) ", rf"{flag} \1 ", text)
        text = re.sub(rf"\b{field}=\(\)", f"no {flag}", text)
        text = re.sub(rf"\b{field}='([\w-]+)'", rf"{flag} \1", text)
    return text
