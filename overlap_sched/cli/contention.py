"""``--slowdown`` and ``--link``: contention given on the command line, merged with that of the problem.

An option replaces the problem's entry of the same key: a factor by its kind, a link by its process group. So a factor
of 1 removes the problem's slowdown of a kind, and a link of its own takes a group off a shared one.
"""

from collections.abc import Sequence
from dataclasses import replace

from overlap_sched.errors import OptionsError
from overlap_sched.problem import Problem
from overlap_sched.problem.contention import NO_CONTENTION, Contention

EVERY_KIND = ""
"""The kind of a factor without one: every operator begins with it."""


def contention_given(slowdowns: Sequence[str], links: Sequence[str]) -> Contention:
    """The contention in the options: ``["all_gather=1.1", "1.05"]`` and ``["rail=fsdp,ep"]``."""
    return Contention(_slowdown(slowdowns), _links(links))


def with_contention(problem: Problem, given: Contention, path: str) -> Problem:
    """The problem, read from ``path``, with the contention given in place of its own."""
    if given == NO_CONTENTION:
        return problem
    for group, link in given.links.items():
        if group not in problem.groups:
            there = (
                f"its groups are {', '.join(map(repr, sorted(problem.groups)))}" if problem.groups else "it has none"
            )
            raise OptionsError(
                f"--link {link}={group}: {path} has no process group {group!r}; {there}. "
                "Correct the name, or leave it out."
            )
    own = problem.contention
    slowdown, links = {**own.slowdown, **given.slowdown}, {**own.links, **given.links}
    return replace(problem, contention=replace(own, slowdown=slowdown, links=links))


def notes_on(problem: Problem, given: Contention) -> tuple[str, ...]:
    """Kinds given of which the problem has no collective: perhaps misspelt."""
    ops = sorted({problem.nodes[v].op for v in problem.collectives} - {""})
    there = f"its collectives are {', '.join(ops)}" if ops else "it has none with a named operator"
    return tuple(
        f"--slowdown {kind}={factor:.15g}: no collective of this problem begins with {kind!r}; {there}"
        for kind, factor in given.slowdown.items()
        if kind != EVERY_KIND and not any(op.startswith(kind) for op in ops)
    )


def _slowdown(texts: Sequence[str]) -> dict[str, float]:
    factors: dict[str, float] = {}
    for text in texts:
        kind, equals, number = (part.strip() for part in text.rpartition("="))
        factor = _factor(text, number)
        if equals and not kind:
            raise OptionsError(
                f"--slowdown {text}: there is no kind before the =. "
                f"Write --slowdown all_gather={number}, or without = for every kind: --slowdown {number}."
            )
        if kind in factors:
            raise OptionsError(
                f"--slowdown {text}: {repr(kind) if kind else 'every kind'} has a factor already, "
                f"{factors[kind]:.15g}. Give it once."
            )
        factors[kind] = factor
    return factors


def _factor(text: str, number: str) -> float:
    try:
        factor = float(number)
    except ValueError:
        raise OptionsError(
            f"--slowdown {text}: {number!r} is not a number. Write KIND=FACTOR (all_gather=1.1: compute takes a tenth "
            "longer beside an all_gather), or FACTOR alone for every kind."
        ) from None
    if not 1.0 <= factor < float("inf"):
        raise OptionsError(
            f"--slowdown {text}: a factor is finite and 1 or more. Write how many times as long compute takes: 1.1 for "
            "a tenth longer."
        )
    return factor


def _links(texts: Sequence[str]) -> dict[str, str]:
    link_of: dict[str, str] = {}
    for text in texts:
        link, _, named = (part.strip() for part in text.partition("="))
        groups = [group.strip() for group in named.split(",")]
        if not link or not all(groups):
            raise OptionsError(
                f"--link {text}: is not LINK=GROUP,GROUP. Name the link, then the process groups that share it: "
                "--link rail=fsdp,ep."
            )
        for group in groups:
            if group in link_of:
                raise OptionsError(
                    f"--link {text}: group {group!r} is on link {link_of[group]!r} already. A group is on one link: "
                    "name it once."
                )
            link_of[group] = link
    return link_of
