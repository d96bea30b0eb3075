"""A predictor over many pictures: order, how far it reads ahead, and mistakes of its sources."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from pyramidvit.config import RunConfig
from pyramidvit.errors import BadFileError
from pyramidvit.predict import Predicted, Predictor
from pyramidvit.tasks.table import TASKS
from pyramidvit.types import BadSample


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    config = RunConfig.model_validate({"model": {"name": "pvt_v2_b0"}, "augment": {"size": [32, 32]}})
    task = TASKS["classify"](config, ("cat", "dog", "cow"))
    return Predictor(task, task.model(), torch.device("cpu"), batch_size=2)


def pictures(count: int, given: list[int]) -> Iterator[np.ndarray]:
    for number in range(count):
        given.append(number)
        yield np.full((40, 40, 3), number, np.uint8)


def test_a_stream_reads_one_batch_ahead_and_no_further(predictor: Predictor) -> None:
    """However many are to come; and one that is left early asks for no more."""
    given: list[int] = []
    stream = predictor.stream(pictures(100, given))
    next(stream)
    assert 2 <= len(given) <= 4
    stream.close()  # pyright: ignore[reportAttributeAccessIssue]
    assert len(given) <= 4


def test_answers_come_in_order_with_bad_files_in_their_places(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_text("no picture")
    good = list(pictures(3, []))
    answers = list(predictor.stream([good[0], tmp_path / "bad.jpg", str(tmp_path / "bad.jpg"), tmp_path / "none.jpg", *good[1:]]))
    assert [type(one) for one in answers] == [Predicted, BadSample, BadSample, BadSample, Predicted, Predicted]
    assert [int(np.asarray(one.image)[0, 0, 0]) for one in answers if isinstance(one, Predicted)] == [0, 1, 2]
    for one, alone in zip([answers[0], *answers[4:]], map(predictor, good), strict=True):
        assert isinstance(one, Predicted)
        torch.testing.assert_close(one.prediction.probabilities, alone.prediction.probabilities)
    assert list(predictor.stream([])) == predictor([]) == []
    with pytest.raises(BadFileError):
        predictor([good[0], tmp_path / "bad.jpg"])


def test_a_source_that_fails_is_told(predictor: Predictor) -> None:
    def broken() -> Iterator[np.ndarray]:
        yield from pictures(2, [])
        raise ValueError("the camera was unplugged")

    stream = predictor.stream(broken())
    assert isinstance(next(stream), Predicted)
    with pytest.raises(ValueError, match="unplugged"):
        list(stream)
