import numpy as np
import pytest

import pygpukit as gp
from support import np_dtype


def test_sample_gives_int32_tokens_and_repeats():
    rng = np.random.default_rng(1)
    logits = gp.asarray(rng.standard_normal((4, 1000)).astype(np.float32) * 3)
    first = gp.nn.sample(logits, temperature=0.8, top_k=50, top_p=0.9, min_p=0.01, seed=7, step=3)
    assert first.dtype is gp.int32
    assert first.shape == (4,)
    again = gp.nn.sample(logits, temperature=0.8, top_k=50, top_p=0.9, min_p=0.01, seed=7, step=3)
    assert first.to_numpy().tolist() == again.to_numpy().tolist()
    draws = {
        tuple(gp.nn.sample(logits, temperature=0.8, seed=7, step=step).to_numpy().tolist())
        for step in range(8)
    }
    assert len(draws) > 4


def test_greedy_is_argmax():
    rng = np.random.default_rng(2)
    x = rng.standard_normal((3, 5, 333)).astype(np.float32)
    assert gp.nn.sample(gp.asarray(x), temperature=0).to_numpy().tolist() == x.argmax(-1).tolist()


def test_sample_keeps_to_the_nucleus():
    p = np.array([0.4, 0.3, 0.2, 0.1], np.float32)
    logits = gp.asarray(np.tile(np.log(p), (2000, 1)))
    for top_p, kept in [(0.39, 1), (0.6, 2), (0.75, 3), (1.0, 4)]:
        tokens = gp.nn.sample(logits, top_p=top_p, seed=1).to_numpy()
        counts = np.bincount(tokens, minlength=4)[:kept]
        assert counts.sum() == 2000
        np.testing.assert_allclose(counts / 2000, p[:kept] / p[:kept].sum(), atol=0.04)


def test_position_moves_the_draw():
    logits = gp.asarray(np.zeros((1, 100), np.float32))
    position = gp.asarray(np.array([5], np.int32))
    moved = gp.nn.sample(logits, seed=1, step=2, position=position)
    assert moved.to_numpy().tolist() == gp.nn.sample(logits, seed=1, step=7).to_numpy().tolist()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_top_k(dtype):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 3, 700)).astype(np_dtype(dtype))
    values, indices = gp.nn.top_k(gp.asarray(x), 20)
    expected = np.argsort(-x.astype(np.float64), axis=-1, kind="stable")[..., :20]
    assert indices.to_numpy().tolist() == expected.tolist()
    assert (values.to_numpy() == np.take_along_axis(x, expected, -1)).all()


def test_options_of_rows_and_penalties_in_a_graph():
    rng = np.random.default_rng(4)
    logits = gp.asarray(rng.standard_normal((3, 400)).astype(np.float32) * 3)
    temperature = gp.asarray(np.array([0.7, 0.0, 1.3], np.float32))
    seed = gp.asarray(np.array([1, 2, 2**63 + 5], np.uint64))
    position = gp.asarray(np.zeros(3, np.int32))
    counts = gp.zeros((3, 400), gp.int32)

    def step():
        penalized = gp.nn.penalize(logits, counts, repetition=1.1, frequency=0.5)
        tokens = gp.nn.sample(penalized, temperature=temperature, seed=seed, position=position, counts=counts)
        gp.add(position, 1, out=position)
        return tokens

    expected = [step().to_numpy().tolist() for _ in range(5)]
    assert counts.to_numpy().sum(1).tolist() == [5, 5, 5]
    counts[...] = 0
    position[...] = 0
    graph = gp.Graph()
    with graph:
        tokens = step()
    for row in expected:
        graph.launch()
        assert tokens.to_numpy().tolist() == row


def test_penalize_is_of_the_definition():
    x = np.array([[2.0, -2.0, 1.0, 3.0]], np.float32)
    counts = gp.asarray(np.array([[1, 2, 0, 0]], np.int32))
    prompt = gp.asarray(np.array([[False, False, True, False]]))
    bias = gp.asarray(np.array([0, 0, 0, -np.inf], np.float32))
    got = gp.nn.penalize(
        gp.asarray(x), counts, prompt=prompt, bias=bias, repetition=2.0, presence=0.25, frequency=0.5
    )
    assert got.to_numpy().tolist() == [[1 - 0.75, -4 - 1.25, 0.5, -np.inf]]


def test_errors():
    x = gp.asarray(np.zeros((2, 5), np.float32))
    with pytest.raises(gp.InvalidValueError, match="top_p"):
        gp.nn.sample(x, top_p=0)
    with pytest.raises(gp.InvalidTypeError, match="temperature"):
        gp.nn.sample(x, temperature="hot")
    with pytest.raises(gp.InvalidTypeError, match="seed"):
        gp.nn.sample(x, seed=-1)
    with pytest.raises(gp.InvalidValueError, match="top_p"):
        gp.nn.sample(x, top_p=gp.asarray(np.ones(3, np.float32)))
    with pytest.raises(gp.InvalidValueError, match="repetition"):
        gp.nn.penalize(x, repetition=0)
    with pytest.raises(gp.InvalidValueError, match="'k'"):
        gp.nn.top_k(x, 6)
    with pytest.raises(gp.InvalidTypeError):
        gp.nn.sample(gp.asarray(np.zeros(5, np.int32)))


def test_every_option_may_differ_from_row_to_row():
    logits = np.random.default_rng(4).standard_normal((3, 50)).astype(np.float32) * 3
    rows = {
        "temperature": np.array([0.5, 1.0, 2.0], np.float32),
        "top_p": np.array([0.25, 0.875, 1.0], np.float32),
        "min_p": np.array([0.0, 0.125, 0.5], np.float32),
        "top_k": np.array([1, 0, 20], np.int32),
        "seed": np.array([7, 8, 9], np.uint64),
    }
    together = gp.nn.sample(
        gp.from_numpy(logits), **{name: gp.from_numpy(each) for name, each in rows.items()}
    )
    for i in range(3):
        alone = gp.nn.sample(
            gp.from_numpy(logits[i : i + 1]), **{name: each[i].item() for name, each in rows.items()}
        )
        assert together.to_numpy()[i] == alone.to_numpy()[0]
    counts = gp.from_numpy(np.ones((3, 50), np.int32))
    options = {
        "repetition": np.array([1.0, 1.5, 0.5], np.float32),
        "presence": np.array([0.0, 1.0, -1.0], np.float32),
        "frequency": np.array([0.5, 0.0, 2.0], np.float32),
    }
    lowered = gp.nn.penalize(
        gp.from_numpy(logits), counts, **{name: gp.from_numpy(each) for name, each in options.items()}
    ).to_numpy()
    r, p, f = (options[name][:, None] for name in ("repetition", "presence", "frequency"))
    expected = np.where(logits > 0, logits / r, logits * r) - f - p
    assert np.allclose(lowered, expected, rtol=1e-6, atol=1e-6)
    for bad in ({"presence": 1e300}, {"repetition": 1e-320}, {"frequency": float("nan")}):
        with pytest.raises(gp.InvalidValueError, match=next(iter(bad))):
            gp.nn.penalize(gp.from_numpy(logits), counts, **bad)
