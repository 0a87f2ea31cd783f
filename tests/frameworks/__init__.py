"""Frameworks that others train with: the blocks of docs/fully_shard.md, run."""
