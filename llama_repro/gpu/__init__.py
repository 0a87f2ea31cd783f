"""Run a captured graph for real on one GPU, in its own order and in ours: time and memory beside those predicted.

One GPU has nobody to talk to, so every collective is emulated: a copy of its data and a wait as long as the cost model
says, on a stream of its own per process group. All else is real: kernels, streams, the caching allocator.

- :mod:`~llama_repro.gpu.program`: a graph in an order, and when each value dies; random inputs; live bytes.
- :mod:`~llama_repro.gpu.streams`: emulated collectives, on a GPU or on the CPU.
- :mod:`~llama_repro.gpu.measure`: node times, step times, the allocator's peak and its replay.
- :mod:`~llama_repro.gpu.day`: the command.
"""
