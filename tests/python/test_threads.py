from concurrent.futures import ThreadPoolExecutor

import numpy as np

import pygpukit as gp
from support import assert_equal, run_python

THREADS = 8


def run_in_threads(work):
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))


def test_each_thread_on_its_own_stream():
    def work(seed):
        host = np.random.default_rng(seed).standard_normal(30_000).astype(np.float32)
        with gp.Stream() as stream:
            assert gp.current_stream() == stream
            x = gp.from_numpy(host)
            for _ in range(30):
                x = x * 0.5 + 1
            return host, x.to_numpy()

    for host, actual in run_in_threads(work):
        for _ in range(30):
            host = host * np.float32(0.5) + np.float32(1)
        np.testing.assert_array_equal(actual, host)


def test_threads_read_one_array(rng):
    host = rng.standard_normal((64, 64)).astype(np.float32)
    x = gp.from_numpy(host)

    def work(index):
        with gp.Stream():
            return (x @ x + index).to_numpy()

    for index, actual in enumerate(run_in_threads(work)):
        np.testing.assert_allclose(actual, host @ host + index, rtol=1e-4, atol=1e-4)


def test_threads_share_the_default_stream():
    def work(index):
        total = gp.zeros(1000, "int64")
        for _ in range(50):
            total += index
        return total

    for index, total in enumerate(run_in_threads(work)):
        assert_equal(total, np.full(1000, 50 * index))


def test_allocations_from_many_threads():
    def work(seed):
        sizes = np.random.default_rng(seed).integers(1, 50_000, 200)
        kept = []
        for size in sizes:
            kept.append(gp.full(int(size), seed, "int16"))
            if len(kept) > 5:
                x = kept.pop(0)
                assert int(x[-1]) == seed
        return all(bool(gp.all(x == seed)) for x in kept)

    assert all(run_in_threads(work))


def test_errors_stay_in_their_thread():
    def work(index):
        try:
            gp.ones(2) + gp.ones(3 + index)
        except gp.InvalidValueError as error:
            return str(3 + index) in str(error)

    assert all(run_in_threads(work))


def test_one_trace_sees_every_thread():
    with gp.Trace() as trace:
        run_in_threads(lambda _: gp.ones(10))
    # Beside these there may be fills of memory that had another owner.
    assert [entry["name"] for entry in trace.entries if entry["kind"] == "kernel"] == [
        "fill_strided"
    ] * THREADS


def test_captures_of_several_threads():
    def work(index):
        x = gp.full(1000, index, "float32")
        graph = gp.Graph()
        with graph:
            y = x * 2 + 1
        graph.launch()
        return y

    for index, y in enumerate(run_in_threads(work)):
        assert_equal(y, np.full(1000, 2 * index + 1, np.float32))


def test_the_interpreter_ends_while_threads_compute():
    done = run_python(
        """
import threading, time
import pygpukit as gp
x = gp.ones((300, 300))
def work():
    while True:
        gp.matmul(x, x)
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.3)
print("end")
"""
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


def test_threads_may_use_the_default_device_first():
    # Whoever is told of it may let another thread go on, which must not wait for the first.
    done = run_python(
        "import threading, time, warnings\n"
        "import pygpukit as gp\n"
        "warnings.showwarning = lambda *a, **k: time.sleep(0.1)\n"
        "threads = [threading.Thread(target=gp.ones, args=(3,), daemon=True) for _ in range(4)]\n"
        "for each in threads: each.start()\n"
        "for each in threads: each.join(60)\n"
        "assert not any(each.is_alive() for each in threads)\n",
        PYGPUKIT_DEVICE=None,
    )
    assert done.returncode == 0, done.stderr
