"""Compiled once, looked at by many tests."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch._inductor.utils import run_and_get_code

import overlap_sched
from overlap_sched.fx.rewrites import facts
from overlap_sched.inductor.reporting import GraphReport
from tests.support.inductor.models import Net, emulated_ranks, step

with warnings.catch_warnings():  # torch 2.13 warns of itself when Inductor is first imported
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch._inductor.compile_fx
    from torch._inductor.codegen.cpp import CppScheduling


@pytest.fixture(scope="module", autouse=True)
def as_over_gloo() -> Iterator[None]:
    """What communicates on a CPU is taken to be gloo, which coalesces nothing: graphs are reordered, not rewritten."""
    with mock.patch.object(facts, "over_gloo", return_value=True):
        yield


@pytest.fixture(scope="module")
def ranks() -> Iterator[None]:
    """A process group in which this process stands for two ranks."""
    with emulated_ranks():
        yield


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing compiled, nothing reported, nothing switched on, no caches; and so again afterwards."""
    _forget()
    with no_caches():
        yield
    _forget()


@pytest.fixture
def clean(ranks: None, fresh: None) -> None:
    """The same in a process that stands for two ranks."""


@contextmanager
def no_caches() -> Iterator[None]:
    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        yield


def _forget() -> None:
    """Nothing of what was compiled is left."""
    torch._dynamo.reset()
    overlap_sched.disable()
    overlap_sched.clear_reports()


class Compiled(NamedTuple):
    """A step of the model: results, the code of its forward and backward, the reports on both."""

    results: list[torch.Tensor]
    code: list[str]
    reports: tuple[GraphReport, ...]


def compiled_step(
    model: torch.nn.Module | None = None, own_functions: bool = False, **compile_arguments: Any
) -> Compiled:
    """Compile a model anew, without caches, and run one step.

    Args:
        model: What; by default three blocks.
        own_functions: Each fused node gets a function of its own. Else the C++ backend writes neighbouring ones into
            one function, so that which there are depends on the order.
        **compile_arguments: For ``torch.compile``.
    """
    _forget()
    model = model or Net()
    with (
        no_caches(),
        mock.patch.object(CppScheduling, "MAX_FUSED_KERNEL_ARGS_NUM", 0 if own_functions else 500),
    ):
        compiled = torch.compile(model, fullgraph=True, **compile_arguments)
        results, code = run_and_get_code(step, model, compiled)
    return Compiled(results, code, overlap_sched.reports())


@cache
def compiled_once(headroom: str | None) -> Compiled:
    """The same in all files of tests: nothing of it changes, nor needs the process group once it has run.

    Args:
        headroom: Scheduled after fusion within so much; ``None``: by Inductor without us.
    """
    if headroom is None:
        return compiled_step(own_functions=True)
    options = overlap_sched.inductor_options(overlap_sched.Options(headroom=headroom, strict=True))
    return compiled_step(own_functions=True, options=options)


@pytest.fixture(scope="module")
def plain(ranks: None) -> Compiled:
    """Compiled by Inductor without us."""
    return compiled_once(None)


@pytest.fixture(scope="module")
def ours(ranks: None) -> Compiled:
    """Compiled by Inductor, scheduled after fusion with room to move."""
    return compiled_once("20%")


@pytest.fixture(scope="module")
def at_zero(ranks: None) -> Compiled:
    """The same at zero headroom."""
    return compiled_once("0%")
