"""Whose names a file uses: recognised from its keys and shapes, whatever it is wrapped in."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from pyramidvit.errors import UserError, nearest
from pyramidvit.weights.layouts.heads import DENSE_HEADS
from pyramidvit.weights.layouts.keymap import TABLES, Layout, rename
from pyramidvit.weights.layouts.mvit import MVIT_LAYOUTS
from pyramidvit.weights.layouts.pvt import PVT_LAYOUTS

OWN = (
    Layout("own", "own", anchor="stages.0.patches.weight", names={}, head={"head": "head"}, prefix="backbone."),
    Layout("own", "own", "patches.weight", {}, {"head": "head"}, ("stages.0.blocks.0.norm1.weight",), prefix="backbone."),
)
"""Ours: PVT, whose stages each have patches, and MViT. Without names, for they are what others are mapped to."""

LAYOUTS = (*OWN, *PVT_LAYOUTS, *MVIT_LAYOUTS)

EXTRA = "_extra_state"
"""Ours, of a backbone: the epsilon that it was trained with, see models/epsilon.py."""

WRAPPERS = ("module.", "_orig_mod.", "model.", "net.")
"""What training code puts before every name."""


HEAD = "not needed here, the head of another task"
"""Why a tensor is dropped."""


@dataclass(frozen=True)
class Found:
    """A file's tensors under our names: the backbone's as ``backbone.…``, a classifier's as ``head.…``, others as they were."""

    layout: Layout
    tensors: dict[str, Tensor]
    dropped: dict[str, str]
    """Keys of the file that our networks have no place for, and why."""


def find(tensors: Mapping[str, Tensor]) -> Found:
    """Recognise the layout of a file's tensors and give them our names; UserError for one that isn't known."""
    tensors = unwrapped(tensors)
    if empty := [
        f"{key} {tuple(t.shape)}" for key, t in tensors.items() if key.endswith(("weight", "bias")) and not (t.ndim and t.numel())
    ]:
        raise UserError(
            f"The file holds no values, or one alone, in {', '.join(empty[:3])}, where layers have rows of them: it is damaged."
        )
    hits = [(layout, prefixes) for layout in LAYOUTS if (prefixes := layout.prefixes(tensors))]
    if not hits:
        raise UserError(_unknown(tensors))
    layout, prefixes = next((hit for hit in hits if hit[0].shaped(_part(tensors, hit[1][0]))), hits[0])
    if len(prefixes) > 1:
        names = " and ".join(prefix or "no prefix" for prefix in sorted(prefixes))
        last = max(prefixes).split(".")[0]
        raise UserError(
            f"The file holds several networks in the {layout.name} layout, under {names}: name one of them behind the file, as in "
            f"weights.pth#{last}."
        )
    body = _part(tensors, prefixes[0])
    ours, unknown = (body, list[str]()) if layout in OWN else layout.to_ours(body)
    dropped = {key: why for key in unknown for start, why in layout.dropped.items() if key.startswith(start)}
    around = prefixes[0].removesuffix(layout.prefix)  # what stands before the head, too
    others = {key.removeprefix(around): tensor for key, tensor in tensors.items() if not key.startswith(prefixes[0])}
    others |= {key: body[key] for key in unknown if key not in dropped}
    for key in [key for key in others if key.startswith("backbone.")]:  # Detectron2's pyramid, beside the network proper
        dropped[key] = HEAD
        del others[key]
    if layout in OWN and not prefixes[0]:  # a bare backbone's names, among which a head may stand
        others = {key: ours.pop(key) for key in list(ours) if key.startswith("head.")}
    heads = next((heads for mark, heads in DENSE_HEADS.items() if mark in others), {}) if layout.dense else {}
    head, rest = rename(others, [*layout.head.items(), *heads.items()], ())
    named = {f"backbone.{key}": tensor for key, tensor in ours.items()} | head | {key: others[key] for key in rest}
    return Found(layout, named, dropped)


@dataclass(frozen=True)
class Written:
    """A network's tensors as a library names and shapes them."""

    layout: Layout
    tensors: dict[str, Tensor]
    dropped: tuple[str, ...]
    """Ours that the library's files never hold, such as a classifier in those of detectors."""


def to_library(tensors: Mapping[str, Tensor], library: str, *, other_eps: bool = False) -> Written:
    """A network's state dict, whole or of a bare backbone, in the layout of a library.

    UserError when the library has no layout for such a network, or computes with another epsilon than the weights were trained with, which
    ``other_eps`` accepts.
    """
    known = sorted({layout.library for layout in LAYOUTS})
    if library not in known:
        close = nearest(library, known, 1)
        raise UserError(f"There is no layout {library!r}{f'; did you mean {close[0]}?' if close else '.'} Layouts: {', '.join(known)}.")
    whole = any(key.startswith("backbone.") for key in tensors)
    backbone = _part(tensors, "backbone." if whole else "")
    others = {key: tensor for key, tensor in tensors.items() if whole and not key.startswith("backbone.")}
    if library == OWN[0].library:
        return Written(OWN[0], dict(tensors), ())
    eps = backbone.pop(EXTRA, None)
    reasons: list[str] = []
    for layout in (layout for layout in LAYOUTS if layout.library == library):
        body, unknown = layout.from_ours({key: t for key, t in backbone.items() if not key.startswith(layout.without or "-")})
        head, rest, prefix = _heads_of(layout, others)
        named = {prefix + key: tensor for key, tensor in body.items()} | head
        if unknown or [key for key in rest if not (key.startswith("head.") and not layout.head)]:
            reasons.append(f"{layout.name} has no place for {', '.join((unknown + rest)[:3])}")
        elif not layout.prefixes(named) or not layout.shaped(named):
            reasons.append(f"{layout.name} is for another kind of network")
        else:
            if eps is not None and eps.item() != layout.patch_eps and not other_eps:
                raise UserError(_other_eps(layout, eps.item()))
            left = [f"backbone.{key}" for key in backbone if key.startswith(layout.without or "-")]
            return Written(layout, named, (*left, *rest))
    raise UserError(f"These weights can't be written in the layout {library!r}: {'; '.join(reasons)}.")


def _heads_of(layout: Layout, others: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str], str]:
    """A network's tensors beside its backbone in a layout, those without a name there, and what stands before the backbone's names."""
    for heads in DENSE_HEADS.values() if layout.dense else ():
        named, rest = rename(others, [(ours, theirs) for theirs, ours in heads.items()], ())
        if named and not rest:
            return named, rest, "backbone."
    named, rest = rename(others, [(ours, theirs) for theirs, ours in layout.head.items()], ())
    return named, rest, layout.prefix


def unwrapped(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without what training code puts before every name."""
    names = dict(tensors)
    while wrapper := next((w for w in WRAPPERS if names and all(key.startswith(w) for key in names)), None):
        names = {key.removeprefix(wrapper): tensor for key, tensor in names.items()}
    return names


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def _other_eps(layout: Layout, eps: float) -> str:
    return (
        f"These weights were trained with epsilon {eps:g} in the norms after patches and after reduction; {layout.name} computes with "
        f"{layout.patch_eps:g}, which moves the outputs by a hundredth to half of their deviation. Set the epsilon there, too, and convert "
        "with --other-eps."
    )


def _unknown(tensors: Mapping[str, Tensor]) -> str:
    layouts = ", ".join(dict.fromkeys(layout.name for layout in LAYOUTS))
    sample = "\n".join(f"  {key} {tuple(tensor.shape)}" for key, tensor in list(tensors.items())[:5])
    return (
        f"The file does not fit this model: its names are those of no network that is known here. The first of its {len(tensors)} "
        f"tensors:\n{sample}\nLayouts that are known: {layouts}."
    )


__all__ = ["EXTRA", "HEAD", "LAYOUTS", "TABLES", "Found", "Layout", "Written", "find", "to_library", "unwrapped"]
