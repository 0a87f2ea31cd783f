"""Training steps of large Llamas as problems: a few layers are traced, the rest repeats them."""
