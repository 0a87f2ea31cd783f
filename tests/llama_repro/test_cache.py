import dataclasses
import shutil
from pathlib import Path

import pytest

from llama_repro.capture import cache
from llama_repro.capture.configs import find_config
from overlap_sched.problem import Kind


@pytest.fixture
def cached(tiny_cache, tmp_path, monkeypatch):
    """The tiny configuration in a cache of its own."""
    shutil.copytree(tiny_cache, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "overlap_sched" / "llama_repro"


def _no_capture(config):
    raise AssertionError("captured although it is in the cache")


def test_a_second_run_reads_what_the_first_one_captured(cached, tiny, monkeypatch):
    monkeypatch.setattr(cache, "captured", _no_capture)
    again = cache.stored_problems(find_config("tiny"))
    assert again.problems == tiny.problems
    with pytest.raises(AssertionError, match="although it is in the cache"):
        cache.stored_problems(find_config("tiny"), refresh=True)


@pytest.mark.slow
def test_true_prices_are_those_of_fused_kernels_on_a_cluster(cached, tiny, monkeypatch):
    fused, plain = cache.fused_problem(find_config("tiny")), tiny.problems["runtime"]
    assert [(n.name, n.deps, n.alloc, n.use) for n in fused.nodes] == [
        (n.name, n.deps, n.alloc, n.use) for n in plain.nodes
    ]
    assert sum(fused.compute_us) < sum(plain.compute_us)
    assert fused.contention
    monkeypatch.setattr(cache, "captured", _no_capture)
    assert cache.fused_problem(find_config("tiny")) == fused  # from the cache


@pytest.mark.slow
def test_damaged_files_are_captured_anew(cached, tiny):
    for path in cached.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert cache.stored_problems(find_config("tiny")).problems == tiny.problems  # what is captured twice is the same


def test_the_key_depends_on_the_configuration_and_the_sources(monkeypatch, tmp_path):
    config = find_config("tiny")
    key = cache.cache_key(config)
    assert key.startswith("tiny-")
    assert cache.cache_key(config) == key
    assert cache.cache_key(dataclasses.replace(config, batch=4)) != key
    monkeypatch.setattr(cache, "_sources", lambda folders: [])
    assert cache.cache_key(config) != key


def test_the_cache_is_where_it_is_said_to_be(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.cache_dir() == tmp_path / "overlap_sched"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_dir() == Path(__file__).parents[2] / ".cache"


def test_both_models_have_the_same_nodes_and_differ_in_what_waits_hold(tiny):
    tracker, runtime = tiny.problems["tracker"], tiny.problems["runtime"]
    assert [n.name for n in tracker.nodes] == [n.name for n in runtime.nodes]
    assert [n.time_us for n in tracker.nodes] == [n.time_us for n in runtime.nodes]
    waits = [v for v, node in enumerate(runtime.nodes) if node.kind is Kind.WAIT]
    assert all(tracker.nodes[v].alloc and not runtime.nodes[v].alloc for v in waits)
    assert all(storage.pinned for s, storage in enumerate(runtime.storages) if _is_parameter(runtime, s))


def _is_parameter(problem, s):
    return problem.nodes[problem.maker[s]].name.startswith("primals")
