"""The traits of higher-order operators, by families of ``torch.ops.higher_order``."""

import torch
from torch._ops import HigherOrderOperator

from overlap_sched.fx.operator_traits import OperatorTraits
from overlap_sched.fx.ordering import Ordering

# they run one sub-graph once, and do nothing else
_WRAPS = (
    "control_deps", "dynamo_bypassing_wrapper", "hints_wrapper", "invoke_quant", "invoke_quant_packed",
    "invoke_subgraph", "local_map_hop", "strict_mode", "tag_activation_checkpoint", "wrap",
    "wrap_activation_checkpoint", "wrap_with_autocast", "wrap_with_set_grad_enabled",
)  # fmt: skip
# pure as far as their subgraphs are, which the reader of the graph looks into
_PURE = (
    *_WRAPS, "associative_scan", "auto_functionalized", "auto_functionalized_v2", "cond", "flex_attention",
    "flex_attention_backward", "foreach_map", "inline_asm_elementwise", "map_impl", "out_dtype", "scan", "while_loop",
    "while_loop_stack_output",
)  # fmt: skip
_RANDOM = (
    "graphsafe_run_with_rng_state", "run_and_save_rng_state", "run_dtensor_rng_op", "run_with_rng_state",
)  # fmt: skip
_WRITING = ("triton_kernel_wrapper_functional", "triton_kernel_wrapper_mutation")
_EFFECT = ("call_torchbind", "print", "with_effects")


def is_higher_order(target: object, *names: str) -> bool:
    """Tell whether a target is one of the operators of ``torch.ops.higher_order`` (which appear when imported)."""
    return any(getattr(torch.ops.higher_order, name, None) is target for name in names)


def only_wraps(target: object) -> bool:
    """Tell whether all that an operator does is to run one sub-graph once."""
    return is_higher_order(target, *_WRAPS)


def traits_of_higher_order(op: HigherOrderOperator) -> OperatorTraits:
    """Traits of a higher-order operator; those of what it runs are found where the node is read."""
    families = (
        (_PURE, Ordering.NONE, False),
        (_RANDOM, Ordering.RANDOM, False),
        (_WRITING, Ordering.NONE, True),
        (_EFFECT, Ordering.EFFECT, False),
    )
    for names, ordering, writes_all in families:
        if is_higher_order(op, *names):
            return OperatorTraits(op.name(), ordering, writes_all=writes_all, nested=True)
    return OperatorTraits(op.name(), Ordering.BARRIER, known=False, writes_all=True)
