"""What kernels take on a device: by their kind, their shapes, their operations and bytes.

All times are sums: what a kernel of the kind takes at least, and the longer of its operations and its bytes. What
Inductor makes of loops, and all that is of no kind, is ``max(operations, bytes, shortest kernel)``.

Numbers were fitted on rows of public measurements (``scripts/truth``; those that ``fitted.txt`` names there), or are
published ones. Latencies are in multiples of the device's shortest kernel: on H100 (2 us) a GEMM takes at least 5 us.
Not modelled: how a GEMM's last wave fills the device (on rows of 280 to 2,364 tiles the fraction explains nothing, as
cuBLAS splits K), other element types than 16 bits, sparsity.
"""

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

from overlap_sched.errors import OptionsError


class Device(NamedTuple):
    """What one accelerator (or CPU socket) can do.

    Attributes:
        name: For people and for :func:`device_named`.
        peak_flops_per_s: Dense matrix rate in 16 bits, without sparsity.
        peak_bytes_per_s: Memory bandwidth.
        flops_efficiency: Part of ``peak_flops_per_s`` that a large matmul reaches (0 to 1).
        bytes_efficiency: Part of ``peak_bytes_per_s`` that a streaming kernel reaches (0 to 1).
        kernel_us: No kernel takes less: launch and tail of an empty one.
        memory_bytes: What it has, for reports; 0: not known.
        attention_efficiency: Part of ``peak_flops_per_s`` that FlashAttention 2 reaches forward, with long rows of
            heads of 128.
    """

    name: str
    peak_flops_per_s: float
    peak_bytes_per_s: float
    flops_efficiency: float = 0.6
    bytes_efficiency: float = 0.8
    kernel_us: float = 2.0
    memory_bytes: int = 0
    attention_efficiency: float = 0.4

    @property
    def flops_per_s(self) -> float:
        """Rate that a large matmul reaches."""
        return self.peak_flops_per_s * self.flops_efficiency

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth that a streaming kernel reaches."""
        return self.peak_bytes_per_s * self.bytes_efficiency


H100 = Device("H100", 990e12, 3.35e12, 0.75, memory_bytes=80 * 10**9, attention_efficiency=0.37)
"""H100 SXM5. NVIDIA H100 data sheet: BF16 1,979 TFLOPS with sparsity, so 990 dense; 3.35 TB/s; 80 GB. A large matmul:
0.75 fits the 8 GEMMs from 20 us of TL_h100__facebook_timesformer (632 to 745 TFLOPS with all overhead); the best of any
shape is 0.80 (stas00/ml-engineering, MAMF). Attention: 370 TFLOPS (FlashAttention-3, arXiv 2407.08608, figure 5)."""

H100_96GB = H100._replace(name="H100-96GB", peak_bytes_per_s=2.4e12, flops_efficiency=0.5, memory_bytes=96 * 10**9)
"""H100 of 96 GB HBM2e, 2.4 TB/s, limited to 500 W, of torchtitan's tables. 0.5: of table 1 there (Llama 3.1 8B, bf16,
compiled, 6,667 tokens/s), what attention, memory and the network leave for 860 TFLOP of GEMMs a step."""

H200 = H100._replace(name="H200", peak_bytes_per_s=4.8e12, memory_bytes=141 * 10**9)
"""H200 SXM. NVIDIA H200 data sheet: the H100's tensor cores and power; 4.8 TB/s, 141 GB."""

H800 = H100._replace(name="H800")
"""H800 SXM: an H100 with slower NVLink and FP64 (DeepSeek-V3, arXiv 2412.19437, section 3.1: NVLink of 160 GB/s)."""

A100 = Device("A100", 312e12, 2.039e12, 0.75, kernel_us=3.0, memory_bytes=80 * 10**9, attention_efficiency=0.72)
"""A100 SXM 80 GB. NVIDIA A100 data sheet: BF16 312 TFLOPS dense; 2,039 GB/s. A large matmul: between what whole steps
of fms-fsdp (0.78) and torchtitan (0.68) leave for it; the best of any shape is 0.87 (MAMF). Shortest kernel: the median
of tiny ones of HTA_trace_diff__control. Attention: 225 of 312 TFLOPS (FlashAttention-2, arXiv 2307.08691, figure 5)."""

B200 = Device("B200", 2250e12, 8e12, 0.72, memory_bytes=180 * 10**9)
"""B200 SXM. 2,250 TFLOPS: 72 PFLOPS of FP8 with sparsity of 8 GPUs (NVIDIA DGX SuperPOD reference architecture, DGX
B200), half of it dense, half of that in BF16; 8 TB/s: an eighth of 64 (product page). A large matmul: the H100's share
of the best of any shape (0.776, MAMF). Attention is assumed."""

MI300X = Device("MI300X", 1307.4e12, 5.3e12, 0.45, kernel_us=3.0, memory_bytes=192 * 10**9, attention_efficiency=0.23)
"""MI300X. AMD, MI300 series microarchitecture, peak table: matrix BF16 dense; HBM3. A large matmul and the shortest
kernel: GEMMs and pointwise kernels of TL_inference__xdit_sd_3.5 and TL_mi300__Qwen; the best of any shape is 0.51
(MAMF). Attention: 281 TFLOPS there, heads of 64."""

XEON_8480 = Device("Xeon-8480+", 7.168e12, 307.2e9, attention_efficiency=0.6)
"""One socket Xeon Platinum 8480+, without AMX. Intel's product page: 56 cores, base 2.0 GHz; two 512-bit FMA units make
64 single-precision operations a cycle and core; eight channels of DDR5-4800 are 307.2 GB/s."""

RTX_3090 = Device("RTX-3090", 71e12, 936e9, memory_bytes=24 * 10**9)
"""GeForce RTX 3090 24 GB, in bfloat16. NVIDIA Ampere GA102 whitepaper V2, appendix A: BF16 with FP32 accumulate 71
TFLOPS dense; 936 GB/s."""

RTX_3090_TF32 = Device("RTX-3090-TF32", 35.6e12, 936e9, memory_bytes=24 * 10**9)
"""The same with float32 tensors, whose matmuls and convolutions run in TF32: 35.6 TFLOPS dense (the same table)."""

DEVICES = (H100, H100_96GB, H200, H800, A100, B200, MI300X, RTX_3090, RTX_3090_TF32, XEON_8480)


def device_named(name: str) -> Device:
    """The device of the table with this name, in any case; ``"cpu"`` is the Xeon.

    Raises:
        OptionsError: There is none.
    """
    wanted = name.lower()
    for device in DEVICES:
        if wanted == device.name.lower() or (wanted == "cpu" and device is XEON_8480):
            return device
    known = ", ".join(device.name for device in DEVICES)
    raise OptionsError(f"no device is named {name!r}; known are {known} and cpu. Or make your own: cost.Device(...).")


Kind = Literal[
    "gemm", "attention", "causal", "norm", "softmax", "reduction", "convolution", "strided", "fused", "other"
]
"""``causal``: attention of which only the triangle is computed. ``strided``: a pointwise kernel of PyTorch's that reads
or writes other than one element after the other (transposed, broadcast). ``fused``: what a compiler makes of loops."""


Shape = tuple[int, int, int, int]
NO_SHAPE: Shape = (0, 0, 0, 0)
SHAPED = ("gemm", "attention", "norm", "softmax")
"""Kinds of which shapes are known."""


class Compute(NamedTuple):
    """What a model is told of a compute step; fields may be added behind these.

    Attributes:
        op: Operator, as in ``Node.op``: ``"aten.mm.default"``.
        flops: Floating-point operations. bytes: read and written.
        kind: ``None``: what :func:`kind_of` makes of the operator.
        shape: (batch, m, n, k) as :func:`shape_of` has it; zeros where it is not known.
    """

    op: str
    flops: int
    bytes: int
    kind: Kind | None = None
    shape: Shape = NO_SHAPE


_KINDS: tuple[tuple[Kind, str], ...] = (
    ("attention", r".*attention.*"),
    ("convolution", r".*convolution.*"),
    ("gemm", r"_?(scaled_|grouped_|int_|scaled_grouped_)?(add|badd)?b?mm(_v2|_out)?|linear|matmul|addmv|mv"),
    ("softmax", r"_(log_)?softmax(_backward_data)?"),
    ("reduction", r"sum|mean|prod|a?max|a?min|arg(max|min)|any|all|(var|std)(_mean)?|(linalg_vector_)?norm|logsumexp"),
    ("norm", r".*_(layer|rms|group|batch)_norm(_backward)?"),
)
"""Names of ATen's operators."""


@cache
def kind_of(op: str) -> Kind:
    """The kind of an operator as ``Node.op`` names it; several joined by ``+`` are ``fused``."""
    name = op.split(".")[1] if "." in op else op
    found = (kind for kind, pattern in _KINDS if re.fullmatch(pattern, name))
    return "fused" if "+" in op else next(found, "other")


def shape_of(op: str, shapes: Sequence[Sequence[int]]) -> Shape:
    """The (batch, m, n, k) of an operator that takes tensors of these shapes (those without dimensions left out).

    A matmul is (batch, m, k) x (batch, k, n); attention has batch x heads, rows of queries and of keys, and the size of
    a head; a norm or a softmax has m rows of k elements. Zeros: its kind has none, or tensors are missing.
    """
    kind, name = kind_of(op), op.split(".")[1] if "." in op else op
    if kind == "gemm" and len(shapes := shapes["add" in name :][:2]) == 2 and len(shapes[0]) > 1:
        *batch, m, k = shapes[0]
        return math.prod(batch), m, shapes[1][-1] if len(shapes[1]) > 1 else 1, k
    if kind == "attention" and len(shapes := shapes["backward" in name :][:2]) == 2 and len(shapes[0]) == 4:
        by_row = 1 if name.startswith("_flash_attention") else 2  # (batch, rows, heads, size), else heads before rows
        return shapes[0][0] * shapes[0][3 - by_row], shapes[0][by_row], shapes[1][by_row], shapes[0][3]
    if kind in ("norm", "softmax") and shapes and shapes[0][-1]:
        return 1, math.prod(shapes[0][:-1]), 0, shapes[0][-1]
    return NO_SHAPE


_GEMM, _GEMM_K = 2.5, 0.75e-3
"""Shortest kernels that a GEMM takes at least, and for each of K: a tile's loop is a chain. 5.0 us and 1.5 ns on H100:
addmm of 141 rows, K 512 and 2,048, of TL_h100__gaunernst_bert (5.8, 6.1 and 8.2 us)."""
_UNALIGNED = 6.0
"""How many times as long a GEMM takes with rows of N or K that do not begin at 16 bytes: N = 30,522 of the same trace
(107 TFLOPS). NVIDIA, Matrix multiplication background user's guide: tensor cores want multiples of 16 bytes."""
_ATTENTION = 4.0
"""Shortest kernels that attention takes at least: 9.1 us of TL_h100__gaunernst_bert."""
_TILE, _ROWS, _ROWS_BACKWARD, _BACKWARD, _CAUSAL, _HEADS_OF_64 = 128, 90, 240, 0.87, 0.92, 0.88
"""Rows of queries in a tile, and as many rows of keys as its beginning and end take, forward and backward; the rate
backward, of causal attention, and of heads of at most 64. FlashAttention-3 (arXiv 2407.08608), figures 5 and 6, of
FlashAttention 2 on H100 at 512 to 16k rows: forward 309 to 370 TFLOPS, causal 191 to 335, heads of 64 282 to 324,
backward 214 to 322; all are met within 4 %, causal rows of 512 within 11 %."""
_FASTER_ATTENTION = {"cudnn": 1.6, "flash_attn_3": 1.75}
"""By what an operator's name has in it: forward 600 and 648, backward 516 and 561 TFLOPS (the same figures)."""
_NORM, _NORM_ROW = 1.5, 0.575e-3
"""Shortest kernels that a norm or a softmax takes at least, and a norm for each row beside its bytes: PyTorch's kernel
has one block a row. TL_h100__facebook_timesformer: 25,089 rows of 768, 59.5 us."""
_SOFTMAX_ROW, _SOFTMAX_PASSES = 1024, 4.0
"""Longer rows are read again and again: rows of 3,137 in the same trace, 0.66 TB/s. (PyTorch, SoftMax.cu: up to 1,024
elements a warp holds a row.)"""
_REDUCTION = 2.2
"""Shortest kernels: mean of 8 x 768 and of 8,944 x 1,024, TL_h100__*."""
_STRIDED, _STRIDED_RATE = 1.4, 0.55
"""Shortest kernels, and the part of a streaming kernel's bandwidth: copies of TL_h100__facebook_timesformer."""
_CONVOLUTION, _CONVOLUTION_RATE, _CONVOLUTION_PASSES = 8.0, 0.5, 2
"""Shortest kernels, part of a matmul's rate, strided passes to other layouts and back: TL_inference__xdit_sd_3.5."""


def kernel_times(device: Device, work: Compute) -> tuple[float, float, float]:
    """Microseconds of a kernel's operations and of its bytes; how many shortest kernels it takes besides."""
    kind, (batch, m, n, k) = work.kind or kind_of(work.op), work.shape
    flops_us, bytes_us = work.flops / device.flops_per_s * 1e6, work.bytes / device.bytes_per_s * 1e6
    match kind:
        case "gemm":
            aligned = n % 8 == 0 and k % 8 == 0
            chain_us = k * _GEMM_K * device.kernel_us
            return flops_us * (1.0 if aligned or batch * m * n == 0 else _UNALIGNED) + chain_us, bytes_us, _GEMM
        case "attention" | "causal":
            return _attention_us(device, work, kind == "causal"), bytes_us, _ATTENTION
        case "norm":
            return flops_us, bytes_us + m * _NORM_ROW * device.kernel_us, _NORM
        case "softmax":
            return flops_us, bytes_us * (_SOFTMAX_PASSES if k > _SOFTMAX_ROW else 1.0), _NORM
        case "reduction":
            return flops_us, bytes_us, _REDUCTION
        case "strided":
            return flops_us, bytes_us / _STRIDED_RATE, _STRIDED
        case "convolution":
            moved_us = bytes_us / _STRIDED_RATE * _CONVOLUTION_PASSES
            return flops_us / _CONVOLUTION_RATE + moved_us, bytes_us, _CONVOLUTION
    return flops_us, bytes_us, 0.0


def _attention_us(device: Device, work: Compute, causal: bool) -> float:
    _, m, n, size = work.shape
    rate = device.peak_flops_per_s * device.attention_efficiency * (_HEADS_OF_64 if 0 < size <= 64 else 1.0)
    rate *= math.prod(factor for name, factor in _FASTER_ATTENTION.items() if name in work.op)
    rate, rows = (rate * _BACKWARD, _ROWS_BACKWARD) if "backward" in work.op else (rate, _ROWS)
    if not m or not n:
        return work.flops / rate * 1e6
    keys, rate = (n / 2 + _TILE / 2, rate * _CAUSAL) if causal else (n, rate)
    tiles = -(-m // _TILE) * _TILE / m
    return work.flops * tiles * (keys + rows) / n / rate * 1e6
