"""Steps of several ranks beside each other, and the skew of arrival taken out of their collectives.

A collective runs from the moment at which its last rank arrives. Ranks that come early spend the time before in it,
too: waiting. The rank that comes last waits for nobody, so the least of all ranks' durations is the time of the
collective itself. That is how Holistic Trace Analysis of Meta sees it; durations alone are compared, so clocks of
different machines need not agree.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from overlap_sched.cost.profile.kineto import HostCall
from overlap_sched.errors import ProfileError


class Seen(NamedTuple):
    """A call that the graph has, too: by what it is looked up, and how long it took."""

    key: Hashable
    call: HostCall


class Sample(NamedTuple):
    """One run of the graph on one rank.

    Attributes:
        place: Number of its step, and the how-manieth run in it.
        calls: Operators that the graph has.
        launches: Its collectives.
        fused: Kernels that a compiler made of several operators.
    """

    place: tuple[int, int]
    calls: tuple[Seen, ...]
    launches: tuple[Seen, ...]
    fused: tuple[HostCall, ...]


class Rank(NamedTuple):
    """The runs of one rank, for messages with its file."""

    path: str
    rank: int | None
    world_size: int | None
    samples: tuple[Sample, ...]


def without_skew(ranks: Sequence[Rank]) -> tuple[list[list[tuple[Hashable, float]]], float]:
    """Per run that all ranks have, (key, microseconds) of each collective; and what was taken out, per rank and run."""
    _check_ranks(ranks)
    samples = [{sample.place: sample for sample in rank.samples} for rank in ranks]
    places = [place for place in samples[0] if all(place in other for other in samples)]
    if not places:
        raise ProfileError(
            f"{ranks[0].path} and {ranks[1].path} have no step in common (steps {_steps(ranks[0])} and "
            f"{_steps(ranks[1])}). Profile the same steps on every rank."
        )
    runs, skew_us = [], 0.0
    for place in places:
        run = [sample[place].launches for sample in samples]
        for other, launches in zip(ranks[1:], run[1:], strict=True):
            _check_equal(place, ranks[0], run[0], other, launches)
        times = [_least(instances) for instances in zip(*run, strict=True)]
        runs.append([(seen.key, us) for seen, us in zip(run[0], times, strict=True) if us is not None])
        for us, instances in zip(times, zip(*run, strict=True), strict=True):
            known = [seen.call.us for seen in instances if seen.call.us is not None]
            skew_us += sum(known) / len(known) - us if us is not None else 0.0
    return runs, skew_us / len(places)


def _least(instances: Sequence[Seen]) -> float | None:
    """The least duration among ranks of one group; where there are several groups, the mean of theirs."""
    by_group: dict[str, list[float]] = defaultdict(list)
    for seen in instances:
        if seen.call.us is not None:
            by_group[seen.call.group].append(seen.call.us)
    return sum(map(min, by_group.values())) / len(by_group) if by_group else None


def _check_ranks(ranks: Sequence[Rank]) -> None:
    paths: dict[object, str] = {}
    for rank in ranks:
        who: object = rank.path if rank.rank is None else rank.rank
        if who in paths:
            what = "the same file" if rank.rank is None else f"both of rank {rank.rank}"
            raise ProfileError(f"{paths[who]} and {rank.path} are {what}: give each rank once.")
        paths[who] = rank.path
        if rank.world_size != ranks[0].world_size:
            raise ProfileError(
                f"{ranks[0].path} is of a job of {ranks[0].world_size or 'no known number of'} ranks, {rank.path} of "
                f"{rank.world_size or 'no known number of'}. Give traces of one job."
            )


def _check_equal(place: tuple[int, int], first: Rank, one: Sequence[Seen], second: Rank, other: Sequence[Seen]) -> None:
    if [seen.key for seen in one] == [seen.key for seen in other]:
        return
    k = next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a.key != b.key), min(len(one), len(other)))
    a, b = (described(seen[k].call) if k < len(seen) else "nothing" for seen in (one, other))
    raise ProfileError(
        f"step {place[0]} is not the same on two ranks: collective {k + 1} is {a} in {first.path} and {b} in "
        f"{second.path}. Give ranks that run the same graph, or one trace alone."
    )


def described(call: HostCall) -> str:
    """``all_gather_into_tensor [64, 128]``."""
    name = call.name.removeprefix("_c10d_functional::")
    return " ".join([name, *(str(list(shape)) for shape in call.shapes)])


def _steps(rank: Rank) -> str:
    numbers = list(Counter(sample.place[0] for sample in rank.samples))
    return ", ".join(map(str, numbers[:5])) + (", ..." if len(numbers) > 5 else "")
