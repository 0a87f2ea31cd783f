"""Real Llama training graphs, captured without a GPU, and what schedulers make of them (``python -m llama_repro``)."""
