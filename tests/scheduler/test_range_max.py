"""RangeMax against a plain array, after every operation."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlap_sched.scheduler.admission import LOWEST, RangeMax

SIZES = st.integers(-(2**40), 2**40)


@given(st.lists(SIZES, min_size=1, max_size=40), st.integers(1, 7), st.data())
def test_as_a_plain_array(values: list[int], block: int, data: st.DataObject) -> None:
    plain, blocks = np.array(values, dtype=np.int64), RangeMax(np.array(values, dtype=np.int64), block)
    for _ in range(data.draw(st.integers(0, 12))):
        begin = data.draw(st.integers(0, len(values) - 1))
        end = data.draw(st.integers(begin + 1, len(values)))
        if data.draw(st.booleans()):
            amount = data.draw(SIZES)
            blocks.add(begin, end, amount)
            plain[begin:end] += amount
        else:
            blocks.drop(begin)
            plain[begin] = LOWEST
        limit = data.draw(SIZES)
        above = begin + np.flatnonzero(plain[begin:end] > limit)
        assert blocks.last_above(begin, end, limit) == (above[-1] if len(above) else -1)
        highest = int(plain[begin:end].max())
        if highest > LOWEST // 2:  # dropped values are only known to be low
            assert blocks.max(begin, end) == highest
            at = begin + int(plain[begin:end].argmax())
            assert blocks[at] == blocks.array(begin, end)[at - begin] == highest
        else:
            assert blocks.max(begin, end) < LOWEST // 2
