// What the binding files share: reading Python arguments, and each file's entry.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "array/array.hpp"
#include "base/error.hpp"
#include "base/platform.hpp"
#include "base/scalar.hpp"
#include "bindings/typed.hpp"
#include "runtime/device.hpp"
#include "runtime/stream.hpp"
#include "runtime/tenant.hpp"

namespace gpk::python {

namespace nb = nanobind;

// One function a binding file; called once by the module's init, in this order.
void bind_errors(nb::module_& m);
void bind_runtime(nb::module_& m);
void bind_array(nb::module_& m);
void bind_dlpack(nb::module_& m);
void bind_elementwise(nb::module_& m);
void bind_functions(nb::module_& m);
void bind_products(nb::module_& m);
void bind_jit(nb::module_& m);
void bind_io(nb::module_& m);
void bind_llm(nb::module_& m);
void bind_observe(nb::module_& m);
void bind_scheduler(nb::module_& m);
void bind_transfer(nb::module_& m);
void bind_memory(nb::module_& m);
void bind_benchmark(nb::module_& m);
void bind_partition(nb::module_& m);
void bind_pacing(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_quantize(nb::module_& m);
void bind_experts(nb::module_& m);
void bind_rope(nb::module_& m);
void bind_lstm(nb::module_& m);
void bind_conv1d(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_norm(nb::module_& m);

// A dtype as Python sees it: one object each, so `a.dtype is gp.float32` holds.
struct PyDType {
    DType dtype;
};
nb::object to_python(DType dtype);
void release_dtypes();  // at exit, while Python still runs
nb::object to_python(Device& device);
nb::object to_python(const std::shared_ptr<Stream>& stream);

// Each throws Error naming `call` for what it cannot read.
DType read_dtype(nb::handle value);  // DType, "float32", float, numpy.float32, numpy.dtype
DType read_dtype_or(nb::handle value, DType otherwise);
Device& read_device(nb::handle value);  // Device, "cuda:0", or None for the current one
std::shared_ptr<Stream> read_stream(nb::handle value, Device& device);  // Stream, or None for the current one
Dims read_dims(const char* call, const char* argument, nb::handle value);  // an int or a sequence of ints
Dims read_axes(const char* call, nb::handle value, int rank);              // None: empty

// A Python number; NumPy's scalars keep their dtype.
struct Number {
    Scalar value;
    std::optional<DType> dtype;  // of a NumPy scalar
};
std::optional<Number> read_number(nb::handle value);
// The array as it is to promote with the number: converted where a NumPy scalar's dtype asks for it.
Array promoted_for(const Array& array, const Number& number);
// A number of bytes, or text such as "4GiB".
std::size_t read_bytes(const char* call, const char* argument, nb::handle value);
QosClass read_qos(const char* call, nb::handle value);  // "guaranteed" and so on, or a QosClass
bool is_array(nb::handle value);
std::string kind_of(nb::handle value);  // the name of its type, for messages

// An operand of an element-wise op: the array, or the number. Nothing for another kind of object.
const Array* try_array(nb::handle value);
const Array& read_array(const char* call, const char* argument, nb::handle value);
// For `out=`: None is null.
const Array* read_out(const char* call, nb::handle value);

// Gives Python's lock away while it lives. Before 3.14, CPython ends a thread that asks for the lock after
// the interpreter's end by unwinding its stack, which C++ answers with std::terminate; it waits here instead,
// as in later versions.
class Unlocked {
   public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    ~Unlocked() {
        try {
            PyEval_RestoreThread(state_);
        } catch (const abi::__forced_unwind&) {
            platform::wait_forever();
        }
    }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

   private:
    PyThreadState* state_;
};

// Runs `call` with Python's lock on a thread of ours, or not at all once the interpreter has ended.
template <class Call>
void with_python(Call&& call) noexcept {
    if (!Py_IsInitialized()) return;
    PyGILState_STATE state = PyGILState_UNLOCKED;
    try {
        state = PyGILState_Ensure();
    } catch (const abi::__forced_unwind&) {
        platform::wait_forever();
    }
    try {
        call();
    } catch (nb::python_error& failure) {
        failure.discard_as_unraisable("a callback of PyGPUkit's");
    } catch (const abi::__forced_unwind&) {
        platform::wait_forever();  // the interpreter ended while the callback had given the lock away
    }
    PyGILState_Release(state);
}

// Waits without Python's lock until `wait(limit)` says that it is over, or the time is up (false). On the
// main thread in pieces, so that signals are handled meanwhile: Ctrl-C raises KeyboardInterrupt.
template <class Wait>
bool wait_minding_signals(std::optional<std::chrono::nanoseconds> limit, Wait&& wait) {
    using Clock = std::chrono::steady_clock;
    constexpr std::chrono::nanoseconds kPiece = std::chrono::milliseconds(100);
    const auto main_thread = nb::module_::import_("threading").attr("main_thread")().attr("ident");
    const bool pieces = nb::cast<unsigned long>(main_thread) == PyThread_get_thread_ident();
    const auto began = Clock::now();
    for (;;) {
        auto piece = limit;
        if (pieces && (!limit || *limit > kPiece)) {
            const auto left = limit ? *limit - (Clock::now() - began) : kPiece;
            piece = std::clamp<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(0), kPiece);
        }
        {
            const Unlocked unlocked;
            if (wait(piece)) return true;
        }
        if (PyErr_CheckSignals() != 0) throw nb::python_error();
        if (limit && Clock::now() - began >= *limit) return false;
    }
}

// Runs work without Python's lock where it computes on this thread: on the simulated device, and where it may
// be kept waiting: by a tenant's governor, or for memory that has to be evicted first. Else a GPU's launch
// returns at once, and giving the lock away would cost more than it takes.
template <class Work>
auto run_on(const Stream& stream, Work&& work) {
    Device& device = stream.device();
    if (device.is_cuda() && !stream.tenant() && !MemoryPool::of(device).may_move(SIZE_MAX)) return work();
    const Unlocked unlocked;
    return work();
}
template <class Work>
auto run_on(Device& device, Work&& work) {
    return run_on(*current_stream(device), std::forward<Work>(work));
}

// What `with` does: makes a stream current on this thread, until the end of the scope in which it is the
// innermost of its kind. Throws Error (value), naming `call`, for the end of a scope that was not entered.
void enter_scope(const std::shared_ptr<Stream>& stream);
void leave_scope(const char* call, const std::shared_ptr<Stream>& stream);

}  // namespace gpk::python
