"""Where torchtitan is: a process that thinks it is on a CPU."""

import warnings
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

import overlap_sched
from tests.support.titan.cpu import on_cpu

TITAN = "torchtitan.experiments.graph_trainer"
OVERWRITTEN = ("allow_buffer_reuse", "reorder_for_peak_memory", "reorder_for_compute_comm_overlap")
"""Settings of Inductor that torchtitan changes for good; here only until a test ends."""


@pytest.fixture(scope="session")
def titan() -> Any:
    """torchtitan on a CPU: its modules and ours that the tests use."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's and torchtitan's own, at import
        pytest.importorskip("torchtitan", reason="torchtitan is not installed (it wants torch 2.15)")
        on_cpu()
        ours = {name: import_module(f"overlap_sched.titan.{name}") for name in ("graph_pass", "pipeline", "precompile")}
        names = ("passes", "registry", "jit_backend", "trainer", "graph_pp.graph_builder", "graph_pp.graph_multiplex")
        theirs = {name.rpartition(".")[2]: import_module(f"{TITAN}.{name}") for name in names}
        small = import_module("tests.support.titan.config_registry")
        return SimpleNamespace(**ours, **theirs, llama3=small.llama3)


@pytest.fixture
def config(titan: Any) -> Iterator[Any]:
    """The configuration of a small Llama."""
    from torch._inductor import config as inductor

    overlap_sched.clear_reports()  # and the warnings that have been given: each is given once
    now = {name: getattr(inductor, name) for name in OVERWRITTEN}
    with warnings.catch_warnings(), inductor.patch(now):
        warnings.simplefilter("ignore")
        yield titan.llama3()
