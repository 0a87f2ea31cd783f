"""torchtitan's GraphPP on torch 2.15, and what runs there, looked at from the outside.

torchtitan 0.3.0 keeps the outputs of a microbatch in ``PipelineStage.fwd_cache``. torch 2.15.0 has no such attribute:
it sends from ``_forward_chunk_states``, and GraphPP ends in an ``AttributeError`` at its first forward. So here a
stage has the cache again, and what is put into it is also put where torch sends from.
"""

from typing import Any

from torch.distributed.pipelining.stage import PipelineStage


class _ForwardCache(dict[int, Any]):
    """Per microbatch ``(outputs, saved values)``; torch's state of the same microbatch comes and goes with it."""

    def __init__(self, stage: Any) -> None:
        super().__init__()
        self.stage = stage

    def __setitem__(self, microbatch: int, value: Any) -> None:
        super().__setitem__(microbatch, value)
        states = self.stage._forward_chunk_states
        states[microbatch] = self.stage._make_forward_chunk_state(value[0], [])

    def pop(self, microbatch: int, *default: Any) -> Any:
        self.stage._forward_chunk_states.pop(microbatch, None)
        return super().pop(microbatch, *default)


def with_forward_cache() -> None:
    """Give torchtitan's stages the attribute that torch has renamed, where this torch has."""
    from torchtitan.experiments.graph_trainer.graph_pp.stage import GraphPipelineStage

    if not hasattr(PipelineStage, "_make_forward_chunk_state"):
        return
    build = GraphPipelineStage.__init__

    def built(self: Any, *arguments: Any, **named: Any) -> None:
        build(self, *arguments, **named)
        self.fwd_cache = _ForwardCache(self)

    GraphPipelineStage.__init__ = built  # type: ignore[method-assign]


def with_whole_parameters() -> None:
    """Give GraphPP one value per flat parameter, as it counts them, where its unshard graph returns fewer.

    It counts the device mesh of each sharded parameter, which torch 2.15 flattens with it and no forward graph takes,
    and looks for inputs behind them: ``IndexError`` at the first forward, with FSDP and without buckets.
    """
    from torchtitan.experiments.graph_trainer.graph_pp.graph_builder import GraphTrainerStageGraphs

    unshard = GraphTrainerStageGraphs.unshard_params

    def padded(self: Any, values: list[Any], **named: Any) -> list[Any]:
        found = unshard(self, values, **named)
        return [*found, *[None] * (self.meta.num_flat_param_values - len(found))]

    GraphTrainerStageGraphs.unshard_params = padded  # type: ignore[method-assign]
