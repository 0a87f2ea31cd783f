"""All that is reached from a few nodes, whatever nodes are: of a problem, of a draft, of an FX graph.

>>> sorted(reached(["b"], {"a": "b", "b": "cd", "c": "d", "d": ""}.__getitem__))
['c', 'd']
"""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def reached(start: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> set[Node]:
    """Find what follows on the first nodes, on that, and so on; they themselves only where they follow on others."""
    found, todo = set[Node](), list(start)
    while todo:
        for node in following(todo.pop()):
            if node not in found:
                found.add(node)
                todo.append(node)
    return found
