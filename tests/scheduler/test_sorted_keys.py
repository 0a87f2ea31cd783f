"""Both kinds of sorted keys do the same."""

import random

import pytest
from sortedcontainers import SortedList

from overlap_sched.scheduler.ready import FEW, FewKeys, sorted_keys


def test_which_kind_goes_by_how_many_there_may_be() -> None:
    assert isinstance(sorted_keys(FEW), FewKeys)
    assert isinstance(sorted_keys(FEW + 1), SortedList)


@pytest.mark.parametrize("seed", range(20))
def test_a_plain_list_does_what_a_list_of_lists_does(seed: int) -> None:
    draw = random.Random(seed)
    few, many = FewKeys(), SortedList()
    for _ in range(200):
        key = (draw.randrange(30), draw.randrange(30))
        if draw.random() < 0.6 or not few:
            few.add(key)
            many.add(key)
        elif draw.random() < 0.8:
            key = draw.choice(few)
            few.remove(key)
            many.remove(key)
        else:
            assert few.pop(0) == many.pop(0)
        low, high = sorted((draw.randrange(31), draw.randrange(31)))
        assert list(few) == list(many)
        assert list(few.irange((low,), (high,))) == list(many.irange((low,), (high,)))
        assert list(few.irange((low, 3), (high, 3))) == list(many.irange((low, 3), (high, 3)))
        assert list(few.irange(None, (high,))) == list(many.irange(None, (high,)))
        assert list(few.irange((low,))) == list(many.irange((low,)))


def test_both_ends_of_a_range_are_in_it_and_keys_may_be_removed_on_the_way() -> None:
    few = FewKeys([1, 2, 3, 4])
    for key in few.irange(2, 3):
        few.remove(key)
    assert few == [1, 4]


@pytest.mark.parametrize("key", [0, 2, 9])
def test_what_is_not_inside_is_not_removed(key: int) -> None:
    few = FewKeys([1, 3, 5])
    with pytest.raises(ValueError, match=f"^{key} is not among the keys$"):
        few.remove(key)
    assert few == [1, 3, 5]
