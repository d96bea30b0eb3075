"""The bench: honest times and memory, fair turns, and what is said when something can't be measured."""

import json
import time
from functools import partial
from itertools import pairwise

import pytest
import torch
from PIL import Image
from torch import nn

from pyramidvit.bench import compare as comparing
from pyramidvit.bench import scaling as growing
from pyramidvit.bench.compare import Comparison, Row, compare, noisy_rows
from pyramidvit.bench.measure import (
    ChildFailed,
    Contestant,
    Named,
    busy_machine,
    busy_share,
    in_fresh_process,
    peak_flops,
    peak_memory,
    take_turns,
)
from pyramidvit.bench.picture import spread_out
from pyramidvit.bench.scaling import Point, Scaling, measure_scaling
from pyramidvit.cli import main
from pyramidvit.errors import UserError
from pyramidvit.verbs import bench as benching


class Allocates(nn.Module):
    """A network of one number that holds ``mib`` MiB while it computes, and sleeps."""

    def __init__(self, mib: int, seconds: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.mib, self.seconds = mib, seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        held = torch.ones(self.mib, 2**18)
        time.sleep(self.seconds)
        return x * self.weight * held[0, 0]


@pytest.fixture
def quick(monkeypatch):
    """Without the fresh processes for memory and the large matrix products, which take seconds each."""
    monkeypatch.setattr(comparing, "peak_memory", lambda contestant, _threads: float(len(contestant.label)))
    monkeypatch.setattr(comparing, "peak_flops", lambda: 1e11)
    monkeypatch.setattr(comparing, "busy_share", lambda: 0.0)


def run(*arguments: object) -> int:
    """The exit code of `pyramidvit arguments`."""
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


def row(label: str, seconds: list[float], macs: int = 10**9) -> Row:
    return Row(label, "torch", (4, 3, 32, 32), tuple(seconds), macs, None)


def test_turns_rotate_so_that_everyone_goes_first_and_finds_the_machine_as_its_own_last_step_left_it():
    order: list[str] = []
    seconds = take_turns([partial(order.append, name) for name in "abc"], 3, warm_up=1)
    assert "".join(order) == "abc" + "aabbcc" + "bbccaa" + "ccaabb"
    assert [len(times) for times in seconds] == [3, 3, 3]


def test_a_step_without_others_finds_it_so_anyway():
    order: list[str] = []
    assert [len(times) for times in take_turns([partial(order.append, "a")], 3)] == [3]
    assert "".join(order) == "aaaa"


@pytest.mark.slow
@pytest.mark.parametrize("train", [False, True])
def test_memory_of_a_fresh_process_is_what_the_network_holds(train):
    """100 MiB held for a moment are found, and nothing else is counted: neither weights nor what torch itself needs."""
    contestant = Contestant("net", partial(Allocates, 100), (1, 3, 32, 32), train=train)
    assert peak_memory(contestant, 1) == pytest.approx(100, abs=12)


def test_peak_of_a_matrix_product_is_that_of_a_computer():
    """Between a small processor and a large one."""
    assert 1e8 < peak_flops(256, rounds=3) < 1e14


@pytest.mark.slow
def test_multiply_adds_are_those_of_a_step():
    """Attention included, for every picture of the batch; the backward pass counts as two forwards."""
    build, shape = Named("pvt_tiny"), (2, 3, 64, 64)
    forward, step = Contestant("a", build, shape), Contestant("b", build, shape, train=True)
    assert forward.macs() == 2 * Contestant("c", build, (1, 3, 64, 64)).macs()
    assert step.macs() == 3 * forward.macs()
    assert Contestant("d", nn.Identity, shape).macs() == 0


class Notes(nn.Linear):
    """A layer that notes how it is called."""

    inference: bool | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.inference = torch.is_inference_mode_enabled()
        return super().forward(input)


@pytest.mark.parametrize("train", [False, True])
def test_a_step_is_inference_or_training_and_leaves_no_gradients(train):
    built: list[Notes] = []
    gradients: list[torch.Tensor] = []

    def build() -> nn.Module:
        built.append(Notes(4, 2))
        built[0].weight.register_hook(gradients.append)
        return built[0]

    Contestant("net", build, (3, 4), train=train).step()
    assert built[0].training == train
    assert built[0].inference == (not train)
    assert len(gradients) == train
    assert built[0].weight.grad is None


@pytest.mark.usefixtures("quick")
def test_the_slower_network_is_found_slower():
    """By a ratio of medians, from turns in one process."""
    fast, slow = (Contestant(str(s), partial(Allocates, 1, s), (2, 3, 8, 8)) for s in (0.01, 0.03))
    result = compare([fast, slow], ["0.01"], rounds=3, threads=1, memory=False)
    assert result.ratio(result.rows[1], "0.01") == pytest.approx(1 / 3, rel=0.4)
    assert result.rows[0].throughput == pytest.approx(2 / result.rows[0].p50)
    assert result.rows[1].p50 >= 0.03
    content = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert content["rows"][0]["ratios"] == {"0.01": 1.0}
    assert content["machine"]["threads"] == 1
    assert content["peak_gflops"] == 100


def test_numbers_of_a_row():
    times = row("net", [0.1, 0.2, 0.3, 0.4, 0.5])
    assert (times.p50, times.throughput) == (0.3, pytest.approx(4 / 0.3))
    assert times.p90 == pytest.approx(0.46)
    assert times.share_of(20e9) == pytest.approx(2e9 / 0.3 / 20e9)
    result = Comparison((times, row("other", [0.6])), ("net",), False, 20e9, {}, ())
    assert result.ratio(result.rows[1], "net") == pytest.approx(0.5)


def test_a_noisy_machine_is_said(monkeypatch):
    assert noisy_rows([row("calm", [1.0, 1.01, 1.02])]) == []
    (warning,) = noisy_rows([row("calm", [1.0, 1.01, 1.02]), row("shaken", [1.0, 1.0, 2.0, 3.0])])
    assert "shaken" in warning
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert busy_machine(0.1) == busy_machine(None) == []
    assert "50% of its 2 cores" in busy_machine(0.5)[0]


def test_how_busy_others_are_is_counted_while_nothing_runs_here(tmp_path, monkeypatch):
    """Work of this process before the measurement is no reason to warn, as it is in a load average."""
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 400 50 0 0 10 5 0\ncpu0 ...\n")
    monkeypatch.setattr(time, "sleep", lambda _: stat.write_text("cpu  130 20 30 440 60 0 0 30 5 0\n"))
    assert busy_share(stat=stat) == pytest.approx(0.5)  # 30 ticks of programs and 20 lent to other machines, of 100
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 0, 0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert busy_share(stat=tmp_path / "none") == 0.25
    monkeypatch.delattr("os.getloadavg")
    assert busy_share(stat=tmp_path / "none") is None


def fail() -> None:
    raise ValueError("no such luck")


@pytest.mark.slow
def test_a_fresh_process_fails_or_is_stopped_with_its_reason():
    with pytest.raises(ChildFailed, match="ValueError: no such luck"):
        in_fresh_process(fail)
    with pytest.raises(TimeoutError, match=r"stopped after 0\.5 s"):
        in_fresh_process(time.sleep, 60, limit=0.5)


def test_scaling_stops_a_network_where_it_is_too_large_and_says_so(monkeypatch):
    """Another reason, at one size, does not keep the network from larger ones."""

    def measured(_function: object, contestant: Contestant, _threads: int, *, limit: float) -> tuple[float, float]:
        size = contestant.shape[-1]
        if contestant.label == "pvt_v2_b0" and size >= 96:
            raise TimeoutError(f"stopped after {limit:g} s")
        if contestant.label == "pvt_tiny" and size == 96:
            raise ChildFailed("ValueError: not this one")
        return size / 1000, size / 10

    monkeypatch.setattr(growing, "in_fresh_process", measured)
    told: list[Point] = []
    result = measure_scaling(["pvt_tiny", "pvt_v2_b0"], [128, 64, 96], limit=5, report=told.append)
    assert [(p.size, p.seconds, p.skipped) for p in result.points if p.name == "pvt_v2_b0"] == [
        (64, 0.064, None),
        (96, None, "stopped after 5 s"),
        (128, None, "not tried, since 96 was too large"),
    ]
    assert [p.skipped for p in result.points if p.name == "pvt_tiny"] == [None, "ValueError: not this one", None]
    assert [p.size for p in result.of("pvt_tiny")] == [64, 128]
    assert len(told) == 6
    assert json.loads(json.dumps(result.to_json()))["points"][0] == {
        "name": "pvt_tiny",
        "size": 64,
        "seconds": 0.064,
        "memory_mib": 6.4,
        "skipped": None,
    }


def test_scaling_that_measured_nothing_is_no_success(monkeypatch, capsys):
    result = Scaling((Point("pvt_tiny", 64, skipped="late"),), 1, False, {"threads": 2}, ())
    monkeypatch.setattr(growing, "measure_scaling", lambda *_, **__: result)
    assert run("bench", "scaling") == 2
    said = capsys.readouterr()
    assert "skipped" in said.out
    assert "Nothing was measured" in said.err


def test_labels_beside_lines_do_not_overlap():
    for places in ([0.1, 0.5, 0.9], [0.5, 0.51, 0.52], [0.97, 0.98, 0.99, 1.0]):
        moved = spread_out(places, 0.06)
        assert all(b - a >= 0.06 - 1e-9 for a, b in pairwise(moved)), moved
        assert max(moved) <= 1
    assert spread_out([0.1, 0.5, 0.9], 0.06) == [0.1, 0.5, 0.9]


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_verb_prints_a_table_json_and_a_picture(tmp_path, capsys):
    few = ("--size", "32x64", "--threads", 1, "--rounds", 3, "--batch", 2)
    assert run("bench", "pvt_v2_b0", "--vs", "pvt_tiny", *few, "--out", tmp_path / "b.png") == 0
    table = capsys.readouterr().out
    assert "2x3x32x64" in table
    assert "times as fast as pvt_tiny" in table
    with Image.open(tmp_path / "b.png") as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 200
    assert run("bench", "pvt_v2_b0", "pvt_tiny", *few, "--train", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["what"] == "forward and backward"
    assert [(r["name"], r["memory_mib"], len(r["seconds"])) for r in content["rows"]] == [("pvt_v2_b0", 9, 3), ("pvt_tiny", 8, 3)]
    assert content["rows"][0]["ratios"] == {"pvt_v2_b0": 1.0}


def test_no_ratio_is_cut_off_in_a_narrow_terminal(monkeypatch, capsys):
    """Two networks and four backends: eight lines with four ratios each."""
    pytest.importorskip("timm", reason="from the timm extra")
    backends = ("torch", "onnx", "openvino", "compile")
    rows = [
        Row(f"{name} · {one}", one, (1, 3, 64, 64), (0.5, 0.25, 0.125), 10**9, 123.0)
        for name in ("pvt_v2_b0", "timm/pvt_v2_b0")
        for one in backends
    ]
    references = tuple(row.label for row in rows[4:])
    result = Comparison(tuple(rows), references, False, 1e11, {"threads": 1}, ())
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(benching, "compare", lambda *_, **__: result)
    assert run("bench", "pvt_v2_b0", "--vs", "timm/pvt_v2_b0", "--backend", *backends) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith(("pvt_v2_b0", "timm/"))]
    assert len(lines) == 8
    assert all(line.split()[-4:] == ["1.00"] * 4 for line in lines)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_an_export_is_measured_beside_its_network(capsys):
    """PB-100: how fast the exported network is, as a ratio to the eager one."""
    pytest.importorskip("onnxruntime", reason="from the onnx extra")
    assert run("bench", "pvt_v2_b0", "--backend", "torch", "onnx", "--size", "32x64", "--threads", 1, "--rounds", 3, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["name"], row["backend"]) for row in rows] == [("pvt_v2_b0 · torch", "torch"), ("pvt_v2_b0 · onnx", "onnx")]
    assert rows[0]["macs"] == rows[1]["macs"]
    assert rows[1]["ratios"]["pvt_v2_b0 · torch"] == pytest.approx(rows[0]["p50"] / rows[1]["p50"])


@pytest.mark.usefixtures("quick")
def test_clip_networks_are_measured_on_clips(monkeypatch):
    shapes = []
    monkeypatch.setattr(comparing, "take_turns", lambda steps, *_, **__: [[0.1]] * len(steps))
    monkeypatch.setattr(Contestant, "step", lambda self: shapes.append(self.shape))
    monkeypatch.setattr(Contestant, "macs", lambda _: 1)
    assert run("bench", "mvitv2_small_16x4", "mvit_mini_8x2", "--size", 64, "--batch", 2) == 0
    assert shapes == [(2, 3, 16, 64, 64), (2, 3, 8, 64, 64)]


def test_scaling_prints_and_draws_what_it_has(monkeypatch, tmp_path, capsys):
    points = (
        Point("pvt_tiny", 64, 0.1, 5.0),
        Point("pvt_tiny", 128, 0.3, 25.0),
        Point("slow", 64, 1.0, 9.0),
        Point("slow", 128, skipped="late"),
    )
    result = Scaling(points, 1, False, {"threads": 2}, ("It was loud.",))
    monkeypatch.setattr(growing, "measure_scaling", lambda *_, **__: result)
    assert run("bench", "scaling", "--out", tmp_path / "s.png") == 0
    said = capsys.readouterr()
    for text in ("0.300", "x 3.0", "x 5.0", "skipped"):
        assert text in said.out
    assert "It was loud." in said.err
    with Image.open(tmp_path / "s.png") as picture:
        assert picture.width > picture.height
    assert run("bench", "scaling", "--json") == 0
    assert json.loads(capsys.readouterr().out)["points"][3]["skipped"] == "late"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Name at least one network"),
        (("pvt_v3",), "no network 'pvt_v3'"),
        (("pvt_tiny", "--out", "a.jpg"), "name it a.png"),
        (("pvt_tiny", "--out", "nowhere/a.png"), "does not exist"),
        (("pvt_tiny", "--backend", "fast"), "backend"),
        (("pvt_tiny", "--size", "16x16"), "size"),
        (("mvitv2_small_16x4", "pvt_tiny"), "mvitv2_small_16x4 takes clips and pvt_tiny pictures"),
        (("pvt_tiny", "--vs", "mvit_mini_8x2"), "mvit_mini_8x2 takes clips and pvt_tiny pictures"),
        (("scaling", "pvt_tiny", "mvit_mini_8x2"), "mvit_mini_8x2 takes clips and pvt_tiny pictures"),
        (("pvt_tiny", "--size", "abc"), "--size: expected height x width, such as 224x224 or 512x640, got 'abc'"),
        (("scaling", "pvt_v3"), "no network 'pvt_v3'"),
        (("scaling", "pvt_tiny", "--sizes", "64", "16"), "at least 32"),
        (("scaling", "--limit", "0"), "limit"),
    ],
)
def test_mistakes_are_told_before_anything_is_measured(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr(comparing, "take_turns", None)
    monkeypatch.setattr(growing, "in_fresh_process", None)
    assert run("bench", *arguments) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_an_unknown_network_is_the_users_mistake():
    with pytest.raises(UserError, match="no network"):
        measure_scaling(["pvt_v3"])


@pytest.mark.slow
def test_scaling_measures_time_and_memory_that_grow():
    result = measure_scaling(["pvt_v2_b0"], [64, 256], threads=1)
    small, large = result.points
    assert small.skipped is None
    assert large.skipped is None
    assert 0 < (small.seconds or 0) < (large.seconds or 0)
    assert (large.memory_mib or 0) > 4 * (small.memory_mib or 0) > 0
