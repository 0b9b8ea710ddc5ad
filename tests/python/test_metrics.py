"""gp.metrics(): what was counted, judged by Prometheus's own parser."""

import functools
import math
import threading
import time

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import scheduler as sched
from support import ON_GPU, run_python

prometheus_parser = pytest.importorskip("prometheus_client.parser")

DEVICE = str(gp.device())


def families(text=None):
    parsed = list(prometheus_parser.text_string_to_metric_families(gp.metrics() if text is None else text))
    names = [family.name for family in parsed]
    assert len(set(names)) == len(names)
    return {family.name: family for family in parsed}


def value(name, found=None, **labels):
    """The one sample of that name and those labels, without a tenant unless told otherwise."""
    labels = {"device": DEVICE, "partition": "", "qos": "", **labels}
    found = found or families()
    family = found[name.removesuffix("_total")]
    matching = [
        s.value
        for s in family.samples
        if s.name == name and all(s.labels.get(label, "") == of for label, of in labels.items())
    ]
    assert len(matching) == 1, (name, labels, family.samples)
    return matching[0]


def counted(call, name, **labels):
    gp.ones(1)
    before = value(name, **labels)
    call()
    return value(name, **labels) - before


def test_every_family_has_a_help_a_type_and_a_base_unit():
    gp.ones(1)
    for name, family in families().items():
        assert name.startswith("pygpukit_")
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")
        assert not name.endswith(("_ms", "_us", "_ns", "_kib", "_mib"))
        for sample in family.samples:
            assert math.isfinite(sample.value)
            assert sample.value >= 0 or family.type == "gauge"
            assert "device" in sample.labels


def test_work_is_counted_by_kind():
    x = gp.ones(1000)
    assert counted(lambda: x + x, "pygpukit_work_total", kind="kernel") == 1
    assert counted(lambda: x + x, "pygpukit_work_declared_bytes_total") == 8000
    assert counted(lambda: gp.zeros(1000), "pygpukit_work_total", kind="fill") == 1
    assert counted(lambda: x.to_numpy(), "pygpukit_work_total", kind="copy_to_host") == 1


def test_copied_bytes_are_counted_by_direction():
    x = gp.ones(1000)
    host = np.ones(77, np.float64)
    assert counted(lambda: gp.from_numpy(host), "pygpukit_copied_bytes_total", direction="to_device") == 616
    assert counted(lambda: x.to_numpy(), "pygpukit_copied_bytes_total", direction="to_host") == 4000


def test_a_graph_counts_once_a_launch():
    x = gp.ones(1000)
    graph = gp.Graph()

    def capture():
        with graph:
            x + x

    assert counted(capture, "pygpukit_work_captured_total") == 1
    assert counted(graph.launch, "pygpukit_work_total", kind="graph") == 1
    assert counted(graph.launch, "pygpukit_work_total", kind="kernel") == 0


def test_waits_of_the_host_are_counted():
    assert counted(gp.synchronize, "pygpukit_host_waits_total") == 1
    assert counted(gp.synchronize, "pygpukit_host_wait_seconds_total") >= 0


def test_launch_times_are_a_histogram():
    x = gp.ones(10)

    # Tenants of other tests, whose work has a class and perhaps no name, have series of their own.
    mine_alone = {"device": DEVICE, "partition": "", "qos": ""}

    def of_mine():
        samples = families()["pygpukit_launch_seconds"].samples
        return [s for s in samples if all(s.labels.get(k, "") == v for k, v in mine_alone.items())]

    before = next(s.value for s in of_mine() if s.name.endswith("_count"))
    for _ in range(160):
        x + x
    mine = of_mine()
    buckets = [(float(s.labels["le"]), s.value) for s in mine if s.name.endswith("_bucket")]
    count = next(s.value for s in mine if s.name.endswith("_count"))
    total = next(s.value for s in mine if s.name.endswith("_sum"))
    assert count - before == 10  # one in sixteen
    assert [b for b, _ in buckets] == sorted(b for b, _ in buckets)
    assert [n for _, n in buckets] == sorted(n for _, n in buckets)
    assert buckets[-1] == (math.inf, count)
    assert buckets[0][0] == 5e-7
    assert 0 < total < 60


def test_memory_is_what_the_pool_says():
    gp.memory.trim()
    x = gp.ones(1 << 20, "uint8")
    stats = gp.memory.stats()
    found = families()
    for state in ("live", "cached", "reserved"):
        assert value("pygpukit_memory_bytes", found, state=state) == stats[f"{state}_bytes"]
    assert value("pygpukit_memory_bytes", found, state="live") >= x.nbytes
    assert value("pygpukit_device_memory_bytes", found, state="total") == gp.device().memory[1]
    assert value("pygpukit_device_multiprocessors", found) == gp.device().properties["multiprocessors"]
    gp.memory.set_limit(1 << 40)
    assert value("pygpukit_memory_limit_bytes") == 1 << 40
    gp.memory.set_limit(0)
    assert value("pygpukit_memory_limit_bytes") == 0


def test_tasks_are_counted_by_state_and_admission_by_decision():
    whose = {"partition": "counted tasks", "qos": "burstable"}
    running, go_on = threading.Event(), threading.Event()

    def hold():
        running.set()
        assert go_on.wait(60)

    def states(name, label):
        found = families()[name].samples
        return {s.labels[label]: s.value for s in found if whose.items() <= s.labels.items()}

    with gp.Trace() as trace, gp.Scheduler(workers=2, memory="64MiB") as scheduler:
        scheduler.add_tenant(whose["partition"])
        ask = functools.partial(scheduler.submit, tenant=whose["partition"])
        first = ask(hold, memory="48MiB", name="first")
        assert running.wait(60)
        second = ask(int, memory="32MiB")
        third = ask(int, after=[second])
        while states("pygpukit_admissions", "decision")["queued"] == 0:
            time.sleep(0.001)
        with pytest.raises(sched.TaskRejectedError):
            ask(int, memory="1GiB").result(60)
        assert states("pygpukit_tasks", "state") == {"pending": 1, "queued": 1, "running": 1}
        assert third.cancel()
        go_on.set()
        assert (first.result(60), second.result(60)) == (None, 0)
        assert isinstance(ask(lambda: 1 / 0).exception(60), ZeroDivisionError)
    assert states("pygpukit_tasks", "state") == {"pending": 0, "queued": 0, "running": 0}
    ended = {"completed": 2, "failed": 1, "cancelled": 1, "rejected": 1}
    assert states("pygpukit_tasks_ended", "state") == ended
    decisions = {"admitted": 3, "queued": 1, "throttled": 0, "rejected": 1}
    assert states("pygpukit_admissions", "decision") == decisions
    assert trace.entries == []


@pytest.mark.skipif(ON_GPU, reason="opens the simulated device alone")
def test_a_process_that_did_nothing_has_metrics_too():
    done = run_python(
        """
import pygpukit as gp
print(gp.metrics(), end="")
"""
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert all(family.samples == [] for family in families(done.stdout).values())


@pytest.mark.skipif(ON_GPU, reason="a driver does not outlive a fork")
def test_a_forked_child_counts_anew():
    done = run_python(
        """
import os, pygpukit as gp
gp.device("cpu"); gp.ones(3)
child = os.fork()
if child == 0:
    gp.metrics()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_waits_and_device_time_of_a_paced_tenant():
    engine = gp.KernelPacingEngine(gp.PacingConfig(bandwidth_share=0.5, device_bandwidth=1e7))
    x = gp.ones(25_000)  # 200 KB read and written: 40 ms each, longer than a busy machine takes
    of = {"partition": "paced", "qos": "burstable"}
    with engine.stream():
        gp.synchronize()
        found = families()
        before = [
            value(f"pygpukit_{name}_total", found, **of)
            for name in ("pacing_waits", "pacing_wait_seconds", "busy_seconds")
        ]
        began = time.monotonic()
        for _ in range(5):
            x + 1
        gp.synchronize()
    elapsed = time.monotonic() - began
    stats = engine.stats()
    found = families()
    assert value("pygpukit_pacing_waits_total", found, **of) - before[0] == stats["waits"] >= 1
    waited = value("pygpukit_pacing_wait_seconds_total", found, **of) - before[1]
    assert 0 < stats["waited_seconds"] <= waited <= elapsed
    assert elapsed >= 0.12  # waited for, or spent on other work meanwhile
    assert 0 < value("pygpukit_busy_seconds_total", found, **of) - before[2] < 1
