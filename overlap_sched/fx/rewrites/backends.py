"""What the backend of a process group is known to get wrong."""

from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import fx

from overlap_sched.errors import RewriteError
from overlap_sched.fx.groups import name_and_group
from overlap_sched.fx.rewrites.sites import Site
from overlap_sched.transform.plan import FORMS
from overlap_sched.transform.rewrites import Form


def check_coalesced(name: str, one: Site) -> None:
    """Gloo's coalesced all_gather must not be used.

    Several of them in flight damage memory: four ranks abort within some hundred rounds in torch 2.13 and 2.15
    (:mod:`overlap_sched.inductor.gloo` says the same of plain gathers, which go that way too and are led around it).

    Raises:
        RewriteError: The collective is one, and its group is of gloo.
    """
    if one.op == "all_gather_into_tensor" and one.taken.device.type == "cpu" and over_gloo(one.group):
        raise RewriteError(
            f"{name!r} would be a coalesced all_gather over gloo, where several in flight damage memory. "
            "Use form='copied'."
        )


def forms_for(launches: Iterable[fx.Node]) -> tuple[Form, ...]:
    """Forms of buckets that the backends of these collectives can do, the one preferred first."""
    return ("copied",) if any(over_gloo(name_and_group(node)[0]) for node in launches) else FORMS


def over_gloo(group: Any) -> bool:
    """Tell whether a process group, by name or itself, is of this process and talks over gloo on CPUs."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    from torch.distributed import distributed_c10d as c10d

    try:
        found = c10d._resolve_process_group(group) if isinstance(group, str) else group
        return "cpu:gloo" in str(dist.get_backend_config(found)) or dist.get_backend(found) == "gloo"
    except Exception:  # a node, or no such group: torch raises several types
        return False
