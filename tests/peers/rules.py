"""What flashcore has no kernel for, by the names of the peers' tests: each group of parameter sets that is left out, with its reason. A test
that flashcore fails belongs here only if the feature is missing and a call of it is refused; a wrong result never does."""

import re

# Of each file: values of an inner loop that pytest does not see, (text, its replacement, how often it is there). No bound of a test is among them.
_CHUNKS = "[torch.randint(1, seqlen_k * 2, (1,)).item(), 0]"
EDITS = {"test_flash_attn.py": [(_CHUNKS, "[0]  # flashcore has no attention_chunk", 3)]}


def module_name(path):
    """As pytest imports a test file: from the folder above the outermost package that it is in."""
    parts = [path.stem]
    for folder in path.parents:
        if not (folder / "__init__.py").is_file():
            break
        parts.insert(0, folder.name)
    return ".".join(parts)



NO_QV = "qv beside a cache whose K and V are not columns of one tensor"
NO_BYTE_ROTARY = "rotary embedding of 8-bit rows"
NO_FP4 = "4-bit caches"
NO_ROPE = "pos_encoding_mode=ROPE_LLAMA: rotary embedding inside attention"
NO_CAPPED_ALIBI = "ALiBi with logits_soft_cap (another definition)"
NO_ITEMS = "multi-item scoring"
NO_SPARSE = "block-sparse wrappers"
NO_COMPILE = "fullgraph torch.compile of the function with its host checks"
NO_MIXED_8 = "queries of 8 bits beside a cache of another type"
NOT_A_KERNEL = "tests FlashInfer's own kernel selection or error messages"
COMPUTED = "asks that a call be refused which flashcore computes"
WIDE_ON_CPU = "TIME: head dims above 256 on a CPU"
LONG_ON_CPU = "TIME: too many scores for a dry run"

# Test or "*", names of parameters (all must hold), reason. A value is a number, a text, or a function of the value.
_RULES = [
    ("*", {"pos_encoding_mode": "ROPE_LLAMA"}, NO_ROPE),
    ("*", {"pos_encoding_mode": "ALIBI", "logits_soft_cap": lambda x: x > 0}, NO_CAPPED_ALIBI),
]
_BY_NAME = [
    ("nvfp4", NO_FP4),
    ("multi_item_scoring", NO_ITEMS),
    ("block_sparse", NO_SPARSE),
    ("torch_compile", NO_COMPILE),
    ("race_condition", "1000 runs of a gradient with 70 GB of memory held"),
    ("flash3_bw_compatibility", "schemas of operators that FlashAttention registers"),
    ("smem_probe", NOT_A_KERNEL),
    ("test_fp8_kv_requires_scales", NOT_A_KERNEL),
    ("test_tensor_core_decode_rejects_mismatched_q_len", COMPUTED),
    ("test_fp8_kv_plan_rejects_fp16_q", COMPUTED),
    ("test_cutlass_mla", "latent attention's backend=cutlass"),
    ("fp8_nope_group_scales", "ckv_scale_arr: factors of each token"),
]


def group_of(item):
    """A test's file and its name without parameters."""
    name = getattr(item, "originalname", None) or item.name
    if item.cls is not None:  # PyTorch's way, with the parameters in the name
        name = item.cls.__name__
    return f"{item.path.name}::{name.split('[')[0]}"


def why_left_out(test, values, settings):
    """None: it is drawn from. Else the reason."""
    test = test.split("::")[1]
    for part, reason in _BY_NAME:
        if part in test:
            return reason
    if settings["device"] == "cpu" and settings.get("suite") == "flash-attention" and values.get("d") == 64 and "output" in test:
        return WIDE_ON_CPU  # the tests loop over V's head dims 256 and 512 too
    for of_test, needed, reason in _RULES:
        if of_test in ("*", test) and all(name in values and _holds(x, values[name]) for name, x in needed.items()):
            return reason
    if settings["device"] == "cpu":
        if any(isinstance(x, int) and x > 256 for name, x in values.items() if "head_dim" in name or name == "d"):
            return WIDE_ON_CPU
        numbers = [x for name, x in values.items() if isinstance(x, int) and not isinstance(x, bool) and ("len" in name or "seq" in name)]
        if any(x > 600 for x in numbers):
            return LONG_ON_CPU
    return None


# What PyTorch's fused kernels refuse and the function computes.
_REFUSED_BY_PYTORCH = ("test_invalid_last_dim_stride", "test_invalid_fused_inputs_attn_mask_present", "test_flash_attention_fail_with_non_square_causal_attention",
                       "test_cudnn_attention_fail_d128", "test_invalid_sdpa_kernel_grouped_query_attention_cuda")  # fmt: skip


def why_no_sdpa_test(item, settings):
    """Of PyTorch's file: None for a test of scaled_dot_product_attention on the device that is asked for."""
    of_device = (item.cls.__name__ if item.cls else "").endswith(settings["device"].upper())
    if not of_device:
        return "of another device"
    if any(part in item.name for part in _REFUSED_BY_PYTORCH):
        return COMPUTED
    return None if "TestSDPA" in item.cls.__name__ or "TestAttnBias" in item.cls.__name__ else "no test of scaled_dot_product_attention"


def _holds(wanted, value):
    return wanted(value) if callable(wanted) else wanted == value and type(wanted) is type(value)


# What flashcore says when it refuses, and the feature that is missing.
_REFUSALS = [
    (r"head_dim.* (on a CPU|CPU)|cpu_fwd|needs a GPU", "TIME: not on a CPU"),
    (r"pos_encoding_mode is 'ROPE_LLAMA'", NO_ROPE),
    (r"pos_encoding_mode='ALIBI'", NO_CAPPED_ALIBI),
    (r"prefix_len_ptr is given|token_pos_in_items_ptr is given", NO_ITEMS),
    (r"kv_cache_sf is given", NO_FP4),
    (r"qv is given, and k_cache and v_cache are not columns", NO_QV),
    (r"rotary_cos is (e4m3|given and k is e4m3)", NO_BYTE_ROTARY),
]


def why_refused(error):
    """The missing feature, or None: a failure."""
    if not any(cls.__name__ == "Error" and cls.__module__.startswith("flashcore") for cls in type(error).__mro__):
        return None
    return next((reason for text, reason in _REFUSALS if re.search(text, str(error))), None)
