"""Tests of orders, addresses, the exact search and the zoo."""

from hypothesis import HealthCheck, settings

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For every property: a machine that others use is slow at times, which is no failure."""
SMALL = settings(RELAXED, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
"""For those that try every order of a graph, and pass over graphs with too many."""
