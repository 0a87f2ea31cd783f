"""Predicted kernels held against those that Inductor really forms: the table of ``docs/prices.md``."""
