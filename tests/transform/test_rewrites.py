"""Rewrites as values: names, JSON, and what cannot be read."""

import pytest

from overlap_sched.errors import RewriteError
from overlap_sched.transform.rewrites import (
    Bucket,
    Keep,
    Offload,
    Recompute,
    Regather,
    Rewrite,
    Split,
    Stream,
    from_json,
    second_group,
    to_json,
)

ALL: tuple[Rewrite, ...] = (
    Bucket(("a", "b"), "coalesced"),
    Split("c", 3),
    Stream("bucket_a_2"),
    Keep("d", "e"),
    Regather("f", ("g", "h")),
    Recompute(("i", "j"), ("k",), 2),
    Offload("l", ("m",), ("n",)),
)


def test_json_and_back() -> None:
    assert from_json(to_json(ALL)) == ALL
    assert to_json(ALL[:1]) == [{"kind": "bucket", "members": ["a", "b"], "form": "coalesced"}]


@pytest.mark.parametrize("broken", [{}, {"kind": "merge"}, {"kind": "split", "part": 2}, {"kind": "bucket"}])
def test_json_that_is_none(broken: dict[str, object]) -> None:
    with pytest.raises(RewriteError, match="rewrites cannot be read"):
        from_json([broken])


def test_names_come_from_what_they_stand_for() -> None:
    assert [one.name for one in ALL if isinstance(one, Bucket | Split | Regather)] == [
        "bucket_a_2",
        "split_c_3",
        "again_f_g",
    ]
    assert second_group("0") == "0/2"
