"""Which attentions there are, what each is asked for, and which of them import here."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Callable

from .. import _library
from . import cpu, cudnn_frontend, flash_attention, flashinfer, flex_attention, pytorch, xformers
from .call import NO_LSE, Call
from .problem import Problem, Refused


@dataclasses.dataclass
class Peer:
    make: Callable[[Problem], Call]
    notes: list[str] = dataclasses.field(default_factory=list)  # that hold for every problem
    package: str | None = None  # beside PyTorch
    on_cpu: bool = False
    on_gpu: bool = True
    by_default: bool = True
    takes_scores: bool = False  # softcap, ALiBi, sinks, functions of scores
    takes_masks: bool = False  # functions of pairs
    takes_8bit: bool = False
    takes_ragged: bool = False  # ragged batches; which of them, and of paged caches, it says itself
    takes_quantised: bool = False  # caches of 8 bits beside wider queries; which of them it says itself


PEERS = {
    "cudnn": Peer(pytorch.sdpa_call_of("cudnn"), takes_masks=True),
    "cudnn_frontend": Peer(cudnn_frontend.cudnn_frontend_call, [NO_LSE], "cudnn", takes_8bit=True, takes_ragged=True),
    "flash": Peer(pytorch.sdpa_call_of("flash"), on_cpu=True, takes_ragged=True),
    "efficient": Peer(pytorch.sdpa_call_of("efficient"), takes_masks=True),
    "math": Peer(pytorch.sdpa_call_of("math"), on_cpu=True, takes_masks=True, takes_ragged=True),
    "varlen": Peer(pytorch.varlen_call, takes_ragged=True),
    "flex": Peer(flex_attention.flex_call_of(None), takes_scores=True, takes_masks=True),
    # Minutes of compiling for each problem.
    "flex_autotune": Peer(flex_attention.flex_call_of("max-autotune-no-cudagraphs"), by_default=False, takes_scores=True, takes_masks=True),
    "flash_attn": Peer(flash_attention.flash_attention_call_of("flash_attn"), package="flash_attn", takes_ragged=True),
    "flash_attn_3": Peer(flash_attention.flash_attention_call_of("flash_attn_interface"), package="flash_attn_interface", takes_ragged=True),
    "flashinfer": Peer(flashinfer.flashinfer_call, [NO_LSE], "flashinfer", takes_ragged=True, takes_quantised=True),
    "xformers": Peer(xformers.xformers_call, [NO_LSE], "xformers"),
    "openvino": Peer(cpu.openvino_call, [NO_LSE], "openvino", on_cpu=True, on_gpu=False),
    "onnxruntime": Peer(cpu.onnxruntime_call, [NO_LSE], "onnxruntime", on_cpu=True, on_gpu=False),
}


def peer_call(name: str, p: Problem) -> Call:
    peer = PEERS[name]
    if p.scored and not peer.takes_scores:
        raise Refused("it knows no softcap, ALiBi, sinks or functions of scores, or is not asked for them")
    if p.mask_text and not peer.takes_masks:
        raise Refused("it knows no masks but bands, or is not asked for them")
    if p.quantised and not peer.takes_quantised:
        raise Refused("it takes no quantised caches, or is not asked for them")
    if p.is_8bit and not peer.takes_8bit:
        raise Refused("it takes no 8-bit types, or is not asked for them")
    if p.ragged and not peer.takes_ragged:
        raise Refused("it knows no ragged batches and paged caches, or is not asked for them")
    if p.ragged and (p.scored or p.mask_text or p.is_8bit):
        raise Refused("of ragged batches it is asked for plain ones only")
    return peer.make(p)


def available(names: list[str], on_gpu: bool) -> tuple[dict[str, str], dict[str, str]]:
    """name -> version of those that import, and name -> why not of the others."""
    import torch

    versions, absent = {}, {}
    for name in names:
        peer = PEERS.get(name)
        if peer is None:
            raise _library.Error(f"unknown peer '{name}'; known: {', '.join(PEERS)}")
        if not on_gpu and not peer.on_cpu:
            absent[name] = "it runs on a GPU only"
            continue
        if on_gpu and not peer.on_gpu:
            absent[name] = "it runs on a CPU only here"
            continue
        if peer.package is None:
            cudnn = f", cuDNN {torch.backends.cudnn.version()}" if name == "cudnn" else ""
            triton = f", Triton {importlib.import_module('triton').__version__}" if name.startswith("flex") else ""
            versions[name] = f"PyTorch {torch.__version__}{cudnn}{triton}"
            continue
        try:
            module = importlib.import_module(peer.package)
            below = f", cuDNN {module.backend_version()}" if name == "cudnn_frontend" else ""
            versions[name] = f"{peer.package} {getattr(module, '__version__', 'of unknown version')}{below}"
        except Exception as error:  # noqa: BLE001: a broken installation raises anything
            absent[name] = f"{peer.package} does not import: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return versions, absent
