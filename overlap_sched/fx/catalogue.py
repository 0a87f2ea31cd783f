"""The catalogue of operators: what their schemas and tags do not say. Every class is a table here.

| class | here | said by torch besides |
| --- | --- | --- |
| launches, waits, communicates on the compute stream | ``LAUNCHES``, ``WAITS``, ``BLOCKING``, ``FAMILIES`` | |
| frees what another one has made | ``FREES`` | |
| may communicate: of a namespace that is not torch's | ``TORCH`` | |
| draws random numbers | ``RANDOM`` | ``Tag.nondeterministic_seeded`` |
| writes | ``WRITES`` | aliases in the schema |
| shares storage unseen | ``VIEWS``; sparse tensors | aliases in the schema; storages that its value shows |
| looks at a shape alone | ``SHAPES`` | |
| synchronises with the host | ``SYNCS`` | ``Tag.data_dependent_output``, ``Tag.dynamic_output_shape`` |
| changes how what follows runs | ``FENCES`` | |
| returns before a copy to or from the host has finished | the argument ``non_blocking`` | |

Higher-order operators and functions of Python are in :mod:`overlap_sched.fx.operators`. An operator that is in no class
of communication, and of no namespace of torch, is taken for the worst that it can be, see
:func:`overlap_sched.fx.operators.declare_operator`.
"""

FUNCTIONAL = (
    "all_gather_into_tensor", "all_gather_into_tensor_coalesced", "all_gather_into_tensor_out",
    "all_gather_into_tensor_single", "all_reduce", "all_reduce_", "all_reduce_coalesced", "all_reduce_coalesced_",
    "all_to_all_single", "broadcast", "broadcast_", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_out", "reduce_scatter_tensor_single",
)  # fmt: skip
HOST_COPIES = ("offload", "reload")
"""Between a device and pinned host memory, on a stream of their own (``torch._functorch._activation_offloading``)."""
POINT_TO_POINT = ("batch_p2p_ops", "irecv", "isend")
LAUNCHES = {
    "_c10d_functional": FUNCTIONAL + POINT_TO_POINT,
    "_c10d_functional_autograd": FUNCTIONAL,
    "c10d_functional": FUNCTIONAL + POINT_TO_POINT,
    "symm_mem": ("_low_contention_all_gather", "_low_contention_reduce_scatter"),
    "ao": HOST_COPIES,
    "dc": ("allgather_param", "reduce_grad"),
}
WAITS = {
    "_c10d_functional": ("wait_tensor", "wait_tensors"),
    "c10d_functional": ("wait_tensor",),
    "ao": ("wait_tensor",),
    "dc": ("end_backward", "wait_allgather"),  # the former flushes what is left in the buckets of gradients
    "overlap_sched": ("wait_tensors",),  # in dumps that an older torch reads, see overlap_sched.dump.graph
}
MEANT = {
    "all_gather": "all_gather_into_tensor", "allgather_param": "all_gather_into_tensor",
    "reduce_grad": "reduce_scatter_tensor", "reduce_scatter": "reduce_scatter_tensor",
    "vllm_all_gather": "all_gather_into_tensor", "vllm_all_reduce": "all_reduce",
    "vllm_reduce_scatter": "reduce_scatter_tensor",
}  # fmt: skip
"""What collectives of DeepSpeed (``dc``: DeepCompile, ``csrc/compile`` of 0.19.8) and vLLM are by torch's names."""
COPIES_INPUT = frozenset({"dc::reduce_grad"})
"""Collectives that copy what they are given into a bucket: it is free when they return."""
FREES = {"dc::release_param": "dc::allgather_param"}
"""Operators that free what another one of the same numbers (graph, parameter) has made, once all of these have run."""
BLOCKING = {
    # torchtitan/distributed/deepep: DeepEP's kernels, of one buffer and its group, waited for on the calling stream
    "deepep": ("combine", "dispatch"),
    # waits for its work before it returns (torch/csrc/distributed/c10d/Functional.cpp)
    "_dtensor": ("shard_dim_alltoall",),
    "vllm": ("all_gather", "all_reduce", "reduce_scatter"),  # vllm/distributed/parallel_state.py: on the calling stream
    "overlap_sched": ("vllm_all_gather", "vllm_all_reduce", "vllm_reduce_scatter"),  # in dumps where vLLM is not there
}  # fmt: skip

FAMILIES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")
"""Nothing in these namespaces computes: what names a process group communicates."""
WHOLE_FAMILIES = ("c10d", "dc", "symm_mem")
"""What is not listed of these communicates, too: it waits for other ranks, or reads and writes their memory."""
LOCAL = frozenset({"dc::free_tensors", "dc::release_param"})
"""But for these."""

TORCH = frozenset({
    "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test", "_native", "_native_aot",
    "_quantized", "_test", "ao", "aten", "c10d", "c10d_functional", "coor", "debug_mode_ops", "debugprims", "export",
    "flex_gemm", "flex_lib", "fsdp", "inductor", "inductor_prims", "mempool", "mkl", "mkldnn", "mkldnn_prepacked",
    "onednn", "onnx", "onnx_symbolic", "prims", "profiler", "quantization", "quantized", "quantized_decomposed",
    "rngprims", "sparse", "spmd_types", "static_runtime", "streams", "symm_mem",
    "dc",  # of DeepSpeed
    "overlap_sched",  # stand-ins of dumps, see overlap_sched.dump.graph
})  # fmt: skip
"""Namespaces of operators that torch itself registers (2.11 to 2.15), and others that are known. What communicates
among them is listed above."""

RANDOM = frozenset({"inductor_prims::inductor_reserve_rng_state", "quantized::dropout"})
"""Draw random numbers, or move the generator on, without the tag for it."""

WRITES = {
    "ao::wait_tensor": ("keepalive",),  # resized to nothing (torch._functorch._activation_offloading.offload_ops)
    "aten::_batch_norm_impl_index": ("running_mean", "running_var"),
    "aten::_cudnn_rnn": ("dropout_state",),
    "aten::_cudnn_rnn_backward": ("reserve",),
    "aten::_cudnn_rnn_flatten_weight": ("weight_arr",),
    "aten::batch_norm": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats": ("running_mean", "running_var"),
    "aten::batch_norm_gather_stats_with_counts": ("running_mean", "running_var"),
    "aten::batch_norm_update_stats": ("running_mean", "running_var"),
    "aten::cudnn_batch_norm": ("running_mean", "running_var"),
    "aten::instance_norm": ("running_mean", "running_var"),
    "aten::miopen_batch_norm": ("running_mean", "running_var"),
    "aten::miopen_rnn": ("dropout_state",),
    "aten::miopen_rnn_backward": ("reserve",),
    "aten::mkldnn_rnn_layer_backward": ("workspace",),
    "aten::native_batch_norm": ("running_mean", "running_var"),
    "fsdp::all_gather_copy_in": ("all_gather_output",),
    "overlap_sched::vllm_all_reduce": ("tensor",),
    "vllm::all_reduce": ("tensor",),  # in place on a CPU and on XPUs
}
"""Arguments that an operator writes, or frees, although its schema does not say so."""

VIEWS = frozenset({"aten::_unsafe_view", "aten::unsafe_chunk", "aten::unsafe_split", "aten::unsafe_split_with_sizes"})
"""Look at their argument although their schema says that what they return is new. Others that return an argument's
storage unsaid are taken to write it. A tensor without a storage of its own (sparse) is taken to share those of all
that it is made of."""

SHAPES = frozenset({
    "aten::empty_like", "aten::full_like", "aten::new_empty", "aten::new_empty_strided", "aten::new_full",
    "aten::new_ones", "aten::new_zeros", "aten::ones_like", "aten::rand_like", "aten::randint_like",
    "aten::randn_like", "aten::sym_numel", "aten::sym_size", "aten::sym_storage_offset", "aten::sym_stride",
    "aten::zeros_like",
})  # fmt: skip
"""Look at the shape of their argument alone, not at what is in it."""

SYNCS = frozenset({
    "aten::_choose_qparams_per_tensor", "aten::_linalg_check_errors", "aten::_nested_tensor_from_mask_left_aligned",
    "aten::_use_cudnn_ctc_loss", "aten::is_nonzero",
})  # fmt: skip
"""Give the host a number that depends on data, without the tag for it."""

FENCES = ("mempool", "streams")
"""Namespaces whose operators change on which stream, or out of which pool, what follows runs."""
LAST = frozenset({"dc::end_backward"})
"""Operators that end what a graph does: nothing may pass them."""
