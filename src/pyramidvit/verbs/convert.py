"""`pyramidvit convert`: weights from one library's names into another's."""

import io
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
from cyclopts import Parameter
from torch import Tensor

from pyramidvit import weights
from pyramidvit.errors import UserError
from pyramidvit.files import write_bytes, write_tensors
from pyramidvit.models import create_model
from pyramidvit.models.baselines import PREFIX
from pyramidvit.models.layers import Backbone
from pyramidvit.weights.guess import guess, shape_of
from pyramidvit.weights.layouts import Written, find, to_library
from pyramidvit.weights.source import obtain

PICKLED = (".pth", ".pyth", ".pt")


def convert(
    source: str,
    out: Path,
    *,
    model: str | None = None,
    layout: str = "own",
    other_eps: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Write weights in another library's names, or in ours, and say what became of every tensor.

    Args:
        source: Weights of ours or of a known library: a file, a published name such as pvt_v2_b2.in1k, or hf:owner/name. #NAME
            behind it chooses one of several networks in a file, such as last.pth#model_ema.
        out: File to write: .safetensors, or for other libraries .pth or .pyth.
        model: Network that the weights are of; found out from names and shapes if not given.
        layout: Whose names to use: own, official, timm, transformers, mmdet, slowfast, mvit, torchvision, pytorchvideo, mmaction2 or
            mmpretrain.
        other_eps: Write a PVT even where the library computes with another epsilon than the weights were trained with.
    """
    if out.suffix not in (".safetensors", *(() if layout == "own" else PICKLED)):
        raise UserError(f"Can't write {out.name}: our weights are .safetensors files, those of other libraries may be .pth or .pyth, too.")
    if os.path.lexists(out):
        raise UserError(f"{out} is there already, and nothing is overwritten: choose another name, or remove it first.")
    if model is not None and model.startswith(PREFIX):
        raise UserError(f"{model} has timm's own names here, too, so there is nothing to convert: give its file as --weights as it is.")
    tensors, meta = obtain(source)
    name, network = _network(tensors, model)
    report = weights.load(network, tensors)
    written = to_library(network.state_dict(), layout, other_eps=other_eps)
    if meta is not None and layout == "own":
        weights.save(out, written.tensors, replace(meta, model=name))
    else:
        _write(out, written, {"model": name, "layout": written.layout.name})
    sys.stdout.write(f"{source}: {name}, {report}\n")
    if written.dropped:
        sys.stdout.write(
            f"  {len(written.dropped):>4} left out, having no place in the {layout} layout: {', '.join(written.dropped[:5])}\n"
        )
    sys.stdout.write(f"{out}: {len(written.tensors)} tensors ({written.layout.name} layout)\n")
    return 0


def _network(tensors: Mapping[str, Tensor], name: str | None) -> tuple[str, torch.nn.Module]:
    """The network that a file holds, with the head and the numbers of channels and classes that it has there, and its name."""
    named = find(tensors).tensors
    body = {key.removeprefix("backbone."): tensor for key, tensor in named.items() if key.startswith("backbone.")}
    name = name or guess(body)
    if name is None:
        raise UserError(f"The file holds no published network that can be told from its shapes ({shape_of(body)}): name it with --model.")
    stem = next(tensor for key, tensor in body.items() if key in ("patches.weight", "stages.0.patches.weight"))
    in_chans, head, classes = stem.shape[1] if stem.ndim > 1 else 3, *_head(named)  # loading says what is wrong with such a stem
    if head is None:
        bare: Backbone = create_model(name, features_only=True, in_chans=in_chans)
        return name, bare
    return name, create_model(name, head=head, num_classes=classes, in_chans=in_chans)


def _head(named: Mapping[str, Tensor]) -> tuple[Any, int]:
    """Which of `models.HEADS` a file has, None for a bare backbone, and for how many classes."""
    rows = {key: len(tensor) for key, tensor in named.items() if key.endswith(".bias")}
    if "head.weight" in named:
        return "classify", len(named["head.weight"])
    if "roi_heads.mask.masks.bias" in rows:
        return "mask_rcnn", rows["roi_heads.mask.masks.bias"]
    if "class_tower.0.bias" in rows:
        anchors = max(rows.get("boxes.bias", 0) // 4, 1)
        return "retinanet", max(rows.get("classes.bias", 0) // anchors, 1)
    return ("semantic_fpn", rows["classes.bias"]) if "classes.bias" in rows else (None, 0)


def _write(out: Path, written: Written, about: Mapping[str, str]) -> None:
    if out.suffix == ".safetensors":
        write_tensors(out, written.tensors, about)
        return
    content, wrapper = {key: tensor.contiguous() for key, tensor in written.tensors.items()}, written.layout.wrapper
    buffer = io.BytesIO()
    torch.save(content if wrapper is None else {wrapper: content}, buffer)
    write_bytes(out, buffer.getvalue())
