"""Whole training steps of well-known models, traced without a GPU, for the memory table (``scripts/memory_zoo.py``)."""
