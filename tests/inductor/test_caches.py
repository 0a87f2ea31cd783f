"""torch's caches never serve a stale order: what an order depends on is part of the key, or nothing is cached."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch._inductor.codecache import FxGraphCache

import overlap_sched
from overlap_sched import Options
from overlap_sched.cost import A100, Compute, Roofline
from overlap_sched.distributed import Agreement, Digest, Verdict, agreement
from overlap_sched.distributed.agreement import Membership
from overlap_sched.distributed.sequences import Entry
from overlap_sched.inductor import agree, caches
from overlap_sched.inductor.caches import CachedOrder, may_load, may_save, order_to_cache, read_order, settings_key
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import PostGradPass, SchedulerPass
from overlap_sched.problem.sizes import VARIABLES
from tests.support.agreement_ranks import MemoryStore
from tests.support.inductor.models import RANKS
from tests.support.ranks import filled_once, run_ranks


class NamedCost:
    """A user's costs with a name of their own."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, node: fx.Node) -> float | None:
        return None

    def uuid(self) -> str:
        return self.name


class PlainModel:
    """A cost model that is no dataclass: nothing tells two of them apart."""

    def compute_us(self, work: Compute) -> float:
        return 1.0

    def collective_us(self, work: Any) -> float:
        return 1.0


def test_everything_that_an_order_depends_on_changes_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Settings(Options(headroom="1GiB"), model=Roofline())
    assert settings_key(one) == settings_key(replace(one, notes=("torch's pass is off",)))
    options = [Options(), Options(headroom=1), Options(effort=1), Options(base="memory"), Options(base="memory-peak")]
    settings = [one, *map(Settings, options), Settings(model=Roofline()), Settings(model=Roofline(device=A100))]
    settings += [Settings(ranks_per_node=4), *(Settings(cost=NamedCost(name)) for name in "ab")]
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    names = [*map(settings_key, settings)]
    monkeypatch.setenv(VARIABLES[0], "expandable_segments:True")  # with the options as they were
    names.append(settings_key(Settings()))
    monkeypatch.delenv(VARIABLES[0])
    monkeypatch.setattr(caches, "_package", lambda: "another version")
    names.append(settings_key(Settings()))
    assert None not in names
    assert len(set(names)) == len(names)
    assert settings_key(Settings(cost=lambda node: None)) is None  # what has no name is not cached
    assert settings_key(Settings(model=PlainModel())) is None


def test_who_must_agree_is_part_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that ranks had to agree on is for them alone, and none of it is for a rank that asks nobody."""
    names = [settings_key(Settings())]
    monkeypatch.setattr(agree, "several_ranks", lambda: True)
    monkeypatch.setattr(caches.dist, "get_world_size", lambda: 4)
    names += [settings_key(Settings()), settings_key(Settings(ranks=[0, 1]))]
    monkeypatch.setattr(caches.dist, "get_world_size", lambda: 2)
    names += [settings_key(Settings())]
    assert None not in names
    assert len(set(names)) == len(names)
    assert PostGradPass(Settings(stage="post_grad")).uuid() is None


def test_ranks_that_must_agree_do_not_cache_with_a_torch_that_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agree, "several_ranks", lambda: True)
    monkeypatch.setattr(caches.dist, "get_world_size", lambda: 2)
    assert pickle.dumps(SchedulerPass(Settings()))
    for patch in (lambda: False, fails):
        monkeypatch.setattr(caches, "_patch_torch", patch)
        with pytest.raises(TypeError, match="no stable cache key"):
            pickle.dumps(SchedulerPass(Settings()))
    assert pickle.dumps(SchedulerPass(Settings(Options(agreement="none"))))


def fails(*_: object) -> bool:
    raise KeyError("injected")


def test_a_pass_is_hashed_by_its_name() -> None:
    def pickled(options: Options) -> bytes:
        (only,) = overlap_sched.inductor_options(options)["reorder_for_compute_comm_overlap_passes"]
        return pickle.dumps(only)

    assert pickled(Options()) == pickled(Options())
    assert pickled(Options()) != pickled(Options(headroom=1))
    assert pickle.loads(pickled(Options(headroom=1))).settings.options == Options(headroom=1)


def test_the_hash_that_a_mesh_remembers_is_in_no_key(ranks: None) -> None:
    """Each process has another."""
    from torch.distributed.device_mesh import init_device_mesh

    caches._patch_torch()
    mesh = init_device_mesh("cpu", (RANKS,))
    before = pickle.dumps(mesh)
    assert hash(mesh)
    assert pickle.dumps(mesh) == before
    assert hash(pickle.loads(before)) == hash(mesh)


MINE = Digest("p", "s", "o", "c", "r", "key", launches="l", name="backward 0/0", nodes=7)
AGREED = Agreement(True, Verdict(agreed=True))
TEXTS = ("gather 1 8", "gather 1 16")
KEPT, SWAPPED = Entry(TEXTS, (0, 1), True), Entry(TEXTS, (1, 0), True)
OTHERS = Agreement(False, Verdict(False, "they launch otherwise", False, {"sizes": ((0,), (1,))}))
DIFFER = Agreement(False, Verdict(False, "the ranks differ", True, {"sizes": ((0,), (1,))}))
LATE = Agreement(False, Verdict(False, "rank 1 did not publish", missing=(1,)))
CODE = "import torch\n{}\ndef call(args):\n    torch.ops._c10d_functional.wait_tensor.default(buf0)\n"
LOCAL = "import torch\ndef call(args):\n    extern_kernels.mm(buf0)\n"


def carrying(*orders: CachedOrder) -> str:
    return CODE.format("\n".join(f"# {order.line}" for order in orders))


def test_an_order_in_code_and_back() -> None:
    order = CachedOrder(replace(MINE, name='it\'s "odd"\n\\'), agreed=True)
    assert read_order(carrying(order)) == order
    assert read_order(CODE) is None
    assert read_order(carrying(order, CachedOrder(MINE, agreed=False))) is None


def test_what_code_carries() -> None:
    assert order_to_cache(MINE, AGREED, "k") == CachedOrder(MINE, agreed=True)
    kept = order_to_cache(MINE, DIFFER, "k")
    assert kept == CachedOrder(replace(MINE, order="launches kept: k"), agreed=False)
    assert kept.digest.order != MINE.order  # a rank that shows it promises no other order
    waits = replace(MINE, order="launches kept: and waits: k")
    assert order_to_cache(MINE, OTHERS, "k") == CachedOrder(waits, agreed=False)
    assert order_to_cache(MINE, LATE, "k") is None
    assert order_to_cache(Digest(failure="KeyError", key="key"), DIFFER, "") is None


def taken(key: str) -> Agreement | None:
    """What is kept of an answer for the compilation that follows."""
    return caches.decided().pop(key, None)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What the others are shown; the last entry is their answer."""
    shown: list[Any] = [AGREED]

    def ask(mine: Digest, settings: Settings) -> Agreement:
        shown.insert(0, mine)
        return shown[-1]

    monkeypatch.setattr(agree, "several_ranks", lambda: True)
    monkeypatch.setattr(agree, "ask", ask)
    yield shown
    assert taken(MINE.key) is None


@pytest.mark.parametrize("when", [AGREED, DIFFER, OTHERS], ids=["agreed", "differ", "others"])
@pytest.mark.parametrize("answer", [AGREED, DIFFER, OTHERS, LATE], ids=["agreed", "differ", "others", "late"])
def test_code_is_used_where_the_ranks_decide_as_when_it_was_compiled(
    asked: list[Any], when: Agreement, answer: Agreement, recwarn: pytest.WarningsRecorder
) -> None:
    """Where a wait may have passed a launch, only where all launch alike: who did not come may launch anything."""
    overlap_sched.clear_reports()
    asked[-1] = answer
    same = answer is when or (answer is LATE and when is OTHERS)
    found = order_to_cache(MINE, when, "k")
    assert found is not None
    assert may_load(Settings(), carrying(found)) == (same, not same)
    assert asked[:-1] == [found.digest]
    decided = taken(MINE.key)
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
    monkeypatch.setattr(agree, "ask", lambda mine, settings: asked.insert(-1, mine) or left.pop(0))
    code = carrying(CachedOrder(MINE, order, before))
    assert read_order(code) == CachedOrder(MINE, order, before)
    monkeypatch.setattr(agree, "warn", lambda text: None)
    assert may_load(Settings(), code) == (used, not used)
    assert asked[:-1] == [before.digest, MINE][: len(answers)]
    found = [key for key in ("rewrites", MINE.key) if taken(key) is not None]
    assert found == kept


def test_code_that_is_used_without_asking(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert may_load(Settings(), LOCAL) == (True, False)
    assert may_save(Settings(), LOCAL)
    monkeypatch.setattr(agree, "several_ranks", lambda: False)
    assert may_load(Settings(), CODE) == (True, False)
    assert may_save(Settings(), CODE)
    assert asked == [AGREED]


def test_code_that_is_not_used_and_not_saved(asked: list[Any]) -> None:
    order = CachedOrder(MINE, agreed=True)
    for code in (CODE, carrying(order, order)):
        assert may_load(Settings(), code) == (False, False)
        assert not may_save(Settings(), code)
    assert may_save(Settings(), carrying(order))
    assert asked == [AGREED]


def test_nothing_that_communicates_is_used_out_of_the_cache_that_loads_forward_and_backward_at_once(
    asked: list[Any],
) -> None:
    """And code without collectives is reported as found, too."""
    overlap_sched.clear_reports()
    code = carrying(CachedOrder(MINE, True))
    assert caches.may_use(Settings(), code, False) == (False, False)
    assert caches.may_use(Settings(), LOCAL, False) == (True, False)
    assert asked == [AGREED]
    assert caches.may_use(Settings(), code, True) == (True, False)
    assert caches.may_use(Settings(), LOCAL, True) == (True, False)
    assert [one.name for one in overlap_sched.reports()] == ["backward 0/0", "graph"]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Membership:
    """The ranks, and nothing in force."""
    both = Membership(MemoryStore(), 0, 2)
    monkeypatch.setattr(agreement, "membership_of", lambda *_: both)
    monkeypatch.setattr(agreement, "_logs", {})
    return both


@pytest.mark.parametrize(("entry", "use"), [(SWAPPED, True), (KEPT, False)])
def test_code_is_used_without_asking_where_it_launches_as_is_in_force(
    entry: Entry, use: bool, asked: list[Any], here: Membership
) -> None:
    assert agreement.sequence_in_force(SWAPPED.launches, here, SWAPPED) == SWAPPED
    for rewrites in (None, APART):  # nor are the ranks asked about its rewrites
        code = carrying(CachedOrder(MINE, True, rewrites=rewrites, entry=entry))
        assert may_load(Settings(), code) == (use, not use)
    assert asked == [AGREED]


@pytest.mark.parametrize(("entry", "use"), [(SWAPPED, False), (Entry(TEXTS, (), True, "buckets"), False), (KEPT, True)])
def test_code_that_moves_launches_is_not_used_beside_graphs_that_were_compiled_before(
    entry: Entry, use: bool, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agree, "runs_earlier_code", lambda: True)
    assert may_load(Settings(), carrying(CachedOrder(MINE, True, entry=entry))) == (use, False)
    assert (asked != [AGREED]) is use


@pytest.mark.parametrize("answer", [AGREED, DIFFER])
def test_code_puts_its_sequence_in_force(answer: Agreement, asked: list[Any], here: Membership) -> None:
    asked[-1] = answer
    found = order_to_cache(MINE, answer, "k", KEPT)
    assert found is not None
    assert may_load(Settings(), carrying(found)) == (True, False)
    assert agreement.sequence_in_force(KEPT.launches, here) == KEPT


def test_this_torch_asks_once() -> None:
    """Else nothing that communicates is cached."""
    assert caches._patch_torch()
    after = FxGraphCache.cache_hit_post_compile
    assert caches._patch_torch()
    assert FxGraphCache.cache_hit_post_compile is after


def test_caches_that_load_without_asking_are_not_used(asked: list[Any]) -> None:
    with torch._functorch.config.patch(bundled_autograd_cache=True):
        assert not caches.watch_caches(Settings())
    assert caches.watch_caches(Settings())


def test_another_torch_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    before = FxGraphCache.cache_hit_post_compile
    monkeypatch.setitem(caches._FUNCTIONS, "_save_graph", ["key", "something_else"])
    assert not caches._patch_torch.__wrapped__()
    assert FxGraphCache.cache_hit_post_compile is before


JOB_RANKS = 2
Found = list[dict[str, dict[str, Any]]]
SECOND = ["again", "again, wiped"]
BUCKETS = ["buckets", "buckets again", "buckets again, wiped"]
HEALING = ["options, odd", "options, odd again", "healing", "healing again", "healed"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Two jobs, one after the other: what each rank found in each step."""
    jobs = {"first": ["torch alone", "first", "buckets"], "second": [*SECOND, *HEALING, *BUCKETS[1:]]}

    def run(folder: Path) -> None:
        program = "tests.support.inductor.cached_runs"
        for job, steps in jobs.items():
            run_ranks(program, folder, job, *steps, ranks=JOB_RANKS, limit_s=400, fresh=True)

    folder = filled_once(tmp_path_factory, "cached", run)
    found: Found = [{} for _ in range(JOB_RANKS)]
    for job in jobs:
        for rank in range(JOB_RANKS):
            found[rank] |= torch.load(folder / f"{job}{rank}.pt")
    return found


def of(found: Found, step: str, what: str) -> list[Any]:
    """What a step gave on each rank."""
    return [rank[step][what] for rank in found]


@pytest.mark.private
class TestTwoJobs:
    def test_every_step_gives_the_results_of_torch_alone_in_one_order_of_launches(self, jobs: Found) -> None:
        for turn in ("first", *SECOND, *HEALING, *BUCKETS):
            launches = []
            for rank in jobs:
                assert all(map(torch.equal, rank[turn]["results"], rank["torch alone"]["results"])), turn
                assert rank[turn]["alone is equal"]
                assert rank[turn]["bypassed"] == 0
                launches.append([[event for event in graph if event[0] == "launch"] for graph in rank[turn]["events"]])
            assert launches[0] == launches[1], turn

    @pytest.mark.parametrize("step", ["again", "healed"])
    def test_a_second_start_hits_and_the_ranks_agree(self, jobs: Found, step: str) -> None:
        assert of(jobs, step, "hits") == [2, 2]
        assert of(jobs, step, "autograd hits") == [0, 0]  # traced again
        assert of(jobs, step, "changed") == [[], []]  # the pass is not called
        assert of(jobs, step, "found") == [["graph of alone", "forward of Swapped", "backward of Swapped"]] * 2
        assert of(jobs, step, "asked") == [2, 2]  # about forward and backward
        assert of(jobs, step, "events") == of(jobs, "first", "events")
        assert of(jobs, "first", "events") != of(jobs, "torch alone", "events")
        assert of(jobs, step, "warned") == [[], []]

    def test_a_graph_that_does_not_communicate_is_cached_as_without_us(self, jobs: Found) -> None:
        for rank in jobs:
            hit = {"hits": 1, "misses": 0, "bypassed": 0, "autograd hits": 1, "autograd misses": 0}
            assert rank["again"]["alone"] == hit
            assert rank["first"]["alone"] == rank["torch alone"]["alone"]

    def test_one_rank_that_finds_nothing_compiles_and_all_agree(self, jobs: Found) -> None:
        step = "again, wiped"
        assert of(jobs, step, "hits") == [2, 0]
        assert of(jobs, step, "autograd hits") == [0, 0]
        assert of(jobs, step, "asked") == [2, 2]
        assert of(jobs, step, "changed") == [[], [True, True]]
        assert of(jobs, step, "events") == of(jobs, "first", "events")

    def test_ranks_that_found_different_orders_keep_their_launches(self, jobs: Found) -> None:
        """Both hit, with other options: what they found is compiled again, and that is what they find the next time."""
        assert of(jobs, "options, odd", "hits") == [0, 0]
        assert of(jobs, "options, odd", "asked") == [2, 2]
        for rank in jobs:
            differ = 'the ranks differ in options: headroom is "50%" on rank 0 and "49%" on rank 1; launch order kept.'
            assert rank["options, odd"]["kept"][0].startswith(differ)
            warned = [line for line in rank["options, odd"]["warned"] if "which it found in a cache: " in line]
            assert len(warned) == (rank is jobs[0])  # once
            alone, kept = (rank[turn]["events"] for turn in ("torch alone", "options, odd"))
            for before, after in zip(alone, kept, strict=True):
                assert [e for e in before if e[0] == "launch"] == [e for e in after if e[0] == "launch"]
        assert of(jobs, "options, odd again", "hits") == [2, 2]
        assert of(jobs, "options, odd again", "events") == of(jobs, "options, odd", "events")

    def test_ranks_that_are_alike_again_come_back_to_the_better_order(self, jobs: Found) -> None:
        """First one rank drops its order that moves launches, then both drop the ones that do not."""
        assert of(jobs, "healing", "hits") == [2, 0]
        assert of(jobs, "healing again", "hits") == [0, 0]
        assert of(jobs, "healing again", "asked") == [4, 4]
        assert of(jobs, "healing again", "events") == of(jobs, "first", "events")

    def test_rewritten_graphs_are_cached_and_agreed_on_again(self, jobs: Found) -> None:
        """Ranks are asked about the rewrites and about the order, whether they find code or compile."""
        assert of(jobs, "buckets", "asked") == [4, 4]
        assert of(jobs, "buckets again", "asked") == [4, 4]
        assert of(jobs, "buckets again", "hits") == [2, 2]
        assert of(jobs, "buckets again, wiped", "hits") == [2, 0]
        assert of(jobs, "buckets again, wiped", "asked") == [4, 4]
        assert of(jobs, "buckets", "events") != of(jobs, "first", "events")
        for turn in BUCKETS[1:]:
            assert of(jobs, turn, "events") == of(jobs, "buckets", "events")
            assert of(jobs, turn, "warned") == [[], []]
