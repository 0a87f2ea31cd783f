"""With DeepSpeed itself (``pip install "overlap_sched[frameworks]"``): its contracts, its engine, its own passes."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from overlap_sched import Options
from overlap_sched.deepspeed import register
from overlap_sched.errors import OptionsError
from tests.support.ranks import run_ranks


def needs_deepspeed() -> None:
    pytest.importorskip("deepspeed", reason="deepspeed is not installed")


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a DeepSpeed that is not there would have registered."""
    found: dict[str, Any] = {}
    backend, contracts = ModuleType("deepspeed.compile.backend"), ModuleType("deepspeed.compile.passes.contract")
    backend.register_compile_pass = lambda name, function, contract: found.update(  # type: ignore[attr-defined]
        {name: (function, contract)}
    )
    contracts.PassContract = SimpleNamespace  # type: ignore[attr-defined]
    for name in ("deepspeed", "deepspeed.compile", "deepspeed.compile.passes"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "deepspeed.compile.backend", backend)
    monkeypatch.setitem(sys.modules, "deepspeed.compile.passes.contract", contracts)
    return found


def test_the_pass_is_registered_with_its_contract(registry: dict[str, Any]) -> None:
    register(Options(headroom="1GiB"), cluster="dgx-h100", timeout_s=5.0)
    function, contract = registry["overlap_sched"]
    assert contract.requires == {"z3_gather_release"}
    assert contract.conflicts_with == {"prefetch"}
    settings = function.keywords["settings"]
    assert (settings.options.headroom, settings.where.name, settings.timeout_s) == ("1GiB", "dgx-h100", 5.0)
    register()  # again: with the defaults
    assert registry["overlap_sched"][0].keywords["settings"].timeout_s != 5.0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"stag": "titan"},
            "register() takes no stag. It takes cost, model, ranks_per_node, cluster, timeout_s, and Options.",
        ),
        (
            {"headroom": 0},
            "register() takes no headroom: it is one of the options. Write register(Options(headroom=0)).",
        ),
        ({"timeout_s": 0}, "timeout_s is 0; it is a number of seconds above 0."),
    ],
)
def test_wrong_arguments_are_told_at_once(registry: dict[str, Any], given: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionsError) as raised:
        register(**given)
    assert str(raised.value) == told
    assert registry == {}


def test_without_deepspeed_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(OptionsError, match=r"^there is no DeepCompile with contracts of passes here \(.*\)\. "):
        register()


def test_deepspeed_checks_the_schedule() -> None:
    needs_deepspeed()
    from deepspeed.compile.backend import opt_passes
    from deepspeed.compile.passes import prefetch, zero3_compile
    from deepspeed.compile.passes.contract import PassContractError, register_pass_contract, validate_schedule

    register()
    register_pass_contract("zero3_compile", zero3_compile.CONTRACT)
    register_pass_contract("prefetch", prefetch.CONTRACT)
    validate_schedule([(0, ["zero3_compile", "overlap_sched"])], opt_passes)
    with pytest.raises(PassContractError, match=r"'overlap_sched' .* requires \['z3_gather_release'\]"):
        validate_schedule([(0, ["overlap_sched"])], opt_passes)
    with pytest.raises(PassContractError, match="conflicts"):
        validate_schedule([(0, ["zero3_compile", "prefetch", "overlap_sched"])], opt_passes)


@pytest.mark.slow
def test_its_engine_trains_alike(tmp_path: Path) -> None:
    needs_deepspeed()
    for which in ("theirs", "ours"):
        run_ranks("tests.support.deepspeed.engine", tmp_path, which, ranks=2, fresh=True, limit_s=600)
    for rank in range(2):
        theirs, ours = (json.loads((tmp_path / f"{which}{rank}.json").read_text()) for which in ("theirs", "ours"))
        assert (theirs["losses"], theirs["shards"]) == (ours["losses"], ours["shards"])
        assert ours["changed"]
        assert all(ours["changed"])
        assert theirs["told"] != ours["told"]
