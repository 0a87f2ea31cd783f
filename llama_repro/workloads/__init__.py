"""Training steps that MAGIS was evaluated on, and what others make of them in less memory (see ``fit_bench.py``)."""
