"""Python's cyclic garbage collector, which is paused while a graph is planned.

It runs after every few hundred new objects, and looks at all that torch has made as well. Planning makes tens of
thousands and no cycles: nothing could be freed, and a few percent of the time went into looking.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no cycles inside of the block; what is in no cycle is freed as ever."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
