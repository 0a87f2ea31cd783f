"""Run captured graphs for real on one GPU, in several orders, and compare time and memory with what was predicted.

One GPU has nobody to talk to, so every collective is played: a copy of its data and a wait of the length that the cost
model gives it, on a stream of its own per process group. All else is real: kernels, streams, the caching allocator.

- :mod:`~llama_repro.gpu.program`: a graph in an order, and when each value dies.
- :mod:`~llama_repro.gpu.values`: random inputs on the device; bytes that are live.
- :mod:`~llama_repro.gpu.streams`: played collectives, on a GPU or emulated on the CPU.
- :mod:`~llama_repro.gpu.measure`: node times, step times, the allocator's peak.
- :mod:`~llama_repro.gpu.check`: all of it for one configuration; what ``scripts/gpu_check.py`` prints.
- :mod:`~llama_repro.gpu.plugin`: the plug-in of ``torch.compile`` in a real process group of one rank.
"""
