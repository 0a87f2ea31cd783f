"""Whole training steps of torchtitan's own models, traced by torchtitan on a fake world, as problem files."""
