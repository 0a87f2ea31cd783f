"""Which graph inputs stay (parameters, what the caller keeps) and which may be freed after their last use."""

from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches

from torch import fx

from overlap_sched.errors import OptionsError
from overlap_sched.problem import MemoryModel

Which = Callable[[fx.Node], bool] | Collection[str]
"""Inputs: by name, or by a function of their nodes."""
STAYS = "overlap_sched_stays"
"""In the metadata of an input of which it is known that its caller holds it on, whatever its name."""


def kept_inputs(
    inputs: Sequence[fx.Node], memory_model: MemoryModel, parameters: Which | None, donated: Which | None
) -> set[fx.Node]:
    """The placeholders whose storages stay to the end.

    ``parameters`` stay and ``donated`` may be freed, as the caller says; of both, it stays, and so does what is marked
    (:data:`STAYS`). The others by their names:

    - AOTAutograd's backward (some input is ``tangents_*``): ``primals_*`` stay; saved activations and tangents may go.
    - anything else (its forward, a compiled optimizer, ``make_fx``): all stay, since the caller may still hold them.
    - in the ``tracker`` model, as torch's own ``memory_estimator._is_releasable``: all but ``primals*`` may go.

    Raises:
        OptionsError: A name is not one of the graph's inputs.
    """
    names = {node.name for node in inputs} | {node.target for node in inputs}
    stays, goes = _predicate(parameters, names, "parameters"), _predicate(donated, names, "donated")
    backward = any(node.name.startswith("tangents") for node in inputs)
    by_name = backward or memory_model == "tracker"
    return {
        node
        for node in inputs
        if stays(node) or STAYS in node.meta or (not goes(node) and (not by_name or node.name.startswith("primals")))
    }  # fmt: skip


def _predicate(which: Which | None, names: set[str], argument: str) -> Callable[[fx.Node], bool]:
    if which is None:
        return lambda node: False
    if callable(which):
        return which
    wanted = {which} if isinstance(which, str) else set(which)
    for name in sorted(wanted - names):
        near = get_close_matches(name, sorted(names), n=1, cutoff=0.4)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise OptionsError(
            f"{argument} names {name!r}, which is not an input of the graph{hint}. "
            "Give names of placeholder nodes, or a function of them."
        )
    return lambda node: node.name in wanted or node.target in wanted
