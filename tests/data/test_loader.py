"""Batches do not depend on workers, start or processes; every sample comes exactly once; errors keep path and reason."""

import os
import signal
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2.functional import adjust_contrast

from pyramidvit.config import AugmentConfig
from pyramidvit.data.folders import Item
from pyramidvit.data.image import ImageError, ReadOptions
from pyramidvit.data.loader import (
    EpochPlan,
    collate,
    default_workers,
    evaluation_batches,
    training_batches,
)
from pyramidvit.data.samples import PictureReader, SampleDataset, SampleKey
from pyramidvit.data.transforms import Transform, eval_transform, train_transform
from pyramidvit.errors import UserError
from pyramidvit.types import BadSample, Batch, ClassTarget, Preprocess, Sample

PREPROCESS = Preprocess(size=(32, 32))
READ = PictureReader(ReadOptions())


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> list[Item]:
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for i in range(11):
        Image.fromarray(rng.integers(0, 256, (40 + i, 50, 3), dtype=np.uint8)).save(folder / f"{i:02}.png")
    return [Item(folder / f"{i:02}.png", i % 3) for i in range(11)]


@pytest.fixture
def dataset(items: list[Item]) -> SampleDataset:
    return SampleDataset(items, READ, train_transform(AugmentConfig(), PREPROCESS), seed=7)


def equal(a: Iterable[Batch], b: Iterable[Batch]) -> bool:
    return all(torch.equal(x.images, y.images) and x.paths == y.paths and x.targets == y.targets for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_same_bits_for_any_number_of_workers_and_from_any_batch_on(dataset: SampleDataset, workers: int) -> None:
    plan = EpochPlan(11, 4, seed=3)
    straight = list(training_batches(dataset, plan, start=0, stop=8, workers=0))
    assert equal(straight, training_batches(dataset, EpochPlan(11, 4, seed=3), start=0, stop=8, workers=workers))
    assert equal(straight[5:], training_batches(dataset, plan, start=5, stop=8, workers=workers))
    assert not torch.equal(straight[0].images, straight[3].images)


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_leaves_the_random_numbers_of_training_alone(dataset: SampleDataset, workers: int) -> None:
    torch.manual_seed(0)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    list(training_batches(dataset, EpochPlan(11, 4, seed=3), start=0, stop=3, workers=workers))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_threads_of_the_main_process_do_not_change_a_bit(tmp_path: Path) -> None:
    """The mean of a float picture, which contrast takes, depends on the number of threads; workers have one."""
    for i in range(12):
        np.save(tmp_path / f"{i}.npy", np.random.default_rng(i).integers(0, 65536, (350, 350, 3), dtype=np.uint16))

    def contrast(sample: Sample) -> Sample:
        return replace(sample, image=adjust_contrast(sample.image.contiguous(), 1.6))

    data = SampleDataset([Item(tmp_path / f"{i}.npy", 0) for i in range(12)], READ, contrast)
    before, images = torch.get_num_threads(), {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        images[threads] = collate([data[SampleKey(0, i)] for i in range(12)]).images
    torch.set_num_threads(before)
    assert torch.equal(images[1], images[2])


def test_epoch_view_index_and_seed_each_change_the_view(dataset: SampleDataset, items: list[Item]) -> None:
    def image(data: SampleDataset, *key: int) -> torch.Tensor:
        sample = data[SampleKey(*key)]
        assert isinstance(sample, Sample)
        return sample.image

    first = image(dataset, 0, 1, 0)
    assert torch.equal(first, image(dataset, 0, 1, 0))
    other_seed = SampleDataset(items, READ, dataset.transform, seed=8)
    for other in (image(dataset, 1, 1, 0), image(dataset, 0, 1, 1), image(dataset, 0, 2, 0), image(other_seed, 0, 1, 0)):
        assert not torch.equal(first, other)


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 5, 50])
@pytest.mark.parametrize("n", [3, 5, 9, 11, 24, 25])
def test_an_epoch_holds_every_sample_once_and_no_small_tail(n: int, batch_size: int, world: int) -> None:
    """PB-68: 5 pictures in batches of 2 are 2 + 3, never 2 + 2 + 1; on several processes no one is left with less than two."""
    plans = [EpochPlan(n, batch_size, seed=1, rank=rank, world=world) for rank in range(world)]
    seen: Counter[int] = Counter()
    for number in range(plans[0].batches_per_epoch):
        sizes = [len(plan.batch(4, number)) for plan in plans]
        seen.update(key.index for plan in plans for key in plan.batch(4, number))
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= min(2, batch_size, n // world)
        assert max(sizes) <= batch_size + 2
    assert seen == Counter(range(n))


def test_one_picture_and_odd_ends() -> None:
    """PB-68."""
    assert EpochPlan(1, 1, seed=0).batch(0, 0) == [SampleKey(0, 0, 0)]
    assert EpochPlan(1, 8, seed=0).batches_per_epoch == 1
    assert [len(EpochPlan(5, 2, seed=0).batch(0, i)) for i in range(2)] == [2, 3]
    with pytest.raises(UserError, match="0 training pictures"):
        EpochPlan(0, 4, seed=0)
    with pytest.raises(IndexError):
        EpochPlan(4, 2, seed=0).batch(0, 2)


def test_order_changes_with_epoch_and_seed_and_can_be_kept() -> None:
    def order(plan: EpochPlan, epoch: int) -> list[int]:
        return [key.index for number in range(plan.batches_per_epoch) for key in plan.batch(epoch, number)]

    plan = EpochPlan(50, 8, seed=0)
    assert order(plan, 0) == order(EpochPlan(50, 8, seed=0), 0)
    assert order(plan, 0) != order(plan, 1) != order(EpochPlan(50, 8, seed=1), 1)
    assert order(EpochPlan(50, 8, seed=0, shuffle=False), 3) == list(range(50))


def test_processes_share_the_batch_that_one_would_have() -> None:
    """A run that resumes on another number of processes sees the same samples in each step."""
    one = EpochPlan(30, 8, seed=0)
    two = [EpochPlan(30, 4, seed=0, rank=rank, world=2) for rank in range(2)]
    for number in range(3):
        assert sorted(one.batch(0, number)) == sorted(key for plan in two for key in plan.batch(0, number))


def test_repeats_give_each_picture_several_views_in_an_epoch_of_the_same_length() -> None:
    plan = EpochPlan(10, 5, seed=0, repeats=3)
    keys = [key for number in range(plan.batches_per_epoch) for key in plan.batch(2, number)]
    assert len(keys) == len(set(keys)) == 10
    assert sorted(Counter(key.index for key in keys).values()) == [1, 3, 3, 3]
    assert {key.view for key in keys} == {0, 1, 2}
    drawn = {key.index for epoch in range(12) for number in range(2) for key in plan.batch(epoch, number)}
    assert drawn == set(range(10))  # pictures left out of one epoch come in others


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_evaluation_sees_every_picture_once_without_padding(items: list[Item], world: int, workers: int) -> None:
    data = SampleDataset(items, READ, eval_transform(PREPROCESS))
    seen: list[str] = []
    for rank in range(world):
        for batch in evaluation_batches(data, 2, workers=workers, rank=rank, world=world):
            assert batch.images.shape == (len(batch), 3, 32, 32)
            seen += batch.paths
    assert sorted(seen) == [str(item.path) for item in items]
    assert world > 1 or seen == sorted(seen)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_can_be_gone_through_again_even_after_a_pass_was_left(items: list[Item], workers: int) -> None:
    """The workers of an evaluation are started once and serve every epoch."""
    batches = evaluation_batches(SampleDataset(items, READ, eval_transform(PREPROCESS)), 2, workers=workers)
    batches.start()
    once = list(batches)
    assert len(next(iter(batches))) == 2
    assert equal(once, batches)


def test_samples_carry_label_path_and_size_of_the_original(items: list[Item]) -> None:
    (batch,) = evaluation_batches(SampleDataset(items[:2], READ, eval_transform(PREPROCESS)), 8, workers=0)
    assert batch.targets == (ClassTarget(0), ClassTarget(1))
    assert batch.sizes == ((40, 50), (41, 50))
    assert batch.paths[1] == str(items[1].path)


@pytest.fixture
def with_bad(items: list[Item], tmp_path: Path) -> list[Item]:
    bad = tmp_path / "cut.png"
    bad.write_bytes(items[0].path.read_bytes()[:2000])
    return [*items[:3], Item(bad, 0), *items[3:5]]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_file_stops_with_its_path_and_reason(with_bad: list[Item], workers: int) -> None:
    """PB-35: the error that arrives is the ImageError itself, from worker processes too."""
    batches = iter(evaluation_batches(SampleDataset(with_bad, READ, eval_transform(PREPROCESS)), 3, workers=workers))
    assert len(next(batches)) == 3
    with pytest.raises(ImageError) as error:
        next(batches)
    assert error.value.path == str(with_bad[3].path)
    assert "cut off" in error.value.reason


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_file_is_left_out_and_named_on_request(with_bad: list[Item], workers: int) -> None:
    """PB-35: never replaced by another sample."""
    data = SampleDataset(with_bad, READ, eval_transform(PREPROCESS), on_bad_sample="skip")
    batches = list(evaluation_batches(data, 3, workers=workers))
    assert [len(batch) for batch in batches] == [3, 2]
    (skipped,) = batches[1].skipped
    assert skipped.path == str(with_bad[3].path)
    assert "cut off" in skipped.reason
    assert str(with_bad[3].path) not in batches[1].paths


def test_a_batch_of_bad_files_only_is_empty() -> None:
    batch = collate([BadSample("a", "b")])
    assert (len(batch), len(batch.images), batch.skipped) == (0, 0, (BadSample("a", "b"),))
    assert len(collate([])) == 0


def failing(error: Exception | None) -> Transform:
    def transform(sample: Sample) -> Sample:
        if sample.path.endswith("03.png"):
            if error is None:
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                raise error
        return sample

    return transform


@pytest.mark.parametrize("workers", [0, 1])
def test_a_fault_while_reading_names_the_file(items: list[Item], workers: int) -> None:
    data = SampleDataset(items, READ, failing(KeyError("oops")))
    with pytest.raises(RuntimeError, match=r"While reading .*03\.png: KeyError: 'oops'"):
        list(evaluation_batches(data, 1, workers=workers))


def test_an_error_of_the_user_comes_back_as_one(items: list[Item]) -> None:
    data = SampleDataset(items, READ, eval_transform(Preprocess.for_channels(4)))
    with pytest.raises(UserError, match=r"00\.png has 3 channels"):
        list(evaluation_batches(data, 2, workers=1))


@pytest.mark.slow
def test_a_killed_worker_says_what_it_was_reading(items: list[Item]) -> None:
    """As the kernel does when memory runs out."""
    data = SampleDataset(items, READ, failing(None))
    with pytest.raises(UserError, match=r"killed at .*03\.png.*--workers"):
        list(evaluation_batches(data, 1, workers=1))


def test_workers_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    assert [default_workers(n) for n in (0, 63, 64, 10**6)] == [0, 0, 3, 3]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert default_workers(1000) == 8
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert default_workers(1000) == 1
