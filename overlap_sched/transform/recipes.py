"""Which nodes each rewrite makes, said once; a problem and an FX graph each have a :class:`Maker` that makes them.

Both get the same nodes, by the same names, in the same places, so an order of the one is an order of the other. A maker
checks what only it can know (a graph: types, writes, layouts), and knows what a new node is worth: storages and times,
or fake tensors. All raise ``RewriteError`` where a rewrite is not legal.

**Buckets.** All inputs are contiguous (a functional collective wants that). What comes out of a packed gather has a row
for each rank, in which member i has some columns; what goes into a packed scatter has the same, and its result the
members one after the other::

    shards of rank r     a_r, b_r                          gradients    a (n rows), b (n rows)
    packed               a_r b_r                           packed       a_0 b_0 a_1 b_1 ...  (a row for each rank)
    gathered             a_0 b_0 a_1 b_1 ...               scattered    a_r b_r
    copied               a_0 a_1 ..., b_0 b_1 ...          parts        a_r, b_r

So the parts of a reduction are contiguous views of one storage, those of a gather are copied out.

**Fissions** are listed in :mod:`overlap_sched.transform.rewrites`, other rewrites in
:mod:`overlap_sched.transform.rewrites`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from overlap_sched.errors import RewriteError
from overlap_sched.transform.dimension_graph import Cut, through_permute
from overlap_sched.transform.rewrites import (
    Bucket,
    Fission,
    Form,
    Keep,
    Leave,
    Offload,
    Recompute,
    Regather,
    Rewrite,
    Slice,
    Stream,
    second_group,
)

V = TypeVar("V")
"""A node, as a maker has it; it stands for the value that it gives, too."""
VIEW, PERMUTE, SLICE, GETITEM = "aten.view.default", "aten.permute.default", "aten.slice.Tensor", "getitem"
CLONE, CAT, ADD = "aten.clone.default", "aten.cat.default", "aten.add.Tensor"
OFFLOAD, RELOAD = "offload", "reload"
"""Operators of new nodes."""
_Again = Regather | Recompute | Offload
Reshape = Callable[[Sequence[int]], Sequence[int]]
"""The shape of a view, from that of what is viewed."""


def refuse_if(illegal: object, why: str) -> None:
    """Raise a ``RewriteError`` where a rewrite is not legal."""
    if illegal:
        raise RewriteError(why)


class Single(NamedTuple, Generic[V]):
    """A collective of one tensor, which nothing but waits uses.

    Attributes:
        launch: The node. op: its operator, of :data:`overlap_sched.transform.rewrites.BUCKETED`.
        group: The name of its process group. ranks: how many that has; ``None``: not known.
        sources: What it takes. waits: those for it, in order; those of waits, too, where nothing tells them apart.
        columns: Its size: for all members of a bucket in the same unit, that of the maker.
        shape: Of its result, where the maker knows it.
        shared: What members of a bucket must have in common, by what it is called.
    """

    launch: V
    op: str
    group: str
    ranks: int | None
    sources: tuple[V, ...]
    waits: tuple[V, ...]
    columns: int
    shape: tuple[int, ...]
    shared: Mapping[str, object]


class New(NamedTuple, Generic[V]):
    """A node to make: its name, its place, and the node that it stands for."""

    name: str
    at: float
    like: V


class Maker(Protocol[V]):
    """Knows a graph and makes nodes; those that refuse raise ``RewriteError``.

    What is new is a node; ``nbytes`` are those of a piece. The shape of a ``VIEW`` is a :data:`Reshape`.

    Attributes:
        at: Where each node stands: new ones where they are put.
        named: Those that are there, by name.
        rewrites: Names of those that were done.
    """

    at: dict[V, float]
    named: dict[str, V]
    rewrites: list[str]

    def find(self, name: str) -> V:
        """The node of this name; refuses where there is none."""
        missing = name not in self.named
        refuse_if(missing, f"there is no node {name!r} to rewrite: it is not in the graph, or gone by now.")
        return self.named[name]

    def check_new(self, name: str) -> None:
        """Refuse a name that is taken."""
        refuse_if(name in self.named, f"a new node would be named {name!r}, as another one is already.")

    def check_waited(self, name: str, others: Sequence[V]) -> None:
        """Refuse a collective that others than its waits take."""
        for v in others:
            lost = f"{self.name(v)!r} needs the launch of {name!r} itself, not its wait"
            raise RewriteError(f"{lost}: a rewrite would lose that.")

    def check_writer(self, again: New[V], writer: V) -> None:
        """Refuse to run a node again where another one writes to what it reads before that."""
        why = f"{self.name(again.like)!r} cannot run again: {self.name(writer)!r} writes to what it reads before that."
        refuse_if(self.at[writer] < again.at, why)

    def name(self, v: V) -> str:
        """Its name."""

    def taken(self, v: V) -> Collection[V]:
        """The nodes that a node takes, or comes behind."""

    def cast(self, v: V) -> object | None:
        """Say what a node does to its only input, where it casts that or looks at it as a whole; equal for the same."""

    def users(self, v: V) -> Sequence[V]:
        """Those that take it."""

    def readers(self, v: V) -> Sequence[V]:
        """Those that take it, or a view of it."""

    def is_output(self, v: V) -> bool:
        """Tell whether it is the output of the graph."""

    def is_view(self, v: V, sources: Sequence[V]) -> bool:
        """Tell whether it is a pure view of one of these."""

    def why_not_again(self, v: V) -> str:
        """Why it must not run again; ``""``: it may."""

    def order(self) -> Sequence[V]:
        """All nodes in an order in which they can run."""

    def single(self, name: str) -> Single[V]:
        """The collective of this name."""

    def check_member(self, one: Single[V], form: Form) -> None:
        """Refuse what may not be in a bucket of this form."""

    def check_gather(self, one: Single[V]) -> None:
        """Refuse what may give something else when it is gathered later."""

    def check_kept(self, first: Single[V], later: Single[V]) -> None:
        """Refuse where one result may not stand for both."""

    def check_same(self, old: V, new: V) -> None:
        """Refuse a value that is laid out otherwise than the one that it stands for."""

    def group(self, v: V) -> str | None:
        """The process group of a launch that can be moved to another one; ``None``: it is none."""

    def set_group(self, v: V, group: str) -> None:
        """Let a collective run in another group of the same ranks."""

    def view_input(self, new: New[V], one: Single[V], reshape: Reshape) -> V:
        """A view of the input of a collective."""

    def look(self, new: New[V], op: str, of: V, *args: Any, nbytes: int | None = None) -> V:
        """A view of a value: an operator of :data:`VIEW` to :data:`GETITEM`."""

    def compute(self, new: New[V], op: str, of: Sequence[V], *args: Any, result: bool, packed: bool = False) -> V:
        """An operator of :data:`CLONE` to :data:`ADD`, and whether it gives the result; ``packed``: contiguous."""

    def launch(self, new: New[V], members: Sequence[Single[V]], packed: V | None = None) -> V:
        """The operator of the members, on what holds all inputs; without that ``<op>_coalesced``, on each of them."""

    def relaunch(self, new: New[V], one: Single[V]) -> V:
        """The collective once more, on the same input."""

    def wait(self, new: New[V], of: V) -> V:
        """``wait_tensor(of)``."""

    def find_offloaded(self, name: str) -> V:
        """The value to offload: of a collective its wait. Refuses what cannot be offloaded."""

    def transfer(self, new: New[V], op: str, of: V) -> V:
        """Copy what ``new.like`` gives to the host, or back from there (:data:`OFFLOAD`, :data:`RELOAD`), and wait."""

    def repeat(self, new: New[V], made: Mapping[V, V]) -> V:
        """A copy of a node, which takes new nodes where there are such; who writes to what it reads comes behind it."""

    def move(self, users: Sequence[V], new: Mapping[V, V]) -> None:
        """Let users take new nodes in the place of old ones."""

    def stand_in(self, one: Single[V], first: V, out: V) -> None:
        """Users of a collective's waits take ``out``, and it goes; ``first`` is the new node that reads its input."""

    def remove(self, v: V, first: V, last: V) -> None:
        """Take a node away that nobody uses; ``first`` (after others) and ``last`` (before) stand for it."""

    def depend(self, v: V, before: V) -> None:
        """Let a node come behind another one, whose value it does not take."""

    def begin_parts(self, fission: Fission, nodes: Sequence[V], slices: Mapping[V, Slice], stay: Collection[V]) -> None:
        """Check that nodes can run in parts; what follows is of this fission."""

    def waits_for(self, v: V) -> V | None:
        """The launch that a wait is for; ``None``: it is no wait."""

    def make_part(self, new: New[V], p: int, of_part: Callable[[V], V]) -> V:
        """A node in one part; ``of_part``: what that takes in the place of what the node takes."""

    def check_leave(self, v: V, leave: Leave, parts: Sequence[V]) -> None:
        """Check how a value leaves, and note of what its parts are."""

    def hand_out(self, v: V, out: V | None, users: Sequence[V], copies: Sequence[V]) -> None:
        """Let users outside take what leaves; ``None``: it does not leave."""

    def end_parts(self, copies: Mapping[V, Sequence[V]], stay: Collection[V]) -> None:
        """All parts are made; the whole nodes go next, but for those that stay."""


def rewrite(make: Maker[V], wanted: Rewrite) -> None:
    """Do one rewrite.

    Raises:
        RewriteError: It is not legal. What is made is then of no use.
    """
    if hasattr(wanted, "name"):
        make.rewrites.append(wanted.name)
    match wanted:
        case Bucket():
            _bucket(make, wanted)
        case Stream():
            make.set_group(*check_stream(make, wanted))
        case Keep():
            _keep(make, wanted)
        case Regather():
            _gather_again(make, wanted)
        case Recompute():
            _run_again(make, wanted)
        case Offload():
            _offload(make, wanted)
        case Fission():
            _InParts(make, wanted).run()


def check(make: Maker[V], wanted: Rewrite) -> None:
    """Refuse a rewrite as far as one can tell before anything is made; of a bucket each member alone.

    Raises:
        RewriteError: It is not legal.
    """
    match wanted:
        case Bucket():
            for name in wanted.members:
                make.check_member(make.single(name), "copied")
        case Stream():
            check_stream(make, wanted)
        case Keep():
            check_keep(make, wanted)
        case Regather():
            check_regather(make, wanted)


def _bucket(make: Maker[V], wanted: Bucket) -> None:
    names, first = wanted.members, wanted.members[0]
    members = [make.single(name) for name in names]
    few = len(set(names)) < max(len(names), 2)
    refuse_if(few, f"a bucket of {', '.join(names)}: two collectives at least, each once.")
    for name, one in zip(names, members, strict=True):
        for what, here in one.shared.items():
            there = members[0].shared[what]
            refuse_if(here != there, f"{name!r} has {what} {here!r} and {first!r} has {there!r}: a bucket has one.")
    for one in members:
        make.check_member(one, wanted.form)
    taken, outs = (_coalesced if wanted.form == "coalesced" else _packed)(make, wanted.name, members)
    for one, out in zip(members, outs, strict=True):
        make.stand_in(one, taken, out)


def _coalesced(make: Maker[V], name: str, members: Sequence[Single[V]]) -> tuple[V, list[V]]:
    """Return what reads the inputs, and what stands for the waits of each member; nothing is copied."""
    launch = make.launch(New(name, max(make.at[one.launch] for one in members), members[0].launch), members)
    outs = []
    for i, one in enumerate(members):
        got, out = (New(f"{name}_{what}_{i}", make.at[one.waits[0]], one.launch) for what in ("get", "out"))
        outs.append(make.wait(out, make.look(got, GETITEM, launch, i)))
    return launch, outs


def _packed(make: Maker[V], name: str, members: Sequence[Single[V]]) -> tuple[V, list[V]]:
    """The same by one buffer."""
    at, place = max(make.at[one.launch] for one in members), min(make.at[one.waits[0]] for one in members)
    op, ranks, like = members[0].op, members[0].ranks or 1, members[0].launch
    gathers, scatters = "gather" in op, "scatter" in op
    shape, reshape = ("rows", _rows(ranks)) if scatters else ("flat", _rows(0))
    views = [make.view_input(New(f"{name}_{shape}_{i}", at, one.launch), one, reshape) for i, one in enumerate(members)]
    packed = make.compute(New(f"{name}_in", at, like), CAT, views, int(scatters), result=False, packed=True)
    done = make.wait(New(f"{name}_wait", place, like), make.launch(New(name, at, like), members, packed))
    if gathers:
        done = make.look(New(f"{name}_rows", place, like), VIEW, done, _rows(ranks))
    outs, columns = [], pairwise(accumulate((one.columns for one in members), initial=0))
    for i, (one, (begin, end)) in enumerate(zip(members, columns, strict=True)):
        place, like, dim = make.at[one.waits[0]], one.launch, int(gathers or scatters)
        out = make.look(New(f"{name}_part_{i}", place, like), SLICE, done, dim, begin, end, nbytes=end - begin)
        if gathers:
            out = make.compute(New(f"{name}_copy_{i}", place, like), CLONE, [out], result=True, packed=True)
        outs.append(make.look(New(f"{name}_out_{i}", place, like), VIEW, out, lambda _, shape=one.shape: shape))
    return packed, outs


def _rows(ranks: int) -> Reshape:
    """A row for each rank; of none: flat."""
    return lambda shape: [ranks, prod(shape) // ranks] if ranks else [prod(shape)]


def check_stream(make: Maker[V], wanted: Stream) -> tuple[V, str]:
    """The launch that goes to a second communicator, and the name of that."""
    v = make.find(wanted.collective)
    group = make.group(v)
    if group is None:
        raise RewriteError(f"{wanted.collective!r} does not name its process group: it must stay there.")
    second = group.endswith(second_group(""))
    refuse_if(second, f"{wanted.collective!r} is on a second communicator already, {group!r}.")
    return v, second_group(group)


def _keep(make: Maker[V], wanted: Keep) -> None:
    first, later = check_keep(make, wanted)
    kept = first.waits[0]
    make.stand_in(later, kept, kept)
    for source in later.sources:
        while make.cast(source) is not None and not make.users(source):  # made for the later gather alone
            (before,) = make.taken(source)
            make.remove(source, kept, kept)
            source = before


def check_keep(make: Maker[V], wanted: Keep) -> tuple[Single[V], Single[V]]:
    """The first gather and the later one, where they are of the same, and one result may stand for both."""
    first, later = _gather(make, wanted.first), _gather(make, wanted.again)
    same = first.launch != later.launch and gather_key(make, first) == gather_key(make, later)
    refuse_if(not same, f"{wanted.first!r} and {wanted.again!r} are not two gathers of one tensor in one group.")
    make.check_kept(first, later)
    return first, later


def _gather(make: Maker[V], name: str) -> Single[V]:
    one = make.single(name)
    refuse_if("gather" not in one.op, f"{name!r} is {one.op!r}: only gathers are kept or gathered again.")
    make.check_gather(one)
    return one


def gather_key(make: Maker[V], one: Single[V]) -> tuple[object, ...]:
    """Return what a gather gives: equal for gathers of the same.

    Two nodes give the same where they are the same source, looked at and cast in the same way. A parameter that is
    gathered twice is cast twice, too, where a graph was not freed of repetitions::

        w -> cast   -> gather   -> mm ...           forward
        w -> cast_1 -> gather_1 -> mm ...           backward: `cast_1` gives what `cast` gives
    """
    return one.op, one.group, one.ranks, tuple(_origin(make, u) for u in one.sources)


def _origin(make: Maker[V], v: V) -> tuple[V, tuple[object, ...]]:
    steps = []
    while (step := make.cast(v)) is not None:
        steps.append(step)
        (v,) = make.taken(v)
    return v, tuple(steps)


def _gather_again(make: Maker[V], wanted: Regather) -> None:
    one, views, users = check_regather(make, wanted)
    at = min(make.at[user] for user in users)
    wait = make.wait(New(f"{wanted.name}_wait", at, one.launch), make.relaunch(New(wanted.name, at, one.launch), one))
    make.check_same(one.waits[0], wait)
    _move(make, views, wanted, dict.fromkeys(one.waits, wait), users)


def check_regather(make: Maker[V], wanted: Regather) -> tuple[Single[V], list[V], list[V]]:
    """The gather, the views and the users, where these use it, and others do, too."""
    one = _gather(make, wanted.gather)
    views = _views(make, wanted.views, one.waits, wanted.gather)
    sources = [*one.waits, *views]
    users = _users(make, sources, wanted.users)
    everyone = all(user in users or user in sources for source in sources for user in make.users(source))
    refuse_if(everyone, f"gathering {wanted.gather!r} again needs users for both: some, and not all.")
    return one, views, users


def _views(make: Maker[V], names: Sequence[str], sources: Sequence[V], of: str) -> list[V]:
    views = [make.find(name) for name in names]
    for view in views:
        refuse_if(not make.is_view(view, sources), f"{make.name(view)!r} is no view of what {of!r} gives.")
    return views


def _users(make: Maker[V], nodes: Sequence[V], names: Sequence[str]) -> list[V]:
    """The users, where each takes one of the nodes, and all are named once."""
    users, of = [make.find(name) for name in names], [make.name(v) for v in nodes]
    once = nodes and users and len(set(users)) == len(users) and len(set(nodes)) == len(nodes)
    refuse_if(not once, f"running again wants nodes and users, each once: {', '.join(of)} for {', '.join(names)}.")
    for user in users:
        taken = make.taken(user)
        takes = user not in nodes and not make.is_output(user) and any(v in taken for v in nodes)
        refuse_if(not takes, f"{make.name(user)!r} does not take {' or '.join(map(repr, of))}, or is an output.")
    return users


def _move(make: Maker[V], nodes: Sequence[V], wanted: _Again, new: dict[V, V], users: Sequence[V]) -> None:
    """Run nodes again before the first user, and let users take them, and what else is new."""
    at = min(make.at[user] for user in users)
    for v in nodes:
        new[v] = make.repeat(New(wanted.new_name(make.name(v)), at, v), new)
    make.move(users, new)


def _run_again(make: Maker[V], wanted: Recompute) -> None:
    nodes = [make.find(name) for name in wanted.nodes]
    users = _users(make, nodes, wanted.users)
    for v in nodes:
        if why := make.why_not_again(v):
            raise RewriteError(f"{make.name(v)!r} cannot run again: it {why}.")
    _move(make, nodes, wanted, {}, users)


def _offload(make: Maker[V], wanted: Offload) -> None:
    source = make.find_offloaded(wanted.node)
    views = _views(make, wanted.views, [source], wanted.node)
    users = _users(make, [source, *views], wanted.users)
    at = min(make.at[user] for user in users)
    last = max((make.at[user] for user in make.readers(source) if make.at[user] < at), default=make.at[source])
    there = make.transfer(New(wanted.name, last, source), OFFLOAD, source)
    back = make.transfer(New(wanted.new_name(wanted.node), at, source), RELOAD, there)
    _move(make, views, wanted, {source: back}, users)
    for user in list(make.readers(source)):
        if user != there and user not in make.taken(there):
            make.depend(there, user)


class _InParts(Generic[V]):
    """What is carried from node to node while one fission is done."""

    def __init__(self, make: Maker[V], fission: Fission) -> None:
        self.make, self.fission, self.parts = make, fission, fission.parts
        rank = {v: k for k, v in enumerate(make.order())}  # places alone do not say what needs what
        self.nodes = sorted(map(make.find, fission.nodes), key=rank.__getitem__)
        self.stay = {make.find(name) for name in fission.views}
        self.slices = {make.find(one.value): one for one in fission.slices}
        self.copies: dict[V, list[V]] = {v: [] for v in self.nodes}
        self.sliced: dict[tuple[V, int], V] = {}

    def run(self) -> None:
        """Copies, then what leaves, then the whole ones go."""
        make = self.make
        once = self.nodes and len(self.copies) == len(self.fission.nodes)
        why = f"{self.fission.name!r} has {self.parts} parts: 2 at least, and each node once."
        refuse_if(self.parts < 2 or not once, why)
        make.begin_parts(self.fission, self.nodes, self.slices, self.stay)
        waits = [make.waits_for(v) is not None for v in self.nodes]
        where = places([make.at[v] for v in self.nodes], waits, self.parts)
        for p in range(self.parts):
            for v, at in zip(self.nodes, where[p], strict=True):
                new = New(self.fission.part(make.name(v), p), at, v)
                self.copies[v].append(make.make_part(new, p, partial(self._of_part, p=p, at=at)))
        outs: dict[V, V] = {}
        for leave in self.fission.leaves:
            v = make.find(leave.value)
            outs[v] = self._leave(v, leave)
            if (launch := make.waits_for(v)) is not None:
                outs.setdefault(launch, outs[v])
        for v in self.nodes:
            users = [u for u in make.users(v) if u not in self.copies or u in self.stay]
            if users and v not in self.stay:
                make.hand_out(v, outs.get(v), users, self.copies[v])
        make.end_parts(self.copies, self.stay)
        for v in reversed(self.nodes):
            if v not in self.stay:
                make.remove(v, self.copies[v][0], self.copies[v][-1])

    def _of_part(self, v: V, p: int, at: float) -> V:
        if v not in self.slices:
            return self.copies[v][p] if v in self.copies else v
        if (v, p) not in self.sliced:
            self.sliced[v, p] = self._slice(v, self.slices[v], p, at)
        return self.sliced[v, p]

    def _slice(self, v: V, one: Slice, p: int, at: float) -> V:
        make, name, cut, of = self.make, f"{self.fission.name}_{one.value}", one.cut, v
        several = cut.outer > 1
        if several:
            if (v, -1) not in self.sliced:
                self.sliced[v, -1] = make.look(New(f"{name}_runs", at, v), VIEW, v, _runs(cut))
            of = self.sliced[v, -1]
        last, dim, begin = New(f"{name}_in_{p}", at, v), cut.dim + several, p * cut.inner
        new = last if one.free else New(f"{name}_slice_{p}", at, v)
        part = make.look(new, SLICE, of, dim, begin, begin + cut.inner, nbytes=one.bytes // self.parts)
        if one.free:
            return part
        if not several:
            return make.compute(last, CLONE, [part], result=False)
        copy = make.compute(New(f"{name}_copy_{p}", at, v), CLONE, [part], result=False)
        return make.look(last, VIEW, copy, _joined(cut))

    def _leave(self, v: V, leave: Leave) -> V:
        """Return what users outside take."""
        parts = self.copies[v]
        self.make.check_leave(v, leave, parts)
        if leave.how == "same":
            return parts[0]
        out = self._sum(v, parts) if leave.how == "sum" else self._cat(v, leave, parts)
        self.make.check_same(v, out)
        return out

    def _sum(self, v: V, parts: Sequence[V]) -> V:
        total, name = parts[0], f"{self.fission.name}_{self.make.name(v)}"
        for p, part in enumerate(parts[1:], start=1):
            new = New(f"{name}_sum_{p}", self.make.at[part], v)
            total = self.make.compute(new, ADD, (total, part), result=p == self.parts - 1)
        return total

    def _cat(self, v: V, leave: Leave, parts: Sequence[V]) -> V:
        make, name, cut, order = self.make, f"{self.fission.name}_{leave.value}", leave.cut, leave.order
        at = make.at[parts[-1]]
        if order:
            cut = through_permute(cut, order)
            parts = [make.look(New(f"{name}_laid_{p}", at, v), PERMUTE, u, list(order)) for p, u in enumerate(parts)]
        if cut.outer > 1:
            parts = [make.look(New(f"{name}_runs_{p}", at, v), VIEW, u, _runs(cut)) for p, u in enumerate(parts)]
        out = make.compute(New(f"{name}_cat", at, v), CAT, parts, cut.dim + (cut.outer > 1), result=True)
        if cut.outer > 1:
            out = make.look(New(f"{name}_whole", at, v), VIEW, out, _joined(cut))
        if order:
            back = [order.index(dim) for dim in range(len(order))]
            out = make.look(New(f"{name}_back", at, v), PERMUTE, out, back)
        return out


def _runs(cut: Cut) -> Reshape:
    """A shape with the dimension that is cut as runs and rows of a run; :func:`_joined` is the inverse."""
    return lambda shape: [*shape[: cut.dim], cut.outer, shape[cut.dim] // cut.outer, *shape[cut.dim + 1 :]]


def _joined(cut: Cut) -> Reshape:
    return lambda shape: [*shape[: cut.dim], cut.outer * shape[cut.dim + 1], *shape[cut.dim + 2 :]]


def places(at: Sequence[float], waits: Sequence[bool], parts: int) -> list[list[float]]:
    """Per part and node, where it is to stand.

    A stage begins at a wait that follows something else. All of it stands where its first node stood: part by part,
    in the nodes' order, within less than one place.

    Args:
        at: Per node where it stands, ascending.
        waits: Per node whether it is a wait.
        parts: How many.
    """
    starts = [i for i, wait in enumerate(waits) if not i or (wait and not waits[i - 1])]
    stages = list(pairwise([*starts, len(at)]))
    spans = [(at[begin], end - begin, i) for begin, end in stages for i in range(end - begin)]
    return [[start + (p * length + i) / (parts * length + 1) for start, length, i in spans] for p in range(parts)]


def unique(ids: Iterable[V]) -> tuple[V, ...]:
    """Each once, in the order in which they come first."""
    return tuple(dict.fromkeys(ids))


def sort_by_place(
    at: Mapping[V, float],
    nodes: Iterable[V],
    before: Callable[[V], Iterable[V]],
    with_it: Callable[[V], Iterable[V]],
    name: Callable[[V], str],
    rewrites: Sequence[str],
) -> list[V]:
    """All nodes, each as soon as its place has come and not before what it needs: that is pulled ahead of it.

    Args:
        at: Their places; of equal ones the first made comes first.
        nodes: Those that stay, as they were made.
        before: What a node must come after.
        with_it: What comes at once behind a node, and needs nothing else.
        name: Of a node.
        rewrites: Those that were done, by name.

    Raises:
        RewriteError: Nodes that were merged need each other.
    """
    ranks = {v: k for k, v in enumerate(sorted(nodes, key=at.__getitem__))}
    done: dict[V, None] = {}
    open_: dict[V, None] = {}
    for start in ranks:
        stack = [start]
        while stack:
            v = stack[-1]
            missing = [] if v in done else [u for u in before(v) if u not in done]
            if not missing:
                stack.pop()
                open_.pop(v, None)
                if v not in done:
                    done.update(dict.fromkeys((v, *with_it(v))))
                continue
            open_[v] = None
            if (again := next((u for u in missing if u in open_), None)) is not None:
                path = [u for u in stack if u in open_]
                raise RewriteError(_name_ring([name(u) for u in path[path.index(again) :]], rewrites))
            stack += sorted(missing, key=ranks.__getitem__, reverse=True)
    return list(done)


def _name_ring(ring: Sequence[str], rewrites: Sequence[str]) -> str:
    """Say that nodes need each other; ``rewrites``: what the names of those begin with that were made."""
    by = {name: next((one for one in rewrites if f"{name}_".startswith(f"{one}_")), "") for name in ring}
    named = " and ".join(repr(one) for one in unique(by.values()) if one) or repr(ring[0])
    through = next((name for name in ring if not by[name]), ring[0])
    return f"{named} would need itself, through {through!r}: merged collectives lie on one path. Leave one out."
