"""Timelines: windows cover a video, and each place gets the answer of the window it is nearest to."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from pyramidvit import UserError
from pyramidvit.config import AugmentConfig, ClipConfig, ModelConfig, RunConfig
from pyramidvit.data.motion import write_video
from pyramidvit.predict import Predictor
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.tasks.video import VideoTask
from pyramidvit.timelines import timeline, timelines, window_starts
from pyramidvit.types import BadSample, Timeline

COLOURS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220)}


class Colour(nn.Module):
    """Which channel is strongest: (B, 3, T, H, W), views before the channels or not, → (B, 3)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((-3, -2, -1)) * 3


def task(**clip) -> VideoTask:
    config = RunConfig(
        task="video",
        model=ModelConfig(name="mvit_mini_8x2"),
        augment=AugmentConfig(size=(32, 32)),
        clip=ClipConfig(**{"frames": 4, "stride": 2, "fps": 10, **clip}),
    )
    return VideoTask(config, tuple(COLOURS))


def predictor(batch_size: int = 3, **clip) -> Predictor:
    return Predictor(task(**clip), Colour(), torch.device("cpu"), batch_size)


@pytest.fixture(scope="module")
def traffic_light(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 s red, 2 s green, 5 s blue, at 10 frames per second."""
    pytest.importorskip("av")
    path = tmp_path_factory.mktemp("data") / "light.mp4"
    seconds = {"red": 3, "green": 2, "blue": 5}
    frames = np.concatenate([np.broadcast_to(np.array(COLOURS[name], np.uint8), (10 * s, 48, 64, 3)) for name, s in seconds.items()])
    write_video(path, frames, fps=10)
    return path


@pytest.mark.parametrize(
    ("duration", "window", "hop", "starts"),
    [
        (10, 2, 2, [0, 2, 4, 6, 8]),
        (10, 2, 3, [0, 3, 6, 8]),
        (1.5, 2, 1, [0]),
        (2.0, 2, 1, [0]),
        (0.3, 0.1, 0.1, [0, 0.1, 0.2]),
    ],
)
def test_windows_reach_from_the_first_to_the_last_moment(duration, window, hop, starts):
    assert window_starts(duration, window, hop) == pytest.approx(starts)


@pytest.mark.parametrize("clip", [{}, {"clips": 5, "crops": 3}, {"segments": True}])
def test_actions_are_where_they_happen(traffic_light: Path, clip):
    """To half a hop, whatever the views and the sampling."""
    result = timeline(predictor(**clip), traffic_light, window=1.0, hop=0.5).prediction
    assert isinstance(result, Timeline)
    actions = result.actions()
    assert [name for _, _, name, _ in actions] == ["red", "green", "blue"]
    assert [begin for begin, *_ in actions] == pytest.approx([0, 3, 5], abs=0.26)
    assert [end for _, end, *_ in actions] == pytest.approx([3, 5, 10], abs=0.26)
    assert result.probabilities.sum(1) == pytest.approx(1)


def test_the_batch_and_memory_do_not_change_the_answer(traffic_light: Path, monkeypatch: pytest.MonkeyPatch):
    one = timeline(predictor(1), traffic_light, hop=0.7).prediction
    many = timeline(predictor(64), traffic_light, hop=0.7).prediction
    assert (one.window, one.starts) == (pytest.approx(0.8), many.starts)
    assert torch.allclose(one.probabilities, many.probabilities)
    monkeypatch.setattr("pyramidvit.timelines._MOST_BYTES", 1)
    assert torch.allclose(timeline(predictor(64), traffic_light, hop=0.7).prediction.probabilities, one.probabilities)


def test_long_windows_are_filled_with_clips(traffic_light: Path):
    """A window of 5 s holds 3 s red and 2 s green: both count by their time."""
    result = timeline(predictor(), traffic_light, window=5.0, hop=5.0).prediction
    assert len(result.starts) == 2
    red, green, blue = result.probabilities[0].tolist()
    assert red > green > blue
    assert result.probabilities[1].argmax() == 2


def test_words_and_json(traffic_light: Path):
    result = timeline(predictor(), traffic_light, window=1.0, hop=1.0)
    assert result.text(2).endswith("% and 1 more")
    assert result.text(2).startswith("0.0-3.0 s red ")
    content = result.to_json()
    assert content["duration"] == pytest.approx(10, abs=0.01)
    assert [action["class"] for action in content["actions"]] == ["red", "green", "blue"]
    assert len(content["windows"]) == 10
    assert content["windows"][4]["top"][0]["class"] == "green"
    assert (content["windows"][4]["start"], content["windows"][4]["end"]) == (4.0, 5.0)


def test_a_video_shorter_than_its_window_is_one_window(tmp_path: Path):
    pytest.importorskip("av")
    write_video(tmp_path / "short.mp4", np.full((3, 48, 64, 3), COLOURS["blue"], np.uint8), fps=10)
    result = timeline(predictor(), tmp_path / "short.mp4").prediction
    assert (result.starts, result.duration) == ((0.0,), pytest.approx(0.3))
    assert result.borders() == pytest.approx([0, 0.3])


@pytest.mark.parametrize(("window", "hop"), [(0, None), (2, 0), (2, -1), (np.nan, None), (2, np.nan), (np.inf, None), (2, np.inf)])
def test_impossible_windows_are_never_taken_for_the_usual_ones(traffic_light: Path, window, hop):
    with pytest.raises(UserError, match=r"a window of at least the 0.80 s .* and a hop, both above 0 seconds; got"):
        timeline(predictor(), traffic_light, window=window, hop=hop)


@pytest.mark.parametrize("hop", [1e-6, 1e-320])
def test_a_tiny_hop_is_refused_before_memory_is_full(traffic_light: Path, hop):
    with pytest.raises(UserError, match=r"more than 1,000,000 windows in the 10.0 s of .*light.mp4: take one of at least 8e-06 s"):
        timeline(predictor(), traffic_light, window=2, hop=hop)


def test_what_cannot_be_is_said(traffic_light: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"at least the 0.80 s"):
        timeline(predictor(), traffic_light, window=0.5)
    with pytest.raises(UserError, match=r"give --window"):
        timeline(predictor(segments=True), traffic_light)
    pictures = Predictor(ClassifyTask(RunConfig(), ("a", "b", "c")), Colour(), torch.device("cpu"))
    with pytest.raises(UserError, match="made of a video"):
        timeline(pictures, traffic_light)
    (tmp_path / "bad.mp4").write_bytes(b"")
    bad, good = timelines(predictor(), [tmp_path / "bad.mp4", traffic_light], None, None)
    assert isinstance(bad, BadSample)
    assert not isinstance(good, BadSample)
