"""Whether all ranks gather the same parameters: with others of equal shape, values are wrong and nobody notices.

Each rank lists its parameters by their first reads, in eager code or when a read is compiled. The first rank to come to
a place of that list leaves the name in the process group's store; the others compare theirs. Nobody waits: whoever
comes later with another parameter of the same shape raises, before it has launched its first collective. Shapes that
differ are left to torch, and end the comparison: what follows stands at other places.
"""

import hashlib
import json
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.comptime import ComptimeContext, comptime
from torch.distributed.distributed_c10d import _resolve_process_group

from overlap_sched.distributed.agreement import PREFIX, membership_of
from overlap_sched.errors import ShardingError

_first_reads: dict[str, dict[str, None]] = {}
"""Of each group of ranks, the parameters by their first reads."""
_ended: dict[str, str] = {}
"""Groups of ranks that are not compared any more, and what to raise from now on; ``""``: nothing."""


def put_names(roots: list[nn.Module]) -> None:
    """Tell modules what their parameters are called in the whole model, also those that earlier calls have sharded."""
    for number, root in enumerate(roots):
        before = f"{number}." if len(roots) > 1 else ""
        for path, module in root.named_modules():
            if "_sharding" in module.__dict__:
                where = f"{before}{path}.".lstrip(".")
                module._parameter_names = {name: f"{where}{name}" for name in module._parameters}


def compare_reads(module: nn.Module, name: str) -> None:
    """A parameter is read, now or by what is being compiled.

    Raises:
        ShardingError: Another rank reads another parameter of this shape at this place.
    """
    if torch.compiler.is_compiling():
        comptime(_when_traced)
    else:
        _compare(module, name)


def _when_traced(context: ComptimeContext) -> None:
    """Without any mark in what is compiled: one code serves all modules alike."""
    module: Any = context.get_local("module")
    _compare(module._ComptimeVar__variable.value, context.get_local("name").as_python_constant())


def _compare(module: Any, name: str) -> None:
    fault = ""
    with suppress(Exception):  # torch's stores raise several types; a fault of this check is no fault of the job
        shape = list(module._parameters[name].shape)
        fault = _fault(module._parameter_names[name], shape, module._sharding.group)
    if fault:
        raise ShardingError(fault)


def _fault(full: str, shape: list[int], group: str) -> str:
    """That another rank has read another parameter of this shape at this place; ``""``: none has."""
    membership = membership_of(None, None, None)
    if membership is None:
        return ""
    ranks = str(dist.get_process_group_ranks(_resolve_process_group(group)))
    reads = _first_reads.setdefault(ranks, {})
    if ranks in _ended or full in reads:
        return _ended.get(ranks, "")
    reads[full] = None
    key = f"{PREFIX}reads/{hashlib.sha256(ranks.encode()).hexdigest()[:16]}/{len(reads)}"
    first = membership.store.compare_set(key, "", json.dumps([full, shape, membership.rank]))
    other, other_shape, rank = json.loads(first.decode())
    if [other, other_shape] != [full, shape]:
        sides = sorted([(rank, other), (membership.rank, full)])
        _ended[ranks] = _text(len(reads), sides, shape) if other_shape == shape else ""
    return _ended.get(ranks, "")


def _text(place: int, sides: list[tuple[int, str]], shape: list[int]) -> str:
    (one, this), (another, that) = sides
    return (
        f"ranks {one} and {another} gather different parameters of one shape ({' x '.join(map(str, shape))}): "
        f"as number {place}, rank {one} reads {this} and rank {another} reads {that}. "
        "Each would get rows of both. Let all ranks read the same parameters in the same order: look for a branch that "
        "depends on the rank or its data."
    )
