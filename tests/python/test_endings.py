"""How things end: by Ctrl-C, at the interpreter's end, in a fork, by what is no file, by what cannot be."""

import os
import stat

import pytest

import pygpukit as gp
from support import run_python

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="signals, fork and locks of POSIX")


@posix
@pytest.mark.parametrize("wait", ["task.result()", "scheduler.shutdown()"])
def test_ctrl_c_ends_a_wait_for_a_task(wait):
    done = run_python(
        f"""
import os, signal, threading, time
import pygpukit as gp
go = threading.Event()
scheduler = gp.Scheduler()
task = scheduler.submit(go.wait)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
began = time.monotonic()
try:
    {wait}
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - began < 5)
go.set()
scheduler.shutdown()
"""
    )
    assert done.stdout.split() == ["interrupted", "True"], done.stderr


def test_a_callback_that_runs_at_the_interpreters_end_breaks_nothing():
    done = run_python(
        """
import time, numpy as np, pygpukit as gp
gp.transfer.to_device(np.ones(1 << 26, "uint8"), progress=lambda done, total: time.sleep(0.01))
time.sleep(0.05)
print("end")
"""
    )
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


@posix
def test_a_server_of_metrics_ends_in_a_forked_child():
    done = run_python(
        """
import os, pygpukit as gp
with gp.serve_metrics(0):
    pid = os.fork()
if pid == 0:
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    )
    assert done.stdout.strip() == "7", done.stderr


def test_a_dispatcher_is_not_waited_for_in_its_own_launch():
    dispatcher = gp.KernelDispatcher()
    launch = dispatcher.submit(dispatcher.synchronize)
    with pytest.raises(gp.UnsupportedError, match="one of its launches"):
        launch.wait()
    dispatcher.synchronize()


@posix
def test_only_regular_files_are_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    array = gp.ones(3)
    with pytest.raises(gp.FileFormatError, match="not a regular file"):
        gp.trace(str(pipe))
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    # Of a link, what it names.
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    with gp.trace(str(link)):
        array + array
    assert link.is_symlink()
    assert target.read_text().startswith("{")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.json", "pipe", "target.json"]


def test_a_ledger_takes_no_more_than_is_read():
    with pytest.raises(gp.UnsupportedError, match="shorter names"):
        gp.partition(name="A" * 600_000)
    with gp.partition(name="A" * 1000) as part:
        assert part.alive


@posix
def test_publishers_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("PYGPUKIT_RUNTIME_DIR", str(tmp_path))
    code = """
import atexit, pygpukit as gp
gp.publish().stop()
before = atexit._ncallbacks()
for _ in range(5):
    gp.publish().stop()
print(atexit._ncallbacks() - before)
"""
    assert run_python(code).stdout.strip() == "0"


@posix
@pytest.mark.parametrize("pid", [0, 1 << 32, 10**20])
def test_files_of_processes_that_cannot_be_are_removed(tmp_path, monkeypatch, pid):
    from pygpukit import _metrics

    monkeypatch.setenv("PYGPUKIT_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    file = tmp_path / f"{pid}-0.prom"
    file.write_text("")
    file.chmod(0o600)
    assert [each.pid for each in _metrics.processes()] == []
    assert not file.exists()
