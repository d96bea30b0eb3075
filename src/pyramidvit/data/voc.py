"""Pascal VOC xml, one per picture: Annotations/, JPEGImages/ and ImageSets/Main/train.txt; or xml beside the pictures, in train/ and val/.

The picture is the one with the name of the xml, or else the one that its filename names. Coordinates are taken as they stand, as
annotation tools write them today; only in files whose source says PASCAL VOC, where the first pixel is number 1 and the last one counts,
left and top become one less. Difficult objects are neither learned nor counted as missed, as in the VOC challenge: they become crowds.
"""

from pathlib import Path
from xml.etree import ElementTree

from pyramidvit.data.annotations import (
    RawData,
    RawObject,
    RawPicture,
    RawSplit,
    below,
    choose_splits,
    pictures_below,
    split_of,
    unknown_names,
)
from pyramidvit.data.listing import entries_of, first_of, read_lines
from pyramidvit.errors import UserError


class _NoDoctype(ElementTree.TreeBuilder):
    """Refuses document types, the only way to entities that grow without end or read other files."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise UserError(f"it declares a document type ({name} {pubid or ''} {system or ''}), which VOC annotations never do")


def read_voc(root: Path) -> RawData | None:
    """Annotations of each split; None when ``root`` holds no xml. UserError when a file is damaged."""
    data = RawData("VOC", root, {})
    annotations = first_of(root, ("annotations", "xml", "labels"))
    if annotations is not None and (files := _xml(annotations)):
        pictures = first_of(root, ("jpegimages", "images", "img")) or annotations
        by_stem = _by_stem(pictures)
        for split, stems in _image_sets(root, data).items():
            chosen = files if stems is None else {stem: files[stem] for stem in stems if stem in files}
            missing = [] if stems is None else [stem for stem in stems if stem not in files]
            if missing:
                data.findings.append(unknown_names(missing, split, "in ImageSets", f"xml in {annotations.name}/"))
            data.splits[split] = RawSplit([_picture(file, pictures, by_stem) for file in chosen.values()])
        return data
    folders = [root, *entries_of(root, [])[0]]
    with_xml = {folder: split_of(folder, root) for folder in folders if _xml(folder)}
    for split, folder in choose_splits(with_xml, root, data.findings).items():
        by_stem = _by_stem(folder)
        data.splits[split] = RawSplit([_picture(file, folder, by_stem) for file in _xml(folder).values()])
    return data if data.splits else None


def _xml(folder: Path) -> dict[str, Path]:
    return {file.stem: file for file in entries_of(folder, [])[1] if file.suffix.lower() == ".xml"}


def _by_stem(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in pictures_below(folder)}


def _image_sets(root: Path, data: RawData) -> dict[str, list[str] | None]:
    """Names in each split; None for all when there are no lists."""
    places = [root / "ImageSets" / "Main", root / "ImageSets" / "Segmentation", root / "ImageSets", root]
    for place in places:
        if not place.is_dir():
            continue
        lists = {file: file.stem for file in entries_of(place, [])[1] if file.suffix == ".txt" and file.stem in ("train", "val", "test")}
        if lists:
            chosen = choose_splits(dict(lists), root, data.findings)
            return {split: _names(file) for split, file in chosen.items()}
    return {"all": None}


def _names(file: Path) -> list[str]:
    return list(dict.fromkeys(line.strip() for line in read_lines(file) if line.strip()))


def _picture(file: Path, folder: Path, by_stem: dict[str, Path]) -> RawPicture:
    try:
        tree = ElementTree.fromstring(file.read_bytes(), ElementTree.XMLParser(target=_NoDoctype()))
        size = _size(tree)
        named = (tree.findtext("filename") or "").strip()
        path = by_stem.get(file.stem) or below(folder, named or file.stem, str(file))
        shift = 1 if "PASCAL VOC" in (tree.findtext("source/annotation") or "").upper() else 0
        objects = [_object(one, shift) for one in tree.iterfind("object")]
    except (OSError, ElementTree.ParseError, LookupError, ValueError, OverflowError) as error:
        raise UserError(f"{file} can't be used: {error}.") from error
    return RawPicture(path, size, objects, file.stem)


def _size(tree: ElementTree.Element) -> tuple[int, int] | None:
    height, width = (int(float(tree.findtext(f"size/{side}") or 0)) for side in ("height", "width"))
    return (height, width) if height > 0 and width > 0 else None


def _object(one: ElementTree.Element, shift: int) -> RawObject:
    name = (one.findtext("name") or "").strip()
    if not name:
        raise ValueError("an object has no name")
    edges: list[float] = []
    for edge in ("xmin", "ymin", "xmax", "ymax"):
        text = one.findtext(f"bndbox/{edge}")
        if text is None:
            raise ValueError(f"the object {name} has no bndbox with {edge}")
        edges.append(float(text))
    left, top, right, bottom = edges
    return RawObject((left - shift, top - shift, right, bottom), name, crowd=(one.findtext("difficult") or "0").strip() == "1")
