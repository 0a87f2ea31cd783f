"""torch's partitioner, told what to run again in backward so that the graph fits: :mod:`overlap_sched.joint`.

torch makes the cut, so random numbers, mutations, tangents and symbolic sizes are its own affair. Whatever fails, or
does not fit, is cut as torch alone does it, with one warning. Where the graph communicates, all ranks use one cut: they
compare it before it is used, as they do with orders.
"""

import hashlib
import json
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from overlap_sched.distributed import Digest
from overlap_sched.distributed.digest import options_text
from overlap_sched.distributed.sequences import Entry, Launch
from overlap_sched.errors import UnsupportedError
from overlap_sched.fx.costs import Fusion
from overlap_sched.fx.graphs import own_meta
from overlap_sched.inductor import agree
from overlap_sched.inductor.caches import key_after, settings_key
from overlap_sched.inductor.reporting import describe_error, guard, log, name_graph, rank, warn
from overlap_sched.inductor.settings import Settings
from overlap_sched.joint import JointSearchResult, Judge, Question, fit_joint
from overlap_sched.joint.graphs import draws, has_graphs_inside, runs_again
from overlap_sched.joint.search import JointCut, Marks, Partitioner
from overlap_sched.joint.search import cut as make_cut
from overlap_sched.report.units import count, duration, from_to, size

Halves = tuple[fx.GraphModule, fx.GraphModule]

CUT = "joint graph "
"""In the log of launch sequences: a joint graph whose cut launches otherwise than torch's. No graph launches this."""
OTHERWISE = "they have cut its joint graph so that its halves launch otherwise"
KEPT = 256
_partitions: "deque[Partition]" = deque(maxlen=KEPT)


@dataclass(frozen=True)
class Partition:
    """What became of one joint graph.

    Attributes:
        name: ``"joint 0/0 of Transformer"``.
        found: Torch's cut and ours, as predicted; ``None``: the graph was left to torch.
        reason: Why torch's own cut is used; ``None``: ours is.
        priced_for: For which device steps are predicted.
    """

    name: str
    found: JointSearchResult | None = None
    reason: str | None = None
    priced_for: str = ""

    @property
    def line(self) -> str:
        """One line for the log."""
        if self.found is None or self.reason is not None:
            return f"{self.name}: cut as torch does: {self.reason}"
        before, after = self.found.before, self.found.best
        peak = from_to(size(before.peak_bytes), size(after.peak_bytes))
        saved = from_to(size(before.saved_bytes), size(after.saved_bytes))
        step = from_to(duration(before.step_us), duration(after.step_us))
        again, once = count(len(after.marks.again), "operator"), count(len(after.marks.kept), "operator")
        return (
            f"{self.name}: {again} more run again in backward, {once} of gathers run once; peak {peak}, saved {saved}, "
            f"step {step} (predicted for {self.priced_for})"
        )


def partitions() -> tuple[Partition, ...]:
    """Report what became of the joint graphs compiled in this process, oldest first; the last 256 are kept."""
    return tuple(_partitions)


@dataclass(frozen=True)
class FitPartitioner(CustomPartitionerFn):
    """For ``torch._inductor.config.custom_partitioner_fn``.

    Attributes:
        settings: With a question.
        before: The partitioner that was set before; ``None``: torch's own.
    """

    settings: Settings
    before: CustomPartitionerFn | None = None
    _once: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False)

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **given: Any) -> Halves:
        """Cut a joint graph."""
        return cut_to_fit(gm, joint_inputs, self.settings, self.before or min_cut_rematerialization_partition, **given)

    def uuid(self) -> str:
        """For torch's caches: of the settings; where those have no key, one that nobody else has.

        ``None`` would not do: torch 2.13 and 2.15 then cache as if there were no partitioner of ours.
        """
        return key_after(self.before, settings_key(self.settings)) or self._once


def cut_to_fit(gm: fx.GraphModule, joint_inputs: Any, settings: Settings, partitioner: Any, **given: Any) -> Halves:
    """Cut a joint graph as the settings ask for, or as the partitioner alone does: torch's, or another of its kind.

    It changes the graph, and is given ``joint_inputs`` and what is ``given`` (``num_fwd_outputs`` and so on).

    Raises:
        VerificationError, AgreementError: With ``strict``, instead of a fallback.
    """

    def cut(graph: fx.GraphModule) -> Halves:
        copies = {name: list(value) if isinstance(value, list) else value for name, value in given.items()}
        halves: Halves = partitioner(graph, joint_inputs, **copies)
        return halves

    name, found, reason = "a joint graph", None, None
    try:
        name = name_graph("joint")
        found, reason = _found(gm, cut, settings, name, given["num_fwd_outputs"])
    except Exception as error:
        reason = agree.report_failure(error, settings, f"fitting {name!r}", f"leaves {name!r} to torch's partitioner")
    with guard(f"could not report on {name!r}"):
        _partitions.append(Partition(name, found, reason, settings.priced_for))
        if rank() == 0:
            log.info("%s", _partitions[-1].line)
    if found is None or reason is not None:
        return cut(gm)
    return _apart(found.best.forward), _apart(found.best.backward)


def _apart(half: fx.GraphModule) -> fx.GraphModule:
    """With metadata of its own: torch's partitioner shares dictionaries between what runs and what runs again."""
    for node in half.graph.nodes:
        node.meta = own_meta(node.meta)
    return half


def _found(
    gm: fx.GraphModule, cut: Partitioner, settings: Settings, name: str, outputs: int
) -> tuple[JointSearchResult | None, str | None]:
    """The cut, and why it is not used; all ranks come to the same."""
    launches = agree.launch_texts(agree.launches_in(gm.graph.nodes))
    key = agree.graph_key(gm.graph, "joint") if launches else ""
    found, mine, failure = None, None, ""
    fusion: Fusion = "none" if settings.stage == "backend" else "inductor"
    judge = Judge(settings.options, fusion, settings.costs, outputs)
    try:
        # what a second cut of the same graph might not leave alone
        if has_graphs_inside(gm):
            raise UnsupportedError("it calls graphs inside of it (higher-order operators), which are cut by themselves")
        if drawing := [node.name for node in gm.graph.nodes if runs_again(node) and draws(node)]:
            raise UnsupportedError(f"{drawing[0]!r} draws random numbers and is to run again")
        found = fit_joint(gm, cut, judge, Question(settings.memory_limit, settings.max_slowdown))
        mine = _digest(gm, settings, key, found, name)
    except Exception as error:  # the others must hear of it
        failure = describe_error(error)
        if not launches:
            raise
    if launches and agree.asks(settings):
        of_joint = (CUT + _sha(*launches),)
        known = agree.find_in_force(of_joint, settings)
        if known is not None:
            return _follow(gm, cut, judge, found, known, name), None
        agreement = agree.ask(mine or Digest(key=key, failure=failure, name=name), settings)
        if agreement is not None and not agreement.agreed:
            if agreement.in_doubt and found is not None and found.fits and found.best is not found.before:
                agree.refuse(name, str(agreement.reason))  # the others may use that cut
            if agreement.verdict.missing and agree.compiled_otherwise(of_joint):
                halves = [] if found is None else _launches(found.before)  # torch's own cut: have others compiled it?
                if not halves or not all(not half or agree.find_in_force(half, settings) for half in halves):
                    agree.refuse(name, f"{OTHERWISE}, or may have. {agreement.reason}")
            agree.warn_of_ranks(f"leaves {name!r} to torch's partitioner", agreement.verdict, settings)
            return found, str(agreement.reason)
        if agreement is not None and found is not None and found.fits:
            _put_in_force(of_joint, found, settings, name)
    if found is None:
        raise UnsupportedError(failure)
    if found.fits:
        return found, "it answers the question best" if found.best is found.before else None
    assert found.limit_bytes is not None
    reason = f"no cut was found below {size(found.limit_bytes)}; the lowest has {size(found.lowest_bytes)}"
    warn(f"overlap_sched leaves {name!r} to torch's partitioner: {reason}")
    return found, reason


def _put_in_force(of_joint: tuple[Launch, ...], found: JointSearchResult, settings: Settings, name: str) -> None:
    """Let ranks that compile this joint graph later follow the cut, where it launches otherwise than torch's."""
    try:
        if _launches(found.best) == _launches(found.before):
            return
        entry = Entry(of_joint, (), True, _cut_text(found.best))
        agree.note_launches(entry)
        known = agree.put_in_force(entry, settings)
    except Exception as error:  # the others use the cut
        agree.refuse(name, describe_error(error))
    if known != entry:
        agree.refuse(name, OTHERWISE)


def _follow(
    gm: fx.GraphModule, cut: Partitioner, judge: Judge, found: JointSearchResult | None, known: Entry, name: str
) -> JointSearchResult:
    """Return a cut that launches what the one in force does: this rank's own, or one with its marks."""
    if found is not None and _cut_text(found.best) == known.rewritten:
        return found
    try:
        again, kept, _ = json.loads(known.rewritten)
        best = make_cut(gm, cut, Marks(frozenset(again), frozenset(kept)), judge)
    except Exception as error:
        agree.refuse(name, f"{OTHERWISE} ({describe_error(error)})")
    if _cut_text(best) != known.rewritten:
        agree.refuse(name, OTHERWISE)
    return JointSearchResult(best, best, None, None, best.peak_bytes, 1) if found is None else replace(found, best=best)


def _cut_text(one: JointCut) -> str:
    """Return what ranks compare of a cut, and what the log says of it: marks, and a digest of launches."""
    launches = _sha(*(text for half in _launches(one) for text in ("half", *half)))
    return json.dumps([sorted(one.marks.again), sorted(one.marks.kept), launches])


def _launches(one: JointCut) -> list[tuple[Launch, ...]]:
    return [agree.launch_texts(agree.launches_in(half.graph.nodes)) for half in (one.forward, one.backward)]


def _sha(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _digest(gm: fx.GraphModule, settings: Settings, key: str, found: JointSearchResult, name: str) -> Digest:
    inputs = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    shapes = [(v.dtype, *v.shape, *v.stride()) if isinstance(v, torch.Tensor) else type(v).__name__ for v in inputs]
    options = options_text(settings.options, memory_limit=settings.memory_limit, max_slowdown=settings.max_slowdown)
    sizes, order = _sha(*map(repr, shapes)), _sha(_cut_text(found.best))
    return Digest(key, sizes, options, "", order, key, name=name, nodes=len(inputs))
