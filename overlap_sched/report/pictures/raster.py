"""Timelines cut into bins of equal width, for drawing.

Ten thousand nodes do not fit on two thousand pixels. Instead of dropping or merging spans: of a stream, the share
of each bin that it is busy; of memory, the most in each bin. Few nodes give plain rectangles, many a density, areas
stay right in both, and no peak can vanish.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from overlap_sched.report.timeline import Span

Floats = npt.NDArray[np.float64]


def busy_share(spans: Sequence[Span], edges: Floats) -> Floats:
    """Per bin between neighbouring ``edges``, the share of it (0 to 1) that lies within the spans.

    The spans are ascending and do not overlap. Busy time up to t is piecewise linear: read it off at the edges.
    """
    if not spans:
        return np.zeros(len(edges) - 1)
    bounds = np.array([(span.start_us, span.end_us) for span in spans])
    busy_until = np.cumsum(bounds[:, 1] - bounds[:, 0])
    known = np.column_stack([busy_until - (bounds[:, 1] - bounds[:, 0]), busy_until])
    share = np.diff(np.interp(edges, bounds.ravel(), known.ravel())) / np.diff(edges)
    return np.asarray(np.clip(share, 0.0, 1.0), dtype=np.float64)


def highest(samples: Sequence[tuple[float, int]], edges: Floats) -> Floats:
    """Per bin, the highest value in force at any moment of it.

    A sample (when, value) holds from its time until the next one's; times ascend and start at ``edges[0]``.
    """
    bins = len(edges) - 1
    when, value = np.array([w for w, _ in samples]), np.array([v for _, v in samples], dtype=np.float64)
    at = np.clip(np.searchsorted(edges, when, side="right") - 1, 0, bins - 1)
    top = np.zeros(bins)
    np.maximum.at(top, at, value)
    carried = value[np.maximum(np.searchsorted(when, edges[:-1], side="right") - 1, 0)]  # in force at the left edge
    return np.maximum(top, carried)
