"""An emulated link, as command lines take it (:mod:`llama_repro.training.slow_network`)."""

import math

from overlap_sched.errors import OptionsError

LATENCY_US = 300.0
"""About what gloo takes for a small message where each rank has a core of its own: it cannot be faster than it is."""


def check_slow_network(gb_per_s: float | None, latency_us: float = LATENCY_US) -> None:
    """Raise the error for a bandwidth or a latency that is none; no bandwidth (``None``): no link is emulated."""
    if gb_per_s is not None and not 0.0 < gb_per_s < math.inf:
        raise OptionsError(f"--slow-network is {gb_per_s:g}; it is a bandwidth in GB/s, above 0.")
    if not 0.0 <= latency_us < math.inf:
        raise OptionsError(f"--slow-latency is {latency_us:g}; it is a latency in microseconds, 0 or more.")
    if gb_per_s is None and latency_us != LATENCY_US:
        raise OptionsError("--slow-latency is that of the link that --slow-network emulates: give its bandwidth, too.")
