"""What ``scripts/bench.py`` is made of: graphs, rows, ablations, scale, records."""
