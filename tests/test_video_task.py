"""The task on clips: views averaged, frames shuffled, weights of pictures, what folders and lists are taken for."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pyramidvit import UserError, create_model
from pyramidvit.config import AugmentConfig, ClipConfig, LoopConfig, ModelConfig, RunConfig
from pyramidvit.data.loader import collate, evaluation_batches
from pyramidvit.data.motion import MOTION_CLASSES, motion_clips, write_motion
from pyramidvit.data.samples import SampleKey
from pyramidvit.engine import evaluate
from pyramidvit.files import write_tensors
from pyramidvit.models import Classifier
from pyramidvit.models.mvit import CLIPS, MViT
from pyramidvit.tasks.table import infer_task
from pyramidvit.tasks.video import VideoTask
from pyramidvit.types import Batch, ClassTarget, Sample
from pyramidvit.weights.source import described
from pyramidvit.weights.zoo import ZOO

SMALL = AugmentConfig(size=(32, 32), hflip=0.0, rand_ops=0, erasing=0.0)


def settings(**clip) -> RunConfig:
    return RunConfig(
        task="video",
        model=ModelConfig(name="mvit_mini_8x2"),
        augment=SMALL,
        clip=ClipConfig(**{"frames": 4, "stride": 1, "fps": 30, **clip}),
        loop=LoopConfig(batch_size=6, device="cpu"),
    )


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of frames, which need no video package."""
    folder = tmp_path_factory.mktemp("data") / "frames"
    write_motion(folder, train=8, val=8, frames=10, size=(40, 60), seed=3, suffix="")
    return folder


def task(folder: Path, **clip) -> VideoTask:
    config = settings(**clip)
    data = VideoTask.read_data(folder, config)
    return VideoTask(config, data.classes, data)


@pytest.fixture(scope="module")
def model() -> Classifier:
    torch.manual_seed(0)
    net = create_model("mvit_mini_8x2", num_classes=8).eval()
    with torch.no_grad():
        net.head.weight.mul_(20)  # random networks are undecided, where averages of anything look alike
    return net


def test_views_are_averaged_after_the_softmax(frames: Path, model: Classifier):
    """PB-65: the answer for a video is the mean of its views' probabilities, as published, not of their logits."""
    several = task(frames, clips=2, crops=3)
    sample = several.dataset("val")[SampleKey(0, 0)]
    assert isinstance(sample, Sample)
    assert sample.image.shape == (6, 3, 4, 32, 32)
    batch = collate([sample])
    with torch.no_grad():
        (scores,) = several.predict(model(batch.images), batch)
        single = torch.stack([model(view[None])[0] for view in sample.image])
    assert torch.allclose(scores.probabilities, single.softmax(-1).mean(0), atol=1e-6)
    assert not torch.allclose(scores.probabilities, single.mean(0).softmax(-1), atol=1e-3)


def test_an_evaluation_in_views_equals_one_by_hand(frames: Path, model: Classifier):
    """Through the engine: each video counts once, and its probability of the truth is the mean over its views."""
    several = task(frames, clips=2, crops=3)
    result = evaluate(several, model, several.dataset("val"), config=several.config).result
    probabilities = []
    for index in range(8):
        sample = several.dataset("val")[SampleKey(0, index)]
        assert isinstance(sample, Sample)
        assert isinstance(sample.target, ClassTarget)
        with torch.no_grad():
            probabilities.append(float(model(sample.image).softmax(-1).mean(0)[sample.target.label]))
    assert result.to_json()["n"] == 8
    assert result.numbers["loss"] == pytest.approx(-np.log(probabilities).mean(), rel=1e-4)


def test_batches_shrink_so_that_views_fit(frames: Path):
    """`batch_size` counts network inputs, so memory does not grow with the views; training has one view."""
    seen = {
        views: [len(batch) for batch in evaluation_batches(task(frames, **views_of(views)).dataset("val"), 6, workers=0)]
        for views in (1, 2, 15)
    }
    assert seen == {1: [6, 2], 2: [3, 3, 2], 15: [1] * 8}
    assert task(frames, clips=5, crops=3).dataset("train").views == 1


def views_of(count: int) -> dict[str, int]:
    return {1: {"clips": 1}, 2: {"clips": 2}, 15: {"clips": 5, "crops": 3}}[count]


def test_only_one_view_is_in_the_network_at_a_time(model: Classifier):
    sizes: list[int] = []
    hook = dict(model.named_modules())["backbone.patches"].register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    with torch.no_grad():
        logits = model(torch.randn(2, 5, 3, 4, 32, 32))
    hook.remove()
    assert (logits.shape, sizes) == ((2, 5, 8), [2] * 5)


def test_shuffled_frames_are_the_same_frames_of_each_clip(frames: Path):
    """Every clip has an order of its own, the same in every evaluation, and frames stay within their clip."""
    plain, mixed = (task(frames, clips=2, shuffle_frames=on).dataset("val") for on in (False, True))
    orders = []
    for index in range(8):
        one, other, again = plain[SampleKey(0, index)], mixed[SampleKey(0, index)], mixed[SampleKey(0, index)]
        assert isinstance(one, Sample)
        assert isinstance(other, Sample)
        assert isinstance(again, Sample)
        assert torch.equal(other.image, again.image)
        for before, after in zip(one.image, other.image, strict=True):
            order = [next(t for t in range(4) if torch.equal(before[:, t], after[:, place])) for place in range(4)]
            assert sorted(order) == [0, 1, 2, 3]
            orders.append(tuple(order))
    assert len(set(orders)) > 4


def test_mixing_takes_clips():
    """Mixup and CutMix of (B, C, T, H, W): shares of the truth add up, all frames get the same box."""
    config = settings().model_copy(update={"augment": SMALL.model_copy(update={"mixup": 0.0, "cutmix": 1.0})})
    images = torch.stack([torch.full((3, 4, 32, 32), float(value)) for value in range(3)])
    batch = Batch(images, tuple(map(ClassTarget, range(3))), ("a", "b", "c"), ((32, 32),) * 3, ((32, 32),) * 3)
    mixed = VideoTask(config, MOTION_CLASSES).mix(batch, torch.Generator().manual_seed(1))
    assert mixed.images.shape == images.shape
    assert all(torch.equal(frame, clip[:, 0]) for clip in mixed.images for frame in clip.unbind(1))
    (target, *_) = mixed.targets
    assert isinstance(target, ClassTarget)
    assert target.share == pytest.approx(float((mixed.images[0] == 0).float().mean()))


@pytest.mark.slow
def test_a_clip_network_starts_from_weights_of_pictures(tmp_path: Path):
    """The report says what was made for clips, and a clip of equal frames gives what the picture gave at the stem."""
    picture = create_model("mvitv2_small", num_classes=3)
    write_tensors(tmp_path / "pictures.safetensors", picture.state_dict(), {})
    config = settings()
    config = config.model_copy(update={"model": ModelConfig(name="mvitv2_small_16x4", weights=str(tmp_path / "pictures.safetensors"))})
    built = VideoTask(config, MOTION_CLASSES)
    clip = built.model()
    assert built.load_report is not None
    assert "backbone.patches.weight" in built.load_report.inflated
    still = clip.state_dict()["backbone.patches.weight"]
    assert torch.equal(still[:, :, 1], picture.state_dict()["backbone.patches.weight"])
    assert not still[:, :, [0, 2]].any()


def test_a_clip_network_starts_from_clips_without_their_classes(tmp_path: Path):
    """A damaged clip file is not taken for pictures: nothing is filled in."""
    other = create_model("mvit_mini_8x2", num_classes=5)
    tensors = other.state_dict()
    write_tensors(tmp_path / "clips.safetensors", tensors, {})
    start = settings().model_copy(update={"model": ModelConfig(name="mvit_mini_8x2", weights=str(tmp_path / "clips.safetensors"))})
    built = VideoTask(start, MOTION_CLASSES)
    assert torch.equal(built.model().state_dict()["backbone.patches.weight"], tensors["backbone.patches.weight"])
    assert built.load_report is not None
    assert built.load_report.inflated == ()
    del tensors["backbone.frame_positions"]
    write_tensors(tmp_path / "clips.safetensors", tensors, {})
    with pytest.raises(UserError, match="frame_positions"):
        built.model()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["a/1.mp4", "b/2.mkv"], "video"),
        (["a/1.jpg", "b/2.png"], "classify"),
        (["train/a/1.avi", "val/a/2.avi", "classes.txt"], "video"),
    ],
)
def test_the_task_is_found_out_from_the_names(tmp_path: Path, files, expected):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(b"x")
    assert infer_task(tmp_path) == expected


def test_lists_and_mixtures(tmp_path: Path):
    """Lists of videos are videos, lists of pictures are not; where there are both, the user says which."""
    for name, text, expected in (
        ("train.csv", "clips/my clip.mp4,running\n", "video"),
        ("val.txt", "clips/a.webm 3\n", "video"),
        ("list.json", '[{"path": "a.mp4", "label": "x"}]', "video"),
        ("pictures.csv", "path,label\na.jpg,cat\n", "classify"),
        ("coco.json", '{"images": [{"file_name": "a.jpg"}]}', "detect"),
    ):
        (tmp_path / name).write_text(text)
        assert infer_task(tmp_path / name) == expected
    folder = tmp_path / "both" / "a"
    folder.mkdir(parents=True)
    (folder / "1.mov").write_bytes(b"x")
    (folder / "1.jpg").write_bytes(b"x")
    with pytest.raises(UserError, match=r"--task video .* or --task classify"):
        infer_task(folder.parent)


def test_published_clip_networks_are_known_as_such():
    """Frames and stride by their name; those of Something-Something see whole videos."""
    for name, clip in (("mvit_base_16x4.k400", (16, 4, False)), ("mvitv2_base_32x3.ssv2", (32, 3, True))):
        meta = described(ZOO[name])
        assert meta is not None
        config = RunConfig.model_validate(meta.config)
        assert (meta.head, config.task) == ("video", "video")
        assert (config.clip.frames, config.clip.stride, config.clip.segments) == clip


def test_arrays_are_seen_at_the_rate_of_folders(frames: Path):
    """The frames of a folder as an array give the same input as the folder."""
    built = task(frames)
    clip = next(iter(motion_clips(1, frames=10, size=(40, 60), seed=6))).frames
    film, sample = built.read(clip)
    assert np.array_equal(film.frames, clip[3:7])
    assert film.times == pytest.approx(np.arange(3, 7) / 30)
    assert sample.image.shape == (3, 4, 40, 60)


def test_networks_of_odd_depth_have_views_too():
    net = Classifier(MViT(CLIPS.__class__(size=(4, 32, 32), depths=(1, 1), width=16, heads=1), classify=True), 3).eval()
    assert net(torch.randn(2, 3, 4, 32, 32)).shape == (2, 3)
    assert net(torch.randn(2, 2, 3, 4, 32, 32)).shape == (2, 2, 3)
