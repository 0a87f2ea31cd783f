"""What ``scripts/bench.py`` is made of: graphs, rows, scale, records; and ``scripts/ablation.py``: stages."""
