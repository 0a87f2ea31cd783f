"""Which large models are generated: sizes, meshes, and how a mesh is written."""

import re
from dataclasses import dataclass, replace

from llama_repro.capture.configs import LlamaConfig
from overlap_sched.errors import OptionsError

TRACED_LAYERS = 4
"""Layers that are traced; all more are repetitions of the second (in backward: the last but one)."""


@dataclass(frozen=True)
class Mesh:
    """Ranks of each kind of parallelism.

    Attributes:
        fsdp: Ranks over which parameters are sharded, context-parallel ones among them.
        tp, cp, pp: Ranks of tensor and context parallelism, and pipeline stages; 1: none.
    """

    fsdp: int = 64
    tp: int = 1
    cp: int = 1
    pp: int = 1

    def __str__(self) -> str:
        """As ``--mesh`` takes it, without what there is one of."""
        sizes = {"fsdp": self.fsdp, "tp": self.tp, "cp": self.cp, "pp": self.pp}
        return ",".join(f"{name}={size}" for name, size in sizes.items() if size > 1 or name == "fsdp")


@dataclass(frozen=True)
class Model:
    """Sizes and layers of a model, and the mesh that it has by default."""

    sizes: LlamaConfig
    layers: int
    mesh: Mesh

    def traced(self, mesh: Mesh) -> LlamaConfig:
        """What is traced of it: few layers, on one stage."""
        name = f"{self.sizes.name}-{mesh.fsdp}-{mesh.tp}-{mesh.cp}"
        return replace(self.sizes, name=name, fsdp=mesh.fsdp, tp=mesh.tp, cp=mesh.cp)


MODELS = {
    "70b": Model(LlamaConfig("70b", 8192, 28672, TRACED_LAYERS, 64, 8, 128256, 1, 8192, 64), 80, Mesh(64)),
    "405b": Model(LlamaConfig("405b", 16384, 53248, TRACED_LAYERS, 128, 8, 128256, 1, 8192, 64), 126, Mesh(64, 8)),
}
"""Sizes of Llama 3.1 (Grattafiori et al., The Llama 3 Herd of Models, 2024, table 3); one sequence of 8,192 tokens."""

_PART = re.compile(r"(fsdp|tp|cp|pp)=([1-9]\d{0,4})")


def parse_mesh(text: str, model: Model) -> Mesh:
    """``"fsdp=64,tp=8"`` -> Mesh(64, 8).

    Raises:
        OptionsError: It is not written so, or does not fit the model.
    """
    found = [_PART.fullmatch(part) for part in text.split(",")]
    sizes = {match[1]: int(match[2]) for match in found if match}
    if None in found or len(sizes) < len(found):
        raise OptionsError(
            f"mesh is {text!r}; write what there is of fsdp, tp, cp and pp once each: fsdp=64,tp=8,pp=4."
        )
    mesh = Mesh(**{"fsdp": 1, **sizes})
    heads = model.sizes.kv_heads
    if heads % mesh.tp:
        raise OptionsError(f"mesh is {text!r}: tp={mesh.tp} does not divide the model's {heads} key/value heads.")
    if model.sizes.hidden // mesh.tp % mesh.fsdp or model.sizes.hidden % mesh.fsdp:
        raise OptionsError(
            f"mesh is {text!r}: fsdp={mesh.fsdp} does not divide the model's width of {model.sizes.hidden}."
        )
    if mesh.fsdp % mesh.cp:
        raise OptionsError(f"mesh is {text!r}: context-parallel ranks are among fsdp's: cp divides fsdp.")
    if mesh.pp > model.layers:
        raise OptionsError(f"mesh is {text!r}: more stages than the model's {model.layers} layers.")
    return mesh
