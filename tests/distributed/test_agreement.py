"""One rank's way through an agreement: limits, races at the limit, failing stores, what is raised and what is not."""

import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from overlap_sched.distributed import TIMEOUT_S, Agreement, Membership, Verdict, agree, agreement, broadcast_costs
from overlap_sched.distributed.protocol import ABSENT_SHARE
from overlap_sched.errors import AgreementError, OptionsError, OverlapSchedWarning
from tests.support.agreement_ranks import Clock, FaultyStore, MemoryStore, digest

A, OTHER_OPTIONS = digest(), digest(headroom=1)


def joined(store: Any, rank: int, clock: Clock | None = None, mine: Any = A, **how: Any) -> Agreement:
    return agree(mine, membership=Membership(store, rank, 2), clock=clock or Clock(), **how)


def both(store: Any, other: Any = A) -> tuple[Agreement, Agreement]:
    """Rank 0, and rank 1, which comes while that one sleeps for the first time."""
    others = list[Agreement]()
    clock = Clock(lambda: others or others.append(joined(store, 1, mine=other)))
    first = joined(store, 0, clock)
    assert clock.now_s < 1.0
    return first, others[0]


def test_pauses_grow_and_end_with_the_limit() -> None:
    clock = Clock()
    joined(MemoryStore(), 0, clock, timeout_s=0.5)
    assert [round(1000 * nap_s) for nap_s in clock.naps_s] == [1, 2, 4, 8, 16, 32, 64, 100, 100, 100, 73]


def test_a_rank_alone_agrees_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert agree(A).agreed
    assert broadcast_costs({"mm": 1.0}) == {"mm": 1.0}
    monkeypatch.setattr(agreement, "_initialized", lambda: c10d(get_backend=lambda: "fake"))
    assert agree(A).agreed  # one process that plays all ranks
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    assert agree(A).agreed


def test_both_ranks_are_told_who_differs_in_what() -> None:
    first, second = both(MemoryStore())
    assert first == second == Agreement(True, Verdict(True, shown=(A.identity,)))
    first, second = both(MemoryStore(), OTHER_OPTIONS)
    assert first.verdict == second.verdict
    assert first.verdict.differs == {"options": ((0,), (1,))}


def test_strict_raises_the_same_reason() -> None:
    with pytest.raises(AgreementError, match=r"graph 'aten.mm': rank 1 did not publish an order .* within 5 s"):
        joined(MemoryStore(), 0, strict=True, timeout_s=5.0)


def test_a_rank_that_never_comes_costs_the_limit_once_and_a_tenth_of_it_later() -> None:
    store, clock = MemoryStore(), Clock()
    first = joined(store, 0, clock)
    assert not first.agreed
    assert first.verdict.missing == (1,)
    assert clock.now_s == pytest.approx(TIMEOUT_S)
    assert not joined(store, 0, clock, mine=digest("aten.add")).agreed
    assert clock.now_s == pytest.approx(1.1 * TIMEOUT_S)
    assert not joined(store, 1, clock).agreed  # it comes at last, learns what was decided, and is counted on again
    assert not joined(store, 1, clock, mine=digest("aten.add")).agreed
    assert clock.now_s == pytest.approx(1.1 * TIMEOUT_S)
    joined(store, 1, clock, mine=digest("aten.sin"))
    before_s = clock.now_s
    joined(store, 0, clock, mine=digest("aten.cos"))
    assert clock.now_s - before_s <= TIMEOUT_S


def test_who_compiles_a_graph_again_alone_or_comes_too_late_stays_with_what_was_agreed() -> None:
    store, clock = MemoryStore(), Clock()
    assert both(store)[0].agreed
    for turn, rank in enumerate((0, 0, 1), 1):
        again = joined(store, rank, clock)
        assert (again.agreed, again.verdict.as_before, again.reason) == (True, True, None)
        assert again.verdict.missing == (1 - rank,)
        assert clock.now_s == pytest.approx(turn * TIMEOUT_S * ABSENT_SHARE)
    first, second = both(store)  # they meet all the same
    assert (first.verdict, first.verdict.missing) == (second.verdict, ())


def test_a_store_that_fails_for_good_at_a_graph_agreed_on_before_leaves_the_agreed_order() -> None:
    """The others go by it too; where even that cannot be read, the rank says that it is in doubt."""
    seen = set()
    for at in range(1, 12):
        store = FaultyStore(MemoryStore(), at, "for good")
        both(store.store)
        result = joined(store, 0, timeout_s=0.01)
        if store.calls < at:
            break
        assert result.in_doubt is (at > 1)
        seen.add(result.agreed)
        assert result.agreed or at <= 4
    assert seen == {False, True}


def test_some_ranks_agree_without_the_others() -> None:
    store, others = MemoryStore(), list[Agreement]()

    def ask(rank: int, clock: Clock, ranks: list[int] | None) -> Agreement:
        return agree(A, membership=Membership(store, rank, 4, ranks), clock=clock)

    assert ask(1, Clock(lambda: others or others.append(ask(3, Clock(), [3, 1]))), [1, 3]).agreed
    assert not ask(1, Clock(), None).agreed  # all four are another set
    for rank, ranks in ((0, [1, 3]), (1, [1, 4]), (1, [-1, 1])):
        with pytest.raises(OptionsError, match=rf"this rank \({rank}\) must be among them"):
            ask(rank, Clock(), ranks)


def real_store(kind: str, folder: Any) -> Any:
    dist = pytest.importorskip("torch.distributed")
    if kind == "HashStore":
        return dist.HashStore()
    return dist.FileStore(str(folder / "store"), 1) if kind == "FileStore" else dist.TCPStore("127.0.0.1", 0, 1, True)


class Hooked:
    """A store that lets another rank in just before, or just after, the verdict is written."""

    def __init__(self, store: Any, hook: Callable[[], object], before: bool) -> None:
        self.store, self.hook, self.before = store, hook, before

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.before and key.endswith("/verdict"):
            self.hook()
        result = bytes(self.store.compare_set(key, expected, desired))
        if not self.before and key.endswith("/verdict"):
            self.hook()
        return result


@pytest.mark.parametrize("kind", ["HashStore", "FileStore", "TCPStore"])
@pytest.mark.parametrize("before", [True, False])
def test_a_rank_that_comes_exactly_at_the_limit(kind: str, before: bool, tmp_path: Any) -> None:
    """Rank 0 has seen nobody and is about to say so: whoever writes first decides for both."""
    store, late = real_store(kind, tmp_path), []
    early = joined(Hooked(store, lambda: late.append(joined(store, 1)), before), 0)
    assert early.verdict == late[0].verdict
    assert early.agreed is before  # before: the late rank found both digests, and its verdict stands


def failing_at_each(how: str) -> Iterator[tuple[FaultyStore, Agreement]]:
    """One agreement of rank 0 alone for each operation that may fail."""
    for at in count(1):
        store = FaultyStore(MemoryStore(), at, how)
        result = joined(store, 0, timeout_s=0.01)  # a few looks for a verdict, then the limit
        if store.calls < at:
            break
        yield store, result
    assert at > 10


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_store_that_fails_once_leaves_no_doubt(how: str) -> None:
    """The rank follows what is recorded, and what is recorded is the original order."""
    for store, result in failing_at_each(how):
        (recorded,) = (value for key, value in store.store.values.items() if key.endswith("/verdict"))
        assert result.verdict == Verdict.from_json(recorded.decode())
        assert (result.agreed, result.in_doubt) == (False, False)


@pytest.mark.parametrize("how", ["for good", "for good, done"])
def test_a_store_that_fails_for_good_leaves_a_doubt_where_others_may_count_on_this_rank(how: str) -> None:
    seen = set()
    for store, result in failing_at_each(how):
        assert result.in_doubt == (0 < store.standing <= store.at)
        assert "RuntimeError: Broken pipe" in str(result.reason)
        with pytest.raises(AgreementError, match="Broken pipe"):
            joined(FaultyStore(MemoryStore(), store.at, how), 0, timeout_s=0.01, strict=True)
        others = joined(store.store, 1, timeout_s=0.01)  # the other rank, whose store is there, comes later
        assert result.in_doubt or not others.agreed
        seen.add(result.in_doubt)
    assert seen == {False, True}


def test_nonsense_in_the_store_is_a_failing_store() -> None:
    store = MemoryStore()
    store.set(f"overlap_sched/agreement/all/{A.key}/0/verdict", "not ours")
    result = joined(store, 0)
    assert not result.agreed
    assert "the store of the process group failed" in str(result.reason)


def test_a_rank_that_stands_nowhere_is_not_waited_for_in_the_store() -> None:
    """A real store would wait for the missing digest, for minutes: it must not be asked for."""
    store = MemoryStore()
    store.set("overlap_sched/agreement/all/at/1", "nonsense/0")
    store.set("overlap_sched/agreement/all/waiting", "1")
    assert joined(store, 0).verdict.missing == (1,)


def c10d(**more: Any) -> SimpleNamespace:
    calls = {"get_world_size": lambda: 2, "get_rank": lambda: 1, "get_backend": lambda: "gloo"}
    return SimpleNamespace(**{**calls, **more})


def test_a_torch_that_hides_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_initialized", c10d)
    result = agree(A)
    assert not result.agreed
    assert "has no attribute '_get_default_store'. Call torch.distributed.init_process_group" in str(result.reason)
    with pytest.raises(AgreementError):
        agree(A, strict=True)
    with pytest.warns(OverlapSchedWarning, match="This rank uses its own"):
        assert broadcast_costs({"mm": 1.0}) == {"mm": 1.0}


def costs_of(
    store: Any, rank: int, costs: dict[str, float], clock: Clock | None = None, **how: Any
) -> dict[str, float]:
    return broadcast_costs(costs, membership=Membership(store, rank, 2), clock=clock or Clock(), **how)


def test_costs_are_those_of_rank_0_to_the_last_bit() -> None:
    store, mine = MemoryStore(), {"mm": 0.1 + 0.2, "add": 1e-300}
    clock = Clock(lambda: costs_of(store, 0, mine))
    assert costs_of(store, 1, {"mm": 7.0}, clock) == mine
    assert costs_of(store, 0, {"mm": 8.0}) == mine  # measured again: the first table stays
    assert costs_of(store, 1, {"mm": 9.0}) == mine
    assert costs_of(store, 0, {"mm": 8.0}, name="later") == {"mm": 8.0}


def test_costs_that_do_not_come() -> None:
    with pytest.warns(OverlapSchedWarning, match=r"'costs' of rank 0 .* within 300 s\)\. This rank uses its own"):
        assert costs_of(MemoryStore(), 1, {"mm": 7.0}) == {"mm": 7.0}
    with pytest.warns(OverlapSchedWarning, match="RuntimeError: Broken pipe"):
        costs_of(FaultyStore(MemoryStore(), 1, "for good"), 1, {"mm": 7.0})
