import numpy as np
import pytest

import pygpukit as gp
from support import (
    ARITHMETIC,
    BOOL,
    FLOAT8,
    FLOATS,
    INTEGERS,
    ON_GPU,
    assert_equal,
    np_dtype,
    random_array,
    relative_norm,
    run_python,
)

# Bounds of the relative norm of the error against float64: the rounding of the result plus the
# accumulation in float32 (float64 for float64).
BOUNDS = {"float16": 6e-4, "bfloat16": 5e-3, "float32": 2e-6, "float64": 1e-14}
SHAPES = [
    ((3, 4), (4, 5)),
    ((1, 1), (1, 1)),
    ((1, 64), (64, 1)),
    ((65, 33), (33, 17)),
    ((128, 256), (256, 128)),
    ((129, 257), (257, 131)),
    ((4,), (4,)),
    ((4,), (4, 3)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((7, 1, 3, 4), (2, 4, 5)),
    ((4,), (6, 4, 2)),
    ((6, 2, 4), (4,)),
    ((1, 777), (777, 300)),
    ((300, 777), (777, 1)),
]
EMPTY = [
    ((0, 3), (3, 4)),
    ((2, 0), (0, 3)),
    ((2, 3), (3, 0)),
    ((0, 2, 3), (3, 2)),
    ((0,), (0,)),
    ((2, 0), (0,)),
]


def draw(rng, shape, dtype):
    if dtype in FLOATS:
        return rng.standard_normal(shape).astype(np_dtype(dtype))
    return random_array(rng, shape, dtype)


def check(actual, a, b):
    dtype = str(actual.dtype)
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64)) if dtype in FLOATS else np.matmul(a, b)
    if dtype in FLOATS:
        assert actual.shape == exact.shape
        assert relative_norm(actual.to_numpy(), exact) <= BOUNDS[dtype]
    else:
        assert_equal(actual, exact)


@pytest.mark.parametrize("dtype", ARITHMETIC)
@pytest.mark.parametrize(("a_shape", "b_shape"), SHAPES + EMPTY)
def test_against_float64(rng, a_shape, b_shape, dtype):
    a, b = draw(rng, a_shape, dtype), draw(rng, b_shape, dtype)
    actual = gp.matmul(gp.from_numpy(a), gp.from_numpy(b))
    assert actual.dtype == dtype
    check(actual, a, b)
    check(gp.from_numpy(a) @ gp.from_numpy(b), a, b)


LAYOUTS = {
    "rows": lambda m: m,
    "columns": lambda m: m.T.copy().T,
    "steps": lambda m: m[::2, ::3],
    "negative": lambda m: m[::-1, ::-1],
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int32"])
@pytest.mark.parametrize("right", sorted(LAYOUTS))
@pytest.mark.parametrize("left", sorted(LAYOUTS))
@pytest.mark.parametrize("size", [12, 192])
def test_layouts(rng, left, right, dtype, size):
    a, b = draw(rng, (size, size), dtype), draw(rng, (size, size), dtype)
    x, y = LAYOUTS[left](gp.from_numpy(a)), LAYOUTS[right](gp.from_numpy(b))
    a, b = LAYOUTS[left](a), LAYOUTS[right](b)
    inner = min(a.shape[1], b.shape[0])
    check(gp.matmul(x[:, :inner], y[:inner]), a[:, :inner], b[:inner])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_odd_offsets_and_strides(rng, dtype):
    """Rows whose addresses are not multiples of 16 bytes."""
    a, b = draw(rng, (70, 131), dtype), draw(rng, (131, 71), dtype)
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    check(x[1:, 1:130] @ y[1:130, 3:], a[1:, 1:130], b[1:130, 3:])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape", [(512, 384, 640), (1, 4096, 1024), (17, 2048, 999), (1000, 8, 1000), (8, 5000, 8)]
)
def test_large(rng, shape, dtype):
    m, k, n = shape
    a, b = draw(rng, (m, k), dtype), draw(rng, (k, n), dtype)
    check(gp.from_numpy(a) @ gp.from_numpy(b), a, b)
    check(gp.from_numpy(a) @ gp.from_numpy(b.T.copy()).T, a, b)


def test_broadcast_batches(rng):
    a, b = draw(rng, (3, 1, 6, 5), "float32"), draw(rng, (1, 4, 5, 7), "float32")
    check(gp.from_numpy(a) @ gp.from_numpy(b), a, b)
    x = gp.broadcast_to(gp.from_numpy(a[0, 0]), (9, 6, 5))
    check(x @ gp.from_numpy(b[0, :1]), np.broadcast_to(a[0, 0], (9, 6, 5)), b[0, :1])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("float32", "float64"),
        ("int8", "float32"),
        ("int32", "int64"),
        ("float16", "bfloat16"),
        ("bool", "int8"),
        ("int16", "uint16"),
    ],
)
def test_promotion(rng, a, b):
    x, y = draw(rng, (5, 6), a), draw(rng, (6, 7), b)
    actual = gp.from_numpy(x) @ gp.from_numpy(y)
    assert actual.dtype == gp.result_type(a, b)
    wide = np_dtype(str(actual.dtype))
    check(actual, x.astype(wide), y.astype(wide))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(dtype):
    info = np.iinfo(dtype)
    a = np.full((3, 5), info.max, dtype)
    assert_equal(gp.from_numpy(a) @ gp.from_numpy(a.T.copy()), a @ a.T)


@pytest.mark.parametrize("dtype", BOOL)
def test_bool_is_any_of_and(rng, dtype):
    a, b = draw(rng, (20, 3), dtype), draw(rng, (3, 20), dtype)
    assert_equal(gp.from_numpy(a) @ gp.from_numpy(b), a @ b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bits_accumulate_in_float32(dtype):
    k = 8192
    assert (gp.ones((2, k), dtype) @ gp.ones((k, 3), dtype)).to_numpy().astype(float).tolist() == [
        [k] * 3
    ] * 2


def test_nan_and_infinity_reach_the_result():
    a = np.ones((4, 4), np.float32)
    a[1, 2] = np.nan
    a[2, 1] = np.inf
    b = np.ones((4, 4), np.float32)
    with np.errstate(invalid="ignore"):
        expected = a @ b
    np.testing.assert_array_equal((gp.from_numpy(a) @ gp.from_numpy(b)).to_numpy(), expected)


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t.T, lambda t: t[::-1], lambda t: t[:, ::2]])
def test_out(rng, view):
    target = view(gp.full((6, 6), -1.0))
    m, n = target.shape
    a, b = draw(rng, (m, 4), "float32"), draw(rng, (4, n), "float32")
    result = gp.matmul(gp.from_numpy(a), gp.from_numpy(b), out=target)
    assert result.data_ptr == target.data_ptr
    check(target, a, b)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("m", "n"), [(1, 5), (17, 3), (40, 69), (200, 131)])
def test_out_leaves_what_lies_beside_it(rng, dtype, m, n):
    pitch = (n + 23) // 8 * 8
    target = gp.full((m + 2, pitch), -1.0, dtype)
    a, b = (gp.from_numpy(random_array(rng, (rows, 128), dtype)) for rows in (m, n))
    gp.matmul(a, b.T, out=target[1:-1, :n])
    expected = np.full((m + 2, pitch), -1.0)
    expected[1:-1, :n] = gp.matmul(a, b.T).astype("float64").to_numpy()
    assert_equal(target.astype("float64"), expected)


def test_out_that_is_an_input(rng):
    a = draw(rng, (40, 40), "float32")
    x = gp.from_numpy(a)
    gp.matmul(x, x.T, out=x)
    check(x, a, a.T)


def test_out_that_does_not_fit():
    x = gp.ones((3, 3))
    for out, error in [
        (gp.ones((3, 4)), gp.InvalidValueError),
        (gp.ones((3, 3), "float64"), gp.InvalidTypeError),
        (gp.broadcast_to(gp.ones(3), (3, 3)), gp.InvalidValueError),
    ]:
        with pytest.raises(error, match="matmul: argument 'out'"):
            gp.matmul(x, x, out=out)


@pytest.mark.parametrize(
    ("a", "b"), [((2, 3), (2, 3)), ((3,), (4,)), ((2, 3, 4), (3, 4, 5)), ((), (3,)), ((3, 3), ())]
)
def test_shapes_that_do_not_fit(a, b):
    with pytest.raises(gp.InvalidValueError, match="matmul"):
        gp.zeros(a) @ gp.zeros(b)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_is_refused(dtype):
    with pytest.raises(gp.InvalidTypeError, match="matmul"):
        gp.ones((2, 2), dtype) @ gp.ones((2, 2), dtype)


def test_host_objects_are_refused():
    with pytest.raises(gp.InvalidTypeError, match=r"gp\.asarray"):
        gp.matmul(gp.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(TypeError):
        gp.ones((2, 2)) @ np.ones((2, 2))
    with pytest.raises(TypeError):
        gp.ones((2, 2)) @ 2


@pytest.fixture
def _float32_after():
    yield
    gp.set_matmul_precision("float32")


@pytest.mark.usefixtures("_float32_after")
def test_precision_setting(rng):
    a, b = draw(rng, (256, 512), "float32"), draw(rng, (512, 128), "float32")
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert gp.matmul_precision() == "float32"
    assert relative_norm((x @ y).to_numpy(), exact) <= BOUNDS["float32"]
    gp.set_matmul_precision("tf32")
    assert gp.matmul_precision() == "tf32"
    error = relative_norm((x @ y).to_numpy(), exact)
    assert error <= 1e-3
    if ON_GPU:
        assert error > 1e-5  # asked for and done
    with pytest.raises(gp.InvalidValueError, match="'float32' or 'tf32'"):
        gp.set_matmul_precision("fast")


@pytest.mark.parametrize(("value", "expected"), [(None, "float32"), ("0", "float32"), ("1", "tf32")])
def test_precision_from_the_environment(value, expected):
    done = run_python("import pygpukit as gp; print(gp.matmul_precision())", PYGPUKIT_ALLOW_TF32=value)
    assert done.stdout.strip() == expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_backend(rng, dtype):
    a, b = draw(rng, (70, 129), dtype), draw(rng, (129, 33), dtype)
    x, y = gp.from_numpy(a), gp.from_numpy(b)
    try:
        z = gp.matmul(x, y, backend="cublaslt")
    except gp.UnsupportedError as missing:
        pytest.skip(str(missing))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert relative_norm(z.to_numpy(), exact) <= BOUNDS[dtype]
    graph = gp.Graph()
    with graph:
        again = gp.matmul(x, y, backend="cublaslt")
    graph.launch()
    assert relative_norm(again.to_numpy(), exact) <= BOUNDS[dtype]


def test_backend_is_checked():
    x = gp.ones((2, 2))
    with pytest.raises(gp.InvalidValueError, match="backend.*'cublaslt'"):
        gp.matmul(x, x, backend="cublas")
    with pytest.raises(gp.InvalidTypeError, match="cublaslt"):
        gp.matmul(x.astype("int8"), x.astype("int8"), backend="cublaslt")


def test_a_backend_that_is_not_there_is_named(tmp_path):
    if not ON_GPU:
        pytest.skip("the simulated device needs no library")
    code = "import pygpukit as gp; x = gp.ones((2, 2)); print(x @ x); gp.matmul(x, x, backend='cublaslt')"
    done = run_python(code, PYGPUKIT_CUBLASLT=str(tmp_path / "none.so"))
    assert done.stdout
    assert "UnsupportedError" in done.stderr
    assert "cuBLASLt" in done.stderr
    assert "none.so" in done.stderr
