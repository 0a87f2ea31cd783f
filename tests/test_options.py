"""Options: what they mean, and what is said of a value that cannot be."""

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


@pytest.mark.parametrize(
    ("headroom", "expected"),
    [
        (0, 0),
        (7, 7),
        ("1048576", 2**20),
        ("1GiB", 2**30),
        ("500MB", 5 * 10**8),
        ("1kB", 1000),
        ("5%", 5000),
        ("0%", 0),
        ("0.0019%", 1),  # 1.9 bytes: down
        ("99.9999%", 99_999),
        (f"0.{'3' * 5000}kB", 333),
    ],
)
def test_headroom(headroom: int | str, expected: int) -> None:
    assert headroom_bytes(headroom, 100_000) == expected
    assert Options(headroom=headroom).headroom == headroom


@pytest.mark.parametrize("headroom", [-1, 1.5, True, None, "", "GiB", "-1GiB", "1 parsec", "5%%", "1e3", "inf", "nan%"])
def test_headroom_that_is_none(headroom: object) -> None:
    with pytest.raises(OptionsError) as caught:
        Options(headroom=headroom)  # type: ignore[arg-type]
    assert str(caught.value).startswith(f"headroom is {headroom!r}; write bytes (0), a size with a unit (500MB,")
    assert str(caught.value).endswith("or percent of the original peak (5%).")


@pytest.mark.parametrize(
    ("headroom", "shown"),
    [
        ("9" * 5000, "9" * 37 + "..."),
        ("2000000TiB", "2000000TiB"),
    ],
)
def test_headroom_that_no_device_has(headroom: str, shown: str) -> None:
    with pytest.raises(OptionsError) as caught:
        Options(headroom=headroom)
    assert str(caught.value) == (f"headroom is {shown}: more than 2**60 bytes, which no device has. Write less.")


@pytest.mark.parametrize("allocator", ["environment", "none", "plain", "expandable", "max_split_size_mb:512", ""])
def test_allocator(allocator: str) -> None:
    assert Options(allocator=allocator).allocator == allocator


def test_an_option_that_is_gone_says_what_became_of_it() -> None:
    gone = (
        "allocator_cost is no option any more: reserved bytes are reported, and no order is chosen by them. "
        "memory_limit='40GiB' asks for an order that runs in so much."
    )
    with pytest.raises(OptionsError) as error:
        Options(allocator_cost=2)  # type: ignore[call-arg]
    assert str(error.value) == gone
    with pytest.raises(OptionsError) as error:
        check_names("schedule_graph", "gm, ", {"allocator_cost": 2}, ("cost",))
    assert str(error.value) == gone


@pytest.mark.parametrize("limit", [2**30, "40GiB", "105%", 2**80])
def test_memory_limit(limit: int | str) -> None:
    assert Options(memory_limit=limit).memory_limit == limit


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("40", "memory_limit is '40', a number without a unit. Did you mean 40GiB? For bytes write 40B."),
        (-1, "memory_limit is -1; write bytes, a size with a unit (40GiB), or percent of what the original order"),
    ],
)
def test_a_memory_limit_that_is_none(limit: int | str, said: str) -> None:
    with pytest.raises(OptionsError, match=f"^{re.escape(said)}"):
        Options(memory_limit=limit)


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
    assert replayed_allocator(Options(rewrites=("bucket",))) == EXPANDABLE


def test_the_allocator_is_that_of_cuda() -> None:
    assert on_devices(Options(), {"cpu", "cuda"}) == Options()
    assert on_devices(Options(), {"cpu"}) == Options(allocator="none")
    assert on_devices(Options(allocator="plain"), {"cpu"}) == Options(allocator="plain")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"allocator": None}, "allocator is None; it is text: 'environment', 'none', 'plain', 'expandable', or"),
        ({"allocator": "Plain"}, "allocator is 'Plain', which cannot be read from 'Plain' on. Write it as in"),
        ({"allocator": "plain", "memory_model": "tracker"}, "allocator is 'plain' and memory_model is 'tracker':"),
    ],
)
def test_text_that_is_no_allocator(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionsError, match=f"^{re.escape(message)}"):
        Options(**given)


def test_an_integer_may_stand_for_no_limit() -> None:
    assert headroom_bytes(2**60, 0) == headroom_bytes(10**400, 0) == 2**60


def test_percent_are_exact_and_rounded_down() -> None:
    peak = 2**59 + 1  # a float would lose the last byte
    assert headroom_bytes("100%", peak) == peak
    assert headroom_bytes("50%", 2**59 + 1) == 2**58
    assert headroom_bytes("0.1%", 1999) == 1


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("budget", "mean", "budget is 'mean'; it is one of 'peak', 'profile'."),
        ("memory_model", None, "memory_model is None; it is one of 'runtime', 'tracker'."),
        ("preserve_collective_order", True, "preserve_collective_order is True; it is one of 'none', 'group', 'all',"),
        ("base", "low", "base is 'low'; it is one of 'original', 'memory', 'memory-peak'."),
        ("agreement", "vote", "agreement is 'vote'; it is one of 'digest', 'none'."),
        ("effort", -1, "effort is -1; it is a whole number of runs, 0 to 64."),
        ("effort", 99, "effort is 99; it is a whole number of runs, 0 to 64."),
        ("effort", 10**400, "effort is 2**1328 or more; it is a whole number of runs, 0 to 64."),
        ("strict", 1, "strict is 1; it is True or False."),
    ],
)
def test_other_values(field: str, value: object, said: str) -> None:
    with pytest.raises(OptionsError, match=f"^{re.escape(said)}"):
        Options(**{field: value})  # type: ignore[arg-type]


def test_a_lower_peak_is_not_a_lower_profile() -> None:
    with pytest.raises(OptionsError) as caught:
        Options(base="memory-peak", budget="profile")
    assert str(caught.value).startswith("base is 'memory-peak' and budget is 'profile': an order with a lower peak is")
    assert str(caught.value).endswith("Use budget='peak', or base='original'.")


def test_ranks_compare_their_orders_unless_told_otherwise() -> None:
    assert Options().agreement == "digest"
    assert Options(agreement="none").agreement == "none"


KINDS = "'bucket', 'coalesce_gathers', 'keep', 'regather', 'stream'"


@pytest.mark.parametrize("rewrites", [("merge",), ["bucket"], "bucket", ("bucket", "bucket"), None])
def test_rewrites_that_are_none(rewrites: Any) -> None:
    with pytest.raises(OptionsError) as caught:
        Options(rewrites=rewrites)
    expected = f"rewrites is {rewrites!r}; it is a tuple of {KINDS}, each once."
    assert str(caught.value) == expected


@pytest.mark.parametrize("gone", ["split", "in_place"])
def test_rewrites_that_were_removed(gone: Any) -> None:
    with pytest.raises(OptionsError, match=f"'{gone}', which was removed"):
        Options(rewrites=("bucket", gone))


@pytest.mark.parametrize(
    "other",
    [
        {"budget": "profile"},
        {"memory_model": "tracker"},
        {"preserve_collective_order": "group"},
    ],
)
def test_rewrites_want_the_other_defaults(other: dict[str, Any]) -> None:
    ((name, value),) = other.items()
    with pytest.raises(OptionsError, match=f"and {name} is '{value}': a rewritten graph has other nodes"):
        Options(rewrites=("bucket",), **other)


@pytest.mark.parametrize(
    ("text", "likely"),
    [
        ("40", "40GiB"),
        (" 1.5 ", "1.5GiB"),
        ("600", "600MiB"),
    ],
)
def test_a_number_without_a_unit_is_asked_about(text: str, likely: str) -> None:
    said = f" is {text!r}, a number without a unit. Did you mean {likely}? For bytes write {text.strip()}B."
    for name, give in (
        ("headroom", lambda: Options(headroom=text)),
        ("memory_limit", lambda: Question(memory_limit=text)),
        ("memory_limit", lambda: fit(EXAMPLE, Prices(Roofline()), memory_limit=text)),
    ):
        with pytest.raises(OptionsError) as caught:
            give()
        assert str(caught.value) == name + said


@pytest.mark.parametrize("size", [0, 5, "0", "0.0", 1024, "5B", "1048576", "80000000000", "5%", "200%"])
def test_bytes_that_are_meant(size: int | str) -> None:
    assert Options(headroom=size).headroom == size
    if size not in (0, 5, "0", "0.0"):
        assert Question(memory_limit=size).memory_limit == size


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


def test_what_is_no_option_says_where_it_belongs() -> None:
    with pytest.raises(
        OptionsError, match=r"^there is no option 'head_room'\. Did you mean headroom\? The options are"
    ):
        Options(head_room="1GiB")  # type: ignore[call-arg]
    with pytest.raises(OptionsError, match=r"Write enable\(Options\(\.\.\.\), max_slowdown=\.\.\.\)\.$"):
        Options(max_slowdown=0.1)  # type: ignore[call-arg]
    copied = pickle.loads(pickle.dumps(replace(Options(effort=1), headroom="1GiB")))
    assert copied == copy.deepcopy(copied) == Options(effort=1, headroom="1GiB")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((["a", "b"],), "problem is a list; it is a Problem: read_problem(FILE). Of a graph of torch: "),
        (("problem.json",), "problem is a str; it is a Problem: read_problem(FILE)."),
        ((EXAMPLE, "1GiB"), "options is '1GiB'; it is an Options: Options(headroom='1GiB')."),
        ((EXAMPLE, {}), "options is {}; it is an Options: "),
    ],
)
def test_other_things_are_not_scheduled(arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(OverlapSchedError, match=f"^{re.escape(said)}"):
        schedule(*arguments)


def test_names_that_a_function_does_not_take() -> None:
    check_names("enable", "", {"stage": 1}, ("stage", "ranks_per_node"))
    for given, said in (
        ({"headroom": "1GiB"}, "takes no headroom: it is one of the options. Write f(gm, Options(headroom='1GiB'))."),
        ({"rank_per_node": 8}, "takes no rank_per_node. Did you mean ranks_per_node? It takes stage, ranks_per_node, "),
        ({"headrom": 8}, "takes no headrom. Did you mean headroom? It takes stage, ranks_per_node, and Options."),
        ({"zzz": 8}, "takes no zzz. It takes stage, ranks_per_node, and Options."),
    ):
        with pytest.raises(OptionsError) as caught:
            check_names("f", "gm, ", given, ("stage", "ranks_per_node"))
        assert str(caught.value).startswith(f"f() {said}")
