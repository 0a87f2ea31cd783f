"""Run captured graphs for real on one GPU, in several orders, and compare time and memory with what was predicted.

One GPU has nobody to talk to, so every collective is emulated: a copy of its data and a wait as long as the cost model
says, on a stream of its own per process group. All else is real: kernels, streams, the caching allocator.

- :mod:`~llama_repro.gpu.program`: a graph in an order, and when each value dies.
- :mod:`~llama_repro.gpu.values`: random inputs on the device; bytes that are live.
- :mod:`~llama_repro.gpu.streams`: emulated collectives, on a GPU or on the CPU.
- :mod:`~llama_repro.gpu.measure`: node times, step times, the allocator's peak.
- :mod:`~llama_repro.gpu.check`: all of it for one configuration; what ``scripts/gpu_check.py`` prints.
- :mod:`~llama_repro.gpu.plugin`: the plug-in of ``torch.compile`` in a real process group of one rank.
"""
