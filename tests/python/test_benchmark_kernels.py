"""The benchmark of kernels: its judgement on made-up figures, and a trial run."""

import json
import math
import sys
import types

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.benchmark import __main__ as command
from pygpukit.benchmark import compare, kernels, report, shapes
from pygpukit.benchmark._measure import Row
from pygpukit.benchmark.attention import Shape
from pygpukit.benchmark.cases import Bench, Case, Goal, Judge, geometric_mean_row, measure_cases
from pygpukit.benchmark.draws import Draw
from pygpukit.benchmark.peers import NumpyPeer, find_peers
from pygpukit.benchmark.products import Matrices, full_name
from pygpukit.benchmark.timing import EventTimer, repetitions
from support import ON_GPU


class Rates:
    """Limits that are known."""

    def __init__(self, **rates):
        self._rates = {name.replace("_", " "): rate for name, rate in rates.items()}

    def rate(self, name):
        return self._rates.get(name)


class Steady:
    """A peer whose calls take a given time."""

    def __init__(self, name, us):
        self.name, self.module, self._us = name, np, us
        self.released = 0

    def view(self, array):
        return array.to_numpy()

    def timer(self, calls, count):
        return types.SimpleNamespace(how="given", microseconds=lambda: self._us)

    def release(self):
        self.released += 1


def double_case(**changes):
    fields = {
        "group": "memory",
        "name": "double",
        "dtype": "float32",
        "inputs": lambda draw: (draw.normal(1000, dtype="float32"),),
        "run": lambda x: x * 2,
        "reference": lambda _, x: x * 2,
        "moved": 8000.0,
    }
    return Case(**{**fields, **changes})


def bench(peers=(), **more):
    return Bench(list(peers), Rates(copy=1e9), Judge([]), quick=True, rounds=3, enough_us=50, **more)


@pytest.fixture
def one_us(monkeypatch):
    """Our own calls take a microsecond."""
    timer = types.SimpleNamespace(how="given", microseconds=lambda: 1.0)
    monkeypatch.setattr("pygpukit.benchmark.cases.own_timer", lambda calls, count: timer)


def row(name="r", value=10.0, **more):
    return Row(name, value, "us", value, value, 0.0, **more)


def test_draws_are_normal_and_differ():
    draw = Draw()
    first, second = (draw.normal(300, 301, dtype="float32").to_numpy().astype(np.float64) for _ in range(2))
    for x in (first, second):
        assert abs(x.mean()) < 0.02
        assert abs(x.std() - 1) < 0.01
        assert abs((x**4).mean() - 3) < 0.15
        assert abs(x).max() < 7
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.02
    np.testing.assert_array_equal(Draw().normal(300, 301, dtype="float32").to_numpy(), first)
    small = Draw().normal(5, 999, dtype="int8").to_numpy()
    assert 25 < small.std() < 40
    whole = Draw().integers(10_000, below=7).to_numpy()
    assert set(whole.tolist()) == set(range(7))


def test_a_row_says_its_rate_its_share_and_its_ratios(one_us):
    peers = [Steady("torch", 3.0), Steady("cupy", 0.5)]
    twice = {"torch": lambda np, x: lambda: x * 2, "cupy": lambda np, x: lambda: x * 3}
    found = bench(peers).measure(double_case(peers=twice, own={"own other": lambda x: x + x}))
    assert (found.name, found.value, found.unit) == ("memory double", 1.0, "us")
    assert (found.rate, found.rate_unit) == (pytest.approx(8.0), "GB/s")
    assert (found.limit, found.share) == ("copy", pytest.approx(8.0))
    assert found.ratios == {"torch": 3.0, "cupy": 0.5, "own other": 1.0}
    assert found.error == 0
    assert found.peer_errors["torch"] == 0
    assert found.peer_errors["cupy"] == pytest.approx(0.5)
    assert found.timing == "given"
    assert (found.goal, found.met) == (None, None)


def test_what_libraries_cache_is_given_back_between_them(one_us):
    peer = Steady("torch", 3.0)
    twice = {"torch": lambda np, x: lambda: x * 2}
    kept = gp.ones(1 << 20)
    del kept
    assert gp.memory.stats()["cached_bytes"] > 0
    ((_, found),) = measure_cases([double_case(peers=twice)], bench([peer]))
    assert found.note is None
    assert peer.released == 2
    assert gp.memory.stats()["cached_bytes"] == 0


def test_arithmetic_is_held_against_the_product_rate_where_that_is_the_bound():
    limits = Rates(copy=1e9, bfloat16_product=1e12)
    case = double_case(dtype="bfloat16", work=1e9, moved=1e3)
    assert case.floor_us(limits) == ("bfloat16 product", pytest.approx(1000))
    assert double_case(dtype="bfloat16", work=1e3, moved=1e6).floor_us(limits) == (
        "copy",
        pytest.approx(1000),
    )
    assert double_case(dtype="bfloat16", work=1e9, moved=1e3).floor_us(Rates(copy=1e9)) is None
    assert double_case(memory_limit="read").floor_us(Rates(copy=1e9)) is None


@pytest.mark.parametrize(
    ("goal", "judged", "met"),
    [
        (Goal("peers", 0.9), True, False),
        (Goal("peers", 0.5), True, True),
        (Goal("torch", 3.0), True, True),
        (Goal("limit", 9.0), True, False),
        (Goal("copy", 7.9), True, True),
        (Goal("cublaslt", 1.0), True, None),  # it was not there
        (Goal("peers", 0.5), False, None),
    ],
)
def test_goals(one_us, goal, judged, met):
    peers = [Steady("torch", 3.0), Steady("cupy", 0.5)]
    twice = dict.fromkeys(("torch", "cupy"), lambda np, x: lambda: x * 2)
    found = bench(peers, judged=judged).measure(double_case(peers=twice, goals=(goal,)))
    assert found.goal == str(goal)
    assert found.met is met


def test_a_wrong_result_is_no_figure(one_us):
    cases = [
        double_case(run=lambda x: x * 2.0001),
        double_case(run=lambda x: x[:10]),
        double_case(run=lambda x: x / 0),
        double_case(needs="nn.nothing"),
        double_case(needs="add(x)"),
        double_case(needs="add(nothing)"),
        double_case(),
    ]
    results = [what for _, what in measure_cases(cases, bench())]
    assert [type(what).__name__ for what in results] == [
        *["ArithmeticError"] * 3,
        "NotImplementedError",
        "Row",
        "NotImplementedError",
        "Row",
    ]
    assert "error 4.99e-05, at most 1e-05 allowed" in str(results[0])
    assert "gp.nn.nothing" in str(results[3])
    assert "gp.add(nothing)" in str(results[5])


def test_what_a_peer_cannot_do_is_noted(one_us):
    def refuse(np, x):
        raise TypeError("no such dtype\nat line 5")

    found = bench([Steady("torch", 3.0)]).measure(double_case(peers={"torch": refuse}))
    assert found.ratios == {}
    assert found.note == "torch: TypeError: no such dtype"


def test_inputs_rotate_past_the_cache(one_us):
    def count(measured, **changes):
        inputs, prepared = measured._sets(double_case(**changes), Draw())
        assert len(inputs) == len(prepared)
        return len(inputs)

    measured = bench(cache_bytes=10_000)
    assert count(measured) == 8  # 4000 bytes each, three times the cache
    assert count(measured, inputs=lambda draw: (gp.zeros(0),)) == 64
    assert count(measured, prepare=lambda x: (x[:500],)) == 15
    assert count(bench()) == 1


def test_every_set_is_used(one_us):
    used = set()

    def peer(np, x):
        used.add(float(x[0]))
        return lambda: x * 2

    bench([Steady("torch", 1.0)], cache_bytes=10_000).measure(double_case(peers={"torch": peer}))
    assert len(used) == 8


def test_repetitions_fill_the_time():
    assert repetitions(5, enough_us=1500, at_least=2) == 256
    assert repetitions(100, enough_us=1500, at_least=2) == 16
    assert repetitions(5000, enough_us=1500, at_least=2) == 2
    assert repetitions(0, enough_us=10, at_least=300) == 300


def test_what_cannot_be_captured_is_queued():
    ran = []

    def capture(work):
        raise RuntimeError("not in a capture")

    def elapsed_ms(replay):
        replay()
        return 6.0

    timer = EventTimer([lambda: ran.append(0), lambda: ran.append(1)], 3, capture, elapsed_ms)
    assert timer.microseconds() == pytest.approx(2000)
    assert ran == [0, 1, 0]
    assert timer.how == "3 queued calls (RuntimeError in a capture)"


def test_the_mean_of_rows():
    rows = [
        row(ratios={"torch": 2.0, "own a": 9.0}, group="shapes"),
        row(ratios={"torch": 0.5}, group="shapes"),
    ]
    mean = geometric_mean_row("mean", rows, Goal("peers", 1.0), 0.93, True)
    assert (mean.value, mean.low, mean.high, mean.met) == (pytest.approx(1.0), 0.5, 2.0, False)
    assert mean.figures == {"rows": 2, "below": 1}
    assert geometric_mean_row("mean", rows, Goal("peers", 0.99), 0.5, True).met is True
    assert geometric_mean_row("mean", rows, Goal("peers", 1.0), 0.5, False).met is None
    assert geometric_mean_row("mean", [row()], Goal("peers", 1.0), 0.5, True) is None


def test_the_reference_takes_what_rows_it_can_afford():
    whole = Matrices(8, 100, 100, "float32", transposed=False)
    assert whole.rows(np.zeros((8, 3))).shape == (8, 3)
    large = Matrices(8192, 8192, 8192, "float32", transposed=False)
    assert large.rows(np.zeros((8192, 1))).shape[0] == -(-8192 // 275)
    token = Matrices(1, 152064, 18944, "float32", transposed=True)
    assert token.rows(np.zeros((1, 1))).shape[0] == 1


def test_the_frozen_shapes():
    assert len(set(shapes.PRODUCTS)) == len(shapes.PRODUCTS) == 60
    assert {each.model for each in shapes.PRODUCTS} == {"Llama-8B", "Qwen-7B", "Whisper-large"}
    assert {each.m for each in shapes.PRODUCTS} >= {1, 8, 128, 1024, 1500, 8192}


def record_of(rows, **more):
    return json.loads(json.dumps({"card": "H", "rows": [each.as_dict() for each in rows], **more}))


def test_compare_prefers_what_does_not_drift():
    before = record_of(
        [
            row("by share", 10.0, limit="copy", share=0.8, ratios={"torch": 1.0}),
            row("by peers", 10.0, ratios={"torch": 2.0, "cupy": 1.0}),
            row("by time", 10.0),
            row("gone", 10.0),
        ]
    )
    now = [
        row("by share", 5.0, limit="copy", share=0.4, ratios={"torch": 1.0}),
        row("by peers", 20.0, ratios={"torch": 2.0}),
        row("by time", 10.4),
        row("new", 1.0),
    ]
    found = compare.compare(before, now, "H")
    assert [(each.name, round(each.ratio, 3), each.by) for each in found.changes] == [
        ("by share", 0.5, "share of copy"),
        ("by peers", 1.0, "ratio to torch"),
        ("by time", 0.962, "time"),
    ]
    assert (found.only_before, found.only_now) == (("gone",), ("new",))
    assert [each.name for each in found.regressions(0.05)] == ["by share"]
    assert [each.name for each in found.regressions(0.03)] == ["by share", "by time"]
    assert "by share" in report.comparison(found, 0.05).splitlines()[0]
    assert report.comparison(found, 0.05).count("REGRESSED") == 1
    # Times of another card say nothing.
    assert [each.name for each in compare.compare(before, now, "L").changes] == ["by share", "by peers"]


@pytest.mark.parametrize(
    "broken", [{"share": 0}, {"share": math.inf}, {"share": "high"}, {"limit": "read", "value": None}]
)
def test_compare_survives_a_strange_record(broken):
    before = record_of([row(limit="copy", share=0.8)])
    before["rows"][0].update(broken)
    found = compare.compare(before, [row(value=20.0, limit="copy", share=0.8)], "H")
    assert all(change.by == "time" for change in found.changes)


@pytest.mark.parametrize("text", ["", "[]", '{"rows": 3}', '{"rows": [3]}', '{"rows": [{}]}'])
def test_compare_names_a_file_that_is_no_record(tmp_path, text):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="r.json"):
        compare.read_record(path)
    with pytest.raises(ValueError, match="none.json"):
        compare.read_record(tmp_path / "none.json")


def test_markdown():
    rows = [
        row(
            "a|b",
            group="gemm",
            ratios={"torch": 1.234},
            rate=700.0,
            rate_unit="TFLOPS",
            goal=">= 1",
            met=False,
        ),
        row("c", group="memory", share=0.951, limit="copy", goal=">= 0.9", met=True),
    ]
    assert report.markdown(rows).splitlines() == [
        "|  | time | rate | of the limit | as fast as torch | error | goal |",
        "| --- | ---: | ---: | ---: | ---: | ---: | --- |",
        "| a\\|b | 10 us | 700 TFLOPS |  | 1.23x | 0.0e+00 | >= 1: missed |",
        "",
        "|  | time | rate | of the limit | error | goal |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
        "| c | 10 us |  | 95% copy | 0.0e+00 | >= 0.9: met |",
    ]
    assert "(95% of copy)" in report.line(rows[1])
    assert "MISSED >= 1" in report.line(rows[0])


def test_plot_needs_matplotlib(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit):
        command.main(["--quick", "--plot", str(tmp_path / "p.png")])
    assert "pip install matplotlib" in capsys.readouterr().err


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    rows = [row("a", share=0.5, limit="copy", ratios={"torch": 2.0}), row("b", share=0.7, limit="copy")]
    report.plot(report.plotter(), rows, tmp_path / "p.png", "title")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "nothing to measure"),
        (["--gemm", "--dtypes", "bf17"], "bf17"),
        (["--gemm", "--sizes", "0"], "from 1 to"),
        (["--gemm", "--sizes", "99999999999"], "from 1 to"),
        (["--gemm", "--sizes", "a"], "invalid literal"),
        (["--memory", "--peers", "jax"], "jax"),
        (["--memory", "--fail-on-regression"], "--compare"),
        (["--memory", "--threshold", "nan"], "--threshold"),
        (["--memory", "--compare", "/nowhere/r.json"], "/nowhere/r.json"),
        (["--memory", "--save", "/nowhere/r.json"], "--save"),
        (["--memory", "--save", "."], "--save"),
        (["--memory", "--plot", "/nowhere/p.png"], "--plot"),
        (["--memory", "--json", "--markdown"], "not allowed with"),
    ],
)
def test_wrong_arguments_are_named(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as end:
        command.main(arguments)
    assert end.value.code == 2
    assert complaint in capsys.readouterr().err


def test_peers_that_are_not_here_are_named():
    wanted, device = ("numpy", "a GPU") if ON_GPU else ("cublaslt", "the simulated device")
    with pytest.raises(ImportError, match=f"{wanted} \\(no peer on {device}\\)"):
        find_peers([wanted], ON_GPU)
    assert full_name("fp16") == "float16"


def test_numpy_is_the_peer_of_the_simulated_device():
    found, missing = find_peers(None, on_gpu=False)
    assert [type(peer) for peer in found] == [NumpyPeer]
    assert missing == {}


def test_a_trial_run(tmp_path, capsys):
    saved = tmp_path / "record.json"
    rest = ["--gemm", "--memory", "--dtypes", "fp32", "--sizes", "24,40", "--commit", "abc"]
    assert command.main(["--quick", *rest, "--save", str(saved)]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    record = json.loads(saved.read_text())
    assert "failures" not in record
    assert record["commit"] == "abc"
    rows = {each["name"]: each for each in record["rows"]}
    assert len(rows) == len(record["rows"])
    assert [name for name in rows if name.startswith("gemm")] == [
        "gemm float32 24x24x24",
        "gemm float32 40x40x40",
    ]
    assert record["limits"]["copy"]["rate"] > 0
    for name, each in rows.items():
        assert name in shown
        assert each["error"] is not None, name  # no figure without its error
        assert each["met"] is None  # of a trial run
        if each["unit"] == "us":
            assert each["low"] <= each["value"] <= each["high"]
            assert each["rate"] > 0
            assert each["timing"].startswith("graph of" if ON_GPU else "host clock")
    if not ON_GPU:
        assert rows["gemm float32 24x24x24"]["ratios"]["numpy"] > 0
        assert rows["gemm float32 24x24x24"]["peer_errors"]["numpy"] < 1e-5

    # Held against a record that was twice as fast, it fails where that is asked for.
    for each in record["rows"]:
        each["share"] = each["share"] and each["share"] * 1000
    saved.write_text(json.dumps(record))
    held = ["--quick", "--memory", "--compare", str(saved), "--json"]
    assert command.main(held) == 0
    out = capsys.readouterr()
    assert {each["group"] for each in json.loads(out.out)["rows"]} == {"memory"}
    assert "REGRESSED" in out.err
    assert "gemm float32 24x24x24" in out.err
    assert command.main([*held, "--fail-on-regression"]) == 1


def test_what_cannot_be_loaded_is_a_failure_among_the_rows(tmp_path, capsys):
    path = tmp_path / "record.json"
    assert command.main(["--quick", "--decode", "nowhere", "--load", "--save", str(path)]) == 1
    record = json.loads(path.read_text())
    assert "'nowhere', which is not there" in record["failures"]["decode nowhere"]
    assert [row["name"] for row in record["rows"]] == ["load 4 GB safetensors"]
    assert "decode nowhere: FAILED" in capsys.readouterr().err


def test_groups_are_options():
    options = command._parser().parse_args([f"--{group}" for group in kernels.GROUPS])
    assert all(getattr(options, group) for group in kernels.GROUPS)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(2, 4, 4, 64, 64, 16, causal=True),
        Shape(1, 4, 2, 1, 48, 16, causal=False),
        Shape(1, 1, 1, 9, 40, 8, causal=True),
    ],
)
def test_the_reference_of_attention(shape):
    q, k, v = (array.astype("float64").to_numpy() for array in shape.inputs(Draw()))
    k, v = (np.repeat(each, shape.heads // shape.kv_heads, axis=1) for each in (k, v))
    scores = q @ k.transpose(0, 1, 3, 2) / shape.d**0.5
    if shape.causal:
        seen = np.tril(np.ones(scores.shape[2:], bool), shape.keys - shape.tokens)
        scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores)
    whole = weights / weights.sum(-1, keepdims=True) @ v
    q, k, v = (array.astype("float64").to_numpy() for array in shape.inputs(Draw()))
    np.testing.assert_allclose(shape.reference(np, q, k, v), shape.rows(whole), rtol=1e-12)


def test_a_peer_may_come_in_several_ways(one_us):
    ways = {f"torch {way}": lambda np, x: lambda: x * 2 for way in ("flash", "cuDNN")}
    found = bench([Steady("torch", 3.0)]).measure(double_case(peers={**ways, "cupy": None}))
    assert found.ratios == {"torch flash": 3.0, "torch cuDNN": 3.0}
    assert found.peer_errors == {"torch flash": 0.0, "torch cuDNN": 0.0}


def test_what_is_checked_may_be_another_result(one_us):
    case = double_case(
        run=lambda x: x[:1], checked=lambda x: x * 2, peers={"torch": lambda np, x: lambda: x[:1]}
    )
    found = bench([Steady("torch", 3.0)]).measure(case)
    assert (found.error, found.peer_errors, found.ratios) == (0.0, {}, {"torch": 3.0})


def test_what_is_prepared_is_no_part_of_the_call(one_us):
    case = double_case(
        prepare=lambda x: (x * 2,),
        run=lambda y: y * 1,
        referred=lambda x: (x * 2,),
        reference=lambda _, y: y,
        work=1e6,
        by_bytes=True,
    )
    found = bench().measure(case)
    assert found.error == 0
    assert (found.rate, found.rate_unit) == (pytest.approx(8.0), "GB/s")


def test_a_trial_run_of_everything(capsys):
    assert command.main(["--quick", "--json"]) == 0, capsys.readouterr().err
    record = json.loads(capsys.readouterr().out)
    assert "failures" not in record
    groups = {row["group"] for row in record["rows"]} | {
        name.split()[0] for name in record.get("skipped", ())
    }
    assert groups >= {*kernels.GROUPS, "shapes"}
