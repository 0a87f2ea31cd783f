"""Which ranks are told that they gather different parameters, and which differ rightly."""

import json
from collections.abc import Sequence
from dataclasses import replace

from overlap_sched.distributed.digest import Digest
from overlap_sched.distributed.gathered import SHOWN_BYTES, RankLaunch, mixed, renamed, to_text
from overlap_sched.distributed.verdict import Verdict, as_before, judge

A = Digest(operators="p", sizes="s", options="o", costs="c", order="r", key="k", launches="l", name="forward", nodes=7)
GATHER = "all_gather_into_tensor"
MEND = (
    "so their values are mixed, with or without overlap_sched. Let all ranks gather the same parameters in the same "
    "order: look for a branch that depends on the rank, or a loop over a set."
)


def gathers(*names: str, ranks: Sequence[int] = (0, 1)) -> list[RankLaunch]:
    return [RankLaunch(GATHER, tuple(ranks), name) for name in names]


def test_the_first_difference_is_told_with_how_many_follow() -> None:
    one, other = to_text(gathers("a", "b", "c", "d")), to_text(gathers("a", "c", "b", "e"))
    where = f"{GATHER}, launch 2 of ranks 0-1 in 'forward'; 2 more gathers differ"
    assert mixed({0: one, 1: other}, "forward") == f"rank 0 gathers b where rank 1 gathers c ({where}), {MEND}"
    assert mixed({0: one, 1: one}) == ""


def test_ranks_of_a_large_group_and_one_difference() -> None:
    ranks = [0, 1, 2, 5]
    one, other = (to_text(gathers(name, ranks=ranks)) for name in ("a", "b"))
    where = f"{GATHER}, launch 1 of ranks 0-2, 5"
    assert mixed({0: one, 1: one, 2: other, 5: other}) == f"rank 0 gathers a where rank 2 gathers b ({where}), {MEND}"


def test_ranks_of_different_groups_gather_what_they_like() -> None:
    """Stages of a pipeline: the same launches, other parameters."""
    first, second = to_text(gathers("layers.0.w")), to_text(gathers("layers.1.w", ranks=(2, 3)))
    assert mixed({0: first, 1: first, 2: second, 3: second}) == ""


def test_on_a_mesh_each_group_is_compared_by_itself() -> None:
    """Rows gather their experts, columns all else: rank 3 alone differs from its column."""

    def shown(row: Sequence[int], column: Sequence[int], expert: str, dense: str) -> str:
        return to_text([*gathers(expert, ranks=row), *gathers(dense, ranks=column)])

    shows = {
        0: shown((0, 1), (0, 2), "experts.0.w", "dense"),
        1: shown((0, 1), (1, 3), "experts.0.w", "dense"),
        2: shown((2, 3), (0, 2), "experts.1.w", "dense"),
    }
    assert mixed({**shows, 3: shown((2, 3), (1, 3), "experts.1.w", "dense")}) == ""
    told = mixed({**shows, 3: shown((2, 3), (1, 3), "experts.1.w", "norm")})
    assert told == f"rank 1 gathers dense where rank 3 gathers norm ({GATHER}, launch 1 of ranks 1, 3), {MEND}"


def test_a_group_is_compared_by_its_members_alone() -> None:
    one, other = to_text(gathers("a")), to_text(gathers("b"))
    assert mixed({0: one, 1: one, 2: other}) == ""


def test_other_groups_that_differ_are_counted() -> None:
    one = to_text([*gathers("a"), *gathers("c", ranks=(0, 1, 2))])
    other = to_text([*gathers("b"), *gathers("d", ranks=(0, 1, 2))])
    assert "(all_gather_into_tensor, launch 1 of ranks 0-1; 1 more group differs)" in mixed({0: one, 1: other, 2: one})


def test_a_place_counts_all_launches_of_its_group_and_of_no_other() -> None:
    launches = [RankLaunch("all_reduce", (0, 1)), RankLaunch("all_reduce", (0, 2)), *gathers("a")]
    others = [RankLaunch("all_reduce", (0, 1)), RankLaunch("all_reduce", (1, 3)), *gathers("b")]
    assert f"({GATHER}, launch 2 of ranks 0-1)" in mixed({0: to_text(launches), 1: to_text(others)})


def test_other_launches_do_not_meet_place_by_place() -> None:
    """A rank that reduces something more: the agreement says so, and names would blame the wrong ones."""
    one, other = gathers("a", "b", "c"), [*gathers("a"), RankLaunch("all_reduce", (0, 1)), *gathers("b", "c")]
    assert mixed({0: to_text(one), 1: to_text(other)}) == ""
    swapped = [RankLaunch("all_reduce", (0, 1)), *gathers("b")], [*gathers("a"), RankLaunch("all_reduce", (0, 1))]
    assert mixed({rank: to_text(launches) for rank, launches in enumerate(swapped)}) == ""


def test_what_has_no_name_is_like_everything() -> None:
    one, other = gathers("a", ""), gathers("", "b")
    assert mixed({0: to_text(one), 1: to_text(other)}) == ""
    assert to_text(gathers("", "")) == to_text([]) == ""
    assert mixed({0: to_text(one), 1: ""}) == mixed({0: "", 1: ""}) == mixed({}) == ""


def test_text_that_cannot_be_read_says_nothing() -> None:
    assert mixed({0: to_text(gathers("a")), 1: "[1"}) == mixed({0: to_text(gathers("a")), 1: "[[3]]"}) == ""


def test_names_are_changed_and_places_stay() -> None:
    launches = [*gathers("$0"), RankLaunch("all_reduce", (0, 1)), *gathers("$1", "$2")]
    names = {"$0": "a", "$1": "", "$2": "c"}
    expected = [*gathers("a"), RankLaunch("all_reduce", (0, 1)), *gathers("", "c")]
    assert renamed(to_text(launches), names.__getitem__) == to_text(expected)


def test_names_that_are_too_many_are_hashed() -> None:
    """Ranks are still compared, and it is said that they differ; a name of which one rank had no room is itself."""
    names = [f"{'x' * 90}.{k:03}" for k in range(1_000)]
    whole = to_text(gathers(*names))
    shown = [row[2] for row in json.loads(whole)[0][2]]
    kept = SHOWN_BYTES // 94
    assert shown[:kept] == names[:kept]
    assert all(name.startswith("#") and len(name) == 13 for name in shown[kept:])
    other = to_text(gathers(*names[:-1], "y"))
    unnamed = f"a parameter that is not named here ({shown[-1]})"
    assert mixed({0: whole, 1: other}).startswith(f"rank 0 gathers {unnamed} where rank 1 gathers a parameter that is")
    group = (0, 1, 2)
    short = [*gathers(*names[:200], ranks=group), *gathers(*names[:20])]
    more_before = [*gathers(*names[:200], ranks=group), *gathers("z" * 2_000, ranks=(1, 3)), *gathers(*names[:20])]
    assert to_text(short).count("#") < to_text(more_before).count("#")
    assert mixed({0: to_text(short), 1: to_text(more_before), 2: to_text(short)}) == ""


def test_it_goes_with_any_verdict_and_changes_none() -> None:
    one, other = (replace(A, gathers=to_text(gathers(name))) for name in ("a", "b"))
    agreed = judge({0: one, 1: other})
    assert (agreed.agreed, agreed.reason) == (True, None)
    assert agreed.mixed.startswith(f"rank 0 gathers a where rank 1 gathers b ({GATHER}, launch 1 of ranks 0-1 in 'forw")
    failed = replace(Digest.of_failure("KeyError", "k", "l"), gathers=other.gathers)
    assert judge({0: one, 1: failed}) == replace(
        judge({0: A, 1: replace(failed, gathers="")}), mixed=agreed.mixed, shown=(A.identity, failed.identity)
    )
    assert Verdict.from_json(agreed.to_json()) == agreed
    assert judge({0: one, 1: one}) == judge({0: A, 1: A})


def test_where_an_earlier_verdict_stands_names_are_compared_anew() -> None:
    """The digest is the same, what is gathered may be another model's."""
    one, other = (replace(A, gathers=to_text(gathers(name))) for name in ("a", "b"))
    alike, unlike = judge({0: one, 1: one}), judge({0: one, 1: other})
    assert as_before(alike, (), {0: one, 1: other}) == replace(unlike, as_before=True)
    assert as_before(unlike, (), {0: one, 1: one}) == replace(alike, as_before=True)


def test_it_is_no_part_of_what_is_compared_and_old_text_lacks_it() -> None:
    one = replace(A, gathers=to_text(gathers("a")))
    assert one.identity == A.identity
    assert Digest.from_json(one.to_json()) == one
    old = {name: value for name, value in json.loads(A.to_json()).items() if name != "gathers"}
    assert Digest.from_json(json.dumps(old)) == A
