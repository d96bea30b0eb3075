"""A file's tensors into a network: whole and exactly, or not at all."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pyramidvit.errors import UserError
from pyramidvit.models.layers import Backbone
from pyramidvit.weights.fit import CHANNELS, CLIPS, IN_TIME, TABLE, fit
from pyramidvit.weights.guess import guess, shape_of
from pyramidvit.weights.layouts import EXTRA, HEAD, Found, Layout, find
from pyramidvit.weights.report import LoadReport, mismatch, sample
from pyramidvit.weights.zoo import clip_of

HEADS = ("head", "classifier", "cls_head", "neck", "decode_head", "auxiliary_head", "bbox_head", "rpn_head", "roi_head", "mask_head")
HEADS += ("proposal_generator", "roi_heads", "fpn", "rpn", "class_tower", "box_tower", "classes", "boxes", "branches")
"""First parts of names, ours and others', of what stands on a backbone."""

ANEW = "A training starts such layers anew by itself; in Python, load(…, new_classes=True) leaves them random."

RESET = ""
"""What a tensor that keeps its random start is listed under."""


def load(
    model: nn.Module, tensors: Mapping[str, Tensor], *, new_classes: bool = False, inflate: bool = False, anew: tuple[str, ...] = ()
) -> LoadReport:
    """Fill ``model``, a backbone or a network with one as ``backbone``, from ``tensors`` in our own or a published layout.

    Every tensor of the file must have its place and every place its tensor. These differences are allowed, and reported: the first
    convolution is fitted to another number of input channels (see `adapt_stem`); position tables are resized to the model's; values are
    converted to the model's type; what this network has no use for, such as the head of another task, is dropped; with ``new_classes``
    heads of another size, or that the file lacks, keep their random start, and so does what begins with ``anew`` by our names, whatever the
    file has; with ``inflate`` a picture network becomes a clip network (see `inflated`; tables in time start at 0). Weights whose layout
    has an epsilon of its own bring it along. Anything else, and values that are not finite, raise UserError, and the model is left as it
    was.
    """
    target = Target.of(model)
    own = target.backbone.own_names(tensors)
    found = find(tensors) if own is None else Found(Layout("timm", "timm", "", {}, {}), own, {})
    given = {key: tensor for key, tensor in target.names(found.tensors).items() if not key.startswith(anew)}
    extra = given.pop(target.place + EXTRA, None)
    if extra is not None and extra.numel() != 1:
        raise UserError(f"The file's epsilon is one number; got {EXTRA} with the shape {tuple(extra.shape)}: the file is damaged.")
    eps = found.layout.patch_eps if extra is None else extra.item()
    wanted = {key: value for key, value in model.state_dict().items() if not key.endswith(EXTRA)}
    dropped = found.dropped | target.droppable(given.keys() - wanted.keys(), wanted)
    unexpected, missing = given.keys() - wanted.keys() - dropped.keys(), wanted.keys() - given.keys()
    layers = {key.rpartition(".")[0] for key in given if key.endswith((".weight", ".bias"))}  # of one, a file has both or none
    missing -= {
        key
        for key in missing
        if (new_classes and target.on_top(key) and not (key.endswith((".weight", ".bias")) and key.rpartition(".")[0] in layers))
        or (inflate and target.in_time(key))
    }
    if missing or unexpected:
        raise UserError(_refusal(missing, unexpected, wanted, found, target))
    state, fates = dict(wanted), dict[str, list[str]]()
    for key, now in wanted.items():
        fitted = fit(key, given[key], now.shape, inflate=inflate) if key in given else _start(key, now)
        if fitted is None:
            if not (new_classes and target.on_top(key)):
                raise UserError(_wrong_shape(key, given[key].shape, now.shape, found, target))
            fitted = now, [RESET]
        state[key] = fitted[0]
        for fate in fitted[1]:
            fates.setdefault(fate, []).append(key)
    cast = {
        key: f"from {_type(given[key])} to {_type(tensor)}"
        for key, tensor in wanted.items()
        if key in given and key not in fates.get(RESET, ()) and given[key].dtype != tensor.dtype
    }
    state = {key: tensor.to(wanted[key].dtype) for key, tensor in state.items()}
    if whole := [key for key in wanted if key in given and wanted[key].is_floating_point() and not given[key].is_floating_point()]:
        raise UserError(f"The file holds whole numbers in {sample(whole)}, where weights are fractions: quantised files can't be read.")
    if damaged := [key for key, tensor in state.items() if tensor.is_floating_point() and not tensor.isfinite().all()]:
        raise UserError(f"The weights hold values that are not finite, in {sample(damaged)}: they are damaged, or training diverged.")
    if target.place + EXTRA in model.state_dict():
        state[target.place + EXTRA] = model.state_dict()[target.place + EXTRA] if eps is None else torch.tensor(eps, dtype=torch.float64)
    model.load_state_dict(state)
    changed = {key for keys in (*fates.values(), cast) for key in keys}
    adapted, resized, inflated, reset = (tuple(fates.get(fate, ())) for fate in (CHANNELS, TABLE, CLIPS, RESET))
    return LoadReport(found.layout.name, len(wanted) - len(changed), adapted, resized, inflated, reset, dropped, eps, cast)


@dataclass(frozen=True)
class Target:
    """The network to fill, its backbone, and what stands before the backbone's names in it."""

    model: nn.Module
    backbone: Backbone
    place: str

    @classmethod
    def of(cls, model: nn.Module) -> "Target":
        if isinstance(model, Backbone):
            return cls(model, model, "")
        backbone = getattr(model, "backbone", None)
        if not isinstance(backbone, Backbone):
            raise TypeError(f"Expected one of our backbones, or a network that has one as backbone, got {type(model).__name__}.")
        return cls(model, backbone, "backbone.")

    def names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A file's tensors as this network calls them."""
        return {self.place + key.removeprefix("backbone.") if key.startswith("backbone.") else key: t for key, t in tensors.items()}

    def on_top(self, key: str) -> bool:
        """Whether a tensor of the network belongs to its task, and not to the maps of its backbone."""
        return not key.startswith(self.place) or key.removeprefix(self.place).startswith(self.backbone.classify_only or "head.")

    def in_time(self, key: str) -> bool:
        """Whether only clips have such a tensor, or a class token, which pictures of MViT v2 have none of."""
        return key.split(".")[-1] in (*IN_TIME, "class_token")

    def droppable(self, keys: Collection[str], wanted: Collection[str]) -> dict[str, str]:
        """Which tensors of a file this network does without, and why: heads that it has none of, stages that it leaves out."""
        mine = {key.split(".")[0] for key in wanted}
        dropped: dict[str, str] = {}
        for key in keys:
            first = key.split(".")[0]
            if first in HEADS and first not in mine:
                dropped[key] = HEAD
            elif key.startswith(self.place) and self.backbone.leaves_out(key.removeprefix(self.place)):
                dropped[key] = "not needed here"
        return dropped


def _start(key: str, now: Tensor) -> tuple[Tensor, list[str]]:
    """What a tensor that the file lacks starts as."""
    return (torch.zeros_like(now), [CLIPS]) if key.split(".")[-1] in IN_TIME else (now, [RESET])


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _looks(found: Found, target: Target) -> tuple[str, str | None, str | None]:
    """What file and model seem to be, in a sentence and by name."""
    if target.backbone.name:
        return f"The model is {target.backbone.name}.", None, target.backbone.name
    body = {key.removeprefix("backbone."): tensor for key, tensor in found.tensors.items() if key.startswith("backbone.")}
    theirs, ours = guess(body), guess(target.backbone.state_dict())
    text = f"The file looks like {theirs or f'no published network ({shape_of(body)})'} in the {found.layout.name} layout"
    text += f"; the model is {ours or f'none of the published ones ({shape_of(target.backbone.state_dict())})'}."
    return text, theirs, ours


def _refusal(missing: Collection[str], unexpected: Collection[str], wanted: Collection[str], found: Found, target: Target) -> str:
    text, theirs, ours = _looks(found, target)
    lines = [mismatch(missing, unexpected, len(wanted), text)]
    if not unexpected and all(target.on_top(key) for key in missing):
        part = any(target.on_top(key) for key in target.names(found.tensors))
        what = "only a part of the head: the rest" if part else "only the backbone: the head"
        lines.append(f"The file holds {what} would be random. Give a file with the whole head. {ANEW}")
    elif theirs and theirs != ours:
        lines.append(f"Choose the model {theirs} or another file.{_inflatable(ours)}")
    elif theirs:
        lines.append("It is this network, but not as it is published: save its own tensors again, all of them and no others.")
    elif target.backbone.name:
        lines.append("Give a file that this network of timm was saved in.")
    else:
        lines.append("No network here is made like that, so this file can't be loaded.")
    return "\n".join(lines)


def _inflatable(ours: str | None) -> str:
    if ours is None or clip_of(ours) is None:
        return ""
    return f" Weights of pictures start {ours} with `train --weights`, or in Python with load(…, inflate=True)."


def _wrong_shape(key: str, given: torch.Size, wanted: torch.Size, found: Found, target: Target) -> str:
    text = f"{key} has shape {tuple(given)} in the file and {tuple(wanted)} in the model"
    if target.on_top(key):
        return f"{text}: the file has other classes. {ANEW}"
    looks, theirs, ours = _looks(found, target)
    remedy = f"Choose the model {theirs} or another file." if theirs and theirs != ours else "The file holds another network."
    return f"{text}. {looks} {remedy}"
