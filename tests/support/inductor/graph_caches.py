"""torch's caches of graphs in a folder of their own, while kernels are compiled once for all."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest import mock

from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor.codecache import FxGraphCache


@contextmanager
def graph_caches_in(folder: Path) -> Iterator[None]:
    """Let Inductor and AOTAutograd keep their graphs there."""
    with ExitStack() as stack:
        for kind in (FxGraphCache, AOTAutogradCache):
            stack.enter_context(mock.patch.object(kind, "_get_tmp_dir", return_value=str(folder / kind.__name__)))
        yield
