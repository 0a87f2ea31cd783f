"""Ranks that launch differently never come to a stop where no wait passes a launch that it followed.

By brute force: all small programs of two and three ranks that complete as they are, and all that each rank may make of
its own. A collective is done when all ranks of its group have launched it: the first launch of each on a group is one
collective, and so on. Launches of a rank run in their order on the stream of their group, or all on one stream.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import pytest

from overlap_sched.inductor.agree import Traffic

Program = tuple[tuple[str, int], ...]
"""What a rank runs: ``("a", 0)``, its first launch, on group ``a``; ``("A", 0)``: it blocks; ``("wait", 0)`` for it."""
PAIR = {"a": (0, 1), "b": (0, 1), "x": (0,)}
RING = {"a": (0, 1), "b": (1, 2), "c": (2, 0)}


def programs(letters: str, most: int) -> list[Program]:
    """All programs of so many launches at most on some groups, each asynchronous one waited for."""
    every = (*letters, *letters.upper())
    return [one for n in range(most + 1) for launched in product(every, repeat=n) for one in placed(launched)]


def placed(launched: Sequence[str], at: int = 0, pending: tuple[int, ...] = ()) -> Iterator[Program]:
    """All places of the waits of a launch sequence."""
    if at == len(launched) and not pending:
        yield ()
    if at < len(launched):
        more = (*pending, at) if launched[at].islower() else pending
        yield from (((launched[at], at), *rest) for rest in placed(launched, at + 1, more))
    for k in pending:
        rests = placed(launched, at, tuple(one for one in pending if one != k))
        yield from ((("wait", k), *rest) for rest in rests)


def completes(ranks: Sequence[Program], groups: Mapping[str, Sequence[int]], one_stream: bool) -> bool:
    """Do all ranks get to their ends? To launch more never keeps another from being done, so any interleaving tells."""
    steps = [[s for what, k in one for s in [(what.lower(), k), ("wait", k)][: 1 + what.isupper()]] for one in ranks]
    queues, at = [list[tuple[str, int]]() for _ in ranks], [0] * len(ranks)
    done, went = set[tuple[int, int]](), True
    while went:
        went = False
        for r, mine in enumerate(steps):
            while at[r] < len(mine) and (mine[at[r]][0] != "wait" or (r, mine[at[r]][1]) in done):
                queues[r] += [mine[at[r]]] if mine[at[r]][0] != "wait" else []
                at[r] += 1
        for name, members in groups.items():
            heads = {r: head(queues[r], name, one_stream) for r in members}
            if None not in heads.values():
                went = True
                for r, one in heads.items():
                    queues[r].remove(one)  # type: ignore[arg-type]
                    done.add((r, one[1]))  # type: ignore[index]
    return at == list(map(len, steps))


def head(queue: Sequence[tuple[str, int]], name: str, one_stream: bool) -> tuple[str, int] | None:
    """What runs next on a stream, if it is on this group."""
    on = [one for one in queue if one_stream or one[0] == name][:1]
    return on[0] if on and on[0][0] == name else None


def traffic(program: Program) -> Traffic:
    """As the check sees it."""
    launching = tuple(one for one in program if one[0] != "wait")
    before = {
        k: sum(one[0] != "wait" for one in program[:at]) for at, (what, k) in enumerate(program) if what == "wait"
    }
    return Traffic(launching, before)  # type: ignore[arg-type]


def stops(
    each: Sequence[Sequence[Program]], groups: Mapping[str, Sequence[int]], one_stream: bool, rule: bool
) -> tuple[int, list[tuple[Program, ...]]]:
    """How many choices of a program per rank complete, and those of them of which some reordering comes to a stop.

    All launches stay in order; with the rule waits do, as far as they must.
    """
    runs = {ranks: completes(ranks, groups, one_stream) for ranks in product(*each)}
    seen = {one: traffic(one) for one in {*sum(map(tuple, each), ())}}
    alike: dict[Any, list[Program]] = {}
    for one, its in seen.items():
        alike.setdefault(its.launching, []).append(one)
    made = {p: [q for q in alike[its.launching] if not rule or seen[q].keeps(its)] for p, its in seen.items()}
    good = [ranks for ranks, fine in runs.items() if fine]
    return len(good), [ranks for ranks in good if not all(runs[new] for new in product(*map(made.__getitem__, ranks)))]


CASES = {
    "one rank has a group of its own": ([programs("abx", 2), programs("ab", 2)], PAIR, (336, 66), (270, 0)),
    "two ranks": ([programs("ab", 3)] * 2, PAIR, (22923, 11766), (11157, 0)),
    "a ring of three": ([programs("ac", 2), programs("ab", 2), programs("bc", 2)], RING, (2944, 558), (2386, 0)),
}
"""Programs, groups; how many choices complete, and how many of these can come to a stop where waits move freely: with a
stream per group, and with one."""
CASE, *MORE = CASES


@pytest.mark.parametrize("one_stream", [False, True])
@pytest.mark.parametrize("case", [CASE, *(pytest.param(one, marks=pytest.mark.slow) for one in MORE)])
def test_where_no_wait_passes_a_launch_that_it_followed_nothing_stops(case: str, one_stream: bool) -> None:
    each, groups, *counts = CASES[case]
    complete, can_stop = counts[one_stream]
    assert stops(each, groups, one_stream, rule=True) == (complete, [])
    found, stopped = stops(each, groups, one_stream, rule=False)
    assert (found, len(stopped)) == (complete, can_stop)
    launches = [[tuple(one for one in mine if one[0] != "wait") for mine in ranks] for ranks in stopped]
    assert case != "two ranks" or all(one != other for one, other in launches)  # who launches alike never stops


def test_a_stop() -> None:
    """Each waits for what the other launches only behind its own wait."""
    one = (("a", 0), ("b", 1), ("wait", 0), ("wait", 1))
    other = (("b", 0), ("a", 1), ("wait", 0), ("wait", 1))
    early = [(("a", 0), ("wait", 0), ("b", 1), ("wait", 1)), (("b", 0), ("wait", 0), ("a", 1), ("wait", 1))]
    assert completes([one, other], PAIR, one_stream=False)
    assert completes([one, early[1]], PAIR, one_stream=False)
    assert not completes(early, PAIR, one_stream=False)
    assert not traffic(early[0]).keeps(traffic(one))
    assert traffic(one).keeps(traffic(early[0]))
