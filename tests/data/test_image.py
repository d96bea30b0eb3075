"""A file gives an upright array of the right shape, or an error with path and reason; nothing else."""

import contextlib
import csv
import importlib.util
import pickle
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageDraw, ImageFile

from pyramidvit.data.image import BandError, ImageError, RangeError, ReadOptions, inspect_image, read_image
from pyramidvit.errors import UserError

ROBUST = Path(__file__).parents[3] / "shared" / "data" / "robust_images"
ROWS = list(csv.DictReader((ROBUST / "MANIFEST.csv").read_text().splitlines())) if ROBUST.is_dir() else []
NEED_RANGE = {"tiff_multiband/test_1_bands_float32.tif", "tiff_multiband/test_3_bands_float32.tif"}
OPENS_WITH_TIFFFILE = {f"tiff_multiband/test_3_bands_{kind}.tif" for kind in ("int8", "int16", "int32")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["file"])
@pytest.mark.parametrize("in_chans", [1, 3])
def test_every_robust_file_is_an_upright_array_or_an_error_with_reason(row: dict[str, str], in_chans: int) -> None:
    """PB-35, PB-34: truncated, empty, mislabelled, gigapixel, animated, every mode and orientation."""
    path, options = ROBUST / row["file"], ReadOptions(in_chans=in_chans)
    unreadable = ("Error" in row["pillow_13_result"] and row["file"] not in OPENS_WITH_TIFFFILE) or row["file"] in NEED_RANGE
    if unreadable:
        with pytest.raises(ImageError) as error:
            read_image(path, options)
        assert error.value.path == str(path)
        assert len(error.value.reason) > 10
    else:
        array = read_image(path, options)
        info = inspect_image(path, options)
        assert array.shape == (info.height, info.width, in_chans)
        assert array.dtype == (np.uint8 if info.dtype == "uint8" else np.float32)
        assert array.flags.c_contiguous
        assert array.flags.writeable


def test_the_gigapixel_files_are_refused_before_decoding(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("decoded"))
    for name in ("bomb/decompression_bomb.gif", "derived/huge_30000x30000_1bit.png"):
        with pytest.raises(ImageError, match="pixels"):
            read_image(shared / "data/robust_images" / name)


def test_a_higher_cap_than_that_of_pillow_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    path = save(tmp_path, Image.new("L", (100, 50)))
    with pytest.raises(ImageError, match="not decoded"):
        read_image(path, ReadOptions(max_pixels=1500))
    assert read_image(path, ReadOptions(max_pixels=5000)).shape == (50, 100, 3)


@pytest.mark.parametrize("kind", ["Landscape", "Portrait"])
def test_all_eight_orientations_of_a_photo_look_alike(shared: Path, kind: str) -> None:
    """PB-34; the pictures differ in a printed digit only."""
    folder = shared / "data/robust_images/exif"
    first, *others = (read_image(folder / f"{kind}_{n}.jpg").astype(float) for n in range(1, 9))
    for other in others:
        assert other.shape == first.shape
        assert np.abs(other - first).mean() < 6


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif", "avif"])
@pytest.mark.parametrize("tag", range(1, 9))
def test_orientation_is_applied_once_and_can_be_switched_off(tmp_path: Path, tag: int, suffix: str) -> None:
    """PB-34, also for TIFF, which Pillow turns by itself."""
    upright = Image.new("RGB", (48, 32), "white")
    ImageDraw.Draw(upright).rectangle((0, 0, 15, 7), fill="black")
    undo = [None, None, 0, 3, 1, 5, 2, 6, 4][tag]  # Pillow's transpose that stores the picture so that the tag turns it back
    stored = upright if undo is None else upright.transpose(Image.Transpose(undo))
    exif = Image.Exif()
    exif[274] = tag
    path = tmp_path / f"picture.{suffix}"
    stored.save(path, exif=exif, quality=95)
    off = ReadOptions(orientation=False)
    assert np.abs(read_image(path).astype(int) - np.asarray(upright)).mean() < 3
    assert np.abs(read_image(path, off).astype(int) - np.asarray(stored)).mean() < 3
    assert inspect_image(path).orientation == tag
    assert (inspect_image(path, off).height, inspect_image(path, off).width) == (stored.height, stored.width)


def test_orientation_of_multi_band_tiff_is_applied_too(tmp_path: Path) -> None:
    bands = np.arange(6 * 4 * 5, dtype=np.uint16).reshape(6, 4, 5)
    tifffile.imwrite(tmp_path / "a.tif", bands, photometric="minisblack", planarconfig="contig", extratags=[(274, 3, 1, 6, True)])
    full = np.rot90(bands, -1) / np.float32(65535)
    np.testing.assert_allclose(read_image(tmp_path / "a.tif", ReadOptions(in_chans=5)), full, rtol=1e-6)


def test_orientation_off_for_fax_tiff(shared: Path) -> None:
    path = shared / "data/robust_images/exif/g4_orientation_6.tif"
    assert read_image(path).shape == (88, 590, 3)
    np.testing.assert_array_equal(np.rot90(read_image(path, ReadOptions(orientation=False)), -1), read_image(path))


def save(tmp_path: Path, image: Image.Image, suffix: str = "png", **settings: Any) -> Path:
    path = tmp_path / f"file.{suffix}"
    image.save(path, **settings)
    return path


def test_alpha_lies_over_white_unless_it_is_asked_for(tmp_path: Path) -> None:
    path = save(tmp_path, Image.new("RGBA", (4, 4), (200, 0, 0, 51)))
    assert read_image(path)[0, 0].tolist() == [244, 204, 204]
    assert read_image(path, ReadOptions(in_chans=4))[0, 0].tolist() == [200, 0, 0, 51]
    path = save(tmp_path, Image.new("LA", (4, 4), (100, 0)))
    assert read_image(path)[0, 0].tolist() == [255, 255, 255]
    assert read_image(path, ReadOptions(in_chans=1))[0, 0].tolist() == [255]
    assert read_image(path, ReadOptions(in_chans=2))[0, 0].tolist() == [100, 0]


def test_palette_and_colour_key_transparency_lie_over_white(tmp_path: Path) -> None:
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([9, 9, 9, 10, 20, 30])
    assert read_image(save(tmp_path, palette))[0, 0].tolist() == [10, 20, 30]
    assert read_image(save(tmp_path, palette, transparency=1))[0, 0].tolist() == [255, 255, 255]
    assert read_image(save(tmp_path, Image.new("L", (4, 4), 7), transparency=7))[0, 0].tolist() == [255] * 3


def test_cmyk_one_bit_and_lab(tmp_path: Path, shared: Path) -> None:
    assert read_image(save(tmp_path, Image.new("CMYK", (4, 4), (255, 0, 0, 0)), "tif"))[0, 0].tolist() == [0, 255, 255]
    assert set(np.unique(read_image(save(tmp_path, Image.new("1", (4, 4), 1))))) == {255}
    lab = read_image(shared / "data/robust_images/modes/hopper.Lab.tif").astype(int)
    same = read_image(shared / "data/robust_images/modes/hopper.bmp").astype(int)
    assert np.abs(lab - same).mean() < 12  # the same portrait: read as plain RGB it would differ by far more


def test_one_channel_takes_grey_and_three_repeat_it(tmp_path: Path) -> None:
    """PB-26, data part."""
    path = save(tmp_path, Image.new("RGB", (4, 4), (10, 200, 60)))
    grey = round(0.299 * 10 + 0.587 * 200 + 0.114 * 60)
    assert read_image(path, ReadOptions(in_chans=1))[0, 0].tolist() == [grey]
    assert read_image(save(tmp_path, Image.new("L", (4, 4), 77)))[0, 0].tolist() == [77] * 3


@pytest.mark.parametrize("in_chans", [2, 4, 6, 13])
def test_a_photo_does_not_pass_for_other_channel_counts(tmp_path: Path, in_chans: int) -> None:
    """PB-26, PB-37: never three channels, or made-up ones, where others were asked for."""
    with pytest.raises(BandError, match=f"3 bands.*takes {in_chans}"):
        read_image(save(tmp_path, Image.new("RGB", (4, 4))), ReadOptions(in_chans=in_chans))


@pytest.mark.parametrize("bands", [2, 4, 6, 7, 12, 13])
@pytest.mark.parametrize("layout", ["npy last", "npy first", "tiff contig", "tiff separate", "tiff pages"])
def test_bands_are_kept_whatever_the_layout(tmp_path: Path, bands: int, layout: str) -> None:
    """PB-37, PB-26: 16-bit multi-band files, band axis first or last."""
    array = np.random.default_rng(0).integers(0, 65536, (20, 30, bands), dtype=np.uint16)
    path = tmp_path / ("a.npy" if "npy" in layout else "a.tif")
    if layout == "npy last":
        np.save(path, array)
    elif layout == "npy first":
        np.save(path, array.transpose(2, 0, 1))
    elif layout == "tiff pages":
        tifffile.imwrite(path, array.transpose(2, 0, 1), photometric="minisblack", metadata=None)
    elif layout == "tiff separate":
        tifffile.imwrite(path, array.transpose(2, 0, 1), photometric="minisblack", planarconfig="separate")
    else:
        tifffile.imwrite(path, array, photometric="minisblack", planarconfig="contig", compression="zlib")
    options = ReadOptions(in_chans=bands)
    read = read_image(path, options)
    np.testing.assert_allclose(read, array / np.float32(65535), rtol=1e-6)
    info = inspect_image(path, options)
    assert (info.height, info.width, info.bands, info.dtype) == (20, 30, bands, "uint16")
    if layout == "tiff pages":  # without --in-chans pages are frames
        assert read_image(path).shape == (20, 30, 3)
    else:
        with pytest.raises(BandError, match=f"{bands} bands"):
            read_image(path, ReadOptions(in_chans=5))


def test_rgb_with_a_near_infrared_band_is_not_taken_for_rgb(tmp_path: Path) -> None:
    """PB-37, 8 bits: the fourth band of a plain RGB TIFF is not opacity."""
    array = np.random.default_rng(0).integers(0, 256, (8, 9, 4), dtype=np.uint8)
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="rgb", extrasamples=["unspecified"])
    np.testing.assert_array_equal(read_image(tmp_path / "a.tif", ReadOptions(in_chans=4)), array)
    with pytest.raises(BandError, match="--in-chans 4"):
        read_image(tmp_path / "a.tif")


@pytest.mark.parametrize("dtype", ["uint16", "int16", "uint32", "int32", "int8"])
def test_integers_map_their_full_range_or_the_stated_one(tmp_path: Path, dtype: str) -> None:
    limits = np.iinfo(dtype)
    array = np.array([[limits.min, limits.max], [0, 100]], dtype=dtype)
    for path in (tmp_path / "a.npy", tmp_path / "a.tif"):
        np.save(path, array) if path.suffix == ".npy" else tifffile.imwrite(path, array)
        grey = read_image(path, ReadOptions(in_chans=1))[..., 0]
        assert grey.dtype == np.float32
        assert grey[0].tolist() == [0.0, 1.0]
        stated = read_image(path, ReadOptions(in_chans=1, value_range=(0, 200)))[..., 0]
        assert stated.tolist() == [[0.0, 1.0 if limits.max > 200 else pytest.approx(127 / 200)], [0.0, 0.5]]


def test_big_endian_sixteen_bit_equals_little_endian(shared: Path) -> None:
    modes = shared / "data/robust_images/modes"
    np.testing.assert_array_equal(read_image(modes / "16bit.cropped.tif"), read_image(modes / "16bit.MM.cropped.tif"))


def test_white_is_zero_is_inverted_at_any_depth(tmp_path: Path) -> None:
    array = np.array([[0, 1000], [65535, 7]], np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", array, photometric="miniswhite")
    expected = (65535 - array.astype(float)) / 65535
    np.testing.assert_allclose(read_image(tmp_path / "a.tif", ReadOptions(in_chans=1))[..., 0], expected, atol=1e-6)


def test_compressed_deep_tiff_needs_no_other_package_while_it_has_one_band(tmp_path: Path) -> None:
    array = np.array([[0, 1000], [65535, 7]], np.uint16)
    path = save(tmp_path, Image.fromarray(array), "tif", compression="tiff_lzw")
    np.testing.assert_allclose(read_image(path, ReadOptions(in_chans=1))[..., 0], array / 65535, atol=1e-6)
    pages = [Image.fromarray(array)] * 3
    path = save(tmp_path, pages[0], "tif", compression="tiff_lzw", save_all=True, append_images=pages)
    if importlib.util.find_spec("imagecodecs") is None:
        with pytest.raises(ImageError, match="pip install imagecodecs"):
            read_image(path, ReadOptions(in_chans=4))


def test_twelve_bits_map_their_own_range(tmp_path: Path) -> None:
    """Two pixels of 12 bits, packed into three bytes: 4095 and 0."""
    tags = [(256, 2), (257, 1), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 3)]
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags)
    content = b"II*\0" + struct.pack("<I", 12) + b"\xff\xf0\x00\0" + struct.pack("<H", len(tags)) + entries + bytes(4)
    (tmp_path / "a.tif").write_bytes(content)
    assert read_image(tmp_path / "a.tif", ReadOptions(in_chans=1))[..., 0].tolist() == [[1.0, 0.0]]


def test_tiff_without_its_pixels_is_damaged(tmp_path: Path) -> None:
    """The reader would give an empty array."""
    tifffile.imwrite(tmp_path / "a.tif", np.ones((5, 5), np.float64))
    content = (tmp_path / "a.tif").read_bytes()
    assert content.count(struct.pack("<HH", 273, 4)) == 1
    (tmp_path / "a.tif").write_bytes(content.replace(struct.pack("<HH", 273, 4), struct.pack("<HH", 272, 4)))
    with pytest.raises(ImageError, match="damaged"):
        read_image(tmp_path / "a.tif")


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif", "gif", "npy"])
def test_altered_bytes_give_a_picture_or_an_image_error(tmp_path: Path, suffix: str) -> None:
    """Whatever a file holds: no other exception, no warning."""
    rng = np.random.default_rng(0)
    exif = Image.Exif()
    exif[274] = 6
    if suffix == "npy":
        np.save(tmp_path / "file.npy", np.zeros((9, 8, 3), np.uint16))
    else:
        Image.effect_noise((30, 20), 60).save(tmp_path / f"file.{suffix}", exif=exif)
    content = (tmp_path / f"file.{suffix}").read_bytes()
    for _ in range(150):
        altered = bytearray(content)
        for place in rng.integers(0, len(content) if rng.random() < 0.5 else min(len(content), 200), rng.integers(1, 6)):
            altered[place] = rng.integers(256)
        (tmp_path / "altered").write_bytes(altered)
        with contextlib.suppress(ImageError):
            assert read_image(tmp_path / "altered", ReadOptions(max_pixels=10**6)).ndim == 3


def test_float_needs_known_limits(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.array([[0.25, 1.0]], np.float32))
    assert read_image(path, ReadOptions(in_chans=1))[0, :, 0].tolist() == [0.25, 1.0]
    np.save(path, np.array([[-5.0, 20.0]], np.float32))
    with pytest.raises(RangeError, match=r"from -5 to 20.*--value-range -5 20"):
        read_image(path)
    assert read_image(path, ReadOptions(in_chans=1, value_range=(-5, 20)))[0, :, 0].tolist() == [0.0, 1.0]
    np.save(path, np.array([[0.5, np.nan]]))
    with pytest.raises(RangeError, match="NaN or infinite"):
        read_image(path, ReadOptions(value_range=(0, 1)))


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("pickle-was-opened"),))  # pyright: ignore[reportReturnType]


def test_npy_with_pickled_or_nonsense_content_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("pickled.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    np.save("flat.npy", np.zeros(5))
    np.save("cube.npy", np.zeros((2, 2, 2, 2)))
    np.save("huge.npy", np.zeros((3, 3)))
    content = bytearray(Path("huge.npy").read_bytes())
    Path("huge.npy").write_bytes(content.replace(b"(3, 3)", b"(9999999, 9999999)"))
    for name in ("pickled.npy", "flat.npy", "cube.npy", "huge.npy"):
        with pytest.raises(ImageError):
            read_image(name)
    assert not Path("pickle-was-opened").exists()


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.mark.parametrize("side", [10_000, 50_000])
def test_decompression_bombs_are_refused_by_their_header(tmp_path: Path, side: int) -> None:
    """10,000 squared is below the error limit of Pillow, above its warning and above ours here."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    path = tmp_path / "bomb.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b""))
    with pytest.raises(ImageError, match="not decoded"):
        read_image(path, ReadOptions(max_pixels=50_000_000))


def test_eps_is_never_opened(tmp_path: Path) -> None:
    path = save(tmp_path, Image.new("RGB", (40, 40)), "eps").rename(tmp_path / "picture.jpg")
    with pytest.raises(ImageError, match="not a picture that can be read"):
        read_image(path)


def test_damaged_files_say_which_and_why(tmp_path: Path) -> None:
    """PB-35: cut at 60 %, empty, text under a picture's name; a folder and a missing file too."""
    whole = save(tmp_path, Image.effect_noise((200, 200), 60), "jpg").read_bytes()
    contents = {
        "cut.jpg": (whole[: len(whole) * 6 // 10], "cut off"),
        "empty.png": (b"", "0 bytes"),
        "text.jpg": (b"hello, I am text", "hello"),
    }
    for name, (content, reason) in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ImageError, match=reason) as error:
            read_image(tmp_path / name)
        assert name in str(error.value)
    with pytest.raises(ImageError, match="no such file"):
        read_image(tmp_path / "missing.jpg")
    with pytest.raises(ImageError, match="folder"):
        read_image(tmp_path)
    tifffile.imwrite(tmp_path / "cut.tif", np.ones((50, 50, 7), np.uint16), photometric="minisblack", planarconfig="contig")
    content = (tmp_path / "cut.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(content[:-5000])
    with pytest.raises(ImageError, match="cut off"):
        read_image(tmp_path / "cut.tif", ReadOptions(in_chans=7))


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    red, blue = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "blue")
    for suffix in ("gif", "png", "webp", "tif"):
        path = save(tmp_path, red, suffix, save_all=True, append_images=[blue])
        assert np.abs(read_image(path)[4, 4].astype(int) - [255, 0, 0]).max() < 8
        assert inspect_image(path).frames == 2


def test_the_error_survives_pickling() -> None:
    """It has to come back from worker processes with its parts."""
    for kind in (ImageError, BandError, RangeError):
        error = pickle.loads(pickle.dumps(kind("a/b.jpg", "damaged.")))
        assert (type(error), error.path, error.reason) == (kind, "a/b.jpg", "damaged.")
        assert isinstance(error, UserError)


def test_threads_read_side_by_side_without_warnings(shared: Path) -> None:
    """Corrupt EXIF makes Pillow warn; hiding that must be safe between threads (warnings are errors here)."""
    path, failures = shared / "data/robust_images/broken/hopper_bad_exif.jpg", []

    def work() -> None:
        try:
            for _ in range(10):
                read_image(path)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
