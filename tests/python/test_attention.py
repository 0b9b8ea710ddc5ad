"""gp.nn.attention against NumPy in float64, and what its arguments may be."""

from __future__ import annotations

import numpy as np
import pytest

import pygpukit as gp


def reference(
    q, k, v, *, causal=False, scale=None, window=(None, None), soft_cap=None, slopes=None, mask=None
):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if soft_cap:
        scores = soft_cap * np.tanh(scores / soft_cap)
    place = np.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    key = np.arange(k.shape[2])
    if slopes is not None:
        scores = scores - slopes[:, None, None] * np.abs(key - place)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    before, after = window[0], 0 if causal else window[1]
    hidden = np.zeros(scores.shape[-2:], bool)
    if before is not None:
        hidden |= key < place - before
    if after is not None:
        hidden |= key > place + after
    scores = np.where(hidden, -np.inf, scores)
    highest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(highest), 0, highest))
    total = weights.sum(-1, keepdims=True)
    return weights @ v / np.where(total == 0, 1, total)


def inputs(seed, batch=2, heads=4, kv_heads=2, tokens=37, keys=53, d=24):
    random = np.random.default_rng(seed)
    return (
        random.standard_normal((batch, heads, tokens, d), np.float32),
        random.standard_normal((batch, kv_heads, keys, d), np.float32),
        random.standard_normal((batch, kv_heads, keys, d), np.float32),
    )


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({}, {}),
        ({"causal": True}, {"causal": True}),
        ({"window": 5}, {"window": (5, 5)}),
        ({"window": (7, None)}, {"window": (7, None)}),
        ({"window": [0, 3], "scale": 0.1}, {"window": (0, 3), "scale": 0.1}),
        ({"causal": True, "window": 4, "soft_cap": 1.5}, {"causal": True, "window": (4, 4), "soft_cap": 1.5}),
    ],
)
def test_options(options, same):
    q, k, v = inputs(1)
    y = gp.nn.attention(*map(gp.asarray, (q, k, v)), **options)
    np.testing.assert_allclose(y.to_numpy(), reference(q, k, v, **same), atol=4e-6)


def test_masks_slopes_and_out():
    q, k, v = inputs(2)
    random = np.random.default_rng(3)
    slopes = random.random(4, np.float32)
    for mask in (random.random((37, 53)) < 0.5, random.standard_normal((2, 1, 1, 53), np.float32)):
        out = gp.empty(q.shape)
        gp.nn.attention(
            *map(gp.asarray, (q, k, v)), mask=gp.asarray(mask), alibi_slopes=gp.asarray(slopes), out=out
        )
        np.testing.assert_allclose(out.to_numpy(), reference(q, k, v, mask=mask, slopes=slopes), atol=4e-6)


def test_float16_views():
    q, k, v = (x.astype(np.float16) for x in inputs(4, d=64))
    views = [gp.asarray(np.ascontiguousarray(x.swapaxes(1, 2))).transpose(0, 2, 1, 3) for x in (q, k, v)]
    y = gp.nn.attention(*views, causal=True)
    np.testing.assert_allclose(y.to_numpy().astype(np.float64), reference(q, k, v, causal=True), atol=3e-3)


def test_packed_sequences():
    random = np.random.default_rng(5)
    q = random.standard_normal((30, 4, 16), np.float32)
    k, v = (random.standard_normal((41, 2, 16), np.float32) for _ in range(2))
    q_starts, k_starts = np.array([0, 11, 11, 30], np.int32), np.array([0, 20, 25, 41], np.int32)
    y = gp.nn.attention_packed(*map(gp.asarray, (q, k, v, q_starts, k_starts)), 19, causal=True).to_numpy()
    for i in range(3):
        own = [
            x[None, a[i] : a[i + 1]].swapaxes(1, 2) for x, a in ((q, q_starts), (k, k_starts), (v, k_starts))
        ]
        expected = reference(*own, causal=True) if own[0].size else own[0]
        np.testing.assert_allclose(y[None, q_starts[i] : q_starts[i + 1]].swapaxes(1, 2), expected, atol=4e-6)


@pytest.mark.parametrize("window", [-1, (1,), (1, 2, 3), (-1, 0), "5", 1.5, True, 2**64])
def test_windows_that_are_none(window):
    q, k, v = map(gp.asarray, inputs(1))
    with pytest.raises(gp.InvalidValueError, match="window"):
        gp.nn.attention(q, k, v, window=window)


def test_refuses_what_does_not_fit():
    q, k, v = map(gp.asarray, inputs(1))
    with pytest.raises(gp.InvalidValueError, match="attention"):
        gp.nn.attention(q, k, k[:, :, :5])
    with pytest.raises(gp.InvalidTypeError):
        gp.nn.attention(q, k, v.astype("float16"))
    with pytest.raises(gp.InvalidValueError, match="soft_cap"):
        gp.nn.attention(q, k, v, soft_cap=float("nan"))
    with pytest.raises(gp.InvalidValueError, match="max_tokens"):
        starts = gp.asarray(np.array([0, 1], np.int32))
        gp.nn.attention_packed(*(x[0].transpose(1, 0, 2) for x in (q, k, v)), starts, starts, -1)


def test_float8():
    q, k, v = (gp.asarray(x).astype("float8_e4m3") for x in inputs(7, d=32))
    each = np.array([[2.0, 0.5], [1.0, 4.0]], np.float32)
    wide = [x.astype("float32").to_numpy() for x in (q, k, v)]
    expected = reference(wide[0] * 0.5, wide[1], wide[2] * each[:, :, None, None], causal=True)
    for dtype in ("float16", None):
        y = gp.nn.attention(q, k, v, causal=True, q_scale=0.5, v_scale=gp.asarray(each), dtype=dtype)
        assert y.dtype == (dtype or "bfloat16")
        got = y.astype("float32").to_numpy()
        assert np.linalg.norm(got - expected) <= 0.04 * np.linalg.norm(expected)
    with pytest.raises(gp.InvalidTypeError, match="dtype"):
        gp.nn.attention(q, k, v, dtype="float32")
    with pytest.raises(gp.InvalidTypeError):
        gp.nn.attention(q, k, v, q_scale="2")
    with pytest.raises(gp.InvalidTypeError):
        gp.nn.attention(q, k, v, q_scale=10**400)


@pytest.mark.parametrize("tokens", [3, 12])
@pytest.mark.parametrize("paged", [False, True])
def test_cached(paged, tokens):
    random = np.random.default_rng(6)
    q = random.standard_normal((2, tokens, 4, 16), np.float32)
    k, v = (random.standard_normal((2, 2, 32, 16), np.float32) for _ in range(2))
    positions = np.array([5, 32 - tokens], np.int32)
    # Page 2 * i + b holds the keys 8 * i and on of sequence b.
    stored = [
        x.reshape(2, 2, 4, 8, 16).transpose(2, 0, 1, 3, 4).reshape(8, 2, 8, 16) if paged else x
        for x in (k, v)
    ]
    pages = np.arange(8, dtype=np.int32).reshape(4, 2).T if paged else None
    y = gp.nn.attention_cached(
        *map(gp.asarray, (q, *stored, positions)),
        pages=None if pages is None else gp.asarray(np.ascontiguousarray(pages)),
        window=9,
    ).to_numpy()
    for b in range(2):
        keys = slice(0, positions[b] + tokens)
        expected = reference(
            q[b : b + 1].swapaxes(1, 2),
            k[b : b + 1, :, keys],
            v[b : b + 1, :, keys],
            causal=True,
            window=(9, None),
        )
        np.testing.assert_allclose(y[b : b + 1].swapaxes(1, 2), expected, atol=4e-6)
    with pytest.raises(gp.InvalidValueError, match="window"):
        gp.nn.attention_cached(*map(gp.asarray, (q, k, v, positions)), window=-1)
