import gc
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _native
from support import ON_GPU, assert_equal, run_python

if ON_GPU:
    available, reason = gp.is_nvrtc_available(), "NVRTC is not here: pip install nvidia-cuda-nvrtc"
else:
    available, reason = bool(_native._host_compiler()), "no C++ compiler is here"
pytestmark = pytest.mark.skipif(not available, reason=reason)

SCALE = """extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= factor; }"""


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    before = os.environ.get("PYGPUKIT_CACHE_DIR")
    os.environ["PYGPUKIT_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["PYGPUKIT_CACHE_DIR"]
    else:
        os.environ["PYGPUKIT_CACHE_DIR"] = before


@pytest.fixture(scope="module")
def scale():
    return gp.jit(SCALE, func="scale")


def test_the_quick_start():
    # As the README has it.
    program = """
import pygpukit as gp
x = gp.zeros((1024, 1024), dtype="float32"); y = gp.ones((1024, 1024), dtype="float32")
z = gp.add(x, y); w = gp.matmul(x, y); arr = z.to_numpy(); garr = gp.from_numpy(arr)
src = '''extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= factor; }'''
if gp.is_nvrtc_available():                      # nvidia-cuda-nvrtc wheel, or any CUDA toolkit
    kernel = gp.jit(src, func="scale"); kernel(x, factor=0.5, n=x.size)
print(gp.is_cuda_available(), gp.get_nvrtc_path())
"""
    done = run_python(program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == str(gp.is_cuda_available())


def test_positional_and_named_arguments(scale):
    host = np.arange(1000, dtype=np.float32)
    x = gp.from_numpy(host)
    scale(x, factor=0.5, n=x.size)
    assert_equal(x, host * np.float32(0.5))
    scale(x, 4.0, 1000)
    scale(n=10, x=x, factor=3)
    expected = host * 2
    expected[:10] *= 3
    assert_equal(x, expected)


def test_numpy_scalars_are_numbers(scale):
    x = gp.ones(10)
    scale(x, np.float32(2), np.int64(5))
    assert x.tolist() == [2.0] * 5 + [1.0] * 5


def test_grid_and_block():
    kernel = gp.jit(
        """extern "C" __global__ void shape(int* out) {
            int i = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
            int threads = blockDim.x * blockDim.y * blockDim.z;
            int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
            out[i * threads + t] = i * 1000 + t;
        }"""
    )
    out = gp.full(2 * 3 * 4 * 30, -1, "int32")
    kernel(out, grid=(2, 3, 4), block=(5, 3, 2))
    i = np.arange(out.size)
    assert_equal(out, (i // 30 * 1000 + i % 30).astype(np.int32))
    out = gp.full(7 * 32, -1, "int32")
    kernel(out, grid=7, block=32)
    i = np.arange(out.size)
    assert_equal(out, (i // 32 * 1000 + i % 32).astype(np.int32))


def test_the_default_grid_covers_the_first_array():
    kernel = gp.jit(
        """extern "C" __global__ void count(float factor, int* seen, const float* other, long long n) {
            long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
            if (i < n) seen[i] += 1;
        }"""
    )
    for size in (1, 255, 256, 257, 100_000):
        seen = gp.zeros(size, "int32")
        kernel(1.0, seen, gp.ones(3), size)
        assert_equal(seen, np.ones(size, np.int32))
        kernel(1.0, seen, gp.ones(3), size, block=(8, 4))  # 32 threads, 8 of them along x
        assert int(gp.sum(seen)) >= size


def test_a_kernel_without_arrays_needs_a_grid():
    kernel = gp.jit('extern "C" __global__ void nothing(int n) {}')
    kernel(3, grid=1)
    with pytest.raises(gp.InvalidValueError, match="argument 'grid'"):
        kernel(3)


def test_shared_memory():
    source = """extern "C" __global__ void reverse(int* x) {
        extern __shared__ int part[];
        part[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        x[threadIdx.x] = part[blockDim.x - 1 - threadIdx.x];
    }"""
    x = gp.arange(128, dtype="int32")
    gp.jit(source)(x, grid=1, block=128, shared_bytes=512)
    assert_equal(x, np.arange(128, dtype=np.int32)[::-1])


def test_streams(scale):
    host = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)
    x = gp.from_numpy(host)
    stream = gp.Stream()
    with gp.Trace() as trace:
        scale(x, 2.0, x.size, stream=stream)
        y = x + 0  # waits for the kernel
        with gp.Stream():
            scale(x, 3.0, x.size)
    assert_equal(y, host * np.float32(2))
    assert_equal(x, host * np.float32(2) * np.float32(3))
    named = [entry for entry in trace.entries if entry["name"] == "scale"]
    assert len(named) == 2
    assert named[0]["stream"] == hash(stream)
    with pytest.raises(gp.InvalidTypeError, match="stream"):
        scale(x, 2.0, 1, stream="fast")


def test_graphs(scale):
    x = gp.ones(1000)
    graph = gp.Graph()
    with graph:
        scale(x, 2.0, 1000)
    assert_equal(x, np.ones(1000, np.float32))
    for _ in range(3):
        graph.launch()
    assert_equal(x, np.full(1000, 8, np.float32))


def test_a_graph_keeps_the_kernel():
    x = gp.ones(100)
    kernel = gp.jit(SCALE.replace("scale", "kept"))
    graph = gp.Graph()
    with graph:
        kernel(x, 5.0, 100)
    del kernel
    gc.collect()
    graph.launch()
    assert_equal(x, np.full(100, 5, np.float32))


@pytest.mark.parametrize(
    ("dtype", "type_"),
    [
        ("int8", "signed char"),
        ("int16", "short"),
        ("int32", "int"),
        ("int64", "long long"),
        ("uint8", "unsigned char"),
        ("uint16", "unsigned short"),
        ("uint32", "unsigned int"),
        ("uint64", "unsigned long long"),
        ("float32", "float"),
        ("float64", "double"),
        ("bool", "bool"),
    ],
)
def test_types_of_pointers_and_numbers(dtype, type_):
    kernel = gp.jit(
        f'extern "C" __global__ void put({type_}* out, {type_} value, int at) '
        "{ if (threadIdx.x == 0) out[at] = value; }"
    )
    out = gp.zeros(4, dtype)
    value = True if dtype == "bool" else 1.5 if "float" in dtype else int(np.iinfo(dtype).max)
    kernel(out, value, 2, grid=1)
    assert out.tolist() == [0, 0, value, 0]
    if dtype not in ("bool", "float32", "float64"):
        info = np.iinfo(dtype)
        kernel(out, int(info.min), 0, grid=1)
        assert out[0].item() == info.min
        for beyond in (int(info.max) + 1, int(info.min) - 1):
            if -(2**63) <= beyond < 2**64:
                with pytest.raises(gp.InvalidValueError, match="argument 'value'"):
                    kernel(out, beyond, 0, grid=1)
        with pytest.raises(gp.InvalidTypeError, match="argument 'value'.*float"):
            kernel(out, 1.5, 0, grid=1)
    wrong = gp.zeros(4, "float32" if dtype != "float32" else "int32")
    with pytest.raises(gp.InvalidTypeError, match="argument 'out'"):
        kernel(wrong, value, 0, grid=1)


def test_wrong_arguments(scale):
    x = gp.ones(10)
    signature = re.escape("scale(float* x, float factor, int n)")
    cases = [
        (gp.InvalidTypeError, "none for 'factor', 'n'", lambda: scale(x)),
        (gp.InvalidTypeError, "3 arguments, got 4", lambda: scale(x, 1.0, 2, 3)),
        (gp.InvalidTypeError, "'m'", lambda: scale(x, 1.0, m=2)),
        (gp.InvalidTypeError, "'x' twice", lambda: scale(x, 1.0, 2, x=x)),
        (gp.InvalidTypeError, "argument 'factor'", lambda: scale(x, x, 2)),
        (gp.InvalidTypeError, "argument 'x'", lambda: scale(1.0, 1.0, 2)),
        (gp.InvalidTypeError, r"argument 'x'.*ndarray.*gp\.asarray", lambda: scale(np.ones(3), 1.0, 2)),
        (gp.InvalidTypeError, "argument 'n'", lambda: scale(x, 1.0, "2")),
        (gp.InvalidTypeError, "argument 'n'", lambda: scale(x, 1.0, 2.5)),
        (gp.InvalidTypeError, "argument 'n'", lambda: scale(x, 1.0, None)),
        (gp.InvalidValueError, "argument 'n'", lambda: scale(x, 1.0, 2**31)),
        (gp.InvalidTypeError, "argument 'x'.*float64", lambda: scale(gp.ones(10, "float64"), 1.0, 10)),
        (gp.InvalidValueError, r"argument 'x'.*contiguous\(\)", lambda: scale(gp.ones(10)[::2], 1.0, 5)),
        (gp.InvalidValueError, "argument 'block'", lambda: scale(x, 1.0, 1, block=100_000)),
        (gp.InvalidValueError, "argument 'block'", lambda: scale(x, 1.0, 1, block=0)),
        (gp.InvalidValueError, "argument 'block'", lambda: scale(x, 1.0, 1, block=(1, 1, 1, 1))),
        (gp.InvalidValueError, "argument 'block'", lambda: scale(x, 1.0, 1, block=-1)),
        (gp.InvalidValueError, "argument 'grid'", lambda: scale(x, 1.0, 1, grid=(1, 70_000))),
        (gp.InvalidValueError, "argument 'grid'", lambda: scale(x, 1.0, 1, grid=(-5,))),
        (gp.InvalidValueError, "argument 'grid'", lambda: scale(x, 1.0, 1, grid=())),
        (gp.InvalidValueError, "argument 'shared_bytes'", lambda: scale(x, 1.0, 1, shared_bytes=1 << 30)),
        (gp.InvalidValueError, "expected a number of bytes", lambda: scale(x, 1.0, 1, shared_bytes=-1)),
        (gp.InvalidValueError, "expected a number of bytes", lambda: scale(x, 1.0, 1, shared_bytes=(1, 2))),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=f"{signature}.*{message}"):
            call()
    assert_equal(x, np.ones(10, np.float32))


def test_negative_sizes_are_the_kernels_business(scale):
    x = gp.ones(10)
    scale(x, 7.0, -5)
    assert_equal(x, np.ones(10, np.float32))


def test_const_pointers_read_read_only_arrays(scale):
    copy = gp.jit(
        """extern "C" __global__ void copy(const float* from, float* to, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) to[i] = from[i]; }"""
    )
    fixed = gp.broadcast_to(gp.full(1, 3.0), (1,))
    assert not fixed.writable
    to = gp.zeros(1)
    copy(fixed, to, 1)
    assert to.tolist() == [3.0]
    with pytest.raises(gp.InvalidValueError, match="argument 'x'.*writable"):
        scale(fixed, 1.0, 1)


def test_empty_arrays(scale):
    scale(gp.zeros(0), 1.0, 0)


def test_a_source_with_several_kernels():
    source = SCALE + SCALE.replace("scale", "again")
    assert gp.jit(source, func="again").name == "again"
    with pytest.raises(gp.CompileError, match="func="):
        gp.jit(source)
    with pytest.raises(gp.CompileError, match="'scale', 'again'"):
        gp.jit(source, func="missing")
    with pytest.raises(gp.CompileError, match="none"):
        gp.jit("int x;")


def test_compile_errors_show_the_line():
    source = 'extern "C" __global__ void broken(float* x) {\n    x[0] = 1.0f;\n    x[1] = undefined_name;\n}'
    with pytest.raises(gp.CompileError) as caught:
        gp.jit(source)
    message = str(caught.value)
    assert "undefined_name" in message
    assert re.search(r"\b3\b.*x\[1\] = undefined_name", message)
    assert "broken" in message


def test_options():
    source = """extern "C" __global__ void put(int* x) { if (threadIdx.x == 0) x[0] = VALUE; }"""
    x = gp.zeros(1, "int32")
    for value in (3, 4):
        gp.jit(source, options=[f"-DVALUE={value}"])(x)
        assert x.item() == value
    with pytest.raises(gp.InvalidTypeError, match="options"):
        gp.jit(source, options="-DVALUE=1")
    with pytest.raises(gp.CompileError):
        gp.jit(source)
    with pytest.raises(gp.InvalidValueError, match="--gpu-architecture|-arch"):
        gp.jit(source, options=["--gpu-architecture=sm_50"])


def test_the_source_may_go():
    source = "".join([SCALE, "// ", "gone"])
    kernel = gp.jit(source, func="".join(["sc", "ale"]))
    del source
    gc.collect()
    x = gp.ones(5)
    kernel(x, 2.0, 5)
    assert x.tolist() == [2.0] * 5


def test_properties(scale):
    assert scale.name == "scale"
    assert scale.signature == "scale(float* x, float factor, int n)"
    assert scale.device == gp.device()
    assert "scale(float* x, float factor, int n)" in repr(scale)
    assert scale.attributes["max_threads_per_block"] >= 256


def test_what_was_compiled_is_kept_across_processes():
    program = f"import pygpukit as gp; print(gp.jit('''{SCALE} // across''', func='scale').from_cache)"
    results = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [each.stdout.strip() for each in results] == ["False", "True"]


def test_threads(scale):
    def work(index):
        with gp.Stream():
            x = gp.ones(10_000)
            for _ in range(20):
                scale(x, 1.0 + index, 10_000)
            own = gp.jit(SCALE.replace("*= factor", f"= {index}.0f"), func="scale")
            y = gp.ones(10_000)
            own(y, 0.0, 10_000)
            return x, y

    with ThreadPoolExecutor(4) as pool:
        for index, (x, y) in enumerate(pool.map(work, range(4))):
            expected = np.ones(10_000, np.float32)
            for _ in range(20):
                expected *= np.float32(1.0 + index)
            assert_equal(x, expected)
            assert_equal(y, np.full(10_000, index, np.float32))


def test_every_launch_is_traced(scale):
    x = gp.ones(1000)
    with gp.Trace() as trace:
        scale(x, 2.0, 1000)
    (entry,) = trace.entries
    assert entry["kind"] == "kernel"
    assert entry["name"] == "scale"
    assert entry["grid"] == (4, 1, 1)
    assert entry["block"] == (256, 1, 1)
    assert entry["bytes"] == 4000


def test_where_nvrtc_is():
    path, version = gp.get_nvrtc_path(), gp.get_nvrtc_version()
    assert (path is None) == (version is None)
    if path is not None:
        assert os.path.isabs(path)
        assert os.path.exists(path)
        assert version >= (12, 0)
    if not ON_GPU:
        assert gp.is_nvrtc_available() is False
