"""Device, precision, seeds, signals."""

import os
import random
import signal
import threading

import numpy as np
import pytest
import torch

from pyramidvit.errors import UserError
from pyramidvit.runtime import StopSignals, make_accelerator, numerics, seed_everything, seed_of


def test_a_device_that_is_not_there_is_refused_with_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="no usable device 'cuda'; it has: cpu"):
        make_accelerator("cuda")


def test_fp16_needs_an_accelerator() -> None:
    with pytest.raises(UserError, match="use bf16 or fp32"):
        make_accelerator("cpu", "fp16")


def test_one_process_can_change_its_precision_from_run_to_run() -> None:
    assert make_accelerator("cpu", "fp32").mixed_precision == "no"
    assert make_accelerator("cpu", "bf16").mixed_precision == "bf16"
    assert make_accelerator("cpu", "auto").mixed_precision == "no"


def test_threads_and_determinism_are_put_back() -> None:
    threads = torch.get_num_threads()
    with numerics(threads + 1, deterministic=True):
        assert torch.get_num_threads() == threads + 1
        assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()


def test_seeds_differ_in_every_part_and_never_change() -> None:
    seeds = {
        seed_of(seed, purpose, number, rank)
        for seed in range(3)
        for purpose in ("mix", "forward")
        for number in range(50)
        for rank in (0, 1)
    }
    assert len(seeds) == 3 * 2 * 50 * 2
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(0, "weights") == 7388263408636359099, "a resumed run of an older version would draw other numbers"


def test_all_sources_of_random_numbers_are_seeded() -> None:
    def draw() -> tuple[float, float, float]:
        seed_everything(2**62 + 1)
        return torch.rand(()).item(), random.random(), float(np.random.rand())

    assert draw() == draw()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_noted_and_the_second_acts_as_before(number: signal.Signals) -> None:
    second: list[int] = []
    outer = signal.signal(number, lambda got, _: second.append(got))
    try:
        with StopSignals() as signals:
            os.kill(os.getpid(), number)
            assert signals.received == number
            assert second == []
            os.kill(os.getpid(), number)
            assert second == [number]
        with StopSignals() as signals:
            pass
        os.kill(os.getpid(), number)
        assert signals.received is None
        assert second == [number, number]
    finally:
        signal.signal(number, outer)


def test_training_in_a_thread_leaves_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    inside: list[object] = []

    def work() -> None:
        with StopSignals():
            inside.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]
