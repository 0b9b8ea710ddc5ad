// gp.jit: kernels from source, and where the compiler and the other libraries are.
#include "jit/compile.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>

#include "base/platform.hpp"
#include "bindings/common.hpp"
#include "driver/libraries.hpp"
#include "jit/cache.hpp"
#include "jit/host_compile.hpp"
#include "jit/jit_kernel.hpp"

namespace gpk::python {

namespace {

constexpr std::uint32_t kDefaultThreads = 256;
constexpr std::size_t kMaxParamsBytes = 4096;  // what every architecture takes

// What a call may say beside the kernel's own arguments. A parameter of one of these names is passed by
// position.
enum class LaunchOption { grid, block, shared_bytes, stream };
constexpr std::array kLaunchOptions{"grid", "block", "shared_bytes", "stream"};

class PyKernel {
   public:
    PyKernel(Device& device, const std::string& source, const std::string& function,
             std::vector<std::string> flags)
        : kernel_(jit::JitKernel::compile(device, source, function, {std::move(flags)})) {
        if (signature().params_bytes > kMaxParamsBytes) {
            throw error(ErrorKind::unsupported,
                        {.call = signature().text(),
                         .expected = str("parameters of at most ", kMaxParamsBytes, " bytes"),
                         .got = str(signature().params_bytes)});
        }
        threads_ = std::min<std::uint32_t>(kDefaultThreads,
                                           static_cast<std::uint32_t>(info().max_threads_per_block));
    }

    // Interned, so that a keyword is found by its address. Needs Python's lock.
    void intern_names() {
        for (const jit::Parameter& parameter : signature().parameters)
            names_.push_back(intern(parameter.name.c_str()));
        for (const char* option : kLaunchOptions) option_names_.push_back(intern(option));
    }

    const jit::Signature& signature() const { return kernel_->signature(); }
    Device& device() const { return kernel_->device(); }
    FunctionInfo info() const { return kernel_->info(); }
    bool from_cache() const { return kernel_->from_cache(); }

    void call(const nb::args& args, const nb::kwargs& kwargs) const {
        Call call(*this);
        bind(args, kwargs, call);
        alignas(16) std::byte params[kMaxParamsBytes];
        std::memset(params, 0, signature().params_bytes);
        pack(call, params);
        const std::shared_ptr<Stream> stream = read_stream(call.option(LaunchOption::stream), device());
        const LaunchConfig config = configure(call);
        run_on(*stream, [&] { launch(call, stream, config, params); });
    }

   private:
    struct Argument {
        nb::handle value;
        const Array* array = nullptr;
    };
    // The arguments in the parameters' order, and the launch's options; borrowed from the caller.
    struct Call {
        explicit Call(const PyKernel& kernel) : arguments(few) {
            const std::size_t count = kernel.signature().parameters.size();
            if (count > std::size(few)) arguments = (many = std::make_unique<Argument[]>(count)).get();
        }
        nb::handle option(LaunchOption which) const {
            const nb::handle given = options[static_cast<int>(which)];
            return given.is_valid() ? given : nb::handle(Py_None);
        }
        Argument few[16];
        std::unique_ptr<Argument[]> many;
        Argument* arguments;
        nb::handle options[kLaunchOptions.size()];
        const Array* first_array = nullptr;
    };

    static nb::object intern(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

    static constexpr std::size_t kNotFound = SIZE_MAX;

    // The position of a name among several.
    static std::size_t find(const std::vector<nb::object>& names, nb::handle key,
                            bool (*same)(PyObject*, PyObject*)) {
        for (std::size_t i = 0; i < names.size(); ++i) {
            if (same(names[i].ptr(), key.ptr())) return i;
        }
        return kNotFound;
    }

    // Where a keyword argument belongs. Nearly all are interned, and found by their address.
    nb::handle* place(nb::handle key, Call& call) const {
        static constexpr auto by_address = [](PyObject* a, PyObject* b) { return a == b; };
        static constexpr auto by_text = [](PyObject* a, PyObject* b) { return PyUnicode_Compare(a, b) == 0; };
        for (bool (*same)(PyObject*, PyObject*) : {+by_address, +by_text}) {
            if (const std::size_t i = find(option_names_, key, same); i != kNotFound) return &call.options[i];
            if (const std::size_t i = find(names_, key, same); i != kNotFound)
                return &call.arguments[i].value;
        }
        refuse("arguments named as its parameters", str("'", nb::cast<std::string>(key), "'"));
    }

    [[noreturn]] void refuse(const std::string& expected, const std::string& got) const {
        throw error(ErrorKind::type, {.call = signature().text(), .expected = expected, .got = got});
    }

    void bind(const nb::args& args, const nb::kwargs& kwargs, Call& call) const {
        const std::size_t count = signature().parameters.size();
        if (args.size() > count) refuse(str(count, " arguments"), str(args.size()));
        for (std::size_t i = 0; i < args.size(); ++i) call.arguments[i].value = args[i];
        for (auto [key, value] : kwargs) {
            nb::handle& target = *place(key, call);
            if (target.is_valid())
                refuse("each argument once", str("'", nb::cast<std::string>(key), "' twice"));
            target = value;
        }
        std::string missing;
        for (std::size_t i = 0; i < count; ++i) {
            if (!call.arguments[i].value.is_valid())
                missing += str(missing.empty() ? "'" : ", '", signature().parameters[i].name, "'");
        }
        if (!missing.empty()) refuse("all arguments", str("none for ", missing));
    }

    void pack(Call& call, std::byte* params) const {
        const auto& parameters = signature().parameters;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            const jit::Parameter& parameter = parameters[i];
            const auto refused = [&](ErrorKind kind, std::string expected, std::string got,
                                     std::string fix = {}) {
                return error(kind, {.call = signature().text(),
                                    .argument = parameter.name,
                                    .expected = std::move(expected),
                                    .got = std::move(got),
                                    .fix = std::move(fix)});
            };
            const nb::handle value = call.arguments[i].value;
            if (const Array* array = try_array(value)) {
                jit::pack_pointer(signature(), parameter, array->data(), array->dtype(), params);
                if (&array->device() != &device()) {
                    throw refused(ErrorKind::value, str("an array on ", device().name()),
                                  str("one on ", array->device().name()));
                }
                if (!array->is_contiguous()) {
                    throw refused(ErrorKind::value, "a contiguous array", "a view with other strides",
                                  "copy it with contiguous()");
                }
                if (!parameter.read_only && !array->writable()) {
                    throw refused(ErrorKind::value, "a writable array, since the pointer is not to const",
                                  "a read-only one", "copy it, or declare the parameter const");
                }
                call.arguments[i].array = array;
                if (call.first_array == nullptr) call.first_array = array;
            } else if (const auto number = read_number(value)) {
                jit::pack_scalar(signature(), parameter, number->value, params);
            } else {
                throw refused(ErrorKind::type, parameter.pointer ? "a pygpukit array" : "a number",
                              kind_of(value),
                              parameter.pointer ? "copy it to the device with gp.asarray" : "");
            }
        }
    }

    Dim3 read_dim3(const char* argument, nb::handle value) const {
        const Dims dims = read_dims(signature().name.c_str(), argument, value);
        Dim3 out;
        std::uint32_t* const target[] = {&out.x, &out.y, &out.z};
        const bool in_range =
            std::all_of(dims.begin(), dims.end(), [](std::int64_t n) { return n >= 0 && n <= UINT32_MAX; });
        if (dims.empty() || dims.size() > 3 || !in_range) {
            throw error(ErrorKind::value, {.call = signature().text(),
                                           .argument = argument,
                                           .expected = "one to three positive numbers",
                                           .got = to_string(dims)});
        }
        for (int i = 0; i < dims.size(); ++i) *target[i] = static_cast<std::uint32_t>(dims[i]);
        return out;
    }

    std::uint32_t read_bytes(const char* argument, nb::handle value) const {
        const Dims bytes = read_dims(signature().name.c_str(), argument, value);
        if (bytes.size() != 1 || bytes[0] < 0 || bytes[0] > UINT32_MAX) {
            throw error(ErrorKind::value, {.call = signature().text(),
                                           .argument = argument,
                                           .expected = "a number of bytes from 0 to 2**32 - 1",
                                           .got = to_string(bytes)});
        }
        return static_cast<std::uint32_t>(bytes[0]);
    }

    LaunchConfig configure(const Call& call) const {
        LaunchConfig config;
        config.block = call.option(LaunchOption::block).is_none()
                           ? Dim3{threads_}
                           : read_dim3("block", call.option(LaunchOption::block));
        if (const nb::handle bytes = call.option(LaunchOption::shared_bytes); !bytes.is_none()) {
            config.shared_bytes = read_bytes("shared_bytes", bytes);
        }
        if (!call.option(LaunchOption::grid).is_none()) {
            config.grid = read_dim3("grid", call.option(LaunchOption::grid));
        } else if (call.first_array != nullptr) {
            const std::int64_t threads =
                std::max<std::int64_t>(1, std::int64_t{config.block.x} * config.block.y * config.block.z);
            config.grid.x = static_cast<std::uint32_t>(
                std::clamp<std::int64_t>((call.first_array->size() + threads - 1) / threads, 1, UINT32_MAX));
        } else {
            throw error(ErrorKind::value, {.call = signature().text(),
                                           .argument = "grid",
                                           .expected = "the number of blocks, since no argument is an array",
                                           .got = "nothing"});
        }
        return config;
    }

    void launch(const Call& call, const std::shared_ptr<Stream>& stream, const LaunchConfig& config,
                const std::byte* params) const {
        Cost cost;
        const UseScope scope;
        const auto& parameters = signature().parameters;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            const Array* const array = call.arguments[i].array;
            if (array == nullptr) continue;
            if (parameters[i].read_only) {
                array->storage()->before_read(stream);
            } else {
                array->storage()->before_write(stream);
            }
            cost.bytes += static_cast<double>(array->nbytes());
        }
        kernel_->launch(*stream, config, params, cost);
    }

    std::shared_ptr<jit::JitKernel> kernel_;
    std::uint32_t threads_ = kDefaultThreads;
    std::vector<nb::object> names_, option_names_;
};

PyKernel compile(const std::string& source, std::optional<std::string> function, nb::handle options,
                 DeviceArg device) {
    if (nb::isinstance<nb::str>(options)) {
        throw error(
            ErrorKind::type,
            {.call = "jit", .argument = "options", .expected = "a sequence of strings", .got = "str"});
    }
    std::vector<std::string> flags;
    for (nb::handle each : nb::borrow<nb::iterable>(options)) flags.push_back(nb::cast<std::string>(each));
    Device& target = read_device(device);
    PyKernel kernel = [&] {
        const Unlocked unlocked;
        return PyKernel(target, source, function ? *function : jit::only_kernel(source), std::move(flags));
    }();
    kernel.intern_names();
    return kernel;
}

std::optional<std::pair<int, int>> nvrtc_version() {
    const jit::NvrtcStatus status = jit::nvrtc_status();
    int major = 0, minor = 0;
    if (!status.problem.empty() || std::sscanf(status.version.c_str(), "%d.%d", &major, &minor) != 2)
        return std::nullopt;
    return std::pair(major, minor);
}

void bind_kernel(nb::module_& m) {
    nb::class_<PyKernel>(
        m, "Kernel",
        "A compiled kernel. Call it with the kernel's own arguments, by position or by name:\n\n"
        "    kernel(x, factor=0.5, n=x.size)\n"
        "    kernel(x, 0.5, n, grid=(64, 2), block=128, shared_bytes=4096, stream=s)\n\n"
        "Arrays must be contiguous and of the pointer's type, numbers in its range. block defaults to 256\n"
        "threads, grid to enough blocks along x for one thread an element of the first array argument;\n"
        "the kernel checks its index, since the last block may have threads to spare. The call is queued\n"
        "on the current stream, or on `stream`, behind whatever else uses its arrays.")
        .def("__call__", &PyKernel::call, nb::arg("args"), nb::arg("kwargs"),
             nb::sig(
                 "def __call__(self, *args: Array | float, grid: int | collections.abc.Sequence[int] | None "
                 "= None, "
                 "block: int | collections.abc.Sequence[int] | None = None, shared_bytes: int | None = None, "
                 "stream: Stream | None = None, **kwargs: Array | float) -> None"))
        .def_prop_ro(
            "name", [](const PyKernel& k) { return k.signature().name; }, "The function's name.")
        .def_prop_ro(
            "signature", [](const PyKernel& k) { return k.signature().text(); },
            "The function's parameters as the source declares them.")
        .def_prop_ro(
            "device", [](const PyKernel& k) -> Device& { return k.device(); }, nb::rv_policy::reference,
            "The device that it was compiled for.")
        .def_prop_ro("from_cache", &PyKernel::from_cache,
                     "Whether it was compiled before and came from the disk.")
        .def_prop_ro(
            "attributes",
            [](const PyKernel& k) {
                const FunctionInfo info = k.info();
                nb::dict out;
                out["registers"] = info.registers;
                out["shared_bytes"] = info.shared_bytes;
                out["local_bytes"] = info.local_bytes;
                out["max_threads_per_block"] = info.max_threads_per_block;
                return out;
            },
            nb::sig("def attributes(self, /) -> dict[str, int]"),
            "What the compiled function uses: registers and local memory a thread, static shared memory a "
            "block.")
        .def("__repr__", [](const PyKernel& k) {
            return str("Kernel('", k.signature().text(), "', device='", k.device().name(), "')");
        });
}

}  // namespace

void bind_jit(nb::module_& m) {
    bind_kernel(m);
    m.def(
        "jit", &compile, nb::arg("source"), nb::arg("func").none() = nb::none(),
        nb::arg("options") = nb::tuple(), nb::arg("device").none() = nb::none(),
        nb::sig("def jit(source: str, func: str | None = None, options: collections.abc.Sequence[str] = (), "
                "device: Device | str | None = None) -> Kernel"),
        "Compiles a CUDA C++ kernel and returns it as something to call.\n\n"
        "func: the __global__ function's name; it may be left out where the source has one kernel.\n"
        "options: the compiler's, such as '-DTILE=16' or '--use_fast_math'.\n\n"
        "On a GPU, NVRTC (pip install nvidia-cuda-nvrtc, or any CUDA toolkit) makes code for exactly that "
        "GPU. "
        "On\n"
        "the simulated device the machine's C++ compiler runs the same source on the host. Both results are\n"
        "kept on disk. Raises CompileError with the compiler's log, and UnsupportedError, with what to\n"
        "install, where there is no compiler.");
    m.def(
        "is_nvrtc_available", [] { return current_device().is_cuda() && jit::is_nvrtc_available(); },
        "Whether the current device is a GPU and NVRTC was found: whether gp.jit makes code for it. On the\n"
        "simulated device this is False (NVRTC emits code for GPUs alone); gp.jit uses the C++ compiler "
        "there.");
    m.def(
        "get_nvrtc_path",
        []() -> std::optional<std::string> {
            const jit::NvrtcStatus status = jit::nvrtc_status();
            return status.problem.empty() && !status.path.empty() ? std::optional(status.path) : std::nullopt;
        },
        "The NVRTC library's file, None where there is none.");
    m.def("get_nvrtc_version", &nvrtc_version,
          "NVRTC's version as (major, minor), None where there is none.");

    // For the package and `pygpukit doctor`.
    m.def("_set_library_folders", &set_library_folders, nb::arg("site_packages"));
    m.def(
        "_library_statuses",
        [] {
            nb::list out;
            for (const LibraryStatus& status : library_statuses()) {
                nb::dict each;
                each["name"] = status.name;
                each["path"] = status.path;
                each["how"] = status.how;
                each["version"] = status.version;
                each["problem"] = status.problem;
                out.append(each);
            }
            return out;
        },
        nb::sig("def _library_statuses() -> list[dict[str, str]]"));
    m.def("_jit_cache_folder", &jit::cache_folder);
    m.def("_host_compiler", &jit::host_compiler);
    m.def("_gpu_driver_version", &platform::gpu_driver_version);
}

}  // namespace gpk::python
