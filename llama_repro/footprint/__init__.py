"""Peak memory of a training step in each mode of ``torch.compile``, and why it is what it is.

``scripts/footprint.py`` runs it; docs/footprint.md is what it found.
"""
