"""Several collectives become one, or one several: what buckets and splits make of a problem.

The nodes are those of :mod:`overlap_sched.transform.recipes`; this is what those of a bucket hold::

    copied, all_gather                      ids of storages
      in       allocates the inputs, packed; uses each input            the inputs may die here
      b        allocates all results, packed; uses `in`                 both live until the wait
      copy_i   allocates result i; uses the packed results              these die with the last copy

    copied, reduce_scatter and all_reduce   the same, without copies behind: results are parts of one storage,
                                            which lives as long as any of them
    coalesced                               b allocates each result, and uses each input until its last wait
"""

from collections.abc import Sequence
from typing import NamedTuple

from overlap_sched.errors import RewriteError
from overlap_sched.problem import Kind, Node, NodeId, StorageId
from overlap_sched.transform import recipes
from overlap_sched.transform.draft import Draft, unique
from overlap_sched.transform.members import WAIT, Alike, Member, awaited, check_alike, launched, member, replaced
from overlap_sched.transform.prices import Prices
from overlap_sched.transform.rewrites import Bucket, Split

VIEW, SLICE, GETITEM = "aten.view.default", "aten.slice.Tensor", "getitem"
CAT, CLONE = "aten.cat.default", "aten.clone.default"


def bucketed(draft: Draft, bucket: Bucket, prices: Prices, alike: Alike) -> None:
    """Make one of several, where they are alike; whether one needs another shows in :meth:`Draft.finished`."""
    members = [member(draft, name) for name in bucket.members]
    check_alike([(one.node.name, _shared(one.node, alike)) for one in members])
    recipe = recipes.coalesced if bucket.form == "coalesced" else recipes.copied
    _, outs = recipe(_ProblemMaker(draft, prices), bucket.name, members)
    for one, out in zip(members, outs, strict=True):
        _stand_in(draft, one, out)


def split(draft: Draft, wanted: Split, prices: Prices) -> None:
    """Make several of one."""
    one = member(draft, wanted.collective)
    if wanted.parts < 2:
        raise RewriteError(f"{wanted.collective!r} in {wanted.parts} parts: two at least.")
    _, out = recipes.split(_ProblemMaker(draft, prices), wanted.name, one, wanted.parts)
    _stand_in(draft, one, out)


def _shared(node: Node, alike: Alike) -> dict[str, object]:
    """Return what members must share."""
    return {
        "operator": node.op,
        "process group": node.group,
        "type and reduction": alike.get(node.name, ""),
    }


class _Made(NamedTuple):
    """A value of a problem that is being rewritten.

    Attributes:
        ids: Who gives it. held: storages that it is in. bytes: of it.
        launch: Of what is in flight, its collective. read: what that reads until it is waited for.
    """

    ids: tuple[NodeId, ...]
    held: tuple[StorageId, ...]
    bytes: int = 0
    launch: NodeId | None = None
    read: tuple[StorageId, ...] = ()


def _stand_in(draft: Draft, one: Member, out: _Made) -> None:
    """Users of a collective's result use what stands for it, and hold that."""
    if one.gives is not None:
        draft.rehouse(one.gives, out.held[0])
    replaced(draft, one, out.ids[0])


class _ProblemMaker:
    """Makes the nodes of :mod:`overlap_sched.transform.recipes`; columns are bytes, of whichever side is larger."""

    def __init__(self, draft: Draft, prices: Prices) -> None:
        self.draft, self.prices = draft, prices

    def source(self, one: Member) -> _Made:
        return _Made(one.inputs, one.takes, one.taken_bytes)

    def view(self, name: str, of: _Made, shape: recipes.Shape, at: float, like: Member) -> _Made:
        return self._view(name, VIEW, of, at)

    def piece(self, name: str, of: _Made, dim: int, columns: tuple[int, int], at: float, like: Member) -> _Made:
        return self._view(name, SLICE, of, at)._replace(bytes=columns[1] - columns[0])

    def copy(self, name: str, of: _Made, at: float, like: Member, *, result: bool = False) -> _Made:
        into = _result(like) if result else self._fresh(of.bytes, like.gives is not None)
        return self._copy(name, CLONE, [of], of.bytes, into, at)

    def cat(self, name: str, of: Sequence[_Made], dim: int, at: float, like: Member, *, result: bool = False) -> _Made:
        if result:
            return self._copy(name, CAT, of, like.given_bytes, _result(like), at)
        nbytes = sum(one.bytes for one in of)
        counted = like.gives is not None or any(one.held for one in of)
        return self._copy(name, CAT, of, nbytes, self._fresh(nbytes, counted), at)

    def launch(self, name: str, of: _Made, members: Sequence[Member], at: float, columns: int | None = None) -> _Made:
        nbytes, given = sum(one.node.bytes for one in members), sum(one.given_bytes for one in members)
        if columns is not None:
            nbytes, given = columns, given * columns // nbytes if nbytes else 0
        result = self._fresh(given, members[0].gives is not None)
        return self._launch(name, members[0].op, (of.ids, of.held, result), nbytes, members[0], at)

    def coalesced(self, name: str, members: Sequence[Member], at: float) -> _Made:
        ids = unique(u for one in members for u in one.inputs)
        takes = unique(s for one in members for s in one.takes)
        gives = unique(s for one in members for s in _result(one))
        nbytes = sum(one.node.bytes for one in members)
        return self._launch(name, f"{members[0].op}_coalesced", (ids, takes, gives), nbytes, members[0], at)

    def got(self, name: str, launch: _Made, i: int, like: Member) -> _Made:
        return self._view(name, GETITEM, launch, like.place)._replace(held=_result(like))

    def wait(self, name: str, of: _Made, at: float, like: Member) -> _Made:
        assert of.launch is not None
        node = self.draft.node(of.launch)
        us = self.prices.finish_us(node.op, node.bytes, self.draft.groups[node.group or ""])
        use = unique((*of.read, *of.held))
        ended = Node(name, Kind.WAIT, of.ids, (), use, op=WAIT, collective=of.launch)
        return _Made((awaited(self.draft, ended, us, at),), of.held)

    def _launch(
        self,
        name: str,
        op: str,
        what: tuple[tuple[NodeId, ...], tuple[StorageId, ...], tuple[StorageId, ...]],
        nbytes: int,
        like: Member,
        at: float,
    ) -> _Made:
        """``what``: its deps, what it uses, what it allocates."""
        (deps, takes, gives), group = what, like.node.group
        assert group is not None
        facts = self.draft.groups[group]
        deps = launched(self.draft, name, deps, self.prices.launch_us(op, nbytes, facts), at)
        us = self.prices.collective_us(op, nbytes, facts)
        v = self.draft.add(Node(name, Kind.COLLECTIVE, deps, gives, takes, us, op, group, bytes=nbytes), at)
        return _Made((v,), gives, launch=v, read=takes)

    def _view(self, name: str, op: str, of: _Made, at: float) -> _Made:
        return of._replace(ids=(self.draft.add(Node(name, Kind.COMPUTE, of.ids, (), of.held, op=op), at),))

    def _copy(
        self, name: str, op: str, of: Sequence[_Made], nbytes: int, into: tuple[StorageId, ...], at: float
    ) -> _Made:
        deps, use = tuple(u for one in of for u in one.ids), unique(s for one in of for s in one.held)
        us = self.prices.copy_us(op, 2 * nbytes)
        v = self.draft.add(Node(name, Kind.COMPUTE, deps, into, use, us, op, bytes=2 * nbytes), at)
        return _Made((v,), into, nbytes)

    def _fresh(self, nbytes: int, counted: bool) -> tuple[StorageId, ...]:
        return (self.draft.storage(nbytes),) if counted else ()


def _result(one: Member) -> tuple[StorageId, ...]:
    return () if one.gives is None else (one.gives,)
