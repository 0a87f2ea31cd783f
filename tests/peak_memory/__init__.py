"""Tests of orders, addresses, the exact search and the zoo."""

from hypothesis import HealthCheck, settings

from tests.support.examples import examples

SMALL = examples(60, settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]))
"""For those that try every order of a graph, and pass over graphs with too many."""
