"""flashcore: attention kernels for NVIDIA GPUs and CPUs.

    import flashcore
    o = flashcore.attention(q, k, v, causal=True)

Arrays come from NumPy, CuPy, JAX, PyTorch or anything that speaks DLPack. `flashcore.torch` replaces PyTorch's
scaled_dot_product_attention, `flashcore.transformers` registers `attn_implementation="flashcore"`.
"""

from ._append import append
from ._block_mask import BlockMask
from ._documents import document_ids
from ._library import Error, Note, __version__, num_threads, set_num_threads
from ._paged import block_table_of_csr, decode, paged_attention
from ._plan import Plan, attention, plan
from ._program import bench, explain, tune
from ._quantize import Quantized, quantize
from ._varlen import varlen_attention

__all__ = ["BlockMask", "Error", "Note", "Plan", "Quantized", "__version__", "append", "attention", "bench", "block_table_of_csr", "decode", "document_ids", "explain", "num_threads", "paged_attention", "plan", "quantize", "set_num_threads", "tune", "varlen_attention"]
