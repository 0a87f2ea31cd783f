"""Options: what they mean, and the value and the remedy that errors name."""

import copy
import pickle
import re
from dataclasses import replace
from typing import Any

import pytest

from overlap_sched import EXAMPLE, schedule
from overlap_sched.cost import Roofline
from overlap_sched.errors import OptionsError, OverlapSchedError
from overlap_sched.fit import fit
from overlap_sched.fit.answer import Question
from overlap_sched.options import Options, check_names, headroom_bytes, on_devices, replayed_allocator
from overlap_sched.problem.sizes import EXPANDABLE, PLAIN
from overlap_sched.transform.prices import Prices

PEAK = 100_000
LARGE = 2**59 + 1
"""A float would lose its last byte."""


@pytest.mark.parametrize(
    ("headroom", "peak", "expected"),
    [
        (0, PEAK, 0),
        (7, PEAK, 7),
        ("1048576", PEAK, 2**20),
        ("1GiB", PEAK, 2**30),
        ("500MB", PEAK, 5 * 10**8),
        ("1kB", PEAK, 1000),
        ("5%", PEAK, 5000),
        ("0.0019%", PEAK, 1),  # 1.9 bytes: down
        ("99.9999%", PEAK, 99_999),
        (f"0.{'3' * 5000}kB", PEAK, 333),
        ("100%", LARGE, LARGE),
        ("50%", LARGE, 2**58),
        (10**400, 0, 2**60),  # an integer may stand for no limit
    ],
)
def test_headroom(headroom: int | str, peak: int, expected: int) -> None:
    assert headroom_bytes(headroom, peak) == expected
    assert Options(headroom=headroom).headroom == headroom


KINDS = "'bucket', 'coalesce_gathers', 'keep', 'regather', 'stream'"


@pytest.mark.parametrize(
    ("given", "value", "remedy"),
    [
        *(
            ({"headroom": bad}, f"headroom is {bad!r}; ", "write bytes (0), a size with a unit (500MB,")
            for bad in (-1, 1.5, True, None, "", "GiB", "-1GiB", "1 parsec", "5%%", "1e3", "inf", "nan%")
        ),
        ({"headroom": "9" * 5000}, f"headroom is {'9' * 37}...: ", "more than 2**60 bytes, which no device has"),
        ({"headroom": "2000000TiB"}, "headroom is 2000000TiB: ", "Write less."),
        ({"memory_limit": "40"}, "memory_limit is '40', ", "Did you mean 40GiB? For bytes write 40B."),
        ({"memory_limit": -1}, "memory_limit is -1; ", "a size with a unit (40GiB), or percent"),
        ({"allocator": None}, "allocator is None; ", "'environment', 'none', 'plain', 'expandable', or"),
        ({"allocator": "Plain"}, "allocator is 'Plain', ", "Write it as in"),
        ({"allocator": "plain", "memory_model": "tracker"}, "allocator is 'plain' and memory_model is 'tracker'", ""),
        ({"allocator_cost": 2}, "allocator_cost is no option any more", "memory_limit='40GiB' asks for"),
        ({"budget": "mean"}, "budget is 'mean'; ", "one of 'peak', 'profile'."),
        ({"memory_model": None}, "memory_model is None; ", "one of 'runtime', 'tracker'."),
        ({"preserve_collective_order": True}, "preserve_collective_order is True; ", "one of 'none', 'group', 'all',"),
        ({"base": "low"}, "base is 'low'; ", "one of 'original', 'memory', 'memory-peak'."),
        ({"agreement": "vote"}, "agreement is 'vote'; ", "one of 'digest', 'none'."),
        ({"effort": -1}, "effort is -1; ", "0 to 64."),
        ({"effort": 99}, "effort is 99; ", "0 to 64."),
        ({"effort": 10**400}, "effort is 2**1328 or more; ", "0 to 64."),
        ({"strict": 1}, "strict is 1; ", "True or False."),
        ({"base": "memory-peak", "budget": "profile"}, "base is 'memory-peak' and budget is 'profile'", "Use budget="),
        *(
            ({"rewrites": bad}, f"rewrites is {bad!r}; ", f"a tuple of {KINDS}, each once.")
            for bad in (("merge",), ["bucket"], "bucket", ("bucket", "bucket"), None)
        ),
        *(({"rewrites": ("bucket", gone)}, "", f"'{gone}', which was removed") for gone in ("split", "in_place")),
        *(
            ({"rewrites": ("bucket",), name: value}, "", f"and {name} is '{value}'")
            for name, value in (
                ("budget", "profile"),
                ("memory_model", "tracker"),
                ("preserve_collective_order", "group"),
            )
        ),
        ({"head_room": "1GiB"}, "Options() takes no head_room. ", "Did you mean headroom? It takes headroom, "),
        ({"max_slowdown": 0.1}, "", "Write enable(Options(...), max_slowdown=...)."),
    ],
    ids=lambda given: str(given)[:60],
)
def test_what_cannot_be_is_named_with_its_remedy(given: dict[str, Any], value: str, remedy: str) -> None:
    with pytest.raises(OptionsError, match=f"^{re.escape(value)}.*{re.escape(remedy)}"):
        Options(**given)


def test_the_allocator_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    assert replayed_allocator(Options()) == PLAIN
    for text, settings in (("expandable_segments:True", EXPANDABLE), ("nonsense", PLAIN)):  # torch says what is wrong
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", text)
        assert replayed_allocator(Options()) == settings
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert replayed_allocator(Options(allocator="plain")) == PLAIN
    assert replayed_allocator(Options(allocator="none")) is None
    assert replayed_allocator(Options(memory_model="tracker")) is None
    assert replayed_allocator(Options(rewrites=("bucket",), memory_limit=2**80)) == EXPANDABLE
    assert replayed_allocator(Options(allocator="max_split_size_mb:512", memory_limit="105%")) not in (None, PLAIN)


def test_the_allocator_is_that_of_cuda() -> None:
    assert on_devices(Options(), {"cpu", "cuda"}) == Options()
    assert on_devices(Options(), {"cpu"}) == Options(allocator="none")
    assert on_devices(Options(allocator="plain"), {"cpu"}) == Options(allocator="plain")


@pytest.mark.parametrize(("text", "likely"), [("40", "40GiB"), (" 1.5 ", "1.5GiB"), ("600", "600MiB")])
def test_a_number_without_a_unit_is_asked_about(text: str, likely: str) -> None:
    remedy = f" is {text!r}, a number without a unit. Did you mean {likely}? For bytes write {text.strip()}B."
    for name, give in (
        ("headroom", lambda: Options(headroom=text)),
        ("memory_limit", lambda: Question(memory_limit=text)),
        ("memory_limit", lambda: fit(EXAMPLE, Prices(Roofline()), memory_limit=text)),
    ):
        with pytest.raises(OptionsError, match=f"^{re.escape(name + remedy)}$"):
            give()


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"memory_limit": 40}, "is 40, a number without a unit. Did you mean 40GiB? For bytes write 40B."),
        ({"memory_limit": 0}, "is 0, into which nothing fits; write bytes, "),
        ({"memory_limit": "0%"}, "is '0%', into which nothing fits; write bytes, "),
        ({"memory_limit": "800%"}, "is '800%', far above what is needed. Did you mean 80%?"),
        ({"max_slowdown": 5}, "is 5; it is 0 to 1, 0.05 for five percent. Did you mean 0.05?"),
        ({"max_slowdown": "5%"}, "is '5%'; it is 0 to 1, 0.05 for five percent."),
    ],
)
def test_limits_in_a_wrong_unit(question: dict[str, Any], said: str) -> None:
    for give in (Question, lambda **given: fit(EXAMPLE, Prices(Roofline()), **given)):
        with pytest.raises(OptionsError, match=f"^{next(iter(question))} {re.escape(said)}"):
            give(**question)


def test_options_are_plain_data() -> None:
    copied = pickle.loads(pickle.dumps(replace(Options(effort=1), headroom="1GiB")))
    assert copied == copy.deepcopy(copied) == Options(effort=1, headroom="1GiB")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((["a", "b"],), "problem is a list; it is a Problem: read_problem(FILE). Of a graph of torch: "),
        ((EXAMPLE, "1GiB"), "options is '1GiB'; it is an Options: Options(headroom='1GiB')."),
        ((EXAMPLE, {}), "options is {}; it is an Options: "),
    ],
)
def test_other_things_are_not_scheduled(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(OverlapSchedError, match=f"^{re.escape(said)}"):
        schedule(*arguments)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"headroom": 1}, "takes no headroom: it is one of the options. Write f(gm, Options(headroom=1))."),
        ({"rank_per_node": 8}, "takes no rank_per_node. Did you mean ranks_per_node? It takes stage, ranks_per_node, "),
        ({"headrom": 8}, "takes no headrom. Did you mean headroom? It takes stage, ranks_per_node, and Options."),
        ({"allocator_cost": 2}, "allocator_cost is no option any more"),
    ],
)
def test_names_that_a_function_does_not_take(given: dict[str, Any], said: str) -> None:
    check_names("f", "gm, ", {"stage": 1}, ("stage", "ranks_per_node"))
    with pytest.raises(OptionsError, match=re.escape(said)):
        check_names("f", "gm, ", given, ("stage", "ranks_per_node"))
