"""Training that one can run: a small Llama, sharded so that all collectives are in the compiled graphs."""
