"""What operators do in fact: each is run on small tensors on the CPU, and its arguments are compared before and after.

``python -m tests.support.operator_runs`` runs all that torch registers, and prints what was seen as JSON: in a process
of its own, whose children may crash: what is given to an operator fits its schema, and no more.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload

from overlap_sched.fx import catalogue

GROUPED = ("_c10d_functional", "_c10d_functional_autograd", "c10d", "c10d_functional", "dc", "symm_mem")
"""Namespaces whose operators need a process group."""
_CHANNELS = ("mean", "var", "std", "weight", "bias", "gamma")
_SLIDING = ("dilation", "kernel_size", "output_size", "padding", "stride")
_INDICES = ("index", "indices", "target", "offsets", "ind", "idx", "labels", "mask_indices", "lengths")
_SHAPES = (
    "channels",
    "square",
    "vector",
    "kernel",
    "row",
    "integer",
    "boolean",
    "scalar",
    "image",
    "volume",
    "complex",
)
_DIMENSIONS = {"vector": 1, "row": 1, "volume": 3}
"""Along so many do pools and convolutions slide; along two elsewhere."""
_ENOUGH = 2
"""In so many shapes must an operator have run."""
_SECONDS = 5
_MEMORY_BYTES = 12 << 30


class Seen(NamedTuple):
    """What an operator did.

    Attributes:
        runs: How many calls did not raise.
        writes: Names of the arguments that it changed.
        returns: Names of those of which it returned the storage.
        random: It moved the generator of random numbers on.
    """

    runs: int
    writes: Sequence[str]
    returns: Sequence[str]
    random: bool


def registered() -> list[OpOverload]:
    """All overloads of torch's own namespaces that are registered here, sorted."""
    found = []
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, rest = full.split("::")
        name, _, overload = rest.partition(".")
        if namespace in catalogue.TORCH:
            packet = getattr(getattr(torch.ops, namespace), name, None)
            if packet is not None and (overload or "default") in packet.overloads():
                found.append(getattr(packet, overload or "default"))
    return found


def observe(op: OpOverload, shape: str = "channels") -> Iterator[Seen]:
    """Run an operator with what its schema asks for, flags on and off, and what may be left out given and not."""
    torch.manual_seed(0)
    kinds = {str(a.type).partition("[")[0] for a in op._schema.arguments}
    for optional in (True, False) if "Optional" in kinds else (True,):
        for flag in (True, False) if "bool" in kinds else (True,):
            try:
                named = {a.name: _argument(a, shape, optional, flag) for a in op._schema.arguments}
            except LookupError:  # it takes what cannot be made up
                return
            tensors = [(name, one) for name, value in named.items() for one in _tensors(value)]
            before, state = [_contents(one) for _, one in tensors], torch.get_rng_state()
            keywords = {a.name: named.pop(a.name) for a in op._schema.arguments if a.kwarg_only}
            try:
                with torch.no_grad():
                    result = op(*named.values(), **keywords)
            except Exception:  # these arguments do not fit
                continue
            given = {_storage(one) for one in _tensors(result)} - {0}
            pairs = list(zip(tensors, before, strict=True))
            writes = {name for (name, one), was in pairs if _contents(one) != was}
            returns = {name for (name, one), was in pairs if given.intersection((was[0], _storage(one)))}
            yield Seen(1, sorted(writes), sorted(returns), not torch.equal(state, torch.get_rng_state()))


def _argument(argument: Any, shape: str, optional: bool, flag: bool) -> Any:
    kind, name = str(argument.type), argument.name
    may_lack = kind.startswith("Optional[")
    if may_lack:
        if not optional:
            return None
        kind = kind[len("Optional[") : -1]
    elif argument.has_default_value() and kind != "bool":
        return argument.default_value
    integer = shape in ("integer", "boolean")
    by_kind: dict[str, Any] = {
        "bool": flag, "int": int("dim" not in name), "SymInt": int("dim" not in name), "float": 0.5,
        "number": 1 if integer else 0.5, "str": "none", "Device": torch.device("cpu"),
        "List[bool]": [True] * 3, "List[float]": [0.5, 0.5], "List[number]": [0.5, 0.5],
    }  # fmt: skip
    if kind == "Tensor":
        return _tensor(name, shape)
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        return [_tensor(name, shape), _tensor(name, shape)]
    if kind in ("List[int]", "List[SymInt]"):
        slides = _DIMENSIONS.get(shape, 2)
        return [0] if "dim" in name else [1] * slides if name in _SLIDING else [3] * slides
    return by_kind.get(kind) if may_lack else by_kind[kind]


def _tensor(name: str, shape: str) -> Tensor:
    if name in _INDICES:
        return torch.zeros(3, dtype=torch.int64)
    if shape in ("integer", "boolean"):
        return torch.ones(3, 3, dtype=torch.int64 if shape == "integer" else torch.bool)
    if shape == "complex":
        return torch.ones(3, 3, dtype=torch.complex64)
    if name in ("vec", "vec2"):
        return torch.ones(3)
    if shape == "square":
        return torch.full((3, 3), 0.1) + 0.5 * torch.eye(3)  # symmetric and positive definite
    sizes: dict[str, tuple[int, ...]] = {
        "vector": (3,), "row": (2, 3, 3), "scalar": (), "image": (1, 3, 4, 4), "volume": (1, 3, 4, 4, 4),
        "channels": (3,) if any(part in name for part in _CHANNELS) else (2, 3, 4, 4),
        "kernel": (3, 3, 3, 3) if name == "weight" else (3,) if name == "bias" else (1, 3, 5, 5),
    }  # fmt: skip
    return torch.rand(sizes[shape]) * 0.8 + 0.1


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # sparse and the like
        return 0


def _contents(tensor: Tensor) -> tuple[Any, ...]:
    where = (_storage(tensor), tensor.shape, tensor.stride(), tensor.storage_offset())
    storage = tensor.untyped_storage()
    return (*where, ctypes.string_at(storage.data_ptr(), storage.nbytes()))


def _run(ops: Sequence[OpOverload], start: int, pipe: int) -> None:
    """Run the operators from ``start`` on, and write a line before each, behind each call, and behind each."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with os.fdopen(pipe, "w", buffering=1) as lines:
        for i in range(start, len(ops)):
            print(json.dumps([i, False, None]), file=lines)
            ran = 0
            for shape in _SHAPES:
                signal.alarm(_SECONDS)
                seen = [print(json.dumps([i, False, one]), file=lines) for one in observe(ops[i], shape)]
                signal.alarm(0)
                ran += bool(seen)
                if ran == _ENOUGH:
                    break
            print(json.dumps([i, True, None]), file=lines)


def run_all(ops: Sequence[OpOverload]) -> tuple[dict[str, Seen], list[str]]:
    """Run operators in children, a new one behind each that crashes; what each did, and those that crashed."""
    found: dict[str, Seen] = {}
    crashed, start = [], 0
    while start < len(ops):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            try:
                _run(ops, start, writing)
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as lines:
            for line in lines:
                start, done, seen = json.loads(line)
                if seen is not None:
                    one, other = found.get(str(ops[start]), Seen(0, [], [], False)), Seen(*seen)
                    both = (sorted({*a, *b}) for a, b in ((one.writes, other.writes), (one.returns, other.returns)))
                    found[str(ops[start])] = Seen(one.runs + other.runs, *both, one.random or other.random)
        os.waitpid(child, 0)
        if not done:
            crashed.append(str(ops[start]))
        start += 1
    return found, crashed


def unsaid(op: OpOverload, seen: Seen) -> list[str]:
    """Name what an operator did that neither its schema nor the catalogue says."""
    from overlap_sched.fx.operators import Ordering, traits_of

    traits = traits_of(op)
    known = {name for _, name in traits.writes} | (set(seen.returns) if traits.writes_aliased else set())
    if traits.writes_all or traits.ordering >= Ordering.BARRIER:
        known.update(seen.writes)
    random = ["random numbers"] if seen.random and traits.ordering is Ordering.NONE else []
    return [*(name for name in seen.writes if name not in known), *random]


def main() -> None:
    """Run all, but for what needs a process group."""
    import torch._inductor.inductor_prims
    import torch.ao.quantization.fx._decomposed
    import torch.distributed.fsdp._fully_shard._fsdp_collectives

    torch.set_num_threads(1)
    ops = [op for op in registered() if op.namespace not in GROUPED]
    found, crashed = run_all(ops)
    ran = {str(op): found[str(op)] for op in ops if str(op) in found and found[str(op)].runs}
    wrong = {name: said for op in ops if (name := str(op)) in ran and (said := unsaid(op, ran[name]))}
    json.dump({"registered": len(ops), "ran": len(ran), "crashed": crashed, "unsaid": wrong}, sys.stdout)


if __name__ == "__main__":
    main()
