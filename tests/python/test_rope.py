"""Rotary embedding and the frequencies of its variants, against the papers' formulas in float64."""

import math

import numpy as np
import pytest

import pygpukit as gp
from support import relative_norm


def plain(d, theta=10_000.0):
    return theta ** (-np.arange(0, d, 2) / d)


def yarn(d, theta, factor, original, fast=32, slow=1, truncate=True):
    def element(turns):
        return d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = element(fast), element(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    ramp = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
    return plain(d, theta) * ((1 - ramp) + ramp / factor)


def llama3(d, theta, factor, original, low, high):
    frequency = plain(d, theta)
    wavelength = 2 * math.pi / frequency
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return frequency * ((1 - smooth) / factor + smooth)


VARIANTS = {
    "plain": ({"theta": 5e5}, plain(64, 5e5), 1.0),
    "linear": ({"factor": 2.5}, plain(64) / 2.5, 1.0),
    "dynamic, within": (
        {"factor": 4.0, "original_max_positions": 2048, "sequence_length": 1000},
        plain(64),
        1.0,
    ),
    "dynamic, beyond": (
        {"factor": 4.0, "original_max_positions": 2048, "sequence_length": 8192},
        plain(64, 10_000 * (4 * 8192 / 2048 - 3) ** (64 / 62)),
        1.0,
    ),
    "yarn": (
        {"factor": 16.0, "original_max_positions": 4096},
        yarn(64, 10_000, 16, 4096),
        0.1 * math.log(16) + 1,
    ),
    "yarn, deepseek": (
        {"factor": 40.0, "original_max_positions": 4096, "mscale": 1.0, "mscale_all_dim": 0.707},
        yarn(64, 10_000, 40, 4096),
        (0.1 * math.log(40) + 1) / (0.1 * 0.707 * math.log(40) + 1),
    ),
    "yarn, gpt-oss": (
        {
            "theta": 150_000.0,
            "factor": 32.0,
            "original_max_positions": 4096,
            "truncate": False,
            "attention_factor": 1.5,
        },
        yarn(64, 150_000, 32, 4096, truncate=False),
        1.5,
    ),
    "longrope, short": (
        {"factor": 32.0, "original_max_positions": 4096, "sequence_length": 4096},
        plain(64) / np.linspace(1, 2, 32),
        math.sqrt(1 + math.log(32) / math.log(4096)),
    ),
    "longrope, long": (
        {"factor": 32.0, "original_max_positions": 4096, "sequence_length": 4097},
        plain(64) / np.linspace(1, 60, 32),
        math.sqrt(1 + math.log(32) / math.log(4096)),
    ),
    "llama3": (
        {"theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        llama3(64, 5e5, 8, 8192, 1, 4),
        1.0,
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_frequencies(name):
    settings, expected, factor = VARIANTS[name]
    variant = name.split(",")[0]
    if variant == "longrope":
        settings = {**settings, "short_factor": np.linspace(1, 2, 32).tolist()}
        settings["long_factor"] = np.linspace(1, 60, 32).tolist()
    inv_freq, attention = gp.nn.rope_frequencies(64, variant, **settings)
    assert inv_freq.dtype is gp.float32
    assert inv_freq.shape == (32,)
    np.testing.assert_allclose(inv_freq.to_numpy(), expected, rtol=2e-6)
    assert attention == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"d": 63}, "'d'"),
        ({"d": 0}, "'d'"),
        ({"d": -2}, "'d'"),
        ({"d": 1 << 40}, "'d'"),
        ({"variant": "ntk"}, "'variant'.*'dynamic'"),
        ({"theta": 0.0}, "'theta'"),
        ({"theta": math.nan}, "'theta'"),
        ({"variant": "linear", "factor": 0.0}, "'factor'"),
        ({"variant": "linear", "factor": math.inf}, "'factor'"),
        ({"variant": "dynamic", "d": 2}, "'d'"),
        ({"variant": "dynamic", "sequence_length": -1.0}, "'sequence_length'"),
        ({"variant": "dynamic", "original_max_positions": 0.0}, "'original_max_positions'"),
        ({"variant": "yarn", "theta": 1.0}, "'theta'"),
        ({"variant": "yarn", "beta_fast": 0.5}, "'beta_fast'"),
        ({"variant": "yarn", "mscale": -1.0}, "'mscale'"),
        ({"variant": "yarn", "attention_factor": 0.0}, "'attention_factor'"),
        ({"variant": "longrope"}, "'short_factor'"),
        ({"variant": "longrope", "short_factor": [1.0] * 32, "long_factor": [0.0] * 32}, "'long_factor'"),
        ({"variant": "longrope", "original_max_positions": 1.0}, "'original_max_positions'"),
        ({"variant": "llama3", "high_freq_factor": 1.0}, "'high_freq_factor'"),
    ],
)
def test_settings_that_make_no_table_are_named(arguments, complaint):
    with pytest.raises(gp.InvalidValueError, match=f"rope_frequencies.*{complaint}"):
        gp.nn.rope_frequencies(**{"d": 64, **arguments})


def turned(x, positions, inv_freq, factor):
    pairs = len(inv_freq)
    angle = (positions[:, None].astype(np.float32) * inv_freq).astype(np.float64)[:, None, :]
    y = x.astype(np.float64)
    a, b = y[..., :pairs].copy(), y[..., pairs : 2 * pairs].copy()
    y[..., :pairs] = (a * np.cos(angle) - b * np.sin(angle)) * factor
    y[..., pairs : 2 * pairs] = (b * np.cos(angle) + a * np.sin(angle)) * factor
    return y


@pytest.mark.parametrize("shape", [(5, 2, 16), (3, 5, 2, 16)])
def test_rope(rng, shape):
    x = rng.standard_normal(shape).astype(np.float32)
    inv_freq, _ = gp.nn.rope_frequencies(12)
    table = inv_freq.to_numpy()
    array = gp.from_numpy(x)
    expected = turned(x, np.arange(7, 12), table, 1.25)
    assert relative_norm(gp.nn.rope(array, 7, inv_freq, 1.25).to_numpy(), expected) < 1e-6
    first = gp.from_numpy(np.array([7], np.int32))
    assert relative_norm(gp.nn.rope(array, first, inv_freq, 1.25).to_numpy(), expected) < 1e-6
    positions = np.array([9, 0, 3, 3, 100_000], np.int32)
    each = gp.nn.rope(array, gp.from_numpy(positions), inv_freq)
    assert relative_norm(each.to_numpy(), turned(x, positions, table, 1)) < 1e-6
    assert gp.nn.rope(array, 7, inv_freq, 1.25, out=array) is not None
    assert relative_norm(array.to_numpy(), expected) < 1e-6


def test_rope_refuses_what_does_not_fit():
    inv_freq, _ = gp.nn.rope_frequencies(16)
    x = gp.ones((5, 2, 16))
    for position in (-1, 1 << 31, gp.zeros(2, "int32"), gp.zeros((5, 1), "int32")):
        with pytest.raises(gp.InvalidValueError, match="rope.*'position'"):
            gp.nn.rope(x, position, inv_freq)
    for position in (1.5, "1", None, gp.zeros(5, "int64")):
        with pytest.raises(gp.InvalidTypeError, match="rope.*'position'"):
            gp.nn.rope(x, position, inv_freq)
    for wrong in (gp.ones((2, 16)), gp.ones((5, 2, 15)), gp.ones((1, 1, 5, 2, 16))):
        with pytest.raises(gp.InvalidValueError, match="rope.*'x'"):
            gp.nn.rope(wrong, 0, inv_freq)
    with pytest.raises(gp.InvalidTypeError, match="rope.*'x'"):
        gp.nn.rope(x.astype("int32"), 0, inv_freq)
    assert gp.nn.rope(gp.ones((0, 2, 16)), 0, inv_freq).shape == (0, 2, 16)
