"""Views have the right shape, values and chance; mixed batches carry exact shares."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from pyramidvit.config import AugmentConfig
from pyramidvit.data import transforms
from pyramidvit.data.transforms import COLOUR, GEOMETRY, denormalize, eval_transform, mix_batch, rand_augment, train_transform
from pyramidvit.errors import UserError
from pyramidvit.types import Batch, ClassTarget, MaskTarget, Preprocess, Sample

PLAIN = AugmentConfig(hflip=0, rand_ops=0, erasing=0, crop_scale=(1, 1), crop_ratio=(1, 1))


def picture(height: int, width: int, channels: int = 3, kind: str = "uint8") -> Tensor:
    generator = torch.Generator().manual_seed(height * width)
    if kind == "uint8":
        return torch.randint(256, (height, width, channels), dtype=torch.uint8, generator=generator).permute(2, 0, 1)
    return torch.rand((height, width, channels), generator=generator).permute(2, 0, 1)


def sample(image: Tensor) -> Sample:
    return Sample(image, ClassTarget(0), "a.jpg", (image.shape[1], image.shape[2]))


@pytest.mark.parametrize("kind", ["uint8", "float"])
@pytest.mark.parametrize("size", [(224, 224), (96, 64), (32, 160)])
@pytest.mark.parametrize("shape", [(1, 1), (1, 500), (500, 1), (348, 348), (31, 65), (300, 200)])
def test_any_picture_becomes_the_input_size(shape: tuple[int, int], size: tuple[int, int], kind: str) -> None:
    preprocess = Preprocess(size=size)
    for transform in (eval_transform(preprocess), train_transform(AugmentConfig(), preprocess)):
        image = transform(sample(picture(*shape, kind=kind))).image
        assert image.shape == (3, *size)
        assert image.dtype == torch.float32
        assert image.is_contiguous()
        assert image.isfinite().all()


@pytest.mark.parametrize("channels", [1, 2, 4, 6, 13])
@pytest.mark.parametrize("kind", ["uint8", "float"])
def test_any_number_of_channels(channels: int, kind: str) -> None:
    """PB-26, PB-37."""
    preprocess = Preprocess.for_channels(channels, size=(64, 64))
    for transform in (eval_transform(preprocess), train_transform(AugmentConfig(erasing=1), preprocess)):
        assert transform(sample(picture(80, 90, channels, kind))).image.shape == (channels, 64, 64)
    with pytest.raises(UserError, match=r"a\.jpg has 3 channels.*set in_chans"):
        eval_transform(preprocess)(sample(picture(80, 90)))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_evaluation_is_resize_and_centre_crop_as_pillow_does_it(interpolation: str) -> None:
    """348 x 300 at 224 / 0.875: short side 256, long side 296, then the middle."""
    y, x = np.mgrid[:348, :300]
    array = np.stack([128 + 100 * np.sin(x / 9), 128 + 100 * np.cos(y / 7), (x + y) % 256], -1).astype(np.uint8)
    resized = Image.fromarray(array).resize((256, 296), Image.Resampling[interpolation.upper()])
    expected = np.asarray(resized.crop((16, 36, 240, 260))).astype(int)
    preprocess = Preprocess(interpolation=interpolation)  # pyright: ignore[reportArgumentType]
    image = eval_transform(preprocess)(sample(torch.from_numpy(array).permute(2, 0, 1))).image
    difference = np.abs(denormalize(image, preprocess).permute(1, 2, 0).numpy().astype(int) - expected)
    assert difference.max() <= 2
    assert difference.mean() < 0.1


def test_eight_bits_and_float_give_the_same_view() -> None:
    preprocess = Preprocess(size=(64, 64))
    image = (127 + 90 * torch.sin(torch.arange(100 * 80 * 3) / 997)).reshape(3, 100, 80).to(torch.uint8)
    views = [eval_transform(preprocess)(sample(x)).image for x in (image, image / 255)]
    assert (views[0] - views[1]).abs().max() < 0.03  # one rounding step of 8 bits, divided by std


def test_extreme_shapes_take_little_memory_and_keep_the_middle() -> None:
    wide = torch.zeros(3, 1, 100_000, dtype=torch.uint8)
    wide[..., 49_990:50_010] = 200
    covered = transforms.resize_to_cover(wide, (256, 256), "bilinear")
    assert covered.shape[-1] <= 8 * 256 + 256
    assert covered[..., covered.shape[-1] // 2].float().mean() == 200


def test_values_are_normalised_and_come_back() -> None:
    preprocess = Preprocess(size=(32, 32), crop=1.0)
    image = picture(32, 32)
    view = eval_transform(preprocess)(sample(image)).image
    expected = (image[1].float() / 255 - preprocess.mean[1]) / preprocess.std[1]
    torch.testing.assert_close(view[1], expected)
    assert torch.equal(denormalize(view, preprocess), image)
    assert torch.equal(denormalize(train_transform(PLAIN, preprocess)(sample(image)).image, preprocess), image)


def test_flips_follow_their_probability() -> None:
    preprocess = Preprocess(size=(32, 32), crop=1.0)
    image = picture(32, 32)
    for settings, expected in (({"hflip": 1.0}, image.flip(-1)), ({"vflip": 1.0}, image.flip(-2))):
        view = train_transform(PLAIN.model_copy(update=settings), preprocess)(sample(image)).image
        assert torch.equal(denormalize(view, preprocess), expected)


def test_wide_inputs_get_wide_crops() -> None:
    """The crop ratio is relative to the input, or a 1:4 input would always show squeezed pictures."""
    preprocess = Preprocess(size=(32, 128))
    transform = transforms._TrainTransform(AugmentConfig(crop_ratio=(1, 1), crop_scale=(0.2, 0.2)), preprocess)
    params = transform.crop.make_params([picture(100, 400)])
    assert params["width"] / params["height"] == pytest.approx(4, rel=0.1)


def test_the_same_seed_gives_the_same_view_and_another_one_another() -> None:
    transform = train_transform(AugmentConfig(), Preprocess(size=(64, 64)))
    views = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        views.append(transform(sample(picture(90, 80))).image)
    assert torch.equal(views[0], views[1])
    assert not torch.equal(views[0], views[2])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", [*GEOMETRY, *COLOUR])
def test_each_operation_keeps_shape_range_and_meaning_on_both_types(name: str, channels: int) -> None:
    op = (GEOMETRY | COLOUR)[name]
    image = (torch.arange(40 * 48 * channels) % 251).reshape(channels, 40, 48).to(torch.uint8)
    for level, sign in ((0.0, 1), (0.9, 1), (0.9, -1), (1.0, 1)):
        eight = op(image, transforms._Strength(level, sign, [128.0] * channels))
        real = op(image / 255, transforms._Strength(level, sign, [128 / 255] * channels))
        assert eight.shape == real.shape == image.shape
        assert eight.dtype == torch.uint8
        assert 0 <= real.min() <= real.max() <= 1
        if name != "equalize":  # its float version counts in other bins
            assert (eight / 255 - real).abs().mean() < 0.03
    identity = name not in ("autocontrast", "equalize", "invert", "posterize")
    assert not identity or torch.equal(op(image, transforms._Strength(0.0, 1, [128.0] * channels)), image)


def test_geometry_moves_as_far_as_it_says() -> None:
    image = torch.zeros(1, 40, 100, dtype=torch.uint8)
    image[:, :, 50] = 255
    moved = GEOMETRY["translate_x"](image, transforms._Strength(0.5, 1, [0.0]))
    assert int(moved[0, 0].argmax()) == 50 + round(0.5 * 0.45 * 100)
    down = GEOMETRY["translate_y"](image.transpose(1, 2), transforms._Strength(1.0, -1, [0.0]))
    assert int(down[0, :, 0].argmax()) == 50 - 45


def test_magnitude_varies_from_operation_to_operation_and_half_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[float] = []

    def record(image: Tensor, strength: transforms._Strength) -> Tensor:
        levels.append(strength.level)
        return image

    monkeypatch.setattr(transforms, "GEOMETRY", {"record": record})
    monkeypatch.setattr(transforms, "COLOUR", {})
    torch.manual_seed(0)
    rand_augment(picture(8, 8), AugmentConfig(rand_ops=2000, rand_magnitude=5, rand_magnitude_std=0.5), (0.5,) * 3)
    assert 900 < len(levels) < 1100
    assert np.mean(levels) == pytest.approx(0.5, abs=0.01)
    assert np.std(levels) == pytest.approx(0.05, abs=0.005)


def test_colour_operations_are_left_out_for_other_channel_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """PB-37: saturation of seven bands means nothing."""
    monkeypatch.setattr(transforms, "COLOUR", {"never": lambda *_: pytest.fail("colour operation on bands")})
    for channels in (2, 4, 7):
        rand_augment(picture(8, 8, channels), AugmentConfig(rand_ops=50), (0.5,) * channels)


def test_erasing_writes_noise_per_pixel() -> None:
    preprocess = Preprocess(size=(64, 64), crop=1.0)
    image = torch.full((3, 64, 64), 128, dtype=torch.uint8)
    plain = eval_transform(preprocess)(sample(image)).image
    erased = train_transform(PLAIN.model_copy(update={"erasing": 1.0}), preprocess)(sample(image)).image
    changed = erased[:, (erased != plain).any(0)]
    assert 0.01 < changed.shape[1] / 64**2 < 0.4
    assert changed.std() > 0.8
    assert len(changed.unique()) > changed.numel() / 2


def batch(size: int, side: int = 16) -> Batch:
    images = torch.arange(size, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 3, side, side).clone()
    return Batch(images, tuple(ClassTarget(i) for i in range(size)), ("x",) * size, ((side, side),) * size, ((side, side),) * size)


@pytest.mark.parametrize("size", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("settings", [{"mixup": 0}, {"cutmix": 0}, {}], ids=["cutmix", "mixup", "both"])
def test_shares_are_exact_for_any_batch_size(size: int, settings: dict[str, Any]) -> None:
    """PB-68: odd, single and empty batches. Picture i holds the value i, so the mean tells the true share."""
    generator, given, shares = torch.Generator().manual_seed(0), batch(size), []
    for _ in range(30):
        mixed = mix_batch(given, AugmentConfig(**settings), generator)
        assert mixed.images.shape == given.images.shape
        for i, target in enumerate(mixed.targets):
            assert isinstance(target, ClassTarget)
            assert (target.label, target.other) == (i, (i - 1) % size)
            expected = target.share * i + (1 - target.share) * ((i - 1) % size)
            assert float(mixed.images[i].mean()) == pytest.approx(expected, abs=1e-5)
            shares.append(target.share)
    assert torch.equal(given.images, batch(size).images)  # the batch that came in is left alone
    assert size == 0 or (min(shares) < 0.3 and max(shares) > 0.7)


def test_mixing_follows_probability_share_and_seed() -> None:
    def kinds(**settings: Any) -> list[str]:
        generator = torch.Generator().manual_seed(1)
        images = [mix_batch(batch(2), AugmentConfig(**settings), generator).images[1] for _ in range(200)]
        return ["none" if (x == 1).all() else "cutmix" if ((x == 0) | (x == 1)).all() else "mixup" for x in images]

    assert set(kinds(mix_prob=0)) == {"none"}
    assert set(kinds(mixup=0, cutmix=0)) == {"none"}
    assert 60 < kinds(cutmix_share=0.5).count("cutmix") < 130
    assert kinds(cutmix_share=0).count("cutmix") == 0
    assert 70 < kinds(mix_prob=0.5).count("none") < 130
    assert kinds() == kinds()


def test_only_single_classes_can_be_mixed() -> None:
    given = Batch(torch.zeros(1, 3, 8, 8), (MaskTarget(torch.zeros(8, 8, dtype=torch.uint8)),), ("x",), ((8, 8),), ((8, 8),))
    with pytest.raises(UserError, match="exactly one class"):
        mix_batch(given, AugmentConfig(), torch.Generator())
    assert mix_batch(given, AugmentConfig(mixup=0, cutmix=0), torch.Generator()) is given


def test_shear_is_a_slope() -> None:
    image = torch.zeros(1, 101, 101, dtype=torch.uint8)
    image[:, :, 50] = 255
    sheared = GEOMETRY["shear_x"](image, transforms._Strength(1.0, 1, [0.0]))
    top, bottom = (int(sheared[0, row].argmax()) for row in (10, 90))
    assert abs(top - bottom) / 80 == pytest.approx(0.3, abs=0.03)
    assert math.copysign(1, top - bottom) in (1.0, -1.0)
