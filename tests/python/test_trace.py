"""Nothing bypasses the launcher: whatever runs on the device leaves an entry; and what a trace file says."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import pygpukit as gp
from support import ON_GPU, assert_equal, run_python

BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "remainder",
    "fmod",
    "power",
    "minimum",
    "maximum",
    "arctan2",
    "hypot",
    "logaddexp",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
]
INTEGER_BINARY = ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"]
UNARY = [
    "negative",
    "absolute",
    "sign",
    "square",
    "reciprocal",
    "sqrt",
    "rsqrt",
    "cbrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "arcsinh",
    "arccosh",
    "arctanh",
    "floor",
    "ceil",
    "trunc",
    "rint",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "erf",
    "sigmoid",
    "relu",
    "silu",
    "gelu",
    "gelu_tanh",
]
REDUCTIONS = ["sum", "mean", "var", "std", "max", "min", "prod", "any", "all", "argmax", "argmin"]


def operations():
    x, i, c = gp.ones((4, 6)), gp.ones((4, 6), "int32"), gp.ones((4, 6), "bool")
    ops = {name: lambda name=name: getattr(gp, name)(x, x) for name in BINARY}
    ops |= {name: lambda name=name: getattr(gp, name)(i, i) for name in INTEGER_BINARY}
    ops |= {name: lambda name=name: getattr(gp, name)(x) for name in UNARY + REDUCTIONS}
    ops |= {
        "invert": lambda: ~i,
        "zeros": lambda: gp.zeros(4),
        "ones": lambda: gp.ones(4),
        "full": lambda: gp.full(4, 2),
        "arange": lambda: gp.arange(4),
        "linspace": lambda: gp.linspace(0, 1, 4),
        "eye": lambda: gp.eye(4),
        "from_numpy": lambda: gp.from_numpy(np.ones(4)),
        "to_numpy": lambda: x.to_numpy(),
        "item": lambda: x[0, 0].item(),
        "astype": lambda: x.astype("float16"),
        "copy": lambda: x.T.copy(),
        "reshape_copy": lambda: x.T.reshape(-1),
        "assign_number": lambda: x.__setitem__(0, 1),
        "assign_array": lambda: x.__setitem__(0, x[1]),
        "where": lambda: gp.where(c, x, x),
        "clip": lambda: gp.clip(x, 0, 1),
        "concat": lambda: gp.concat([x, x]),
        "stack": lambda: gp.stack([x, x]),
        "take": lambda: gp.take(x, gp.arange(2), 0),
        "matmul": lambda: gp.matmul(x, x.T),
    }
    return ops


@pytest.mark.parametrize("name", sorted(operations()))
def test_every_op_is_traced(name):
    operation = operations()[name]
    with gp.Trace() as trace:
        operation()
    assert trace.entries, f"{name} reached the device on another way"
    for entry in trace.entries:
        assert entry["kind"] in ("kernel", "copy_to_device", "copy_to_host", "copy_on_device", "fill")
        assert entry["name"]
        assert entry["start_ns"] <= entry["end_ns"]
        assert entry["bytes"] > 0


def test_every_public_op_is_listed():
    listed = set(operations()) | {
        "sub",
        "mul",
        "div",
        "empty",
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
    }
    # Views, or shown by another.
    listed |= {"asarray", "broadcast_to", "expand_dims", "from_dlpack", "reshape", "transpose"}
    others = [
        "device",
        "set_device",
        "is_cuda_available",
        "cuda_device_count",
        "why_no_cuda",
        "synchronize",
        "current_stream",
        "set_matmul_precision",
        "matmul_precision",
        "result_type",
        "jit",
        "metrics",
        "partition",
        "publish",
        "serve_metrics",
        "trace",
        "is_nvrtc_available",
        "get_nvrtc_path",
        "get_nvrtc_version",
    ]
    public = {
        n
        for n in dir(gp)
        if not n.startswith("_") and callable(getattr(gp, n)) and not isinstance(getattr(gp, n), type)
    }
    assert public - listed - set(others) == set()


def test_views_reach_no_device():
    x = gp.ones((4, 6))
    gp.empty(100)  # its memory is this stream's from then on, so nothing has to be cleared
    with gp.Trace() as trace:
        x.T[1:, ::2].reshape(5, 2, 1)
        gp.broadcast_to(x, (3, 4, 6))
        gp.expand_dims(x, 0).squeeze()
        gp.empty(100)
    assert trace.entries == []


def test_one_launch_an_op():
    x, other = gp.ones(1000), gp.ones(1000)
    gp.tanh(x + other)  # its memory is this stream's from then on, so nothing has to be cleared
    with gp.Trace() as trace:
        y = x + other
        y = gp.tanh(y)
    assert [entry["kind"] for entry in trace.entries] == ["kernel", "kernel"]
    first = trace.entries[0]
    assert first["bytes"] == 3 * 4000
    assert first["flops"] == 1000
    assert first["block"][0] * first["grid"][0] >= 1


def test_a_graph_is_one_piece_with_its_cost():
    x = gp.ones(1000)
    graph = gp.Graph()
    with graph:
        y = x + x
        y = y * y
    with gp.Trace() as trace:
        graph.launch()
    assert [entry["kind"] for entry in trace.entries] == ["graph"]
    assert trace.entries[0]["flops"] == 2000
    assert_equal(y, np.full(1000, 4, np.float32))


def test_stop_ends_the_recording():
    trace = gp.Trace()
    gp.ones(1)
    trace.stop()
    gp.ones(1)
    assert len(trace.entries) == 1


def test_traces_may_run_side_by_side():
    with gp.Trace() as outer:
        gp.ones(1)
        with gp.Trace() as inner:
            gp.ones(1)
    assert len(outer.entries) == 2
    assert len(inner.entries) == 1


# -- Files --------------------------------------------------------------------------------------------


def recorded(path):
    text = path.read_text(encoding="utf-8")
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return content["otherData"], content["traceEvents"]


def names_of(events, what):
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == what}


def check_schema(events):
    """What Perfetto and chrome://tracing ask of a file, and that no two spans of a track overlap."""
    processes, threads = names_of(events, "process_name"), names_of(events, "thread_name")
    assert len({pid for pid, _ in processes}) == len(processes)
    last, ends = 0.0, {}
    for event in events:
        assert event["ph"] in "MXiCsf"
        if event["ph"] == "M":
            continue
        assert (event["pid"], 0) in processes
        assert event["name"]
        assert event["ts"] >= last
        last = event["ts"]
        if event["ph"] in "Csf":
            continue
        assert event["cat"] in ("device", "work", "wait", "pacing", "memory", "transfer", "admission", "task")
        track = event["pid"], event["tid"]
        assert track in threads
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert event["ts"] >= ends.get(track, 0) - 1e-6
            ends[track] = event["ts"] + event["dur"]


def test_a_trace_file_tells_what_ran_where(tmp_path):
    path = tmp_path / "run.json"
    x = gp.ones(1000)
    with gp.trace(path) as recording:
        y = x + x
        with gp.Stream() as stream:
            x * x
        y.to_numpy()
        stream.synchronize()
    assert recording.dropped == 0
    about, events = recorded(path)
    check_schema(events)
    assert about["dropped_events"] == 0
    assert about["process_id"] == os.getpid()
    assert about["events"] == sum(e["ph"] != "M" for e in events) == len(recording)
    spans = [e for e in events if e["ph"] == "X"]
    work = [e for e in spans if e["cat"] == "work"]
    assert [e["args"]["kind"] for e in work] == ["kernel", "kernel", "copy_to_host"]
    assert [e["args"]["cost_bytes"] for e in work] == [8000, 8000, 4000]
    assert work[0]["args"]["flops"] == 1000
    assert work[0]["args"]["grid"][0] >= 1
    assert work[0]["tid"] == work[2]["tid"] != work[1]["tid"]
    assert [e["name"] for e in spans if e["cat"] == "wait"][-1] == "Stream.synchronize"
    device = str(gp.device())
    assert names_of(events, "process_name")[work[0]["pid"], 0] == device
    assert names_of(events, "thread_name")[work[0]["pid"], work[0]["tid"]].startswith("stream ")
    assert os.listdir(tmp_path) == ["run.json"]


def test_device_times_have_arrows_from_the_host(tmp_path):
    x = gp.ones(1000)
    with gp.trace(tmp_path / "run.json", device_times=True):
        for _ in range(20):
            x + x
    _, events = recorded(tmp_path / "run.json")
    check_schema(events)
    on_device = [e for e in events if e["ph"] == "X" and e["cat"] == "device"]
    on_host = [e for e in events if e["ph"] == "X" and e["cat"] == "work"]
    assert len(on_device) == len(on_host) == 20
    processes = names_of(events, "process_name")
    assert {processes[e["pid"], 0] for e in on_device} == {str(gp.device())}
    assert {processes[e["pid"], 0] for e in on_host} == {"host"}
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(starts) == len(ends) == 20
    for device, host, key in zip(on_device, on_host, starts, strict=True):
        assert (starts[key]["tid"], starts[key]["ts"]) == (host["tid"], host["ts"])
        assert (ends[key]["tid"], ends[key]["ts"]) == (device["tid"], device["ts"])
    with gp.Trace(device_times=True) as trace:
        x + x
    [entry] = trace.entries
    assert 0 < entry["device_start_ns"] <= entry["device_end_ns"]


def test_a_trace_ends_once_and_without_a_block(tmp_path):
    recording = gp.trace(str(tmp_path / "run.json"), device=None)
    gp.ones(3)
    recording.stop()
    gp.ones(4)
    written = (tmp_path / "run.json").read_text()
    recording.stop()
    assert (tmp_path / "run.json").read_text() == written
    assert len([e for e in json.loads(written)["traceEvents"] if e["ph"] == "X"]) == 1


def test_a_path_that_cannot_be_written_is_told_at_once(tmp_path):
    for path in (tmp_path, tmp_path / "none" / "run.json", "", "/dev/full/x"):
        with pytest.raises(gp.FileFormatError, match="trace"):
            gp.trace(path)
    with pytest.raises(TypeError):
        gp.trace(3)
    with pytest.raises(gp.InvalidValueError):
        gp.trace(tmp_path / "run.json", max_events=0)
    with pytest.raises(gp.InvalidValueError):
        gp.trace(tmp_path / "run.json", device="gpu")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_goes_meanwhile_loses_nothing(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    recording = gp.trace(folder / "run.json")
    gp.ones(3)
    (folder / "run.json").unlink()
    folder.rmdir()
    with pytest.raises(gp.FileFormatError):
        recording.stop()
    folder.mkdir()
    recording.stop()
    assert len(recorded(folder / "run.json")[1]) > 0


def test_what_is_dropped_is_counted(tmp_path):
    x = gp.ones(8)
    with gp.trace(tmp_path / "run.json", max_events=128) as recording:
        for _ in range(300):
            x + x
    about, events = recorded(tmp_path / "run.json")
    assert recording.dropped == about["dropped_events"] == 300 - 128
    assert sum(e["ph"] == "X" for e in events) == about["events"] == 128


def test_work_that_fails_is_in_the_file(tmp_path):
    with gp.trace(tmp_path / "run.json"):
        graph = gp.Graph()
        x = gp.ones(4)
        with pytest.raises(gp.UnsupportedError), graph:
            y = x + x
            y.to_numpy()
    _, events = recorded(tmp_path / "run.json")
    captured = [e for e in events if e["ph"] == "X" and e["args"].get("captured")]
    assert captured[0]["args"]["kind"] == "kernel"
    check_schema(events)


def test_threads_have_their_own_tracks(tmp_path):
    def work(_):
        with gp.Stream():
            x = gp.ones(100)
            for _ in range(50):
                x = x + 1
        return x

    with gp.trace(tmp_path / "run.json"), ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(8)))
    for each in results:
        assert_equal(each, np.full(100, 51, np.float32))
    _, events = recorded(tmp_path / "run.json")
    check_schema(events)
    spans = [e for e in events if e["ph"] == "X" and e["cat"] == "work"]
    assert sum(e["args"]["kind"] == "kernel" for e in spans) >= 8 * 50
    assert 1 <= len({e["args"]["thread"] for e in spans}) <= 4
    assert len({e["tid"] for e in spans}) >= 8


def test_a_trace_ends_with_the_interpreter(tmp_path):
    path = tmp_path / "run.json"
    done = run_python(
        f"""
import threading, pygpukit as gp
x = gp.ones(10)
recording = gp.trace({str(path)!r})
def spin():
    while True: x + x
threading.Thread(target=spin, daemon=True).start()
while len(recording) < 10: pass
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
    about, events = recorded(path)
    check_schema(events)
    assert about["events"] >= 10


@pytest.mark.skipif(ON_GPU, reason="a driver does not outlive a fork")
def test_a_forked_child_leaves_the_file_to_its_parent(tmp_path):
    path = tmp_path / "run.json"
    done = run_python(
        f"""
import os, sys, pygpukit as gp
x = gp.ones(10)
with gp.trace({str(path)!r}) as recording:
    x + x
    child = os.fork()
    if child == 0:
        for _ in range(100): x + x   # not recorded here
        assert len(recording) == 1, len(recording)
        with gp.Trace() as own: x + x
        assert len(own.entries) == 1
        recording.stop()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    x + x
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sum(e["ph"] == "X" for e in recorded(path)[1]) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_an_error_of_ours(tmp_path):
    done = run_python(
        f"""
import resource, signal, pygpukit as gp
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recording = gp.trace({str(tmp_path / "run.json")!r})
x = gp.ones(10)
for _ in range(100): x + x
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    recording.stop()
except gp.FileFormatError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
recording.stop()
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "File too large" in done.stdout
    assert os.listdir(tmp_path) == ["run.json"]
    assert recorded(tmp_path / "run.json")[0]["events"] == 101
