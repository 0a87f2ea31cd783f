"""From the forward and the backward graph of a whole model to its layers, and to stages of whole layers.

What follows from the input (of backward: from the gradient that comes in) is a chain of *waists*, values through which
all that comes later goes; between two of them is a segment. A layer is some neighbouring segments, so that the hidden
state is all that goes from one layer to the next::

    forward    tokens -> embedding -o- attention -o- MLP -o- attention -o- MLP -o- norm -> mm -> logits
    segments               0             1            2        1            2         3   4 ...
    layers             embedding       |   layer 1        |   layer 2           |   head

Which segments make a layer is said by names of modules (``layers.3.attention``) where the graph has any. Else it is
found: segments are alike that have the same operators, and the layers are the longest repetition of some of them one
behind the other, with neighbours that are nearly alike (a dense layer in front of layers of experts).

A node that does not follow from the input (a gathered parameter) is where it is first needed. Values of forward that
backward uses, saved or computed again, have the same names there: they say which layer a segment of backward is of.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from overlap_sched.errors import PipelineError
from overlap_sched.pipeline.cuts import best_cut
from overlap_sched.pipeline.job import PipelineBlock, PipelineJob, PipelineStage, Route
from overlap_sched.pipeline.layout import ONE_EACH
from overlap_sched.problem import Kind, NodeId, Problem, StorageId
from overlap_sched.problem.parts import split_problem


@dataclass(frozen=True)
class ModelStage:
    """Neighbouring layers of a model: their graphs, and what goes in and out, in bytes.

    Attributes:
        name: ``"embedding, layers 1 to 8"``.
        forward, backward: Inputs are what comes in, what was saved, and parameters (pinned).
        gradient: The node of backward that makes the gradient of what the first of its layers receives; ``""``: of the
            embedding alone, which receives none.
        output_bytes: What forward sends to the next stage. gradient_bytes: what backward sends to the previous one.
        saved_bytes: From forward to backward. parameter_bytes: all that is pinned.
    """

    name: str
    forward: Problem
    backward: Problem
    gradient: str
    output_bytes: int
    gradient_bytes: int
    saved_bytes: int
    parameter_bytes: int


@dataclass(frozen=True)
class CutModel:
    """A model in stages.

    Attributes:
        layers: How many it has, without embedding and head.
        found_by: ``"names of modules"`` or ``"repeated operators"``.
        stages: In the order of forward.
        extra: What goes between stages besides the hidden state and its gradient: names of nodes of either graph.
    """

    layers: int
    found_by: str
    stages: tuple[ModelStage, ...]
    extra: tuple[str, ...]


def cut_model(
    forward: Problem, backward: Problem, layers: Sequence[int] | None = None, stages: int | None = None
) -> CutModel:
    """Cut both graphs of a model into stages; each node is in one of them.

    Args:
        forward, backward: Of one training step, as two dumps give them: what forward saves has the same names.
        layers: How many layers each stage has. The first has the embedding, too, and the last the head.
        stages: How many stages instead: so that the longest is as short as can be. ``None``: one for each layer, one
            for the embedding and one for the head.

    Raises:
        PipelineError: No layers are found, the graphs are not of one model, or there are fewer layers than stages.
    """
    raise NotImplementedError
