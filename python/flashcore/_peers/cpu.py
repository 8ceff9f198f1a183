"""How attentions that run on a CPU only are called: OpenVINO and onnxruntime, on as many threads as PyTorch has.

Each is one operator's graph whose inputs and outputs lie in the memory of the problem's tensors: no call copies any.
"""

from __future__ import annotations

import math
from typing import Any

from .call import TwoBufferCall
from .problem import Problem, Refused


def _repeated(p: Problem) -> tuple[Any, Any, list[str]]:
    """K and V with a head for each of q's. The copy is not timed, reading it is."""
    if not p.grouped:
        return p.k, p.v, []
    k, v = (x.repeat_interleave(p.heads // p.heads_kv, dim=1) for x in (p.k, p.v))
    return k, v, ["repeats K and V"]


def _need_plain_mask(p: Problem, whose: str) -> None:
    if p.left is not None or p.right not in (None, 0):
        raise Refused(f"{whose} has no window but by a mask tensor")
    if p.right == 0 and p.offset != 0:
        raise Refused(f"{whose} aligns a causal mask top-left, this problem's is bottom-right")
    if p.batch * p.rows * p.keys == 0:
        raise Refused(f"{whose} takes no empty tensors")


def openvino_call(p: Problem) -> TwoBufferCall:
    import openvino
    import torch
    from openvino import opset13

    _need_plain_mask(p, "OpenVINO's ScaledDotProductAttention")
    kinds = {torch.float32: (openvino.Type.f32, "f32"), torch.float16: (openvino.Type.f16, "f16"), torch.bfloat16: (openvino.Type.bf16, "bf16")}
    kind, precision = kinds[p.dtype]
    k, v, notes = _repeated(p)
    tensors = [p.q, k, v]
    nodes = [opset13.parameter(list(x.shape), kind) for x in tensors]
    scale = opset13.constant(p.scale, dtype=kind) if p.scale is not None else None
    graph = opset13.scaled_dot_product_attention(*nodes, scale=scale, causal=p.right == 0)
    model = openvino.Model([graph.output(0)], nodes, "attention")
    compiled = openvino.Core().compile_model(model, "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": str(torch.get_num_threads()), "INFERENCE_PRECISION_HINT": precision})  # fmt: skip
    if compiled.output(0).get_element_type() != kind:
        raise Refused(f"OpenVINO answers in {compiled.output(0).get_element_type()}, not in {kind}")

    def shared(x: Any) -> Any:
        if p.dtype == torch.float32:
            return openvino.Tensor(x.numpy(), shared_memory=True)
        return openvino.Tensor(x.view(torch.int16).numpy(), openvino.Shape(list(x.shape)), kind)

    request = compiled.create_infer_request()
    for index, x in enumerate(tensors):
        request.set_input_tensor(index, shared(x))
    outs = [p.empty_output() for _ in range(2)]
    views = [shared(x) for x in outs]

    def compute(i: int, keep: Any = tensors) -> None:  # the graph holds addresses
        request.set_output_tensor(0, views[i])
        request.infer()

    return TwoBufferCall(compute, [(x, None) for x in outs], tuple(notes))


def _onnx_model(p: Problem, kind: int) -> bytes:
    """ONNX's own Attention, of [batch, heads, rows, dim]."""
    from onnx import checker, helper

    shapes = {"q": [p.batch, p.heads, p.rows, p.dim], "k": [p.batch, p.heads_kv, p.keys, p.dim], "v": [p.batch, p.heads_kv, p.keys, p.dim_v],
              "o": [p.batch, p.heads, p.rows, p.dim_v]}  # fmt: skip
    values = {name: helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()}
    scale = p.scale or 1 / math.sqrt(p.dim)
    node = helper.make_node("Attention", ["q", "k", "v"], ["o"], is_causal=int(p.right == 0), scale=scale)
    graph = helper.make_graph([node], "attention", [values["q"], values["k"], values["v"]], [values["o"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    checker.check_model(model)
    return bytes(model.SerializeToString())


def onnxruntime_call(p: Problem) -> TwoBufferCall:
    import numpy
    import onnxruntime
    import torch

    _need_plain_mask(p, "onnxruntime's Attention")
    try:
        from onnx import TensorProto
    except ImportError as error:
        raise Refused(f"onnxruntime's graph is made with the package onnx, which does not import: {error}") from error
    kinds = {torch.float32: (TensorProto.FLOAT, numpy.float32), torch.float16: (TensorProto.FLOAT16, numpy.float16)}
    if p.dtype not in kinds:
        raise Refused(f"its attention on a CPU takes float32 and float16, not {p.dtype}")
    kind, element = kinds[p.dtype]
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(_onnx_model(p, kind), options, providers=["CPUExecutionProvider"])
    inputs = {"q": p.q, "k": p.k, "v": p.v}
    outs = [p.empty_output() for _ in range(2)]
    bindings = []
    for out in outs:
        binding = session.io_binding()
        for name, x in inputs.items():
            binding.bind_input(name, "cpu", 0, element, list(x.shape), x.data_ptr())
        binding.bind_output("o", "cpu", 0, element, list(out.shape), out.data_ptr())
        bindings.append(binding)

    def compute(i: int, keep: Any = inputs) -> None:  # the bindings hold addresses
        session.run_with_iobinding(bindings[i])

    return TwoBufferCall(compute, [(x, None) for x in outs])
