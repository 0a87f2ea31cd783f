"""Whatever the timing: all ranks that finish take the same decision, and only agree where all have the same digest."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from overlap_sched.distributed.digest import Digest, Verdict, judge
from overlap_sched.distributed.protocol import Steps, StoreCall
from tests.support.examples import at_night
from tests.support.interleavings import Checker, End, StuckError

OPTIONS = '{"headroom": 1}'
A, B, C = (
    Digest(operators=name, sizes="s", options="{}", costs="c", order="r", key=name, launches="l", name=name)
    for name in "ABC"
)
OTHER_LAUNCHES = replace(A, options=OPTIONS, launches="m")
OTHER_OPTIONS, OTHER_COSTS = replace(A, options=OPTIONS), replace(A, costs="other")
FAILED = Digest(failure="KeyError: 'mm'", key="A", launches="l", name="A")


def alike(graphs: Sequence[Sequence[Digest]], end: End) -> bool:
    """For each graph, one decision on all ranks that finished; agreed only if all ranks have that graph.

    Launches are alike only if each rank has a graph that launches so. Not every rank must hear that they are: who keeps
    its launches and who its original order launches in one sequence.
    """
    decided: dict[Digest, set[tuple[bool, bool]]] = {}
    for mine, verdicts in zip(graphs, end.verdicts, strict=True):
        for graph, verdict in zip(mine, verdicts or (), strict=False):
            decided.setdefault(graph, set()).add((verdict.agreed, verdict.launches_alike))
    return all(
        len({agreed for agreed, _ in values}) == 1
        and ((True, False) not in values or all(graph in mine for mine in graphs))
        and ((False, True) not in values or all(graph.launches in {g.launches for g in mine} for mine in graphs))
        for graph, values in decided.items()
    )


def alike_at_the_end(graphs: Sequence[Sequence[Digest]], end: End) -> bool:
    """What ranks that finished run last of each graph is agreed on by all of them, or by none.

    Whoever compiles a graph again runs that, whoever does not what it has.
    """
    last: dict[str, set[tuple[bool, str]]] = {}
    for mine, verdicts in zip(graphs, end.verdicts, strict=True):
        in_force = {graph.key: verdict for graph, verdict in zip(mine, verdicts or (), strict=False)}
        shown = {graph.key: graph for graph in mine}
        for key, verdict in in_force.items():
            last.setdefault(key, set()).add((verdict.agreed, shown[key].identity if verdict.agreed else ""))
    return all(len(values) == 1 for values in last.values())


def came_too_late(end: End) -> bool:
    """A rank was not heard within the limit where the others had an order from before."""
    return any(v.as_before and v.agreed and v.missing for verdicts in end.verdicts for v in verdicts or ())


def ends(graphs: Sequence[Sequence[Digest]], **how: Any) -> list[End]:
    found = list(Checker(graphs, **how).ends())
    assert found
    assert all(alike(graphs, end) and alike_at_the_end(graphs, end) for end in found)
    return found


NAMES = {"A": A, "B": B, "C": C, "options": OTHER_OPTIONS, "costs": OTHER_COSTS, "fails": FAILED}
WAYS = ["A|A", "A|B", "A|options", "A,B|B,A", "A,B|B", "A,B|A", "A,A|A"]
WAYS += ["A,B|A,B", "A,options|options,A", "A,B|A,A,B", "A,A|A,A"]


def graphs_of(text: str) -> list[list[Digest]]:
    """``A,B|A``: what each rank compiles."""
    return [[NAMES[name] for name in mine.split(",")] for mine in text.split("|")]


@pytest.mark.slow
@pytest.mark.parametrize("ways", WAYS)
def test_two_ranks_of_which_one_may_die_whatever_the_timing(ways: str) -> None:
    """Or none does: all ways without a death are among these."""
    ends(graphs_of(ways), deaths=1)


@pytest.mark.private
@pytest.mark.parametrize("ways", ["A|A", "A|options", at_night("A,A|A")])
def test_a_step_that_fails_on_a_rank_leaves_all_alike(ways: str) -> None:
    """Done or not, at any moment, once on each rank: it follows what is recorded."""
    found = ends(graphs_of(ways), faults=1)
    agreed = {verdict.agreed for end in found for verdict in end.verdicts[0] or ()}
    assert agreed >= {"options" not in ways, False}


@pytest.mark.slow
@pytest.mark.parametrize("ways", ["A|A|A", at_night("A|A|options"), at_night("A|A|B"), "A|B|C"])
def test_three_ranks_whatever_the_timing(ways: str) -> None:
    ends(graphs_of(ways), deaths=int(ways != "A|B|C"))


@pytest.mark.parametrize("ranks", [2, 3])
def test_equal_digests_always_agree_when_nobody_is_late(ranks: int) -> None:
    for end in ends([[A]] * ranks, limit_passes=False):
        assert end.verdicts == ((Verdict(agreed=True, shown=(A.identity,)),),) * ranks


def test_ranks_that_launch_otherwise_never_keep_their_launches_by_agreement() -> None:
    for end in ends([[A], [OTHER_LAUNCHES]]):
        assert not any(v.agreed or v.launches_alike for verdicts in end.verdicts for v in verdicts or ())
    for end in ends([[A], [OTHER_OPTIONS]], limit_passes=False):
        assert all(v.launches_alike for verdicts in end.verdicts for v in verdicts or ())


@pytest.mark.parametrize(("other", "part"), [(OTHER_OPTIONS, "options"), (OTHER_COSTS, "costs"), (B, "operators")])
def test_a_difference_is_found_without_waiting_for_the_limit(other: Digest, part: str) -> None:
    for end in ends([[A], [other]], limit_passes=False):
        assert [dict(v.differs) for verdicts in end.verdicts for v in verdicts or ()] == [{part: ((0,), (1,))}] * 2
    for end in ends([[A, B], [B, A]], limit_passes=False):  # in different order: somebody goes on without knowing
        assert any(not v.agreed for verdicts in end.verdicts for v in verdicts or ())


def test_equal_digests_under_different_keys_do_not_agree() -> None:
    """Those ranks have never met; what differs besides the key is told."""
    for other, parts in ((replace(A, key="K"), {"operators"}), (replace(OTHER_OPTIONS, key="K"), {"options"})):
        for end in ends([[A], [other]], limit_passes=False):
            for verdict in (v for verdicts in end.verdicts for v in verdicts or ()):
                assert not verdict.agreed
                assert set(verdict.differs) == parts


def test_a_rank_that_shows_a_digest_and_dies_before_it_stands_waiting_is_named() -> None:
    never_stood = [end for end in ends([[A], [A]], deaths=1) if end.verdicts[1] is None and "at/1" not in end.store]
    found = [end.verdicts[0][0] for end in never_stood if end.verdicts[0]]
    assert {(verdict.agreed, verdict.missing) for verdict in found} == {(False, (1,))}
    assert any("rank 1 no longer waited with graph 'A' within 300 s" in verdict.reason for verdict in found)


def test_a_graph_compiled_again_by_one_rank_only_keeps_its_decision() -> None:
    """The other rank takes its second compilation from a cache and never asks again."""
    for end in ends([[A, B], [A, A, B]], limit_passes=False):
        assert all(v.agreed for verdicts in end.verdicts for v in verdicts or ())


def test_a_graph_compiled_again_by_one_rank_only_while_the_others_run_it() -> None:
    """They will not come: at the limit what was decided before stands, whatever it was."""
    found = ends([[A, A], [A]])
    assert {tuple(v.agreed for v in end.verdicts[0] or ()) for end in found} == {(True, True), (False, False)}
    assert all((end.verdicts[0] or ())[1].missing == (1,) for end in found)


def test_a_rank_that_was_passed_over_waits_for_the_short_limit_only() -> None:
    """In the next round, in which it shows something else, the others may well not come."""
    ended = [end for end in Checker([[A, A], [A, OTHER_OPTIONS]]).ends() if "A/2/verdict" in end.store]
    assert ended
    assert all("within 30 s (instead of 300 s" in end.verdicts[1][1].reason for end in ended if end.verdicts[1])


@pytest.mark.parametrize("again", ["fails", "costs"])
def test_a_rank_that_differs_only_the_second_time_is_heard(again: str) -> None:
    for end in Checker([[A, A], [A, NAMES[again]]], limit_passes=False).ends():
        for verdicts in end.verdicts:
            assert [(v.agreed, v.launches_alike) for v in verdicts or ()] == [(True, False), (False, True)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ways", "how"),
    [
        ("A,A|A,fails", {"deaths": 1}),
        ("A,A,A|A,fails,A", {"limit_passes": False}),
        ("A,A|A,A|A,fails", {"limit_passes": False}),
    ],
)
def test_what_all_run_is_alike_unless_a_rank_differs_for_once_and_is_later_than_the_limit(
    ways: str, how: dict[str, Any]
) -> None:
    graphs = graphs_of(ways)
    found = list(Checker(graphs, **how).ends())
    assert any(not came_too_late(end) for end in found)
    assert all(alike_at_the_end(graphs, end) or came_too_late(end) for end in found)


def test_a_rank_that_never_comes_leaves_the_original_order_and_is_named() -> None:
    for end in ends([[A], [A], []]):
        first, second, third = end.verdicts
        assert (first, third) == (second, ())
        assert [(v.agreed, 2 in v.missing) for v in first or ()] == [(False, True)]
    with pytest.raises(StuckError):  # without a limit it would hang the others
        ends([[A], []], limit_passes=False)


def test_somebody_late_by_a_hair_gets_both_decisions_but_never_two() -> None:
    """The race at the limit is really explored: the same start ends agreed, or not, by timing alone."""
    found = ends([[A], [A]])
    decisions = {tuple(v.agreed for verdicts in end.verdicts for v in verdicts or ()) for end in found}
    assert decisions == {(True, True), (False, False)}
    assert {end.store["waiting"] for end in found} <= {b"0"}


def _everyone_for_himself(mine: Digest, name: str, rank: int, ranks: Sequence[int], limit_s: float) -> Steps:
    """The protocol that suggests itself: read all digests until the limit, each rank decides alone."""
    yield StoreCall("set", (f"{mine.key}/0/{rank}", mine.to_json()))
    yield StoreCall("set", (f"at/{rank}", f"{mine.key}/0"))
    for _ in range(2):
        digests = {}
        for r in ranks:
            if (yield StoreCall("check", ([f"{mine.key}/0/{r}"],))):
                digests[r] = Digest.from_json((yield StoreCall("get", (f"{mine.key}/0/{r}",))))
        if len(digests) == len(ranks):
            return judge(digests)
        if (yield StoreCall("pause", (False,))):
            break
    return Verdict(agreed=False, reason="late")


def test_the_checker_finds_the_race_in_a_protocol_that_has_it() -> None:
    graphs = [[A], [A]]
    found = Checker(graphs, agree=_everyone_for_himself, written_once=False).ends()
    assert not all(alike(graphs, end) for end in found)
