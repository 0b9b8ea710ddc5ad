import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import pygpukit as gp
from support import assert_equal, run_python

MIB = 2**20


@pytest.fixture
def manager():
    made = gp.PartitionManager(gp.PartitionConfig(total_memory=64 * MIB))
    yield made
    for each in made.list():
        made.destroy(each.id)


def entries():
    return gp._native._ledger_entries()


def test_a_scope_makes_a_stream_of_it_current(rng):
    outer = gp.current_stream()
    host = rng.standard_normal(1000).astype(np.float32)
    with gp.partition(memory="16MiB", name="part") as part:
        assert part.name == "part"
        assert part.alive
        assert part.device == gp.device()
        assert gp.current_stream() != outer
        x = gp.from_numpy(host) * 2
        assert part.stats()["memory_used"] >= x.nbytes
        assert part.stats()["scopes"] == 1
        with part:
            assert part.stats()["scopes"] == 2
        assert [each["name"] for each in entries()].count("part") == 1
    assert gp.current_stream() == outer
    assert part.stats()["scopes"] == 0
    assert part.alive  # somebody holds it
    assert_equal(x, host * 2)
    del part
    # What its arrays hold stays promised.
    assert [each["name"] for each in entries()] == ["part (ended)"]
    assert entries()[0]["memory_bytes"] >= x.nbytes
    assert_equal(x + 1, host * 2 + 1)


def test_an_anonymous_one_ends_with_its_scope():
    with gp.partition(memory=MIB, bandwidth=0.25, qos="burstable"):
        mine = [each for each in entries() if each["memory_bytes"] == MIB]
        assert len(mine) == 1
        assert mine[0]["bandwidth"] == 0.25
        assert mine[0]["qos"] == "burstable"
        assert mine[0]["pid"] == os.getpid()
        gp.ones(10)
    assert [each for each in entries() if each["memory_bytes"] == MIB] == []


def test_memory_beyond_the_limit_is_refused(manager):
    part = manager.create_partition("small", "Small", gp.PartitionLimits().memory(4 * MIB))
    with part:
        x = gp.zeros(2 * MIB, dtype="uint8")
        with pytest.raises(gp.OutOfMemoryError, match="Small"):
            gp.zeros(3 * MIB, dtype="uint8")
        del x
        gp.zeros(3 * MIB, dtype="uint8")
    gp.zeros(8 * MIB, dtype="uint8")  # outside there is no limit
    part.resize(gp.PartitionLimits().memory(16 * MIB))
    with part:
        gp.zeros(9 * MIB, dtype="uint8")


def test_streams_beyond_the_limit_are_refused(manager):
    part = manager.create_partition("few", limits=gp.PartitionLimits().streams(2))
    with part:
        kept = gp.Stream()
        with pytest.raises(gp.UnsupportedError, match="few"):
            gp.Stream()
        with part:  # a scope shares one
            gp.ones(3)
    del kept
    part.resize(gp.PartitionLimits())
    with part:
        assert len({gp.Stream() for _ in range(5)}) == 5


def test_names_and_ids(manager):
    limits = gp.PartitionLimits().memory("1MiB").compute(0.25)
    part = manager.create_partition("a", "Name", limits)
    assert (part.id, part.name) == ("a", "Name")
    assert manager.get("a") == part
    assert hash(manager.get("a")) == hash(part)
    assert manager.list() == [part]
    assert part.limits == limits
    assert part.limits is not limits
    assert part != gp.PartitionManager
    assert "Name" in repr(part)
    for bad in ("a", ""):
        with pytest.raises(gp.InvalidValueError, match="id"):
            manager.create_partition(bad)
    with pytest.raises(gp.InvalidValueError, match="'b'"):
        manager.get("b")
    with pytest.raises(gp.InvalidValueError, match="'b'"):
        manager.destroy("b")
    assert manager.total_memory == 64 * MIB
    assert manager.device == gp.device()


def test_nothing_is_promised_twice(manager):
    manager.create_partition("a", limits=gp.PartitionLimits().memory(40 * MIB).bandwidth(0.7))
    with pytest.raises(gp.OutOfMemoryError, match="25165824 of 67108864"):
        manager.create_partition("b", limits=gp.PartitionLimits().memory(30 * MIB))
    with pytest.raises(gp.UnsupportedError, match="bandwidth"):
        gp.partition(bandwidth=0.4)
    with gp.partition(bandwidth=0.3):
        pass
    with gp.partition(bandwidth=1.0, qos="best_effort"):
        pass
    with pytest.raises(gp.InvalidValueError, match="total_memory"):
        gp.PartitionManager(gp.PartitionConfig(total_memory=2**50))


def test_compute_is_whole_groups_and_disjoint(manager):
    first = manager.create_partition("a", limits=gp.PartitionLimits().compute(0.5))
    second = manager.create_partition("b", limits=gp.PartitionLimits().compute(0.5))
    groups = first.stats()["sm_groups"], second.stats()["sm_groups"]
    assert not set(groups[0]) & set(groups[1])
    if groups[0]:
        assert len(groups[0]) == len(groups[1])
        assert first.stats()["multiprocessors"] < gp.device().properties["multiprocessors"]
    assert 0 < first.stats()["compute"] <= (0.5 if groups[0] else 1)
    with pytest.raises(gp.UnsupportedError, match="compute"):
        gp.partition(compute=0.5)


@pytest.mark.parametrize("bad", [0, -1, 2**63, 2**70, "x", "0", True, 1.5, None])
def test_bad_memory(bad):
    with pytest.raises((gp.InvalidValueError, TypeError)):
        gp.PartitionLimits().memory(bad)


@pytest.mark.parametrize("bad", [0.0, -0.5, 1.5, float("nan"), float("inf")])
@pytest.mark.parametrize("what", ["compute", "bandwidth"])
def test_bad_shares(what, bad):
    with pytest.raises(gp.InvalidValueError, match=what):
        getattr(gp.PartitionLimits(), what)(bad)
    with pytest.raises(gp.InvalidValueError, match=what):
        gp.partition(**{what: bad})


def test_bad_streams_and_classes():
    for bad in (0, -1, 10**6):
        with pytest.raises(gp.InvalidValueError, match="streams"):
            gp.PartitionLimits().streams(bad)
    for bad in ("gold", 3):
        with pytest.raises(gp.InvalidValueError, match="qos"):
            gp.PartitionLimits().qos(bad)


def test_guarantees_say_what_stands_behind_them(manager):
    limits = gp.PartitionLimits().memory(MIB).compute(0.5).bandwidth(0.5).streams(3)
    guarantees = manager.create_partition("a", limits=limits).guarantees()
    assert set(guarantees) == {"memory", "compute", "bandwidth", "streams", "slicing"}
    for each in guarantees.values():
        assert each["level"] in (("enforced", "advisory") if gp.device().is_cuda else ("simulated",))
        assert each["mechanism"]
        assert each["reason"]


def test_destroy_refuses_while_somebody_is_inside(manager):
    part = manager.create_partition("a")
    with part:
        x = gp.ones(4)
        with pytest.raises(gp.UnsupportedError, match="1 open scopes"):
            manager.destroy("a")
    manager.destroy("a")
    assert not part.alive
    with pytest.raises(gp.UnsupportedError, match="destroyed"):
        part.__enter__()
    with pytest.raises(gp.UnsupportedError, match="destroyed"):
        part.resize(gp.PartitionLimits())
    with pytest.raises(gp.InvalidValueError, match="scope"):
        part.__exit__(None, None, None)
    assert_equal(x + 1, np.full(4, 2, np.float32))


def test_a_stream_of_a_destroyed_partition(manager):
    part = manager.create_partition("a")
    with part:
        stream = gp.Stream()
    manager.destroy("a")
    with stream, pytest.raises(gp.UnsupportedError, match="'a', which was destroyed"):
        gp.ones(3)
    assert stream.is_done
    stream.synchronize()
    gp.current_stream().wait(stream)


def test_graphs_in_partitions(manager):
    part = manager.create_partition("a", limits=gp.PartitionLimits().compute(0.5))
    x = gp.ones(16)
    with part:
        graph = gp.Graph()
        with graph:
            y = x + 1
            with pytest.raises(gp.UnsupportedError, match="captured"):
                part.resize(gp.PartitionLimits())
        graph.launch()
        assert_equal(y, np.full(16, 2, np.float32))
    if part.stats()["sm_groups"]:
        with pytest.raises(gp.UnsupportedError, match="captured in"):
            graph.launch()


def test_threads_inside_while_it_is_resized(manager, rng):
    part = manager.create_partition("a", limits=gp.PartitionLimits().compute(0.5))
    host = rng.standard_normal(5000).astype(np.float32)
    stop, failures, rounds = threading.Event(), [], []

    def work():
        try:
            while not stop.is_set():
                with part:
                    assert_equal(gp.from_numpy(host) * 3 + 1, host * np.float32(3) + np.float32(1))
                rounds.append(1)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for round_ in range(30):
        part.resize(gp.PartitionLimits().compute(0.25 if round_ % 2 else 0.5))
    stop.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures
    assert rounds


# -- Processes -------------------------------------------------------------------------------------

HOLDER = """
import sys
import pygpukit as gp
part = gp.partition(memory=1048576, bandwidth=0.6, compute=0.5, name="held")
with part:
    gp.ones(10)
print("ready", *part.stats()["sm_groups"], flush=True)
sys.stdin.read()
"""


def start_holder():
    held = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    words = held.stdout.readline().split()
    assert words[:1] == ["ready"]
    return held, {int(word) for word in words[1:]}


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_two_processes_share_a_device(how):
    held, groups = start_holder()
    try:
        mine = [each for each in entries() if each["name"] == "held"]
        assert [each["pid"] for each in mine] == [held.pid]
        assert set(mine[0]["sm_groups"]) == groups
        with pytest.raises(gp.UnsupportedError, match=f"'held' of process {held.pid}"):
            gp.partition(bandwidth=0.5)
        other = gp.partition(compute=0.5, bandwidth=0.4)
        assert not groups & set(other.stats()["sm_groups"])
        del other
    finally:
        if how == "killed":
            held.send_signal(signal.SIGKILL)
        held.stdin.close()
        held.wait(60)
        held.stdout.close()
    assert held.returncode == (-signal.SIGKILL if how == "killed" else 0)
    with gp.partition(compute=1.0, bandwidth=1.0):
        assert [each["name"] for each in entries() if each["name"] == "held"] == []


def test_a_forked_child_gives_nothing_back(manager):
    if gp.device().is_cuda:
        pytest.skip("CUDA does not survive a fork")
    code = """
import os
import pygpukit as gp
part = gp.partition(memory=1048576, name="parent")
pid = os.fork()
if pid == 0:
    with part:
        gp.ones(3) + 1
    del part
    with gp.partition(memory=1048576, name="child"):
        names = sorted(each["name"] for each in gp._native._ledger_entries())
        os._exit(0 if names == ["child", "parent"] else 1)
assert os.waitpid(pid, 0)[1] == 0
assert [each["name"] for each in gp._native._ledger_entries()] == ["parent"]
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_at_the_interpreters_end():
    code = """
import threading
import pygpukit as gp
kept = gp.partition(memory="1MiB", compute=0.25)
kept.__enter__()
x = gp.ones(100) + 1
manager = gp.PartitionManager()
manager.create_partition("named", limits=gp.PartitionLimits().memory("1MiB"))
def run():
    with kept:
        while True:
            gp.ones(1000) * 2
threading.Thread(target=run, daemon=True).start()
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""


def test_a_folder_that_others_may_write_to(tmp_path):
    open_folder = tmp_path / "open"
    open_folder.mkdir()
    open_folder.chmod(0o777)
    code = """
import warnings
import pygpukit as gp
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with gp.partition(memory="1MiB") as part:
        print(part.guarantees()["memory"]["reason"])
print(*[each.message for each in caught])
"""
    result = run_python(code, PYGPUKIT_RUNTIME_DIR=str(open_folder))
    assert result.returncode == 0, result.stderr
    assert "within this process" in result.stdout
    assert "others may write" in result.stdout
    assert list(open_folder.iterdir()) == []
