"""Training steps that MAGIS was evaluated on, priced for its GPU, and what others make of them (``scripts/fit_bench.py``)."""
