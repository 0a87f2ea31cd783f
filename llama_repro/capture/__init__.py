"""From the sizes of a Llama to the graphs of one training step: traced without a GPU, and kept as problem files."""
