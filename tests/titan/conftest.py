"""Where torchtitan is: a process that thinks it is on a CPU."""

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import overlap_sched
from tests.support.titan.cpu import on_cpu

OVERWRITTEN = ("allow_buffer_reuse", "reorder_for_peak_memory", "reorder_for_compute_comm_overlap")
"""Settings of Inductor that torchtitan changes for good; here only until a test ends."""


@pytest.fixture(scope="session")
def titan() -> None:
    """torchtitan, on a CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's and torchtitan's own, at import
        pytest.importorskip("torchtitan", reason="torchtitan is not installed (it wants torch 2.15)")
        on_cpu()
        importlib.import_module("overlap_sched.titan")  # which registers the pipeline
        importlib.import_module("tests.support.titan.config_registry")


@pytest.fixture
def config(titan: None) -> Iterator[Any]:
    """The configuration of a small Llama."""
    from torch._inductor import config as inductor

    from tests.support.titan.config_registry import llama3

    overlap_sched.clear_reports()  # and the warnings that have been given: each is given once
    now = {name: getattr(inductor, name) for name in OVERWRITTEN}
    with warnings.catch_warnings(), inductor.patch(now):
        warnings.simplefilter("ignore")
        yield llama3()
