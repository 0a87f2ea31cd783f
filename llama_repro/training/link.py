"""The bandwidth of an emulated link, as command lines take it (:mod:`llama_repro.training.slow_network`)."""

import math

from overlap_sched.errors import OptionsError


def check_slow_network(gb_per_s: float | None) -> None:
    """Raise the error for a bandwidth that is none; ``None``: no link is emulated."""
    if gb_per_s is not None and not 0.0 < gb_per_s < math.inf:
        raise OptionsError(f"--slow-network is {gb_per_s:g}; it is a bandwidth in GB/s, above 0.")
