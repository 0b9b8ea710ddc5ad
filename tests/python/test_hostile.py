"""What no program should do with memory, transfers, partitions and tasks: typed errors, nothing is lost."""

import functools
import math

import numpy as np
import pytest

import pygpukit as gp
from support import run_python

MIB = 1 << 20
SIZES = [0, 1, 2**63 - 1, 2**63, 2**64, -1, -(2**70), True, 1.5, math.nan, math.inf, None, "lots"]


@functools.cache
def held():
    """What the entries are asked of: a pool, a block of it, a scheduler."""
    pool = gp.memory.MemoryPool(quota=MIB)
    return pool, pool.allocate(100), gp.Scheduler(workers=1, memory="64MiB")


def submitted(**asked):
    held()[2].submit(int, **asked).exception(60)


def added(**asked):
    held()[2].add_tenant(f"tenant {asked}", **asked)


# Sizes in bytes: ints, or text. True is none, nor is a float.
BYTES = {
    "MemoryPool": lambda n: gp.memory.MemoryPool(n),
    "MemoryPool.allocate": lambda n: held()[0].free(held()[0].allocate(n)),
    "MemoryPool.read": lambda n: held()[0].read(held()[1], n),
    "MemoryPool.read at": lambda n: held()[0].read(held()[1], 1, n),
    "MemoryPool.write at": lambda n: held()[0].write(held()[1], b"1", n),
    "set_limit": lambda n: gp.memory.set_limit(n),
    "set_eviction": lambda n: gp.memory.set_eviction(False, host_limit=n),
    "set_pinned_limit": lambda n: gp.memory.set_pinned_limit(n),
    "PartitionLimits.memory": lambda n: gp.PartitionLimits().memory(n),
    "partition": lambda n: gp.partition(memory=n),
    "PartitionConfig": lambda n: gp.PartitionManager(gp.PartitionConfig(total_memory=n)),
    "Scheduler": lambda n: gp.Scheduler(memory=n).shutdown(),
    "submit": lambda n: submitted(memory=n),
    "submit, limit": lambda n: submitted(memory_limit=n),
    "add_tenant": lambda n: added(memory=n),
    "QosTaskMeta.guaranteed": lambda n: gp.QosTaskMeta.guaranteed(n),
    "QosTaskMeta.burstable": lambda n: gp.QosTaskMeta.burstable(0, n),
    "QosTaskMeta.best_effort": lambda n: gp.QosTaskMeta.best_effort(n),
    "QosPolicyEvaluator": lambda n: gp.QosPolicyEvaluator(n),
    "AdmissionController": lambda n: gp.AdmissionController(n),
}
# Numbers of elements, tasks, streams; priorities.
COUNTS = {
    "empty": lambda n: gp.empty(n, "uint8"),
    "zeros": lambda n: gp.zeros((n, 3), "uint8"),
    "pinned": lambda n: gp.memory.pinned(n, "uint8"),
    "pinned, twice": lambda n: gp.memory.pinned((n, n), "uint8"),
    "PartitionLimits.streams": lambda n: gp.PartitionLimits().streams(n),
    "partition, streams": lambda n: gp.partition(streams=n),
    "Scheduler, workers": lambda n: gp.Scheduler(workers=n).shutdown(),
    "Scheduler, max_queued": lambda n: gp.Scheduler(max_queued=n).shutdown(),
    "Scheduler, max_running": lambda n: gp.Scheduler(max_running=n).shutdown(),
    "submit, priority": lambda n: submitted(priority=n),
    "add_tenant, max_queued": lambda n: added(max_queued=n),
    "AdmissionController.enqueue": lambda n: gp.AdmissionController(9).enqueue(
        n, gp.QosTaskMeta.guaranteed(1)
    ),
    "transfer, priority": lambda n: gp.transfer.to_device(np.ones(3), priority=n).result(60),
    "Stream, priority": lambda n: gp.Stream(priority=n),
    "LaunchConfig": lambda n: gp.LaunchConfig(max_outstanding=n),
}
# Shares, seconds, weights.
NUMBERS = {
    "PartitionLimits.compute": lambda n: gp.PartitionLimits().compute(n),
    "PartitionLimits.bandwidth": lambda n: gp.PartitionLimits().bandwidth(n),
    "partition, compute": lambda n: gp.partition(compute=n),
    "partition, bandwidth": lambda n: gp.partition(bandwidth=n),
    "Scheduler, bandwidth": lambda n: gp.Scheduler(bandwidth=n).shutdown(),
    "Scheduler, compute": lambda n: gp.Scheduler(compute=n).shutdown(),
    "Scheduler, ageing": lambda n: gp.Scheduler(ageing=n).shutdown(),
    "submit, compute": lambda n: submitted(compute=n),
    "submit, bandwidth": lambda n: submitted(bandwidth=n),
    "submit, expected": lambda n: submitted(expected=n),
    "submit, deadline": lambda n: submitted(deadline=n),
    "add_tenant, weight": lambda n: added(weight=n),
    "QosTaskMeta, bandwidth": lambda n: gp.QosTaskMeta.guaranteed(1, bandwidth=n),
    "PacingConfig, time_share": lambda n: gp.PacingConfig(time_share=n),
    "PacingConfig, max_hold": lambda n: gp.PacingConfig(max_hold=n),
    "LaunchConfig, watchdog": lambda n: gp.LaunchConfig(watchdog=n),
}
ENTRIES = {**BYTES, **COUNTS, **NUMBERS}


@pytest.fixture
def _limits_after():
    yield
    gp.memory.set_limit(None)
    gp.memory.set_pinned_limit("1GiB")


@pytest.mark.usefixtures("_limits_after")
@pytest.mark.parametrize("entry", ENTRIES)
def test_sizes(entry):
    held()
    before = gp.memory.stats()["live_blocks"]
    for size in SIZES:
        outcome = None
        try:
            ENTRIES[entry](size)
        except (gp.Error, TypeError) as failure:
            outcome = failure
        gp.memory.set_limit(None)
        if isinstance(size, int) and size < 0 and not entry.endswith("priority"):
            assert isinstance(outcome, gp.InvalidValueError | TypeError), size
        if size == "lots" or (entry not in NUMBERS and isinstance(size, float)):
            assert isinstance(outcome, gp.InvalidValueError | TypeError), size
        if isinstance(size, float) and math.isnan(size):
            assert outcome is not None
        if entry in BYTES:
            if size is True or isinstance(size, float):
                assert isinstance(outcome, gp.InvalidTypeError), size
            if size == 2**64:
                assert isinstance(outcome, gp.Error), size
            if type(size) is int and size < 0:
                assert isinstance(outcome, gp.InvalidValueError), size
    gp._native._transfer_drain(None)  # its thread lets go of arrays
    assert gp.memory.stats()["live_blocks"] == before
    assert int(gp.sum(gp.ones(10))) == 10


# -- Twice ---------------------------------------------------------------------------------------------


def test_everything_ends_once():
    pool = gp.memory.MemoryPool()
    block = pool.allocate(10)
    pool.free(block)
    with pytest.raises(gp.InvalidValueError, match="freed"):
        pool.free(block)
    manager = gp.PartitionManager()
    part = manager.create_partition("twice", limits=gp.PartitionLimits().memory(MIB))
    manager.destroy("twice")
    with pytest.raises(gp.InvalidValueError, match="twice"):
        manager.destroy("twice")
    for use in (part.__enter__, lambda: part.resize(gp.PartitionLimits().memory(2 * MIB))):
        with pytest.raises(gp.UnsupportedError, match="twice"):
            use()
    transfer = gp.transfer.to_device(np.ones(10))
    transfer.result(60)
    assert not transfer.cancel()
    assert not transfer.cancel()
    with gp.Scheduler(workers=1) as scheduler:
        future = scheduler.submit(int)
        assert future.result(60) == 0
        assert not future.cancel()
        scheduler.shutdown()
        assert scheduler.shutdown()
    assert isinstance(scheduler.submit(int).exception(60), gp.scheduler.TaskRejectedError)
    host = gp.memory.pinned(1000, "uint8")
    view = host[500:]
    live = gp.memory.pinned_stats()["live_blocks"]
    del host
    assert gp.memory.pinned_stats()["live_blocks"] == live  # a view keeps it
    view[:] = 7
    del view
    assert gp.memory.pinned_stats()["live_blocks"] == live - 1


# -- Another tenant's ----------------------------------------------------------------------------------


def test_what_is_anothers():
    one, two = gp.memory.MemoryPool(name="one"), gp.memory.MemoryPool(name="two")
    block = one.allocate(1000)
    for use in (two.free, two.read, two.touch, two.evict, two.restore, lambda b: two.write(b, b"x")):
        with pytest.raises(gp.InvalidValueError, match="another pool"):
            use(block)
    assert one.stats()["live_blocks"] == 1
    # An array goes back to whom it is charged to, wherever its last holder is.
    with one:
        x = gp.ones(1000, "uint8")
    used = one.stats()["used_bytes"]
    with two:
        y = x + x
        del x
    assert one.stats()["used_bytes"] < used
    assert int(gp.sum(y)) == 2000
    first, second = gp.PartitionManager(), gp.PartitionManager()
    part = first.create_partition("mine", limits=gp.PartitionLimits().memory(MIB))
    with pytest.raises(gp.InvalidValueError):
        second.destroy("mine")
    assert part.alive
    first.destroy("mine")
    with gp.Scheduler(workers=1) as a, gp.Scheduler(workers=1) as b:
        theirs = a.submit(int)
        with pytest.raises(gp.InvalidValueError, match="of another"):
            b.submit(int, after=[theirs])


# -- Inside a capture ----------------------------------------------------------------------------------


def test_inside_a_capture():
    x = gp.ones(1000)
    pool = gp.memory.MemoryPool()
    block = pool.allocate(10)
    host = gp.memory.pinned(1000, "float32")
    host[:] = 3
    part = gp.partition(memory=MIB, name="before")
    live = gp.memory.stats()["live_blocks"]
    graph = gp.Graph()
    with graph, gp.Scheduler(workers=1) as scheduler:
        for use in (
            lambda: pool.allocate(1),
            lambda: pool.free(block),
            lambda: gp.transfer.to_device(host),
            lambda: gp.transfer.to_host(x),
            lambda: gp.transfer.copy(x, x + 0),
            lambda: x.to_numpy(),
            lambda: gp.synchronize(),
        ):
            with pytest.raises(gp.Error):
                use()
        # Memory of the host, other streams and other threads are not the capture's.
        more = gp.memory.pinned(10, "uint8")
        del more
        with part:
            y = gp.ones(10) + 1
        assert scheduler.submit(lambda: float(gp.sum(gp.ones(10)))).result(60) == 10
        part.resize(gp.PartitionLimits().memory(2 * MIB))
        temporary = x * 2
        z = temporary + 1
        del temporary
    graph.launch()
    np.testing.assert_array_equal(z.to_numpy(), np.full(1000, 3, np.float32))
    np.testing.assert_array_equal(y.to_numpy(), np.full(10, 2, np.float32))
    np.testing.assert_array_equal(gp.transfer.to_device(host).result(60).to_numpy(), host)
    del graph, z, y
    pool.free(block)
    assert gp.memory.stats()["live_blocks"] <= live


# -- On a stream that is gone --------------------------------------------------------------------------


def test_on_a_stream_that_is_gone():
    manager = gp.PartitionManager()
    part = manager.create_partition("gone", limits=gp.PartitionLimits().memory(32 * MIB))
    with part:
        stream = gp.Stream()
        pool = gp.memory.MemoryPool(quota=MIB)
        block = pool.allocate(1000)
        pool.write(block, b"kept")
        x = gp.arange(1000)
        with gp.Scheduler(workers=1) as scheduler:
            scheduler.submit(int).result(60)
    manager.destroy("gone")
    for use in (
        lambda: in_stream(stream, lambda: gp.ones(10)),
        lambda: in_stream(stream, lambda: x + 1),
        lambda: pool.read(block),
        lambda: pool.write(block, b"x"),
        part.__enter__,
    ):
        with pytest.raises(gp.UnsupportedError, match="gone"):
            use()
    stream.synchronize()
    # What was made there lives on, is freed elsewhere, and its memory comes back.
    np.testing.assert_array_equal((x + 1).to_numpy(), np.arange(1, 1001))
    pool.free(block)


def test_a_stream_may_go_before_its_work():
    stream = gp.Stream()
    with stream:
        y = gp.arange(1000) * 2
    del stream  # its arrays are ordered behind it even so
    assert int(gp.sum(y)) == 999_000


def in_stream(stream, call):
    with stream:
        return call()


# -- At the interpreter's end, and after a fork ----------------------------------------------------------

EVERYTHING = """
import os, sys, time
import numpy as np, pygpukit as gp
pool = gp.memory.MemoryPool(quota="8MiB", enable_eviction=True)
blocks = [pool.allocate(2 << 20) for _ in range(8)]
pool.write(blocks[0], b"first")
x = gp.arange(100_000) * 2
host = gp.memory.pinned(3_000_000, "uint8")
host[:] = 5
transfers = [gp.transfer.to_device(host) for _ in range(6)]
part = gp.partition(memory="64MiB", name="open")
part.__enter__()
stream = gp.Stream()
y = gp.ones(1000) + 1
graph = gp.Graph()
with graph:
    z = y * 2
scheduler = gp.Scheduler(workers=2)
tasks = [scheduler.submit(time.sleep, 0.01) for _ in range(6)]
"""


@pytest.mark.parametrize(
    "end", ["", "sys.exit(0)", "half = gp.Graph(); half.__enter__(); w = y + 1", "os._exit(0)"]
)
def test_the_interpreter_may_end_while_all_is_held(end):
    done = run_python(EVERYTHING + end)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_uncaught_exception_ends_it_as_it_does_elsewhere():
    done = run_python(EVERYTHING + "raise KeyError('mine')")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "KeyError: 'mine'"
    assert "Traceback" in done.stderr
    assert "pygpukit" not in done.stderr.replace("import numpy as np, pygpukit as gp", "")


FORKED = """
for each in transfers: each.result(60)
pid = os.fork()
if pid == 0:
    wrong = []
    def refused(call):
        try:
            call()
        except gp.UnsupportedError:
            return
        except BaseException as failure:
            wrong.append(repr(failure))
        else:
            wrong.append(call.__name__)
    for call in (
        lambda: pool.allocate(10), lambda: pool.free(blocks[0]), lambda: pool.read(blocks[0]),
        lambda: pool.write(blocks[0], b"x"), lambda: pool.evict(blocks[0]), pool.clear, pool.__enter__,
        lambda: gp.transfer.to_device(host), lambda: gp.transfer.to_host(x),
        lambda: scheduler.submit(int), scheduler.stats, scheduler.shutdown,
    ):
        refused(call)
    if gp.device().is_cuda:
        refused(lambda: x + 1)
        refused(lambda: gp.empty(1 << 20))
    else:
        if int((x + 1)[-1]) != 199_999: wrong.append("array")
        if int(transfers[0].result()[-1]) != 5: wrong.append("transfer")
    if int(host[-1]) != 5 or transfers[0].state != "completed": wrong.append("host")
    # Letting go of what is the parent's does nothing.
    del tasks, scheduler, z, graph, y, stream, x, transfers, host, blocks, pool
    sys.stderr.write("".join(wrong))
    sys.stderr.flush()
    os._exit(len(wrong))
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert pool.read(blocks[0], 5) == b"first"
assert int(x[-1]) == 199_998
assert all(task.result(60) is None for task in tasks)
"""


def test_a_forked_child_is_told_and_breaks_nothing():
    done = run_python(EVERYTHING + FORKED, PYTHONWARNINGS="ignore::DeprecationWarning")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
