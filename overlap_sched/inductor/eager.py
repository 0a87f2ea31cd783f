"""A backend for graphs that are not lowered: ``torch.compile(model, backend="overlap_sched")``.

AOTAutograd with torch's min-cut partitioner; forward, backward and inference graphs are scheduled as FX and executed by
PyTorch's own kernels. torch finds it by the entry point ``torch_dynamo_backends``; where this package is not installed,
give the function itself: ``torch.compile(model, backend=overlap_sched.backend)``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from functorch.compile import min_cut_rematerialization_partition
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch.fx.graph import _BoxedCodeGen

from overlap_sched.errors import OptionsError
from overlap_sched.inductor.fx_stage import rewrite_and_schedule
from overlap_sched.inductor.partitioning import cut_to_fit
from overlap_sched.inductor.reporting import log
from overlap_sched.inductor.settings import Settings
from overlap_sched.inductor.switch import current_settings
from overlap_sched.joint.graphs import note_what_stays
from overlap_sched.options import Options, options_given


def backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Options | Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph from Dynamo: partition, schedule, execute.

    Args:
        gm: Dynamo's graph.
        example_inputs: Its inputs.
        options: :class:`~overlap_sched.Options`, or its fields as ``torch.compile(options={...})`` gives them; by
            default those that are switched on (:func:`overlap_sched.enable`), else the defaults.
        mode: torch's; must be left out.

    Raises:
        OptionsError: There is no such option, or a ``mode`` was given.
    """
    if mode is not None:
        raise OptionsError(f"mode is {mode!r}, which is for Inductor. Leave it out with backend='overlap_sched'.")
    settings = current_settings() if options is None else None
    settings = replace(settings or Settings(options_from(options)), stage="backend")
    kinds = {"fw_compiler": "forward", "bw_compiler": "backward", "inference_compiler": "inference"}
    compilers = {name: partial(_compile, settings=settings, kind=kind) for name, kind in kinds.items()}
    compiled: Callable[..., Any] = aot_autograd(
        **compilers,
        partition_fn=partial(cut_to_fit, settings=settings, partitioner=_cut) if settings.fits else _cut,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)
    return compiled


def _cut(gm: fx.GraphModule, joint_inputs: Any, **given: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Torch's own cut; backward knows which of its inputs are weights under other names."""
    forward, backward = min_cut_rematerialization_partition(gm, joint_inputs, **given)
    try:
        note_what_stays(forward, backward)
    except Exception as error:  # it is then thought that they may be freed
        log.debug("what stays in backward is not known: %s", error)
    return forward, backward


def options_from(given: Options | Mapping[str, Any] | None) -> Options:
    """Options given by name, as ``torch.compile(options={...})`` and torchtitan's command line do; none: the defaults.

    Raises:
        OptionsError: There is no such option, or it cannot have this value.
    """
    return Options(**given) if isinstance(given, Mapping) else options_given(given)


def _compile(gm: fx.GraphModule, example_inputs: Sequence[Any], *, settings: Settings, kind: str) -> Callable[..., Any]:
    rewrite_and_schedule(gm, settings, kind)
    gm.graph.set_codegen(_BoxedCodeGen())  # takes its inputs as a list that it empties: they can be freed after use
    gm.recompile()
    forward = gm.forward

    def run(inputs: list[Any]) -> Any:
        return forward(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
