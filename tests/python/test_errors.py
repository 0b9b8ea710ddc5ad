import numpy as np
import pytest

import pygpukit as gp


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("InvalidValueError", ValueError),
        ("InvalidTypeError", TypeError),
        ("OutOfBoundsError", IndexError),
        ("OutOfMemoryError", MemoryError),
        ("DriverError", RuntimeError),
        ("UnsupportedError", RuntimeError),
        ("ExchangeError", BufferError),
        ("FileFormatError", ValueError),
        ("CompileError", RuntimeError),
    ],
)
def test_tree(name, also):
    kind = getattr(gp, name)
    assert issubclass(kind, gp.Error)
    assert issubclass(kind, also)
    assert kind.__module__ == "pygpukit"
    assert kind.__name__ == name
    assert kind.__doc__


def test_error_is_pythons():
    assert issubclass(gp.Error, Exception)
    assert gp.Error.__module__ == "pygpukit"


@pytest.mark.parametrize(
    ("call", "kind", "parts"),
    [
        (lambda: gp.ones((2, 3)) @ gp.ones((2, 3)), gp.InvalidValueError, ["matmul", "(2, 3)"]),
        (
            lambda: gp.add(gp.ones(2), np.ones(2)),
            gp.InvalidTypeError,
            ["add", "'y'", "ndarray", "gp.asarray"],
        ),
        (
            lambda: gp.add(gp.ones(2), 1, out=gp.ones(3)),
            gp.InvalidValueError,
            ["add", "'out'", "(2,)", "(3,)"],
        ),
        (lambda: gp.zeros(3).reshape(2, 2), gp.InvalidValueError, ["reshape", "(2, 2)", "3"]),
        (lambda: gp.zeros(3, "float99"), gp.InvalidTypeError, ["float99", "float32", "bfloat16"]),
        (lambda: gp.zeros(3).sum(axis=2), gp.OutOfBoundsError, ["sum", "2"]),
        (lambda: gp.zeros(3)[5], gp.OutOfBoundsError, ["5", "3"]),
        (lambda: gp.zeros(3, device="gpu"), gp.InvalidValueError, ["gpu", "'cpu'", "doctor"]),
        (lambda: gp.zeros(3, device=7), gp.InvalidTypeError, ["device", "int"]),
        (lambda: gp.zeros((2, 2)).item(), gp.InvalidValueError, ["item", "(2, 2)", "to_numpy"]),
        (lambda: bool(gp.zeros(2) > 1), gp.InvalidValueError, ["bool:", "(2,)", "gp.any", "gp.all"]),
        (
            lambda: gp.zeros(3).astype(),
            gp.InvalidTypeError,
            ["astype: expected astype(dtype:", "got nothing"],
        ),
        (
            lambda: gp.Stream(1, 2.5),
            gp.InvalidTypeError,
            ["Stream: expected Stream(*, priority: int", "got int, float"],
        ),
        (
            lambda: gp.AdmissionController(),
            gp.InvalidTypeError,
            ["AdmissionController: expected AdmissionController(memory:", "got nothing"],
        ),
        (
            lambda: gp.llm.from_arrays({}, {}, dtype="int8"),
            gp.InvalidTypeError,
            ["'dtype'", "bfloat16", "'int8'"],
        ),
        (lambda: gp.memory.set_eviction("x"), gp.InvalidTypeError, ["set_eviction", "'enabled'", "got str"]),
        (lambda: gp.memory.pinned((1,) * 70), gp.InvalidValueError, ["pinned", "'shape'", "70"]),
        (lambda: gp.max(gp.zeros(0)), gp.InvalidValueError, ["max"]),
        (lambda: gp.where(gp.ones(2), 1, 2), gp.InvalidTypeError, ["where", "condition", "bool", "float32"]),
    ],
)
def test_messages_say_what_which_and_how(call, kind, parts):
    with pytest.raises(kind) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


def test_wrong_kinds_of_arguments_are_type_errors():
    for call in (
        lambda: gp.sum(np.ones(3)),
        lambda: gp.reshape([1, 2], (2,)),
        lambda: gp.zeros(),
        lambda: gp.add(gp.ones(2)),
        lambda: gp.clip("text", 0, 1),
        lambda: gp.linspace("a", 1),
        lambda: gp.ones(3).astype(3),
    ):
        with pytest.raises(TypeError):
            call()


def test_text_that_utf8_does_not_have():
    for call in (lambda: gp.zeros(3, "\ud800"), lambda: gp.zeros(3, device="\ud800")):
        with pytest.raises(gp.InvalidTypeError, match="UTF-8"):
            call()


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: gp.nn.softmax(), ["softmax", "expected softmax(x: Array"]),
        (lambda: gp.nn.top_k(gp.ones(3), 2**70), ["top_k", "k: int", "got", "int"]),
        (lambda: gp.empty(3, nothing=1), ["empty", "nothing: int"]),
        (lambda: gp.Stream(priority="x"), ["Stream", "priority: int"]),
        (lambda: gp.ones(3).astype(), ["astype"]),
        (lambda: gp.nn.rope_frequencies(d="x"), ["rope_frequencies"]),
    ],
)
def test_what_no_signature_takes_is_an_error_of_ours(call, parts):
    with pytest.raises(gp.InvalidTypeError) as caught:
        call()
    for part in parts:
        assert part in str(caught.value)


def test_pythons_own_type_errors_stay():
    with pytest.raises(TypeError) as caught:
        gp.ones(3) + "x"
    assert not isinstance(caught.value, gp.Error)
