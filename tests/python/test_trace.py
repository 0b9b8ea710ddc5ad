"""Nothing bypasses the launcher: whatever runs on the device leaves an entry."""

import numpy as np
import pytest

import pygpukit as gp
from support import assert_equal

BINARY = [
    "add",
    "subtract",
    "multiply",
    "divide",
    "floor_divide",
    "remainder",
    "fmod",
    "power",
    "minimum",
    "maximum",
    "arctan2",
    "hypot",
    "logaddexp",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
    "logical_and",
    "logical_or",
    "logical_xor",
]
INTEGER_BINARY = ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"]
UNARY = [
    "negative",
    "absolute",
    "sign",
    "square",
    "reciprocal",
    "sqrt",
    "rsqrt",
    "cbrt",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sin",
    "cos",
    "tan",
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "arcsinh",
    "arccosh",
    "arctanh",
    "floor",
    "ceil",
    "trunc",
    "rint",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
    "erf",
    "sigmoid",
    "relu",
    "silu",
    "gelu",
    "gelu_tanh",
]
REDUCTIONS = ["sum", "mean", "max", "min", "prod", "any", "all", "argmax", "argmin"]


def operations():
    x, i, c = gp.ones((4, 6)), gp.ones((4, 6), "int32"), gp.ones((4, 6), "bool")
    ops = {name: lambda name=name: getattr(gp, name)(x, x) for name in BINARY}
    ops |= {name: lambda name=name: getattr(gp, name)(i, i) for name in INTEGER_BINARY}
    ops |= {name: lambda name=name: getattr(gp, name)(x) for name in UNARY + REDUCTIONS}
    ops |= {
        "invert": lambda: ~i,
        "zeros": lambda: gp.zeros(4),
        "ones": lambda: gp.ones(4),
        "full": lambda: gp.full(4, 2),
        "arange": lambda: gp.arange(4),
        "linspace": lambda: gp.linspace(0, 1, 4),
        "eye": lambda: gp.eye(4),
        "from_numpy": lambda: gp.from_numpy(np.ones(4)),
        "to_numpy": lambda: x.to_numpy(),
        "item": lambda: x[0, 0].item(),
        "astype": lambda: x.astype("float16"),
        "copy": lambda: x.T.copy(),
        "reshape_copy": lambda: x.T.reshape(-1),
        "assign_number": lambda: x.__setitem__(0, 1),
        "assign_array": lambda: x.__setitem__(0, x[1]),
        "where": lambda: gp.where(c, x, x),
        "clip": lambda: gp.clip(x, 0, 1),
        "concat": lambda: gp.concat([x, x]),
        "stack": lambda: gp.stack([x, x]),
        "take": lambda: gp.take(x, gp.arange(2), 0),
        "matmul": lambda: gp.matmul(x, x.T),
    }
    return ops


@pytest.mark.parametrize("name", sorted(operations()))
def test_every_op_is_traced(name):
    operation = operations()[name]
    with gp.Trace() as trace:
        operation()
    assert trace.entries, f"{name} reached the device on another way"
    for entry in trace.entries:
        assert entry["kind"] in ("kernel", "copy_to_device", "copy_to_host", "copy_on_device", "fill")
        assert entry["name"]
        assert entry["start_ns"] <= entry["end_ns"]
        assert entry["bytes"] > 0


def test_every_public_op_is_listed():
    listed = set(operations()) | {
        "sub",
        "mul",
        "div",
        "empty",
        "empty_like",
        "zeros_like",
        "ones_like",
        "full_like",
    }
    listed |= {"asarray", "broadcast_to", "expand_dims", "transpose", "reshape"}  # views, or shown by another
    others = [
        "device",
        "set_device",
        "is_cuda_available",
        "cuda_device_count",
        "why_no_cuda",
        "synchronize",
        "current_stream",
        "memory_stats",
        "trim_memory",
        "set_memory_limit",
        "set_matmul_precision",
        "matmul_precision",
        "result_type",
        "jit",
        "is_nvrtc_available",
        "get_nvrtc_path",
        "get_nvrtc_version",
    ]
    public = {
        n
        for n in dir(gp)
        if not n.startswith("_") and callable(getattr(gp, n)) and not isinstance(getattr(gp, n), type)
    }
    assert public - listed - set(others) == set()


def test_views_reach_no_device():
    x = gp.ones((4, 6))
    with gp.Trace() as trace:
        x.T[1:, ::2].reshape(5, 2, 1)
        gp.broadcast_to(x, (3, 4, 6))
        gp.expand_dims(x, 0).squeeze()
        gp.empty(100)
    assert trace.entries == []


def test_one_launch_an_op():
    x, other = gp.ones(1000), gp.ones(1000)
    with gp.Trace() as trace:
        y = x + other
        y = gp.tanh(y)
    assert [entry["kind"] for entry in trace.entries] == ["kernel", "kernel"]
    first = trace.entries[0]
    assert first["bytes"] == 3 * 4000
    assert first["flops"] == 1000
    assert first["block"][0] * first["grid"][0] >= 1


def test_a_graph_is_one_piece_with_its_cost():
    x = gp.ones(1000)
    graph = gp.Graph()
    with graph:
        y = x + x
        y = y * y
    with gp.Trace() as trace:
        graph.launch()
    assert [entry["kind"] for entry in trace.entries] == ["graph"]
    assert trace.entries[0]["flops"] == 2000
    assert_equal(y, np.full(1000, 4, np.float32))


def test_stop_ends_the_recording():
    trace = gp.Trace()
    gp.ones(1)
    trace.stop()
    gp.ones(1)
    assert len(trace.entries) == 1


def test_traces_may_run_side_by_side():
    with gp.Trace() as outer:
        gp.ones(1)
        with gp.Trace() as inner:
            gp.ones(1)
    assert len(outer.entries) == 2
    assert len(inner.entries) == 1
