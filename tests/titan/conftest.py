"""Where torchtitan is: a process that thinks it is on a CPU."""

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import overlap_sched
from tests.support.titan.cpu import on_cpu


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
    from tests.support.titan.config_registry import llama3

    overlap_sched.clear_reports()  # and the warnings that have been given: each is given once
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield llama3()
