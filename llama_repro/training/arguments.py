"""The command line of ``scripts/train.py``; the scheduler's options are named as in ``Options``."""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from llama_repro.training.link import LATENCY_US, check_slow_network
from llama_repro.training.schedulers import SCHEDULERS, Scheduler
from llama_repro.training.sharding import KINDS, Kind
from llama_repro.training.sizes import SIZES
from llama_repro.training.world import DeviceChoice
from overlap_sched.errors import OptionsError
from overlap_sched.options import Base, Concurrent, Options


@dataclass(frozen=True)
class Arguments:
    """A training run, as asked for; see the help of each option."""

    model: str
    data: str
    sharding: Kind
    tp: int
    dtype: str
    device: DeviceChoice
    batch: int | None
    sequence: int | None
    accumulate: int
    steps: int
    lr: float
    seed: int
    scheduler: Scheduler
    options: Options
    costs: str
    slow_network: float | None
    slow_latency: float
    predict: bool
    measure: bool
    trace: Path | None
    checkpoint: Path | None
    checkpoint_every: int
    json: Path | None


def parse(given: list[str] | None = None) -> Arguments:
    """Read the command line.

    Raises:
        OptionsError: A value is out of range.
    """
    parsed = vars(_parser().parse_args(given)).items()
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in parsed}
    for name in ("batch", "sequence", "accumulate", "steps", "tp"):
        if values[name] is not None and values[name] < 1:
            raise OptionsError(f"--{name} is {values[name]}; it is 1 or more.")
    check_slow_network(values["slow_network"], values["slow_latency"])
    if values["slow_network"] is not None and values["trace"] is not None:
        raise OptionsError("--trace records real collectives, --slow-network emulates them: leave one of the two out.")
    if values["checkpoint_every"] < 0:
        raise OptionsError(f"--checkpoint-every is {values['checkpoint_every']}; it is 0 (at the end) or more.")
    return Arguments(options=Options(**{option.name: values.pop(option.name) for option in fields(Options)}), **values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "train.py", description="Train a Llama whose collectives are in the compiled graphs, under torchrun."
    )
    _training(parser.add_argument_group("training"))
    _scheduling(parser.add_argument_group("scheduling"))
    _files(parser.add_argument_group("files"))
    return parser


def _training(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--model", default="tiny", metavar="SIZE", help=f"{', '.join(SIZES)} (default: tiny)")
    add("--data", default="synthetic", metavar="synthetic|FILE", help="phrases from a seed, or a file's bytes")
    add("--sharding", default="fsdp", choices=KINDS, help="over all ranks (default), or with tensor parallelism")
    add("--tp", type=int, default=2, metavar="N", help="ranks of tensor parallelism with --sharding 2d (default: 2)")
    add("--dtype", default="bf16", choices=("bf16", "fp32"), help="weights and gradients stay fp32 (default: bf16)")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"), help="default: a GPU for each rank, else the CPU")
    add("--batch", type=int, metavar="N", help="sequences per rank and micro batch")
    add("--sequence", type=int, metavar="N", help="tokens per sequence")
    add("--accumulate", type=int, default=1, metavar="N", help="micro batches per step (default: 1)")
    add("--steps", type=int, default=20, metavar="N", help="steps in all, those before a resume included (default: 20)")
    add("--lr", type=float, default=3e-4, help="learning rate of AdamW (default: 3e-4)")
    add("--seed", type=int, default=0, help="seed of the first weights and of the data (default: 0)")


def _kinds(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",")) if text else ()


def _scheduling(group: argparse._ArgumentGroup) -> None:
    add, default = group.add_argument, Options()
    add("--scheduler", default="overlap_sched", choices=SCHEDULERS, help="who orders graphs (default: overlap_sched)")
    add("--headroom", default=str(default.headroom), metavar="SIZE", help="bytes, 1GiB or 5%% above the original peak")
    add("--budget", default=default.budget, choices=("peak", "profile"), help="what the headroom is added to")
    add(
        "--memory-model",
        default=default.memory_model,
        choices=("runtime", "tracker"),
        help="what counts as live (default: runtime)",
    )
    add(
        "--preserve-collective-order",
        default="none",
        choices=("none", "group", "all"),
        help="keep them in each group, or in all",
    )
    add("--base", default=default.base, choices=get_args(Base), help="the order to start from (default: original)")
    add("--effort", type=int, default=default.effort, metavar="N", help="scheduling runs, the best kept (default: 4)")
    add("--strict", action="store_true", help="raise instead of keeping the original order")
    add(
        "--agreement",
        default=default.agreement,
        choices=("digest", "none"),
        help="use an order only where all ranks agree",
    )
    add("--memory-limit", default=default.memory_limit, metavar="SIZE", help="as for overlap-sched plan")
    add("--allocator", default=default.allocator, metavar="KIND", help="as for overlap-sched plan")
    add("--concurrent-groups", default="any", choices=get_args(Concurrent), help="as for overlap-sched plan")
    add("--rewrites", type=_kinds, default=default.rewrites, metavar="KINDS", help="as for overlap-sched plan")
    add("--pins", type=str, nargs="+", default=(), metavar="PIN", help="as for overlap-sched plan")
    add(
        "--costs",
        default="measured",
        choices=("measured", "h100"),
        help="times by which graphs are scheduled: of this machine (default), or of a node of eight H100",
    )
    add(
        "--slow-network",
        type=float,
        metavar="GB/S",
        help="on the CPU: collectives take as long as over a link of this bandwidth, without processor time",
    )
    add(
        "--slow-latency",
        type=float,
        default=LATENCY_US,
        metavar="US",
        help=f"latency of that link, in microseconds (default: {LATENCY_US:g})",
    )
    add("--predict", action="store_true", help="with --scheduler none: read the graphs, and predict their figures")


def _files(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--checkpoint", type=Path, metavar="DIR", help="save here, and resume from what is here")
    add("--checkpoint-every", type=int, default=0, metavar="N", help="steps between two saves (default: at the end)")
    add("--measure", action="store_true", help="profile one more step: exposed time and memory as measured")
    add("--trace", type=Path, metavar="DIR", help="profile some more steps: a trace of each rank, and the graphs")
    add("--json", type=Path, metavar="OUT", help="write losses, times and figures as JSON")
