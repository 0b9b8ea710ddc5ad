"""Metrics of other processes: published files, HTTP, and `pygpukit top`."""

import os
import socket
import stat
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import pytest

import pygpukit as gp
from pygpukit import _metrics, _top
from support import run_python

prometheus_parser = pytest.importorskip("prometheus_client.parser")

WORKER = """
import sys, threading, pygpukit as gp
x = gp.ones(1000)
publisher = gp.publish(0.05)
print("ready", flush=True)
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
while not done.wait(0.001):
    x + x
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path, monkeypatch):
    """A runtime folder of the test's own."""
    folder = tmp_path / "run"
    monkeypatch.setenv("PYGPUKIT_RUNTIME_DIR", str(folder))
    return folder


@pytest.fixture
def worker(runtime):
    with subprocess.Popen(
        [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.stdin.close()
        assert process.wait(60) == 0


def get(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.status, answer.headers, answer.read().decode()


def samples(text, name):
    found = prometheus_parser.text_string_to_metric_families(text)
    return [sample for family in found for sample in family.samples if sample.name == name]


def test_a_published_file_is_private_and_goes_with_its_publisher(runtime):
    with gp.publish() as publisher:
        assert gp.publish() is publisher
        [path] = runtime.iterdir()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(runtime.stat().st_mode) == 0o700
        [process] = _metrics.processes()
        assert process.pid == os.getpid()
        assert samples(process.text, "pygpukit_process_info")[0].value == 1
    assert list(runtime.iterdir()) == []
    assert gp.publish() is not publisher
    gp.publish().stop()


def test_a_folder_that_others_may_write_is_refused(runtime):
    runtime.mkdir()
    runtime.chmod(0o777)
    with pytest.raises(gp.UnsupportedError, match="others may write"):
        gp.publish()
    with pytest.raises(gp.UnsupportedError):
        _metrics.processes()


def test_intervals_that_make_no_sense_are_refused():
    for interval in (0, -1, float("nan"), float("inf"), 1e9):
        with pytest.raises(gp.InvalidValueError, match="interval"):
            gp.publish(interval)


def test_files_of_the_dead_go_and_strange_ones_are_left_alone(runtime, worker):
    (runtime / "123456789-1.prom").write_text("# of a process that is gone\n")
    (runtime / f"{worker.pid}-1.prom").write_text("# of another that had the number before\n")
    (runtime / "notes.prom").write_text("mine")
    os.symlink("/etc/passwd", runtime / f"{os.getpid()}-{_metrics._start_of(os.getpid())}.prom")
    assert [each.pid for each in _metrics.processes()] == [worker.pid]
    left = {path.name for path in runtime.glob("*.prom")}
    assert "123456789-1.prom" not in left
    assert f"{worker.pid}-1.prom" not in left
    assert "notes.prom" in left


def test_an_environment_variable_publishes_at_import_and_a_forked_child_too(runtime):
    done = run_python(
        """
import os, sys, pathlib, pygpukit as gp
files = lambda: sorted(p.name for p in pathlib.Path(os.environ["PYGPUKIT_RUNTIME_DIR"]).glob("*.prom"))
[own] = files()
child = os.fork()
if child == 0:
    both = files()
    sys.exit(0 if len(both) == 2 and own in both else 1)
assert os.waitpid(child, 0)[1] == 0
assert files() == [own]   # the child took its own away, and no other
""",
        PYGPUKIT_PUBLISH="1",
        PYTHONWARNINGS="ignore::DeprecationWarning",  # of fork beside a thread
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(runtime.glob("*.prom")) == []


def test_metrics_are_served_from_a_thread():
    gp.ones(1)
    with gp.serve_metrics(port=0) as server:
        assert server.host == "127.0.0.1"
        status, headers, text = get(server.url)
        assert status == 200
        assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert samples(text, "pygpukit_device_info")
        for path in ("/", "/metrics/x"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                get(f"http://127.0.0.1:{server.port}{path}")
        with pytest.raises(gp.UnsupportedError, match=str(server.port)):
            gp.serve_metrics(port=server.port)
        # A client that says nothing holds nobody up.
        with socket.create_connection(("127.0.0.1", server.port)):
            assert get(server.url)[0] == 200
    with pytest.raises(urllib.error.URLError):
        get(server.url)
    for port in (-1, 65536):
        with pytest.raises(gp.InvalidValueError, match="port"):
            gp.serve_metrics(port=port)


def test_the_command_serves_what_others_publish(worker):
    command = [sys.executable, "-m", "pygpukit", "serve-metrics", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().split()[0]
        with gp.publish():
            text = get(url)[2]
        server.terminate()
    infos = samples(text, "pygpukit_process_info")
    assert {int(s.labels["pid"]) for s in infos} == {worker.pid, os.getpid()}
    kernels = [s for s in samples(text, "pygpukit_work_total") if s.labels["kind"] == "kernel"]
    assert any(s.labels["pid"] == str(worker.pid) and s.value > 0 for s in kernels)


def test_merged_text_keeps_hostile_labels():
    label = 'quote " slash \\ line\n end'
    text = (
        "# HELP pygpukit_x Help.\n# TYPE pygpukit_x gauge\n"
        f'pygpukit_x{{partition="{_metrics._escaped(label)}"}} 2.5\nnonsense\npygpukit_x{{}} x\n'
    )
    found = samples(_metrics.merged([(7, text), (8, text)]), "pygpukit_x")
    assert [(s.labels, s.value) for s in found] == [
        ({"pid": "7", "partition": label}, 2.5),
        ({"pid": "8", "partition": label}, 2.5),
    ]


# -- top -------------------------------------------------------------------------------------------------


def published(work=0.0):
    """Text as a process with a partition would publish it."""
    gib = 1 << 30
    labels = 'device="cuda:0",partition="train [bold]\\n",qos="guaranteed"'
    return f"""# HELP pygpukit_process_info x
# TYPE pygpukit_process_info gauge
pygpukit_process_info{{command="train.py",version="1"}} 1
# HELP pygpukit_device_info x
# TYPE pygpukit_device_info gauge
pygpukit_device_info{{device="cuda:0",model="NVIDIA H100 80GB HBM3",bus="0000:1b:00.0"}} 1
# HELP pygpukit_device_memory_bytes x
# TYPE pygpukit_device_memory_bytes gauge
pygpukit_device_memory_bytes{{device="cuda:0",state="free"}} {60 * gib}
pygpukit_device_memory_bytes{{device="cuda:0",state="total"}} {80 * gib}
# HELP pygpukit_device_multiprocessors x
# TYPE pygpukit_device_multiprocessors gauge
pygpukit_device_multiprocessors{{device="cuda:0"}} 132
# HELP pygpukit_device_sm_group_size x
# TYPE pygpukit_device_sm_group_size gauge
pygpukit_device_sm_group_size{{device="cuda:0"}} 8
# HELP pygpukit_partition_memory_used_bytes x
# TYPE pygpukit_partition_memory_used_bytes gauge
pygpukit_partition_memory_used_bytes{{{labels}}} {3 * gib}
# HELP pygpukit_partition_memory_limit_bytes x
# TYPE pygpukit_partition_memory_limit_bytes gauge
pygpukit_partition_memory_limit_bytes{{{labels}}} {4 * gib}
# HELP pygpukit_partition_multiprocessors x
# TYPE pygpukit_partition_multiprocessors gauge
pygpukit_partition_multiprocessors{{{labels}}} 64
# HELP pygpukit_work_total x
# TYPE pygpukit_work_total counter
pygpukit_work_total{{{labels},kind="kernel"}} {work}
pygpukit_work_total{{device="cuda:0",partition="",qos="",kind="kernel"}} 5
# HELP pygpukit_tasks x
# TYPE pygpukit_tasks gauge
pygpukit_tasks{{{labels},state="running"}} 2
pygpukit_tasks{{{labels},state="queued"}} 3
"""


def rendered(width):
    rich_console = pytest.importorskip("rich.console")
    before = _top.Snapshot.take([_metrics.Process(41, published(1000.0), 0.1)], 10.0)
    now = _top.Snapshot.take([_metrics.Process(41, published(25000.0), 30.0)], 12.0)
    console = rich_console.Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(_top.View(now, before).render(width))
    lines = capture.get().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    return lines


def test_top_shows_devices_partitions_and_processes():
    text = "\n".join(rendered(150))
    for part in (
        "NVIDIA H100 80GB HBM3",
        "20.0 GiB / 80.0 GiB",
        "64 / 132",
        "train [bold]?",  # neither markup nor control characters
        "guaranteed",
        "3.0 GiB / 4.0 GiB",
        "12.0k/s",
        "2 + 3",
        "(none)",
        "train.py",
        "silent for 30 s",
    ):
        assert part in text, part


def test_top_keeps_what_matters_in_a_narrow_terminal():
    text = "\n".join(rendered(60))
    for part in ("cuda:0", "20.0 GiB / 80.0 GiB", "12.0k/s", "3.0 GiB / 4.0 GiB", "train.py"):
        assert part in text, part
    assert "guaranteed" not in text
    assert rendered(20)


def ledger(pid, name, **share):
    plain = {"qos": "guaranteed", "memory_bytes": 0, "compute": 0.0, "bandwidth": 0.0, "sm_groups": []}
    return {"device": "0000:1b:00.0", "pid": pid, "name": name, **plain, **share}


LEDGER = [
    ledger(41, "train [bold]\n", memory_bytes=4 << 30, bandwidth=0.5, sm_groups=[0, 1]),
    ledger(os.getpid(), "quiet", qos="burstable", memory_bytes=2 << 30, sm_groups=[2, 3, 4]),
    ledger(os.getpid(), "quiet (ended)", memory_bytes=1 << 30),
    ledger(os.getpid(), "timed", compute=0.25, bandwidth=0.125) | {"device": "0000:2c:00.0"},
]


def shown(processes, width):
    rich_console = pytest.importorskip("rich.console")
    console = rich_console.Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(_top.View(_top.Snapshot.take(processes, 12.0, LEDGER), None).render(width))
    lines = capture.get().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    return [line.split() for line in lines]


@pytest.mark.parametrize("width", [80, 120, 160])
def test_top_shows_the_partitions_of_processes_that_do_not_publish(width):
    rows = shown([_metrics.Process(41, published(), 0.1)], width)
    pid = str(os.getpid())
    [quiet] = [row for row in rows if row[:1] == ["quiet,"]]  # one tenant to those who look
    assert quiet[:3] == ["quiet,", "quiet", "(ended)"]
    assert pid in quiet
    assert quiet[quiet.index("/") - 1 :][:4] == ["-", "/", "3.0", "GiB"]
    assert "24" in quiet  # 3 groups of 8
    assert quiet[-1] == "-"
    assert ("cuda:0" in quiet) == (width >= 120)  # by the name that a process which publishes has for it
    [timed] = [row for row in rows if row[:1] == ["timed"]]
    assert "25%" in timed
    [train] = [row for row in rows if row[:1] == ["train"]]
    assert {"3.0", "4.0", "64", "41"} < set(train)
    if width >= 120:
        assert "50%" in train
        assert "12%" in timed
    [process] = [row for row in rows if row[:1] == [pid]]
    assert process[-3:] == ["does", "not", "publish"]
    assert any(row[:1] == ["0000:2c:00.0"] for row in rows)
    [device] = [row for row in rows if row[:1] == ["cuda:0"]]
    assert device[device.index("132") - 2 :][:3] == [
        "40",
        "/",
        "132",
    ]  # 2 + 3 groups


def test_top_shows_what_partitions_have_where_nobody_publishes():
    rows = shown([], 100)
    assert any(row[:2] == ["timed", "guaranteed"] for row in rows)
    assert any(row[:1] == ["quiet,"] and "groups" in row for row in rows)
    assert any("PYGPUKIT_PUBLISH=1," in row for row in rows)


def test_top_reads_the_ledger():
    pytest.importorskip("rich")
    done = run_python(
        """
import os, subprocess, sys, pygpukit as gp
print(os.getpid(), flush=True)
with gp.partition(memory="48MiB", compute=0.25, bandwidth=0.5, name="held here"):
    sys.exit(subprocess.run([sys.executable, "-m", "pygpukit", "top", "--once"]).returncode)
""",
        COLUMNS="160",
    )
    assert (done.returncode, done.stderr) == (0, "")
    pid, *lines = done.stdout.splitlines()
    [row] = [line.split() for line in lines if "held here" in line]
    assert row[:4] == ["held", "here", "guaranteed", pid]
    assert "48.0" in row
    assert "50%" in row


def test_sizes_and_counts_are_short():
    assert [_top.bytes_text(n) for n in (0, 1023, 1536, 3 << 30, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 GiB",
        "5.0 TiB",
    ]
    assert [_top.count_text(n) for n in (0, 7, 999, 1500, 123456, 2.5e9)] == [
        "0",
        "7",
        "999",
        "1.5k",
        "123k",
        "2.5G",
    ]


def test_top_prints_once_without_a_terminal(worker):
    pytest.importorskip("rich")
    command = [sys.executable, "-m", "pygpukit", "top", "--interval", "0.2"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": "140"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert str(worker.pid) in done.stdout
    assert "\x1b" not in done.stdout
    row = next(line for line in done.stdout.splitlines() if "(none)" in line)
    assert row.rstrip().split()[-4] != "0/s"  # it works, and the rate says so


def test_top_says_that_nobody_publishes():
    pytest.importorskip("rich")
    done = subprocess.run(
        [sys.executable, "-m", "pygpukit", "top", "--once"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "PYGPUKIT_PUBLISH=1" in done.stdout


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no pseudo-terminals")
def test_top_in_a_terminal_refreshes_until_it_is_interrupted(worker):
    pytest.importorskip("rich")
    pyte = pytest.importorskip("pyte")
    import fcntl
    import struct
    import termios

    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 110, 0, 0))
    screen = pyte.Screen(110, 30)
    stream = pyte.ByteStream(screen)
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-m", "pygpukit", "top", "--interval", "0.1"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**environment, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    shown = threading.Event()

    def read():
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other side was closed
                return
            if not data:
                return
            stream.feed(data)
            text = "\n".join(screen.display)
            if str(worker.pid) in text and "/s" in text and "Devices" in text:
                shown.set()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        assert shown.wait(60), "\n".join(screen.display)
        process.send_signal(2)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        reader.join(60)
        os.close(ours)
