"""Llama training graphs, captured without a GPU, and what schedulers make of them: see README.md in this folder.

Used from the repository, and not installed with the package.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""Of the repository."""
INSTANCES = ROOT / "scripts" / "instances"
"""Real graphs as problem files."""
CLUSTER = "dgx-h100"
"""What graphs are priced for (:func:`llama_repro.bench.cases.on_cluster`)."""
