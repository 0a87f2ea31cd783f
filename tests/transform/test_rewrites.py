"""Rewrites as values: names and plain data."""

import json

import msgspec

from overlap_sched.transform.dimension_graph import Cut
from overlap_sched.transform.rewrites import (
    Bucket,
    Fission,
    Keep,
    Leave,
    Offload,
    Recompute,
    Regather,
    Rewrite,
    Slice,
    Stream,
    second_group,
    to_json,
)

ALL: tuple[Rewrite, ...] = (
    Bucket(("a", "b"), "coalesced"),
    Stream("bucket_a_2"),
    Keep("d", "e"),
    Regather("f", ("g", "h")),
    Fission(
        ("i", "j"),
        2,
        (Slice("x", Cut(0, 2, 4), 64, False, "x"),),
        (Leave("j", "cat", Cut(1), 32, "i", 1, (1, 0)),),
        ("j",),
        (("i", 1),),
    ),
    Recompute(("i", "j"), ("k",), 2),
    Offload("l", ("m",), ("n",)),
)


def test_plain_data() -> None:
    assert msgspec.convert(json.loads(json.dumps(to_json(ALL))), tuple[Rewrite, ...]) == ALL
    assert to_json(ALL[:1]) == [{"kind": "bucket", "members": ["a", "b"], "form": "coalesced"}]


def test_names_come_from_what_they_stand_for() -> None:
    named = [one.name for one in ALL if isinstance(one, Bucket | Regather | Fission)]
    assert named == ["bucket_a_2", "again_f_g", "fission_i_2"]
    assert second_group("0") == "0/2"
