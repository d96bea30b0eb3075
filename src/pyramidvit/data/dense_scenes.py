"""Generated scenes as data sets for dense prediction: COCO json with a mask per object, or a label map per picture."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pyramidvit.data.scenes import PILE_CLASSES, Scene, piles
from pyramidvit.errors import UserError
from pyramidvit.files import write_text
from pyramidvit.geometry import encode_mask

LABEL_CLASSES = ("background", *PILE_CLASSES)
"""Of label maps, in the order of their values."""


def write_object_scenes(folder: Path, *, train: int, val: int, size: tuple[int, int] = (128, 128), seed: int = 0) -> None:
    """``images/*.png``, ``instances_train.json`` and ``instances_val.json`` with boxes and run lengths, from different seeds."""
    _new(folder / "images")
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(PILE_CLASSES)]
    for split, count, split_seed in (("train", train, 2 * seed), ("val", val, 2 * seed + 1)):
        images: list[dict[str, Any]] = []
        annotations: list[dict[str, Any]] = []
        for index, scene in enumerate(piles(count, size=size, seed=split_seed)):
            name = f"{split}_{index:06d}.png"
            Image.fromarray(scene.image).save(folder / "images" / name, compress_level=1)
            images.append({"id": index + 1, "file_name": name, "height": size[0], "width": size[1]})
            annotations += _objects(scene, index + 1, len(annotations))
        content = {"images": images, "annotations": annotations, "categories": categories}
        write_text(folder / f"instances_{split}.json", json.dumps(content))


def write_label_scenes(folder: Path, *, train: int, val: int, size: tuple[int, int] = (128, 128), seed: int = 0) -> None:
    """``images/<split>/*.png``, ``masks/<split>/*.png`` whose values are the places in ``classes.txt``, from different seeds."""
    for split, count, split_seed in (("train", train, 2 * seed), ("val", val, 2 * seed + 1)):
        images, masks = folder / "images" / split, folder / "masks" / split
        for place in (images, masks):
            _new(place)
        for index, scene in enumerate(piles(count, size=size, seed=split_seed)):
            Image.fromarray(scene.image).save(images / f"{index:06d}.png", compress_level=1)
            Image.fromarray(scene.mask.labels.numpy()).save(masks / f"{index:06d}.png", compress_level=1)
    write_text(folder / "classes.txt", "".join(f"{name}\n" for name in LABEL_CLASSES))


def _objects(scene: Scene, image: int, before: int) -> list[dict[str, Any]]:
    """COCO's annotations of one scene; ``before`` is how many there are already."""
    target = scene.boxes
    assert target.masks is not None
    found: list[dict[str, Any]] = []
    for number, (box, label, mask) in enumerate(zip(target.boxes.tolist(), target.labels.tolist(), target.masks, strict=True)):
        rle = encode_mask(mask)
        left, top, right, bottom = box
        found.append(
            {
                "id": before + number + 1,
                "image_id": image,
                "category_id": label + 1,
                "bbox": [left, top, right - left, bottom - top],
                "area": int(np.count_nonzero(mask.numpy())),
                "iscrowd": 0,
                "segmentation": {"size": [*rle.size], "counts": rle.counts.decode("ascii")},
            }
        )
    return found


def _new(folder: Path) -> None:
    if folder.exists():
        raise UserError(f"{folder} exists already: scenes are written to a new folder only, so that two sets never mix.")
    folder.mkdir(parents=True)
