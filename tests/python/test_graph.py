import numpy as np
import pytest

import pygpukit as gp
from support import assert_equal


def test_capture_runs_nothing_and_launch_runs_all():
    x = gp.ones(1000)
    graph = gp.Graph()
    with graph:
        x += 1
        y = x * 10
    assert_equal(x, np.ones(1000, np.float32))
    assert graph.node_count >= 2
    graph.launch()
    assert_equal(x, np.full(1000, 2, np.float32))
    assert_equal(y, np.full(1000, 20, np.float32))
    for _ in range(5):
        graph.launch()
    assert_equal(x, np.full(1000, 7, np.float32))
    assert_equal(y, np.full(1000, 70, np.float32))


def test_replay_sees_new_inputs(rng):
    a, b = rng.standard_normal((2, 48, 48)).astype(np.float32)
    x = gp.from_numpy(a)
    graph = gp.Graph()
    with graph:
        y = gp.sum(gp.exp(x @ x.T * 0.01), axis=1)
    graph.launch()
    np.testing.assert_allclose(y.to_numpy(), np.exp(a @ a.T * 0.01).sum(1), rtol=1e-5)
    x[...] = gp.from_numpy(b)
    graph.launch()
    np.testing.assert_allclose(y.to_numpy(), np.exp(b @ b.T * 0.01).sum(1), rtol=1e-5)


def test_replay_allocates_nothing():
    x = gp.ones(10_000)
    graph = gp.Graph()
    with graph:
        y = x
        for _ in range(10):
            y = y * 1.5 + 1
    graph.launch()
    before = gp.memory.stats()["allocations"]
    for _ in range(20):
        graph.launch()
    assert gp.memory.stats()["allocations"] == before
    expected = np.ones(10_000, np.float32)
    for _ in range(10):
        expected = expected * np.float32(1.5) + np.float32(1)
    np.testing.assert_allclose(y.to_numpy(), expected, rtol=1e-6)


def test_a_graph_keeps_what_it_uses_alive():
    x = gp.full(1000, 3, "float32")
    y = gp.zeros(1000)
    graph = gp.Graph()
    with graph:
        y += x
    del x
    for _ in range(20):
        gp.full(1000, -9, "float32")
    graph.launch()
    assert_equal(y, np.full(1000, 3, np.float32))


def test_results_outlive_the_graph():
    x = gp.ones(100)
    graph = gp.Graph()
    with graph:
        y = x + 4
    graph.launch()
    del graph
    for _ in range(20):
        gp.full(100, -9, "float32")
    assert_equal(y, np.full(100, 5, np.float32))


def test_launches_are_ordered_with_other_streams():
    x = gp.zeros(100_000)
    graph = gp.Graph()
    with graph:
        x += 1
    for _ in range(10):
        with gp.Stream():
            graph.launch()
        x *= 1
    assert_equal(x, np.full(100_000, 10, np.float32))


@pytest.mark.parametrize(
    "forbidden",
    [lambda x: x.to_numpy(), lambda x: x.item(), lambda x: gp.synchronize(), lambda x: repr(x)],
    ids=["to_numpy", "item", "synchronize", "repr"],
)
def test_what_cannot_be_captured_raises_and_leaves_nothing_behind(forbidden):
    x = gp.ones(1)
    outer = gp.current_stream()
    with pytest.raises(gp.Error, match="captur"), gp.Graph():
        forbidden(x)
    assert gp.current_stream() == outer
    assert x.item() == 1
    graph = gp.Graph()
    with graph:
        x += 1
    graph.launch()
    assert x.item() == 2


def test_an_error_abandons_the_capture():
    x = gp.ones(3)
    graph = gp.Graph()
    with pytest.raises(ZeroDivisionError), graph:
        x += 1
        raise ZeroDivisionError
    assert x.tolist() == [1, 1, 1]
    with pytest.raises(gp.InvalidValueError, match="captured"):
        graph.launch()


def test_order_of_use():
    with pytest.raises(gp.InvalidValueError, match=r"Graph\.launch"):
        gp.Graph().launch()
    graph = gp.Graph()
    with graph:
        gp.ones(1)
    with pytest.raises(gp.InvalidValueError, match="not captured yet"), graph:
        pass
    assert gp.Graph().node_count == 0
    for each in (gp.Graph(), graph):
        with pytest.raises(gp.InvalidValueError, match="Graph: expected the end of a scope"):
            each.__exit__(None, None, None)
    graph.launch()


def test_an_empty_capture():
    graph = gp.Graph()
    with graph:
        pass
    graph.launch()
    assert graph.node_count == 0
