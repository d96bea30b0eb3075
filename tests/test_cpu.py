"""What a process settles before torch starts."""

import os

import pytest

from pyramidvit import cpu


@pytest.fixture
def settled(monkeypatch, tmp_path):
    """Waiting as it is settled on a machine whose /proc/loadavg has this text."""

    def settle(text: str | None, **environment: str) -> str | None:
        for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(cpu, "LOADAVG", tmp_path / "loadavg")
        if text is not None:
            cpu.LOADAVG.write_text(text)
        cpu.limit_spinning()
        return os.environ.get("GOMP_SPINCOUNT")

    return settle


def test_threads_spin_longer_where_nobody_else_computes(settled):
    assert settled("1.71 1.39 1.53 1/93 20285\n") == "20000", "what ran a minute ago doesn't matter"
    assert settled("0.00 0.00 0.00 2/93 20285\n") == "2000"
    assert settled("0.00 0.00 0.00 12/93 20285\n") == "2000"


def test_threads_sleep_soon_where_nothing_is_known_of_others(settled):
    assert settled(None) == "2000"


def test_users_choice_of_waiting_stays(settled):
    assert settled("0.00 0.00 0.00 1/93 20285\n", GOMP_SPINCOUNT="7") == "7"
    assert settled("0.00 0.00 0.00 1/93 20285\n", OMP_WAIT_POLICY="ACTIVE") is None
