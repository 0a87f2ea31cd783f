"""A graph as ``str(graph)`` prints it, one node a line, as the function that torch would print of it.

    graph():
        %x : [num_users=1] = placeholder[target=x]
        %relu : [num_users=1] = call_function[target=torch.ops.aten.relu.default](args = (%x,), kwargs = {})
        return (relu,)

It has no shapes, and text in it has no quotes: ``0`` may be a group. What is no node, number, type or device is text.
"""

import re
from collections.abc import Sequence

_NODE = re.compile(
    r"^\s*%(?P<name>\w+) : .*?\[(?:num_users|#users)=\d+\] = (?P<op>\w+)\[target=(?P<target>[^\]]+)\]"
    r"(?:\(args = (?P<args>.*), kwargs = \{(?P<kwargs>.*)\}\))?"
)
_DEVICE = re.compile(r"^(cpu|cuda|meta|xpu|hpu|mps|npu|privateuseone)(?::(\d+))?$")
_PLAIN = re.compile(r"^(?:-?\d+(?:\.\d*)?(?:e[+-]?\d+)?|None|True|False|torch\.\w+|-?inf|nan|slice\(.*\)|Ellipsis)$")
_GROUP = re.compile(r"^torch\.ops\._(?:c10d_functional|dtensor)\b")
_OPEN, _CLOSE = "([{", ")]}"


def as_function(lines: Sequence[str], start: int) -> list[str]:
    """The lines as those of a function ``forward``, indented as in a class, each where it was."""
    written, inputs = [""] * len(lines), []
    for i in range(start + 1, len(lines)):
        match = _NODE.match(lines[i])
        if match is not None and match["op"] == "placeholder":
            inputs.append(match["name"])
        elif match is not None:
            written[i] = f"        {match['name']} = {_value(match)}"
        elif lines[i].strip():
            written[i] = f"        {lines[i].strip()}"
        if lines[i].strip().startswith("return"):
            break
    written[start] = f"    def forward({', '.join(['self', *inputs])}):"
    return written


def _value(match: re.Match[str]) -> str:
    target = match["target"]
    if match["op"] == "get_attr":
        return f"self.{target}"
    if match["op"] != "call_function":
        return f"{match['op']}({target!r})"  # refused where it is read, with its line
    args = [_argument(part) for part in _parts(match["args"].strip()[1:-1])]
    if _GROUP.match(target) and args and args[-1].lstrip("-").isdigit() and "wait" not in target:
        args[-1] = repr(args[-1])
    named = [part.partition(":") for part in _parts(match["kwargs"])]
    kwargs = [f"{name.strip()} = {_argument(value)}" for name, _, value in named]
    return f"{target}({', '.join([*args, *kwargs])})"


def _parts(text: str) -> list[str]:
    """Split a text at the commas outside of brackets."""
    found, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in _OPEN) - (letter in _CLOSE)
        if letter == "," and not depth:
            found.append(text[start:i].strip())
            start = i + 1
    return [part for part in [*found, text[start:].strip()] if part]


def _argument(text: str) -> str:
    text = text.strip()
    device = _DEVICE.match(text)
    if text.startswith("%"):
        return text[1:]
    if text[:1] in ("(", "[") and text[-1:] in (")", "]"):
        inner = [_argument(part) for part in _parts(text[1:-1])]
        closing = ",)" if text[0] == "(" and len(inner) == 1 else text[-1]
        return f"{text[0]}{', '.join(inner)}{closing}"
    if device is not None:
        return f"device(type={device[1]!r}{f', index={device[2]}' if device[2] else ''})"
    return text if _PLAIN.match(text) else repr(text)
