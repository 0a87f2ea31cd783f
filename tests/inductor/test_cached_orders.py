"""A cache hit is as good as a compile: the same order again, and all ranks have agreed before it runs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import overlap_sched
from overlap_sched import Options
from overlap_sched.distributed import Agreement, Digest, Verdict
from overlap_sched.inductor import agree, cached_orders, torch_caches
from overlap_sched.inductor.caches import CachedOrder, may_load, may_load_both, may_save, order_in, order_of
from overlap_sched.inductor.reporting import forget_warnings
from overlap_sched.inductor.scheduler_pass import SchedulerPass
from overlap_sched.inductor.settings import Settings
from tests.support.once import filled_once
from tests.support.ranks import run_ranks

MINE = Digest("p", "s", "o", "c", "r", "key", launches="l", name="backward 0/0", nodes=7)
AGREED = Agreement(True, Verdict(agreed=True))
OTHERS = Agreement(False, Verdict(False, "they launch otherwise", False, {"sizes": ((0,), (1,))}))
DIFFER = Agreement(False, Verdict(False, "the ranks differ", True, {"sizes": ((0,), (1,))}))
LATE = Agreement(False, Verdict(False, "rank 1 did not publish", missing=(1,)))
CODE = "import torch\n{}\ndef call(args):\n    torch.ops._c10d_functional.wait_tensor.default(buf0)\n"
LOCAL = "import torch\ndef call(args):\n    extern_kernels.mm(buf0)\n"


def carrying(*orders: CachedOrder) -> str:
    return CODE.format("\n".join(f"# {order.line}" for order in orders))


def test_an_order_in_code_and_back() -> None:
    order = CachedOrder(replace(MINE, name='it\'s "odd"\n\\'), agreed=True)
    assert order_in(carrying(order)) == order
    assert order_in(CODE) is None
    assert order_in(carrying(order, CachedOrder(MINE, agreed=False))) is None


def test_what_code_carries() -> None:
    assert order_of(MINE, AGREED, "k") == CachedOrder(MINE, agreed=True)
    kept = order_of(MINE, DIFFER, "k")
    assert kept == CachedOrder(replace(MINE, order="launches kept: k"), agreed=False)
    assert kept.digest.order != MINE.order  # a rank that shows it promises no other order
    waits = replace(MINE, order="launches kept: and waits: k")
    assert order_of(MINE, OTHERS, "k") == CachedOrder(waits, agreed=False)
    assert order_of(MINE, LATE, "k") is None
    assert order_of(Digest.of_failure("KeyError", "key"), DIFFER, "") is None


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the others are shown; the last entry is their answer."""
    shown: list[Any] = [AGREED]

    def ask(mine: Digest, settings: Settings, rest: Sequence[Digest] = ()) -> Agreement:
        shown.insert(0, (mine, *rest) if rest else mine)
        return shown[-1]

    monkeypatch.setattr(agree, "several_ranks", lambda: True)
    monkeypatch.setattr(cached_orders, "ask", ask)
    yield shown
    assert cached_orders.decisions.take(MINE.key) is None


@pytest.mark.parametrize("when", [AGREED, DIFFER, OTHERS], ids=["agreed", "differ", "others"])
@pytest.mark.parametrize("answer", [AGREED, DIFFER, OTHERS, LATE], ids=["agreed", "differ", "others", "late"])
def test_code_is_used_where_the_ranks_decide_as_when_it_was_compiled(
    asked: list[Any], when: Agreement, answer: Agreement, recwarn: pytest.WarningsRecorder
) -> None:
    """Where a wait may have passed a launch, only where all launch alike: who did not come may launch anything."""
    forget_warnings()
    asked[-1] = answer
    same = answer is when or (answer is LATE and when is OTHERS)
    found = order_of(MINE, when, "k")
    assert found is not None
    assert may_load(Settings(), carrying(found)) == (same, not same)
    assert asked[:-1] == [found.digest]
    decided = cached_orders.decisions.take(MINE.key)
    assert decided is (None if same or answer.agreed else answer)  # they will not answer a second time
    assert len(recwarn) == (decided is not None)


REWRITES = CachedOrder(replace(MINE, key="rewrites", order="rewrites: 1"), agreed=True)
APART = CachedOrder(replace(REWRITES.digest, order="launches kept: nothing is rewritten"), agreed=False)


@pytest.mark.parametrize(
    ("before", "order", "answers", "used", "kept"),
    [
        (REWRITES, True, [AGREED, AGREED], True, []),
        (REWRITES, True, [AGREED, DIFFER], False, [MINE.key]),
        (REWRITES, True, [DIFFER], False, ["rewrites"]),
        (REWRITES, False, [AGREED, DIFFER], True, []),
        (APART, True, [DIFFER, AGREED], True, []),
        (APART, True, [OTHERS, AGREED], True, []),
        (APART, True, [DIFFER, DIFFER], False, ["rewrites", MINE.key]),
        (APART, False, [DIFFER, AGREED], False, ["rewrites"]),
        (APART, True, [AGREED], False, []),
    ],
)
def test_code_of_a_graph_that_may_be_rewritten_is_asked_about_twice(
    before: CachedOrder,
    order: bool,
    answers: list[Agreement],
    used: bool,
    kept: list[str],
    asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First what the rewrites are, as a rank that compiles asks; what was decided holds if this one compiles, too."""
    left = list(answers)
    monkeypatch.setattr(cached_orders, "ask", lambda mine, settings: asked.insert(-1, mine) or left.pop(0))
    code = carrying(CachedOrder(MINE, order, before))
    assert order_in(code) == CachedOrder(MINE, order, before)
    monkeypatch.setattr(cached_orders, "warn", lambda text: None)
    assert may_load(Settings(), code) == (used, not used)
    assert asked[:-1] == [before.digest, MINE][: len(answers)]
    found = [key for key in ("rewrites", MINE.key) if cached_orders.decisions.take(key) is not None]
    assert found == kept


def test_what_was_decided_about_code_holds_for_the_compilation_that_follows(asked: list[Any]) -> None:
    cached_orders.decisions.keep(MINE.key, DIFFER)
    assert cached_orders.decided(MINE, Settings()) is DIFFER
    assert asked == [AGREED]
    assert cached_orders.decided(MINE, Settings()) is AGREED
    assert asked == [MINE, AGREED]


def test_code_that_is_used_without_asking(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert may_load_both(Settings(), [LOCAL, LOCAL]) == (True, False)
    assert may_save(Settings(), LOCAL)
    monkeypatch.setattr(agree, "several_ranks", lambda: False)
    assert may_load_both(Settings(), [CODE]) == (True, False)
    assert may_save(Settings(), CODE)
    assert asked == [AGREED]


def test_code_that_is_not_used_and_not_saved(asked: list[Any]) -> None:
    order = CachedOrder(MINE, agreed=True)
    for code in (CODE, carrying(order, order)):
        assert may_load(Settings(), code) == (False, False)
        assert not may_save(Settings(), code)
    assert may_save(Settings(), carrying(order))
    assert asked == [AGREED]


BACKWARD = CachedOrder(replace(MINE, key="backward", name="backward of it"), agreed=True)
BOTH = [carrying(CachedOrder(MINE, True)), carrying(BACKWARD)]
AGAIN = Agreement(False, Verdict(False, "not all ranks have found both", True, again=True))


@pytest.mark.parametrize(
    ("answer", "found"),
    [(AGREED, (True, False)), (AGAIN, (False, False)), (DIFFER, (False, True)), (LATE, (False, True))],
    ids=["agreed", "again", "differ", "late"],
)
def test_a_forward_and_its_backward_are_used_together_or_not_at_all(
    asked: list[Any], answer: Agreement, found: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again, a rank traces first; else what was decided holds for the forward, which the others go on with."""
    overlap_sched.clear_reports()
    said: list[str] = []
    monkeypatch.setattr(cached_orders, "warn_of_ranks", lambda *told: said.append(told[0]))
    asked[-1] = answer
    assert may_load_both(Settings(), BOTH) == found
    assert asked[:-1] == [(MINE, BACKWARD.digest)]
    assert cached_orders.decisions.take(MINE.key) is (None if answer in (AGREED, AGAIN) else answer)
    assert len(said) == (answer in (DIFFER, LATE))
    assert recorded() == (["backward 0/0", "backward of it"] if answer is AGREED else [])


def recorded() -> list[str]:
    """What is reported of code from caches."""
    words = " (inductor): out of torch's caches, in the order that was cached"
    names = [one.line.removesuffix(words) for one in overlap_sched.reports()]
    overlap_sched.clear_reports()
    return names


def test_code_without_collectives_is_reported_as_found_too(asked: list[Any]) -> None:
    overlap_sched.clear_reports()
    owner = SchedulerPass(Settings())
    assert cached_orders._may_load(owner, [BOTH[0]], True) == (True, False)
    assert cached_orders._may_load(owner, [LOCAL], True) == (True, False)
    assert cached_orders._may_load(owner, ["", LOCAL], False) == (True, False)
    assert recorded() == ["backward 0/0", "graph", "graph"]


def test_what_may_be_rewritten_is_asked_about_with_all_the_rest(asked: list[Any]) -> None:
    both = [carrying(CachedOrder(MINE, True, REWRITES)), carrying(replace(BACKWARD, rewrites=REWRITES))]
    assert may_load_both(Settings(), both) == (True, False)
    assert asked[:-1] == [(REWRITES.digest, MINE, REWRITES.digest, BACKWARD.digest)]


def test_one_question_where_only_the_forward_communicates(asked: list[Any]) -> None:
    for sources in ([BOTH[0]], [BOTH[0], LOCAL]):
        assert may_load_both(Settings(), sources) == (True, False)
    assert asked[:-1] == [MINE, MINE]


@pytest.mark.parametrize(
    ("sources", "settings"),
    [
        ([LOCAL, BOTH[1]], Settings()),
        ([BOTH[0], CODE], Settings()),
        ([BOTH[0], carrying(replace(BACKWARD, agreed=False))], Settings()),
        ([carrying(CachedOrder(MINE, True, APART)), BOTH[1]], Settings()),
        (BOTH, Settings(memory_limit="1GiB")),
        (BOTH, Settings(Options(strict=True))),
    ],
    ids=["forward alone", "no order", "launches kept", "not rewritten", "fitted", "strict"],
)
def test_both_are_traced_where_ranks_could_not_meet(asked: list[Any], sources: list[str], settings: Settings) -> None:
    assert may_load_both(settings, sources) == (False, False)
    assert asked == [AGREED]


def test_this_torch_asks() -> None:
    """Else nothing that communicates is cached."""
    from torch._inductor.codecache import FxGraphCache

    before = FxGraphCache.cache_hit_post_compile
    assert torch_caches.watch_cache(cached_orders._may_load, cached_orders._may_save)
    after = FxGraphCache.cache_hit_post_compile
    assert torch_caches.watch_cache(cached_orders._may_load, cached_orders._may_save)
    assert FxGraphCache.cache_hit_post_compile is after  # once
    assert before.__name__ in ("cache_hit_post_compile", "loaded")


def test_caches_that_load_without_asking_are_not_used() -> None:
    with torch._functorch.config.patch(bundled_autograd_cache=True):
        assert not torch_caches.watch_cache(cached_orders._may_load, cached_orders._may_save)


def test_another_torch_is_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_caches, "_watching", [])
    monkeypatch.setitem(torch_caches._CACHE, "_save_graph", ["key", "something_else"])
    assert not torch_caches.watch_cache(cached_orders._may_load, cached_orders._may_save)


@pytest.mark.parametrize("known", ["_BOTH", "_FINDS"])
def test_a_torch_that_loads_both_in_another_way_is_left_as_it_is(
    known: str, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then what communicates counts as missed there: its forward is not known."""
    monkeypatch.setitem(getattr(torch_caches, known), "gone", [])
    assert not torch_caches._ask_about_what_is_loaded_at_once()
    assert may_load_both(Settings(), ["", BOTH[0]]) == (False, False)
    assert may_load_both(Settings(), ["", LOCAL]) == (True, False)
    assert asked == [AGREED]


RANKS = 2
Found = list[dict[str, dict[str, Any]]]
SECOND = ["again", "again, wiped", "again, version", "again, version on all", "again, options on all", "mega"]
BUCKETS = ["buckets", "buckets again", "buckets again, wiped", "buckets, options"]
HEALING = ["options, odd", "options, odd again", "healing", "healing again", "healed"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Two jobs, one after the other: what each rank found in each step."""
    jobs = {
        "first": ["torch alone", "mesh, torch alone", "first", "buckets", "mesh"],
        "second": [*SECOND, *HEALING, *BUCKETS[1:], "mesh again"],
    }

    def run(folder: Path) -> None:
        for job, steps in jobs.items():
            run_ranks("tests.support.inductor.cached_runs", folder, job, *steps, ranks=RANKS, limit_s=400, fresh=True)

    folder = filled_once(tmp_path_factory, "cached", run)
    found: Found = [{} for _ in range(RANKS)]
    for job in jobs:
        for rank in range(RANKS):
            found[rank] |= torch.load(folder / f"{job}{rank}.pt")
    return found


def of(found: Found, step: str, what: str) -> list[Any]:
    """What a step gave on each rank."""
    return [rank[step][what] for rank in found]


@pytest.mark.slow
@pytest.mark.private
def test_every_step_gives_the_results_of_torch_alone_in_one_order_of_launches(jobs: Found) -> None:
    for step in ("first", *SECOND, *HEALING, *BUCKETS):
        launches = []
        for rank in jobs:
            assert all(map(torch.equal, rank[step]["results"], rank["torch alone"]["results"])), step
            assert rank[step]["alone is equal"]
            assert rank[step]["bypassed"] == 0
            launches.append([[event for event in graph if event[0] == "launch"] for graph in rank[step]["events"]])
        assert launches[0] == launches[1], step


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("step", ["again", "mega", "healed"])
def test_a_second_start_hits_and_the_ranks_agree(jobs: Found, step: str) -> None:
    assert of(jobs, step, "hits") == [2, 2]
    assert of(jobs, step, "autograd hits") == [1, 1]
    assert of(jobs, step, "changed") == [[], []]  # the pass is not called
    assert of(jobs, step, "found") == [["graph of alone", "forward of Swapped", "backward of Swapped"]] * 2
    assert of(jobs, step, "asked") == [1, 1]  # about forward and backward at once
    assert of(jobs, step, "events") == of(jobs, "first", "events")
    assert of(jobs, "first", "events") != of(jobs, "torch alone", "events")
    assert of(jobs, step, "warned") == [[], []]


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("step", ["again", "mega"])
def test_a_graph_that_does_not_communicate_is_cached_as_without_us(jobs: Found, step: str) -> None:
    for rank in jobs:
        hit = {"hits": 1, "misses": 0, "bypassed": 0, "autograd hits": 1, "autograd misses": 0}
        assert rank[step]["alone"] == hit
        assert rank["first"]["alone"] == rank["torch alone"]["alone"]


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("step", ["again, wiped", "again, version"])
def test_one_rank_that_finds_nothing_compiles_and_all_agree(jobs: Found, step: str) -> None:
    assert of(jobs, step, "hits") == [2, 0]
    assert of(jobs, step, "autograd hits") == [0, 0]
    assert of(jobs, step, "asked") == [3, 2]  # about both; then about each
    assert of(jobs, step, "changed") == [[], [True, True]]
    assert of(jobs, step, "events") == of(jobs, "first", "events")


@pytest.mark.slow
@pytest.mark.private
@pytest.mark.parametrize("step", ["again, version on all", "again, options on all"])
def test_another_version_and_other_options_do_not_hit(jobs: Found, step: str) -> None:
    assert of(jobs, step, "hits") == [0, 0]
    assert of(jobs, step, "misses") == [2, 2]
    assert of(jobs, step, "changed") == [[True, True]] * 2


@pytest.mark.slow
@pytest.mark.private
def test_ranks_that_found_different_orders_keep_their_launches(jobs: Found) -> None:
    """Both hit, with other options: what they found is compiled again, and that is what they find the next time."""
    assert of(jobs, "options, odd", "hits") == [0, 0]
    assert of(jobs, "options, odd", "asked") == [2, 2]
    for rank in jobs:
        differ = 'the ranks differ in options: headroom is "50%" on rank 0 and "49%" on rank 1; launch order kept.'
        assert rank["options, odd"]["kept"][0].startswith(differ)
        again = "overlap_sched has torch compile 'forward 0/0 of Swapped' again, which it found in a cache: "
        warned = [line for line in rank["options, odd"]["warned"] if "the ranks differ" in line]  # once, by rank 0
        assert [line.startswith(f"{again}{differ}") for line in warned] == [True] * (rank is jobs[0])
        alone, kept = (rank[step]["events"] for step in ("torch alone", "options, odd"))
        for before, after in zip(alone, kept, strict=True):
            assert [e for e in before if e[0] == "launch"] == [e for e in after if e[0] == "launch"]
    assert of(jobs, "options, odd again", "hits") == [2, 2]
    assert of(jobs, "options, odd again", "events") == of(jobs, "options, odd", "events")


@pytest.mark.slow
@pytest.mark.private
def test_ranks_that_are_alike_again_come_back_to_the_better_order(jobs: Found) -> None:
    """First one rank drops its order that moves launches, then both drop the ones that do not."""
    assert of(jobs, "healing", "hits") == [2, 0]
    assert of(jobs, "healing again", "hits") == [0, 0]
    assert of(jobs, "healing again", "asked") == [4, 4]
    assert of(jobs, "healing again", "events") == of(jobs, "first", "events")


@pytest.mark.slow
@pytest.mark.private
def test_rewritten_graphs_are_cached_and_agreed_on_again(jobs: Found) -> None:
    """Ranks are asked about the rewrites and about the order, whether they find code or compile."""
    assert of(jobs, "buckets", "asked") == [4, 4]
    assert of(jobs, "buckets again", "asked") == [1, 1]
    assert of(jobs, "buckets again", "hits") == [2, 2]
    assert of(jobs, "buckets again, wiped", "hits") == [2, 0]
    assert of(jobs, "buckets again, wiped", "asked") == [5, 4]
    assert of(jobs, "buckets", "events") != of(jobs, "first", "events")
    for step in BUCKETS[1:3]:
        assert of(jobs, step, "events") == of(jobs, "buckets", "events")
        assert of(jobs, step, "warned") == [[], []]


@pytest.mark.slow
@pytest.mark.private
def test_a_graph_of_dtensors_is_found_in_another_process(jobs: Found) -> None:
    """Its key holds the mesh."""
    assert of(jobs, "mesh", "hits") == [0, 0]
    assert of(jobs, "mesh again", "hits") == [2, 2]
    assert of(jobs, "mesh again", "autograd hits") == [1, 1]
    assert of(jobs, "mesh again", "events") == of(jobs, "mesh", "events")
    assert of(jobs, "mesh again", "asked") == [1, 1]
    for rank in jobs:
        assert all(map(torch.equal, rank["mesh again"]["results"], rank["mesh, torch alone"]["results"]))


@pytest.mark.slow
@pytest.mark.private
def test_where_ranks_differ_by_then_nothing_is_rewritten(jobs: Found) -> None:
    """One rank finds rewritten code, the other has other options: neither rewrites, both keep their launches."""
    assert of(jobs, "buckets, options", "hits") == [0, 0]
    for rank in jobs:
        alone, kept = (rank[step]["events"] for step in ("torch alone", "buckets, options"))
        for before, after in zip(alone, kept, strict=True):
            assert [e for e in before if e[0] == "launch"] == [e for e in after if e[0] == "launch"]
    warned = jobs[0]["buckets, options"]["warned"]
    assert any("has torch compile 'forward" in text or "rewrites no" in text for text in warned)
