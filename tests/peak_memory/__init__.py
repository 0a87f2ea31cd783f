"""Tests of orders, addresses and the exact search."""
