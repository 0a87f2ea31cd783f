"""Flags of a command from its dataclass: names, types and defaults of the fields, help from the text below each.

A text may begin with what stands for the value, as in ``"SIZE: memory allowed above the peak"``. A field of type
:class:`~overlap_sched.options.Options` says which options are flags, under their own names.
"""

import argparse
import ast
import inspect
import os
import re
import shlex
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from itertools import pairwise
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from overlap_sched.errors import OptionsError
from overlap_sched.options import GONE, Options, RewriteKind, close_to
from overlap_sched.problem.file import nameable
from overlap_sched.problem.sizes import parse_limit

NO_DIFF = "compare the figures of two `overlap-sched plan --json` with jq, which can also fail a build"
GONE_FLAGS = {
    **GONE,
    "fail_if": f"{NO_DIFF}.",
    "solver": "--exact solves by CP-SAT.",
    "frontier": "ask `overlap-sched sweep GRAPH --vary headroom=0..2GiB`.",
    "merge": "open both files in ui.perfetto.dev.",
    "memory_snapshot": "--trace OUT.json shows the memory of each order.",
    "left_out": "plan with --rewrites and without, and compare the steps.",
}
SCHEDULING = (
    "headroom", "memory_limit", "budget", "base", "preserve_collective_order", "concurrent_groups", "effort",
    "allocator", "pins", "strict",
)  # fmt: skip
"""Options that are flags of each command that schedules."""
EXIT_CODES = """\
exit codes: 0 fine; 1 the original order was kept because the new one failed verification (with --strict: an error,
nothing written); 2 bad usage, bad input, or a file that cannot be written; 4 no order (`fit`: no plan) was found that
runs in --memory-limit; 70 a bug in overlap_sched; 130 interrupted; 141 whoever read the output stopped reading.

All times and memory are simulated: one compute stream, one stream per process group.
"""
_HELP = re.compile(r"(?:([A-Z][^\s:]*): )?(.*)", re.DOTALL)
_ATTRIBUTE = re.compile(r"^    (\w+): (.*?)(?:\.\s|\.?\Z)", re.DOTALL | re.MULTILINE)
Command = TypeVar("Command")


class Flag(NamedTuple):
    """How a field is written, where its type does not say it.

    Attributes:
        read: Reads the text of a value; a ``ValueError``: it is none.
        form: What such a text is: ``NAME=SIZE``.
        name: Of the flag, where it is not the field's.
        const: What the flag means without a value.
        positional: A value without a name.
        many: Several values may follow one flag.
        group: At most one flag of a group may be given; exactly one where the group's name ends in ``!``.
        file: Names a file that is read, or written.
    """

    read: Callable[[str], Any] | None = None
    form: str = ""
    name: str = ""
    const: Any = None
    positional: bool = False
    many: bool = False
    group: str = ""
    file: Literal["", "in", "out"] = ""


def read_choice(known: Sequence[str], text: str, said: str = "") -> str:
    """Read one of the names that are known."""
    if text not in known:
        raise OptionsError(f"{said}{text!r} is not one of {', '.join(known)}.{close_to(text, known)}")
    return text


def read_names(text: str, known: Sequence[str], said: str = "") -> tuple[str, ...]:
    """Read names of what is known, joined by commas."""
    return tuple(read_choice(known, name.strip(), said) for name in text.split(",")) if text.strip() else ()


def refuse(*rules: tuple[object, str]) -> None:
    """Raise an :class:`OptionsError` with the message of the first rule that is broken."""
    for broken, message in rules:
        if broken:
            raise OptionsError(message)


def whole_number(text: str, least: int = 1, most: int = 2**63 - 1) -> int:
    """Read a number; a ``ValueError``: it is none, too small or too large."""
    if not text.isdecimal() or len(text) > 100 or not least <= int(text) <= most:
        raise ValueError(text)
    return int(text)


_REWRITES = get_args(RewriteKind)
_FLAG_OF = {"pins": Flag(many=True), "rewrites": Flag(lambda text: read_names(text, _REWRITES))}
"""Of options that are not written as their types say."""


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` whose errors are one line that names what may be meant."""

    def error(self, message: str) -> NoReturn:
        """Print the message, and exit with 2."""
        self.exit(2, f"overlap-sched: error: {' '.join(message.split())}\n")

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse as argparse does; an unknown flag is an error that names what it is like."""
        parsed, extra = self.parse_known_args(args, namespace)
        for text in extra:
            if (name := text.partition("=")[0].removeprefix("--").replace("-", "_")) in GONE_FLAGS:
                self.error(in_flags(f"{text.partition('=')[0]} is no option any more: {GONE_FLAGS[name]}"))
        if extra:
            flags = list(self._option_string_actions)[2:]  # without -h, --help
            near = [close_to(text.partition("=")[0], flags) for text in extra if text.startswith("--")]
            self.error(f"unrecognized arguments: {' '.join(extra)}.{''.join(near)}")
        return parsed


def in_flags(text: str) -> str:
    """Return what :class:`~overlap_sched.options.Options` says of its fields, as of flags."""
    known = "|".join(Options.__dataclass_fields__)
    return re.sub(rf"(?<![-\w])({known})(?= is | of |=')", lambda found: f"--{found[1].replace('_', '-')}", text)


class _Field(NamedTuple):
    """A field that is a flag, or an option that is one: where it stands, its type, default, text and flag."""

    owner: type
    name: str
    hint: Any
    default: Any
    text: str
    flag: Flag


def _fields_of(command: type) -> Iterator[_Field]:
    """Yield what may be given: the command's own first, then what it inherits."""
    hints, defaults = get_type_hints(command, None, None, True), {of.name: of.default for of in fields(command)}
    for owner in filter(is_dataclass, command.__mro__):
        texts = _texts(owner)
        for name in inspect.get_annotations(owner):
            hint, flag = get_args(hints[name])[:2] if get_origin(hints[name]) is Annotated else (hints[name], Flag())
            if hint is Options:
                yield from (_Field(owner, *of, _FLAG_OF.get(of[0], Flag())) for of in _options_of(flag))
            elif name in texts:
                yield _Field(owner, name, hint, defaults[name], texts[name], flag)


def parser_of(command: type, name: str, summary: str) -> Parser:
    """Return the parser of a command, from its dataclass."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog=f"overlap-sched {name}", description=summary, epilog=EXIT_CODES, formatter_class=raw)
    groups: dict[Any, Any] = {command: parser}
    given = list(_fields_of(command))
    for field in reversed([one for one in given if one.flag.positional]):
        _add(parser, field)
    for field in given:
        if field.owner not in groups:
            title = (field.owner.__doc__ or "").partition("\n")[0].rstrip(".").lower()
            groups[field.owner] = parser.add_argument_group(title)
        if (group := field.flag.group) and group not in groups:
            groups[group] = groups[field.owner].add_mutually_exclusive_group(required=group.endswith("!"))
        if not field.flag.positional:
            _add(groups[group or field.owner], field)
    return parser


def parse(command: type[Command], name: str, summary: str, arguments: Sequence[str]) -> Command:
    """Read the arguments of a command; a field ``given`` gets the command line itself."""
    read: dict[str, Any] = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in vars(parser_of(command, name, summary).parse_args(arguments)).items()
    }
    read["given"] = shlex.join(("overlap-sched", name, *arguments))
    known = {field.name for field in fields(command)}  # type: ignore[arg-type]
    if "options" in known:
        given = Options.__dataclass_fields__.keys() - known
        try:
            read["options"] = Options(**{name: value for name, value in read.items() if name in given})
        except OptionsError as error:
            raise OptionsError(in_flags(str(error))) from None
    return command(**{field: value for field, value in read.items() if field in known})


@cache
def _texts(owner: type) -> dict[str, str]:
    """Return the text below each field of a class."""
    tree: Any = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    return {
        field.target.id: " ".join(str(text.value.value).split())  # type: ignore[attr-defined, union-attr]
        for field, text in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


@cache
def _options_of(names: tuple[str, ...]) -> list[tuple[str, Any, Any, str]]:
    """Return name, type, default and first sentence of options."""
    texts = dict(_ATTRIBUTE.findall(inspect.cleandoc(Options.__doc__ or "")))
    texts["rewrites"] = f"kinds of rewrites, joined by commas: {', '.join(_REWRITES)}"
    hints, default, found = {**get_type_hints(Options), "rewrites": str}, Options(rewrites=()), []
    for name in names:
        plain = re.sub(r" \(:mod:`.*?`\)", "", " ".join(texts[name].split()))
        plain = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`|``(.*?)``", r"\1\2", plain)
        found.append((name, hints[name], getattr(default, name), plain[0].lower() + plain[1:]))
    return found


def _add(section: Any, field: _Field) -> None:
    _, name, hint, default, text, flag = field
    metavar, told = _HELP.fullmatch(text).groups()  # type: ignore[union-attr]
    kinds = (hint,) if get_origin(hint) is Literal else get_args(hint) or (hint,)
    kind = str if str in kinds else next(one for one in kinds if one is not NoneType)
    if default not in (MISSING, None, False, (), "", 0) and "default" not in told:
        told += f" (default: {default})"
    more: dict[str, Any] = {"help": told.replace("%", "%%"), "metavar": metavar}
    if not flag.positional:
        more |= {"dest": name, "required": default is MISSING, "default": default}
    elif default is not MISSING:
        more["nargs"] = "?"
    if get_origin(hint) is tuple:
        more |= {"action": "extend", "nargs": "+"} if flag.many else {"action": "append"}
        more["default"] = [] if default is MISSING else list(default)
    if kind is bool:
        del more["metavar"]
        more["action"] = "store_true"
    elif get_origin(kind) is Literal:
        more["metavar"] = metavar or f"{{{','.join(get_args(kind))}}}"
        more["type"] = partial(_read, Flag(partial(read_choice, get_args(kind))))
    else:
        more["type"] = partial(_read, flag) if flag.read else kind
    if flag.const is not None:
        more |= {"nargs": "?", "const": flag.const}
    section.add_argument(name if flag.positional else _name_of(field), **more)


def _read(flag: Flag, text: str) -> Any:
    try:
        return flag.read(text)  # type: ignore[misc]
    except ValueError as error:
        said = str(error) if isinstance(error, OptionsError) else f"{shortened(text)!r} is not {flag.form}"
        raise argparse.ArgumentTypeError(said) from None


def _name_of(field: _Field) -> str:
    return "the input" if field.flag.positional else field.flag.name or f"--{field.name.replace('_', '-')}"


def check_files(command: Any) -> None:
    """Find out before the work is done that a result could not be written, or would destroy something."""
    from overlap_sched.report.files import check_writable
    from overlap_sched.report.pictures import check_plot

    seen: dict[str, str] = {}
    named = [(field.flag.file, _name_of(field), field.name) for field in _fields_of(type(command)) if field.flag.file]
    for file, option, name in sorted(named):  # those read, then those written
        value = getattr(command, name)
        for path in value if isinstance(value, tuple) else [] if value is None else [value]:
            if file == "out":
                if not path:
                    raise OptionsError(f"{option}: the name of the file is empty. Name a file, or leave {option} out.")
                check_writable(path)
                real = os.path.realpath(path)
                if real in seen and (os.path.isfile(real) or not os.path.exists(real)):  # else a terminal, or the like
                    raise OptionsError(f"{option} {path}: would overwrite {seen[real]}. Name another file.")
                if option == "--plot":
                    check_plot(path)
            with suppress(OSError):  # no file at all
                seen[os.path.realpath(nameable(path))] = f"{option}, {path}"


def limit_bytes(option: str, text: str, original_peak_bytes: int) -> int:
    """Read a memory limit in bytes: ``80GB``, ``24GiB``, or percent of the original peak."""
    return parse_limit(
        option, text, original_peak_bytes, "a size with a unit (80GB, 24GiB) or percent of the original peak (90%)"
    )


def shortened(text: str) -> str:
    """Return at most 40 characters of what was given, for a message."""
    return text if len(text) <= 40 else text[:37] + "..."
