"""Clips: lists of every kind, class folders, folders of frames, and the moments that are sampled: never fewer frames than configured."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pyramidvit.data.clip_check import check_clips
from pyramidvit.data.clip_reader import ClipReader, ClipSampling, frame_files, inspect_clip
from pyramidvit.data.clips import is_clip_data, read_clip_data
from pyramidvit.data.findings import render
from pyramidvit.data.folders import ClassData, Item
from pyramidvit.data.loader import EpochPlan, evaluation_batches, training_batches
from pyramidvit.data.motion import write_video
from pyramidvit.data.samples import SampleDataset
from pyramidvit.data.video import VideoError, VideoOptions
from pyramidvit.errors import BadFileError, UserError

SIDE = 32


def numbered(count: int) -> np.ndarray:
    """Frames of one grey each, ten levels from frame to frame, so that losses of the codec don't matter."""
    return np.broadcast_to((20 + 10 * (np.arange(count) % 24))[:, None, None, None], (count, SIDE, SIDE, 3)).astype(np.uint8)


def numbers(clip: np.ndarray) -> list[int]:
    return np.round((clip.mean((1, 2, 3)) - 20) / 10).astype(int).tolist()


def video(path: Path, count: int = 12, fps: int = 10) -> Path:
    pytest.importorskip("av", reason="PyAV is not installed: pip install 'pyramidvit[video]'")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_video(path, numbered(count), fps=fps, options={"g": "5", "crf": "8"})
    return path


def frames(folder: Path, count: int = 12, first: int = 0, name: str = "img_{:05d}.png") -> Path:
    folder.mkdir(parents=True)
    for number, frame in enumerate(numbered(count), first):
        Image.fromarray(frame).save(folder / name.format(number))
    return folder


def files(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def rows(data: ClassData, *splits: str) -> list[tuple[str, str]]:
    items = [item for split in splits or ("train", "val") for item in data.splits[split]]
    return sorted((item.path.relative_to(data.root).as_posix(), data.classes[item.label]) for item in items)


LISTS = [
    ("spaces", "a/my clip.mp4 run\nb.mp4 walk\n"),
    ("tabs", "a/my clip.mp4\trun\nb.mp4\twalk\n"),
    ("commas", "a/my clip.mp4,run\nb.mp4,walk\n"),
    ("semicolons", "a/my clip.mp4 ; run\nb.mp4;walk\n"),
    ("quotes", '"a/my clip.mp4","run"\n"b.mp4","walk"\n'),
    ("windows", "\ufeffa/my clip.mp4,run\r\nb.mp4,walk\r\n\r\n\r\n"),
    ("header", "path,label\na/my clip.mp4,run\nb.mp4,walk\n"),
    ("header of a space list", "path label\na/my clip.mp4 run\nb.mp4 walk\n"),
    ("columns", "label,split,path\nrun,1,a/my clip.mp4\nwalk,1,b.mp4\n"),
    ("no suffix", "a/my clip run\nb walk\n"),
    ("json", '[{"path": "a/my clip.mp4", "label": "run"}, {"path": "b.mp4", "label": "walk"}]'),
    ("json of one object", '{"a/my clip.mp4": "run", "b.mp4": "walk"}'),
    ("json of templates", '[{"id": "a/my clip", "label": "x", "template": "[run]"}, {"id": "b", "label": "y", "template": "walk"}]'),
]


@pytest.mark.parametrize(("kind", "text"), LISTS, ids=[kind for kind, _ in LISTS])
def test_lists_of_every_kind(tmp_path: Path, kind: str, text: str) -> None:
    """PB-54: spaces in paths, separators, header, blank lines, CRLF, BOM."""
    files(tmp_path, "a/my clip.mp4", "b.mp4")
    table = tmp_path / ("list.json" if kind.startswith("json") else "list.txt")
    table.write_bytes(text.encode())
    data = read_clip_data(table, val_share=0.01)
    assert rows(data) == [("a/my clip.mp4", "run"), ("b.mp4", "walk")]


def test_paths_and_labels_may_hold_the_separator(tmp_path: Path) -> None:
    """PB-54: the label stands on the right, and the path ends where a clip is."""
    files(tmp_path, "a, b;c.mp4", "d.mp4", "d e.mp4")
    (tmp_path / "list.csv").write_text("a, b;c.mp4,run\nd.mp4,walk\n")
    assert [path for path, _ in rows(read_clip_data(tmp_path / "list.csv"))] == ["a, b;c.mp4", "d.mp4"]
    (tmp_path / "list.txt").write_text("a, b;c.mp4 riding a bike\nd e.mp4 riding a bike\nd.mp4 run\n")
    found = rows(read_clip_data(tmp_path / "list.txt"))
    assert found == [("a, b;c.mp4", "riding a bike"), ("d e.mp4", "riding a bike"), ("d.mp4", "run")]


def test_wrong_lines_are_named_by_number(tmp_path: Path) -> None:
    """PB-54."""
    files(tmp_path, "a.mp4", "b.mp4")
    table = tmp_path / "list.txt"
    table.write_text("path label\na.mp4 run\n\ngone.mp4 run\na.mp4 walk\nb.mp4\n../b.mp4 run\n")
    with pytest.raises(UserError, match="4 wrong lines") as caught:
        read_clip_data(table)
    text = str(caught.value)
    assert "line 4: there is no clip 'gone.mp4'" in text
    assert "line 5: a.mp4 is already in line 2" in text
    assert "line 6: expected a path and a label" in text
    assert "line 7" in text
    table.write_text("a.mp4 1\nb.mp4 -1\n")
    with pytest.raises(UserError, match="line 2: labels that are numbers count from 0, got -1"):
        read_clip_data(table)
    table.write_text("\n")
    with pytest.raises(UserError, match="no rows"):
        read_clip_data(table)
    table.write_bytes(b"a.mp4 \xff\xfe")
    with pytest.raises(UserError, match="UTF-8"):
        read_clip_data(table)


@pytest.mark.parametrize("text", ["a.mp4 120 0\nb.mp4 90 1\n", "a.mp4,120,0\nb.mp4,90,1\n", "path frames label\na.mp4 120 0\nb.mp4 90 1\n"])
def test_counts_of_frames_are_no_part_of_a_label(tmp_path: Path, text: str) -> None:
    """Lists of path, number of frames and label would otherwise make a class of each pair of numbers."""
    files(tmp_path, "a.mp4", "b.mp4")
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(UserError, match=r"one label behind the path, got the numbers '120.0'.*leave out counts of frames"):
        read_clip_data(tmp_path / "list.txt")
    (tmp_path / "list.txt").write_text("path,frames,label\na.mp4,120,0\nb.mp4,90,1\n")
    assert rows(read_clip_data(tmp_path / "list.txt", val_share=0.01)) == [("a.mp4", "0"), ("b.mp4", "1")]


def test_absolute_paths_below_the_list_are_taken(tmp_path: Path) -> None:
    files(tmp_path, "in/a.mp4", "b.mp4")
    (tmp_path / "in" / "list.txt").write_text(f"{tmp_path}/in/a.mp4 run\n")
    assert rows(read_clip_data(tmp_path / "in" / "list.txt")) == [("a.mp4", "run")]
    (tmp_path / "in" / "list.txt").write_text(f"{tmp_path}/b.mp4 run\n")
    with pytest.raises(UserError, match="no clip"):
        read_clip_data(tmp_path / "in" / "list.txt")


def test_labels_as_names_numbers_and_neither(tmp_path: Path) -> None:
    """PB-55: names through the class list; numbers count into it, or are the names; a mixture is an error."""
    files(tmp_path, *(f"{i}.mp4" for i in range(4)))
    train, val = tmp_path / "train.txt", tmp_path / "val.txt"
    train.write_text("0.mp4 10\n1.mp4 9\n")
    val.write_text("2.mp4 9\n")
    data = read_clip_data(tmp_path)
    assert data.classes == ("9", "10")  # in the order of the numbers
    assert rows(data, "val") == [("2.mp4", "9")]
    train.write_text("0.mp4 2\n1.mp4 0\n")
    val.write_text("2.mp4 2\n")
    assert rows(read_clip_data(tmp_path, classes=["run", "sit", "walk"]), "val") == [("2.mp4", "walk")]
    (tmp_path / "classes.txt").write_text("rest\nsit\nwalk\n")
    assert read_clip_data(tmp_path).classes == ("rest", "sit", "walk")
    assert rows(read_clip_data(tmp_path), "train") == [("0.mp4", "walk"), ("1.mp4", "rest")]
    val.write_text("2.mp4 3\n")
    with pytest.raises(UserError, match=r"val.txt, line 1 .*3 classes"):
        read_clip_data(tmp_path)
    val.write_text("2.mp4 walk\n")
    with pytest.raises(UserError, match=r"'walk' in .*val.txt, line 1.*number in .*train.txt, line 1"):
        read_clip_data(tmp_path)
    train.write_text("0.mp4 walk\n1.mp4 sit\n")
    val.write_text("2.mp4 abseiling\n")
    with pytest.raises(UserError, match="'abseiling'"):
        read_clip_data(tmp_path)


def test_labels_json_maps_names_to_numbers(tmp_path: Path) -> None:
    files(tmp_path, "7.webm")
    (tmp_path / "labels.json").write_text(json.dumps({"Pushing something": "1", "Pulling something": "0"}))
    (tmp_path / "train.json").write_text(json.dumps([{"id": "7", "template": "Pushing [something]"}]))
    data = read_clip_data(tmp_path)
    assert data.classes == ("Pulling something", "Pushing something")
    assert rows(data) == [("7.webm", "Pushing something")]


def test_class_folders_hold_videos_and_folders_of_frames(tmp_path: Path) -> None:
    files(tmp_path, "run/a.mp4", "run/deep/b.MKV", "run/.hidden.mp4", "walk/c.webm", "walk/notes.txt", "sit/d/1.jpg", "sit/d/2.jpg")
    data = read_clip_data(tmp_path, val_share=0.01)
    assert data.classes == ("run", "sit", "walk")
    assert {path for path, _ in rows(data)} == {"run/a.mp4", "run/deep/b.MKV", "sit/d", "walk/c.webm"}
    assert {path.name for path in data.ignored} == {".hidden.mp4", "notes.txt"}
    again = ClassData.from_json(data.to_json())
    assert (again.splits, again.fingerprint) == (data.splits, data.fingerprint)
    before = data.fingerprint
    (tmp_path / "sit" / "d" / "2.jpg").write_bytes(b"another size")
    assert read_clip_data(tmp_path, val_share=0.01).fingerprint != before  # frames count


def test_splits_are_seeded_and_classes_come_from_train(tmp_path: Path) -> None:
    files(tmp_path, *(f"{name}/{i}.mp4" for name in ("a", "b") for i in range(10)))
    one, two = read_clip_data(tmp_path, seed=1), read_clip_data(tmp_path, seed=2)
    assert len(one.splits["val"]) == 4
    assert one.splits != two.splits
    assert one == read_clip_data(tmp_path, seed=1)
    files(tmp_path / "other", "train/a/1.mp4", "val/b/2.mp4")
    with pytest.raises(UserError, match=r"'b' \(1 clips\)"):
        read_clip_data(tmp_path / "other")


def test_folders_of_pictures_are_not_taken_for_clips(tmp_path: Path) -> None:
    files(tmp_path, "cat/1.jpg", "dog/2.jpg")
    with pytest.raises(UserError, match="a clip is a video, or a folder"):
        read_clip_data(tmp_path)
    assert not is_clip_data(tmp_path)
    assert is_clip_data(files(tmp_path / "clips", "run/a.mp4"))
    (tmp_path / "pictures.csv").write_text("cat/1.jpg,cat\n")
    assert not is_clip_data(tmp_path / "pictures.csv")
    with pytest.raises(UserError, match="Did you mean clips"):
        read_clip_data(tmp_path / "clip")
    (files(tmp_path / "flat", "a.mp4") / "list.csv").write_text("a.mp4,run\n")
    with pytest.raises(UserError, match=r"no class folders.*If .*list\.csv says what they show, give it instead"):
        read_clip_data(tmp_path / "flat")


@pytest.mark.parametrize("clips", [1, 3])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("first", [0, 1])
def test_folder_of_frames_reads_like_the_video(tmp_path: Path, clips: int, training: bool, first: int) -> None:
    """PB-65, PB-59: numbered from 0 or 1, one clip or several, training or not: the frames of the file."""
    reader = ClipReader(ClipSampling(4, 2, None), VideoOptions(frame_rate=10), training=training, clips=clips)
    torch.manual_seed(0)
    from_file = numbers(reader.read(video(tmp_path / "clip.mp4")))
    torch.manual_seed(0)
    assert numbers(reader.read(frames(tmp_path / "frames", first=first))) == from_file
    assert len(from_file) == 4 * (1 if training else clips)
    if not training:
        assert from_file == ([2, 4, 6, 8] if clips == 1 else [0, 2, 4, 6, 2, 4, 6, 8, 4, 6, 8, 10])


def test_frames_are_ordered_by_number_not_by_name(tmp_path: Path) -> None:
    folder = frames(tmp_path / "clip7", 12, 1, "f{}.png")
    assert [path.name for path in frame_files(folder)] == [f"f{i}.png" for i in range(1, 13)]
    assert inspect_clip(folder, VideoOptions(frame_rate=6)).duration == 2
    (folder / "f5.png").unlink()
    with pytest.raises(VideoError, match=r"frames are missing, the first of them after f4\.png"):
        frame_files(folder)
    Image.new("RGB", (20, 20)).save(folder / "f5.png")
    with pytest.raises(VideoError, match="different sizes: 20x20, 32x32"):
        ClipReader(ClipSampling(12, 1, None)).read(folder)
    (folder / "f3.png").write_bytes(b"no picture")
    with pytest.raises(BadFileError, match=r"f3\.png"):
        ClipReader(ClipSampling(12, 1, None)).read(folder)


@pytest.mark.parametrize("sampling", [ClipSampling(16, 4), ClipSampling(16, 4, None, short="loop"), ClipSampling(23, segments=True)])
@pytest.mark.parametrize("count", [1, 3, 5, 15, 16, 17, 45])
def test_never_fewer_frames_than_configured(tmp_path: Path, sampling: ClipSampling, count: int) -> None:
    """PB-62: shorter, exactly as long, one less, longer."""
    path = video(tmp_path / "clip.mp4", count, fps=30)
    for training in (True, False):
        assert ClipReader(sampling, training=training).read(path).shape == (sampling.frames, SIDE, SIDE, 3)


def test_short_videos_are_held_or_played_again(tmp_path: Path) -> None:
    """PB-62: the stated rule."""
    path = video(tmp_path / "clip.mp4", 5)
    assert numbers(ClipReader(ClipSampling(8, 1, None)).read(path)) == [0, 1, 2, 3, 4, 4, 4, 4]
    assert numbers(ClipReader(ClipSampling(8, 1, None, short="loop")).read(path)) == [0, 1, 2, 3, 4, 0, 1, 2]
    assert numbers(ClipReader(ClipSampling(5, 1, None)).read(path)) == [0, 1, 2, 3, 4]


def test_moments_are_where_they_should_be() -> None:
    kinetics = ClipSampling(16, 4, 30.0)
    five = kinetics.spread(10.0, 25.0, clips=5).reshape(5, 16)
    assert np.allclose(np.diff(five), 4 / 30)
    assert five[:, 0] == pytest.approx(np.linspace(0, 10 - 64 / 30, 5))
    assert kinetics.spread(10.0, 25.0)[0] == pytest.approx((10 - 64 / 30) / 2)
    torch.manual_seed(0)
    starts = np.array([kinetics.random(10.0, 25.0)[0] for _ in range(500)])
    assert starts.min() >= 0
    assert starts.max() <= 10 - 64 / 30
    assert np.histogram(starts, 4, (0, 10 - 64 / 30))[0].min() > 90  # spread evenly
    segments = ClipSampling(8, segments=True)
    assert segments.spread(4.0, 30.0) == pytest.approx(np.arange(0.25, 4, 0.5))
    assert (np.floor(segments.random(4.0, 30.0) * 2) == np.arange(8)).all()  # one in each part
    with pytest.raises(UserError, match="at least 1 frame"):
        ClipSampling(0)


def test_frame_rate_of_the_file_does_not_change_what_is_seen(tmp_path: Path) -> None:
    """The same two seconds at 10 and at 30 frames per second give the same moments."""
    slow = ClipReader(ClipSampling(8, 6, 30.0)).read(video(tmp_path / "slow.mp4", 20, fps=10))
    fast = tmp_path / "fast.mp4"
    write_video(fast, np.repeat(numbered(20), 3, axis=0), fps=30, options={"g": "5", "crf": "8"})
    assert numbers(ClipReader(ClipSampling(8, 6, 30.0)).read(fast)) == numbers(slow)


def test_batches_repeat_labels_with_the_views(tmp_path: Path) -> None:
    """PB-65: three views of each clip in training have their labels; evaluation has one row per video; any number of workers."""
    items = [Item(video(tmp_path / f"{i}.mp4", 8), i) for i in range(4)]
    reader = ClipReader(ClipSampling(4, 1, None), training=True)
    dataset = SampleDataset(items, reader, lambda sample: sample, seed=3)
    plan = EpochPlan(4, 4, seed=0, repeats=2)
    batches = [list(training_batches(dataset, plan, start=0, stop=1, workers=workers)) for workers in (0, 2)]
    assert batches[0][0].images.shape == (4, 3, 4, SIDE, SIDE)
    assert torch.equal(batches[0][0].images, batches[1][0].images)
    labels = [target.label for target in batches[0][0].targets]  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    assert [Path(path).stem for path in batches[0][0].paths] == [str(label) for label in labels]
    assert labels[0] == labels[1]
    assert not torch.equal(batches[0][0].images[0], batches[0][0].images[1])  # another moment of the same video
    views = SampleDataset(items, ClipReader(ClipSampling(4, 1, None), clips=3), lambda sample: sample)
    (batch,) = evaluation_batches(views, 4, workers=0)
    assert batch.images.shape == (4, 3, 12, SIDE, SIDE)


@pytest.mark.parametrize("policy", ["error", "skip"])
def test_a_clip_that_cannot_be_read_is_named_once(tmp_path: Path, policy: str) -> None:
    """PB-57, PB-60: the first real error with its path, no retries, no other clip in its place."""
    items = [Item(video(tmp_path / "good.mp4", 8), 0), Item(files(tmp_path, "bad.mp4") / "bad.mp4", 1)]
    dataset = SampleDataset(items, ClipReader(ClipSampling(4, 1, None)), lambda sample: sample, on_bad_sample=policy)  # pyright: ignore[reportArgumentType]

    def batches() -> list:
        return list(evaluation_batches(dataset, 2, workers=1))

    if policy == "error":
        with pytest.raises(VideoError, match=r"bad\.mp4: Invalid data") as caught:
            batches()
        assert caught.value.path.endswith("bad.mp4")
    else:
        (batch,) = batches()
        assert [Path(path).name for path in batch.paths] == ["good.mp4"]
        assert [(Path(bad.path).name, "Invalid data" in bad.reason) for bad in batch.skipped] == [("bad.mp4", True)]


@pytest.mark.slow
def test_the_check_opens_every_clip(tmp_path: Path) -> None:
    """PB-60."""
    for i in range(6):
        video(tmp_path / "run" / f"{i}.mp4", 24 - i)
        frames(tmp_path / "walk" / f"clip{i}", 23 - i)
    video(tmp_path / "run" / "short.mp4", 3)
    video(tmp_path / "run" / "quick.mp4", 90, fps=60)
    files(tmp_path, "run/bad.mp4")
    (tmp_path / "walk" / "copy.mp4").write_bytes((tmp_path / "run" / "0.mp4").read_bytes())
    data = read_clip_data(tmp_path)
    calls: list[tuple[int, int]] = []
    report = check_clips(data, VideoOptions(), ClipSampling(8, 1, None), workers=1, on_progress=lambda *now: calls.append(now))
    found = {finding.code: finding.paths for finding in report.findings}
    assert found["damaged"] == ("run/bad.mp4",)
    assert found["short"] == ("run/short.mp4",)
    assert "run/quick.mp4" in found["rate"]
    assert "duplicate-classes" in found
    assert not report.ok
    assert calls[-1] == (16, 16)
    assert {name: report.counts["train"][name] + report.counts["val"][name] for name in ("run", "walk")} == {"run": 9, "walk": 7}
    assert report.to_json()["counted"] == "clips"
    assert report.to_json()["fps"][2] == 60
    assert render(report) is not None


def test_the_check_knows_the_odd_videos(shared: Path) -> None:
    """PB-60: sound only, cut, damaged, turned."""
    folder = shared / "data" / "robust_videos"
    if not folder.is_dir():
        pytest.skip("no robust_videos")
    names = ("audio/sine_mono_s16.wav", "derived/corrupt_tail.mp4", "derived/rotated_90.mp4", "derived/1fps.mp4", "derived/one_frame.mp4")
    items = tuple(Item(folder / name, 0) for name in names)
    data = ClassData(folder, ("any",), {"train": items, "val": items[2:]})
    found = {finding.code: finding.paths for finding in check_clips(data, VideoOptions(), ClipSampling()).findings}
    assert found["no-video"] == (names[0],)
    assert found["damaged"] == (names[1],)
    assert set(found["turned"]) == {names[2]}
    quick = {f.code for f in check_clips(data, VideoOptions(), ClipSampling(), thorough=False).findings}
    assert "damaged" not in quick  # the first frame of it is sound


def test_the_sign_language_clips_are_read(shared: Path) -> None:
    table = shared / "data" / "asl_clips" / "list.csv"
    if not table.is_file():
        pytest.skip("no asl_clips")
    data = read_clip_data(table)
    assert len(data.classes) == len(data.splits["train"]) == 20
    reader: Callable[[Path], np.ndarray] = ClipReader(ClipSampling(8, 8), VideoOptions(short_side=64), clips=2).read
    for item in data.splits["train"][:5]:
        clip = reader(item.path)
        assert clip.shape[0] == 16
        assert min(clip.shape[1:3]) == 64
        assert np.abs(np.diff(clip[:8].astype(int), axis=0)).mean() > 0.5  # something moves
