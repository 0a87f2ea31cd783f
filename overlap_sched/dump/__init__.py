"""Graphs from files that torch has written: read, never executed. Loaded only when a dump is asked for."""

from overlap_sched.dump.load import Dump, load_dump
from overlap_sched.dump.size_names import sizes_to_give

__all__ = ["Dump", "load_dump", "sizes_to_give"]
