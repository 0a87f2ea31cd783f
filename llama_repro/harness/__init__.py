"""Every scheduler on one graph, measured by the same judges, beside committed figures (``python -m llama_repro``)."""
