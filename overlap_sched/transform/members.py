"""What a rewrite needs to know of a collective, and whether it may be touched at all."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from overlap_sched.errors import RewriteError
from overlap_sched.problem import FINISH, LAUNCH, Kind, Node, NodeId, StorageId
from overlap_sched.transform.draft import Draft
from overlap_sched.transform.rewrites import BUCKETED

WAIT = "_c10d_functional.wait_tensor.default"

Alike = Mapping[str, str]
"""Per collective, by name, what a problem does not say and members must share: ``"bfloat16"``, ``"float32 sum"``.

Collectives that are not in it have ``""``: of a problem file it is not known, and taken to be alike by operator and
group."""


class Member(NamedTuple):
    """A collective with one result, that nothing but waits looks at.

    Attributes:
        node: As it is. v: its draft id.
        takes: Storages of its input (none where they are not counted).
        gives: The storage of its result; ``None`` where it is not counted.
        waits: Draft ids.
        launch: Draft id of its launch node; ``None``: it has none.
        finishes: Draft ids of the finish nodes of its waits.
        ranks: Of its group. at, place: where it is launched, and where it is first waited for.
    """

    node: Node
    v: NodeId
    takes: tuple[StorageId, ...]
    gives: StorageId | None
    waits: tuple[NodeId, ...]
    launch: NodeId | None
    finishes: tuple[NodeId, ...]
    ranks: int
    at: float
    place: float

    @property
    def op(self) -> str:
        """Its operator."""
        return self.node.op

    @property
    def columns(self) -> int:
        """The bytes of its larger side."""
        return self.node.bytes

    @property
    def given_bytes(self) -> int:
        """The bytes of its result: ``Node.bytes`` is the larger side."""
        return -(-self.node.bytes // self.ranks) if "reduce_scatter" in self.node.op else self.node.bytes

    @property
    def inputs(self) -> tuple[NodeId, ...]:
        """Draft ids of what it depends on, without its launch node."""
        return tuple(u for u in self.node.deps if u != self.launch)

    @property
    def taken_bytes(self) -> int:
        """The bytes of its input."""
        return -(-self.node.bytes // self.ranks) if "all_gather" in self.node.op else self.node.bytes


def member(draft: Draft, name: str) -> Member:
    """The collective of this name, where it has one result, and nothing but waits looks at that."""
    v = draft.find(name)
    node = draft.node(v)
    if node.kind is not Kind.COLLECTIVE or node.op not in BUCKETED:
        what = node.op or node.kind.value
        raise RewriteError(f"{name!r} is {what!r}: what can be rewritten is {', '.join(BUCKETED)}.")
    waits = tuple(draft.waits(v))
    finishes = tuple(u for w in waits if (u := draft.finish_node(w)) is not None)
    others = [w for w in draft.after(v) if w not in (*waits, *finishes) and draft.node(w).kind is not Kind.OUTPUT]
    if not waits or len(node.alloc) > 1:
        raise RewriteError(
            f"{name!r} has {len(waits)} waits and {len(node.alloc)} results: it needs a wait and one result."
        )
    if others:
        raise RewriteError(
            f"{draft.node(others[0]).name!r} needs the launch of {name!r}, not a wait: a rewrite would lose that."
        )
    launch = draft.launch_node(v)
    gives = node.alloc[0] if node.alloc else None
    assert node.group is not None
    place = min(draft.at[w] for w in waits)
    ranks = draft.groups[node.group].size
    return Member(node, v, node.use, gives, waits, launch, finishes, ranks, draft.at[v], place)


def check_alike(members: Sequence[tuple[str, Mapping[str, object]]]) -> None:
    """Members of a bucket must be two or more, each once, and share what is said of each: ``"process group": "0"``."""
    names = [name for name, _ in members]
    if len(set(names)) < max(len(names), 2):
        raise RewriteError(f"a bucket of {', '.join(names)}: two collectives at least, each once.")
    first, shared = members[0]
    for name, said in members[1:]:
        for what, here in said.items():
            there = shared[what]
            if here != there:
                raise RewriteError(f"{name!r} has {what} {here!r} and {first!r} has {there!r}: a bucket has one.")


def launched(draft: Draft, name: str, deps: Sequence[NodeId], time_us: float, at: float) -> tuple[NodeId, ...]:
    """The deps of a new collective: those given, and a launch node of its own where launching takes time."""
    if not time_us:
        return tuple(deps)
    launch = Node(f"{name}.{LAUNCH}", Kind.COMPUTE, tuple(deps), time_us=time_us, op=LAUNCH)
    return (*deps, draft.add(launch, at))


def awaited(draft: Draft, wait: Node, time_us: float, at: float) -> NodeId:
    """A new wait, behind a finish node of its own where it takes time of the compute stream."""
    if time_us:
        finish = Node(f"{wait.name}.{FINISH}", Kind.COMPUTE, wait.deps, time_us=time_us, op=FINISH)
        wait = wait._replace(deps=(*wait.deps, draft.add(finish, at)))
    return draft.add(wait, at)


def replaced(draft: Draft, one: Member, out: NodeId) -> None:
    """Users of a collective's waits use ``out``; it, its waits, and what stands for the host's work with them go."""
    for w in one.waits:
        draft.redirect(w, out)
        draft.remove(w)
    for u in one.finishes:
        draft.remove(u)
    draft.redirect(one.v, out)  # an output, which comes after everything
    draft.remove(one.v)
    if one.launch is not None:
        draft.remove(one.launch)
