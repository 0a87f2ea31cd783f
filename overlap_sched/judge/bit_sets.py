"""Sets of small numbers as Python integers, one bit each: quick to join, and unpacked into rows for matrix products."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def unpack(bits: Sequence[int], count: int) -> npt.NDArray[np.float64]:
    """Sets of numbers below ``count`` as rows of 0.0 and 1.0; time and space: their number times ``count``."""
    width = (count + 7) // 8
    packed = np.frombuffer(b"".join(b.to_bytes(width, "little") for b in bits), dtype=np.uint8)
    rows = np.unpackbits(packed.reshape(len(bits), width), axis=1, bitorder="little")[:, :count]
    return rows.astype(np.float64)
