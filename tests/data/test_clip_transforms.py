"""Augmentation of clips is the same for all frames; evaluation views are where they are said to be; batches of clips mix."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pyramidvit.config import AugmentConfig
from pyramidvit.data.clip_transforms import clip_eval_transform, clip_train_transform
from pyramidvit.data.transforms import denormalize, eval_transform, mix_batch, train_transform
from pyramidvit.errors import UserError
from pyramidvit.types import Batch, ClassTarget, Preprocess, Sample

KINETICS = Preprocess(size=(32, 32), mean=(0.45,) * 3, std=(0.225,) * 3, interpolation="bilinear")
STRONG = AugmentConfig(size=(32, 32), rand_ops=4, rand_magnitude=7, erasing=1.0)


def sample(image: Tensor) -> Sample:
    return Sample(image, ClassTarget(0), "clip.mp4", (image.shape[-2], image.shape[-1]))


def noise(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_every_frame_gets_the_same_augmentation(dtype: torch.dtype) -> None:
    """A clip of equal frames stays one, through crop, flip, RandAugment of all kinds and erasing."""
    still = noise(3, 1, 40, 60).expand(3, 5, 40, 60)
    still = still.float() / 255 if dtype == torch.float32 else still
    transform = clip_train_transform(STRONG, KINETICS)
    seen = []
    for seed in range(60):
        torch.manual_seed(seed)
        clip = transform(sample(still)).image
        assert clip.shape == (3, 5, 32, 32)
        assert torch.equal(clip, clip[:, :1].expand_as(clip)), seed
        seen.append(clip[:, 0])
    assert len({tuple(one.flatten().tolist()) for one in seen}) == 60  # and every clip another


def test_a_frame_comes_out_as_a_picture_would() -> None:
    """Same random numbers, same pixels: frame 2 of the clip alone."""
    clip = noise(3, 4, 40, 60)
    for seed in range(20):
        torch.manual_seed(seed)
        whole = clip_train_transform(STRONG, KINETICS)(sample(clip)).image[:, 2]
        torch.manual_seed(seed)
        alone = train_transform(STRONG, KINETICS)(sample(clip[:, 2])).image
        assert torch.allclose(whole, alone, atol=1e-5), seed


def test_the_flip_can_be_switched_off() -> None:
    """Where left and right are classes."""
    ramp = torch.linspace(0, 255, 64).to(torch.uint8).expand(3, 2, 64, 64)
    plain = AugmentConfig(size=(32, 32), rand_ops=0, erasing=0.0, crop_scale=(0.5, 1.0), hflip=0.0)
    rises = {0.0: set[bool](), 0.5: set[bool]()}
    for hflip, found in rises.items():
        transform = clip_train_transform(plain.model_copy(update={"hflip": hflip}), KINETICS)
        for seed in range(20):
            torch.manual_seed(seed)
            image = transform(sample(ramp)).image
            found.add(bool(image[..., -1].mean() > image[..., 0].mean()))
    assert rises == {0.0: {True}, 0.5: {True, False}}


def test_kinetics_statistics() -> None:
    image = clip_eval_transform(KINETICS)(sample(torch.full((3, 2, 40, 40), 255, dtype=torch.uint8))).image
    assert torch.allclose(image, torch.tensor((1 - 0.45) / 0.225))


def test_one_view_is_the_centre_of_every_frame() -> None:
    clip = noise(3, 4, 40, 60)
    views = clip_eval_transform(KINETICS)(sample(clip)).image
    assert views.shape == (3, 4, 32, 32)
    for number in range(4):
        assert torch.equal(views[:, number], eval_transform(KINETICS)(sample(clip[:, number])).image)


@pytest.mark.parametrize("tall", [False, True])
def test_three_crops_lie_along_the_longer_side(tall: bool) -> None:
    """The short side is resized to the input itself; both ends and the middle, together the whole clip."""
    ramp = torch.linspace(0, 255, 96).round().to(torch.uint8).expand(3, 4, 32, 96)
    clip = ramp.transpose(-1, -2) if tall else ramp
    views = clip_eval_transform(KINETICS, crops=3)(sample(clip)).image
    assert views.shape == (3, 3, 4, 32, 32)
    back = [denormalize(view[:, 0], KINETICS) for view in views]
    expected = [clip[:, 0, 32 * i : 32 * i + 32] if tall else clip[:, 0, :, 32 * i : 32 * i + 32] for i in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(back, expected, strict=True))


def test_views_are_clips_times_crops_in_that_order() -> None:
    clip = torch.cat([torch.full((3, 4, 32, 64), value, dtype=torch.uint8) for value in (10, 200)], dim=1)
    clip[..., :32] += 40
    views = clip_eval_transform(KINETICS, clips=2, crops=3)(sample(clip)).image
    assert views.shape == (6, 3, 4, 32, 32)
    levels = [int(denormalize(view[:, 0], KINETICS)[0, 16, 4]) for view in views]
    assert levels == [50, 50, 10, 240, 240, 200]  # left, middle, right of the first clip, then of the second
    assert clip_eval_transform(KINETICS, clips=2)(sample(clip)).image.shape == (2, 3, 4, 32, 32)
    with pytest.raises(UserError, match="1 or 3 crops"):
        clip_eval_transform(KINETICS, crops=2)


@pytest.mark.parametrize("size", [(241, 321), (32, 640), (240, 320), (17, 33)])
@pytest.mark.parametrize("crops", [1, 3])
def test_any_size_gives_the_input(size: tuple[int, int], crops: int) -> None:
    wide = replace(KINETICS, size=(32, 48))
    clip = noise(3, 2, *size)
    assert clip_eval_transform(wide, crops=crops)(sample(clip)).image.shape[-4:] == (3, 2, 32, 48)
    assert clip_train_transform(STRONG.model_copy(update={"size": (32, 48)}), wide)(sample(clip)).image.shape == (3, 2, 32, 48)


def test_wrong_channels_are_told() -> None:
    for transform in (clip_eval_transform(KINETICS), clip_eval_transform(KINETICS, crops=3), clip_train_transform(STRONG, KINETICS)):
        with pytest.raises(UserError, match=r"clip.mp4 has 1 channels"):
            transform(sample(noise(1, 3, 40, 40)))


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_batches_of_clips_mix(kind: str) -> None:
    """The same share, and for CutMix the same box, in all frames."""
    images = torch.stack([torch.full((3, 4, 16, 16), float(i)) for i in range(3)])
    targets = tuple(ClassTarget(i) for i in range(3))
    batch = Batch(images, targets, ("a", "b", "c"), ((16, 16),) * 3, ((16, 16),) * 3)
    settings = AugmentConfig(mixup=0.8 if kind == "mixup" else 0, cutmix=1.0 if kind == "cutmix" else 0)
    mixed = mix_batch(batch, settings, torch.Generator().manual_seed(1))
    assert mixed.images.shape == images.shape
    assert torch.equal(mixed.images, mixed.images[:, :1, :1].expand_as(images))  # alike over channels and frames
    for i, target in enumerate(mixed.targets):
        assert isinstance(target, ClassTarget)
        assert (target.label, target.other) == (i, (i - 1) % 3)
        assert mixed.images[i].mean() == pytest.approx(target.share * i + (1 - target.share) * ((i - 1) % 3), abs=1e-5)
    assert 0 < targets_share(mixed) < 1


def targets_share(batch: Batch) -> float:
    target = batch.targets[0]
    assert isinstance(target, ClassTarget)
    return target.share
