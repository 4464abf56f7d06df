"""Each graph of a tiny network is traced once per test run; the files and workers of the run share it.

Tracing takes 2 to 7 s of a processor however small the network is, and many files export the same ones. To import this
module is to share. What is kept is the graph as the tracer returns it: what the export makes of it runs every time.
"""

import hashlib
import os

import onnx_ir as ir
import torch
from shared import create_once
from torch.utils import _pytree as pytree

from reflectdrive_ros.deploy import export, export_denoiser

trace = export.trace


def digest_of(module, tensors, *names):
    """Of all that a graph depends on: settings, hooks and weights of each part of the module, its arguments, the names.

    An object that prints its address gives a digest of its own, so that nothing is shared.
    """
    digest = hashlib.sha256(repr((os.environ.get("ATEN_CPU_CAPABILITY"), names)).encode())

    def add(value):
        parts = [type(value).__name__]
        if isinstance(value, torch.Tensor):
            parts = [value.dtype, tuple(value.shape)]
            digest.update(value.detach().double().contiguous().numpy().tobytes())
        digest.update(repr(parts if isinstance(value, torch.Tensor) else (parts, value)).encode())

    for name, part in module.named_modules():
        settings = {key: value for key, value in vars(part).items() if not key.startswith("_")}
        digest.update(repr((name, type(part).__qualname__, sorted(settings))).encode())
        digest.update(repr((len(part._forward_hooks), len(part._forward_pre_hooks))).encode())
        for key in sorted(settings):
            add(settings[key])
    for name, weight in module.state_dict(keep_vars=True).items():
        digest.update(name.encode())
        add(weight)
    leaves, spec = pytree.tree_flatten(tensors)
    digest.update(repr(spec).encode())
    for leaf in leaves:
        add(leaf)
    return digest.hexdigest()


def shared_trace(module, tensors, inputs, outputs, shapes):
    name = f"{digest_of(module.eval(), tensors, inputs, outputs, repr(shapes))}.onnx"
    return ir.load(create_once(name, lambda file: ir.save(trace(module, tensors, inputs, outputs, shapes), file)))


export.trace = export_denoiser.trace = shared_trace
