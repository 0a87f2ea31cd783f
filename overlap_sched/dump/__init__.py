"""Graphs from files that torch has written: read, never executed. Loaded only when a dump is asked for."""

from overlap_sched.dump.inputs import sizes_to_give
from overlap_sched.dump.load import Dump, load_dump

__all__ = ["Dump", "load_dump", "sizes_to_give"]
