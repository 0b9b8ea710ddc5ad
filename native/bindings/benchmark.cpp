// The measure that the overhead benchmark holds a call against: a plain loop of cuLaunchKernel, past
// the Launcher and the Driver on purpose.
#include "bindings/common.hpp"

#include "base/platform.hpp"
#include "driver/cuda_types.hpp"
#include "runtime/stream.hpp"

namespace gpk::python {

using namespace gpk::cuda;

namespace {

// A kernel of three parameters that does nothing, for every GPU since SM 80.
constexpr const char* kPtx =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry nothing(.param .u64 x, .param .f32 factor, .param .u32 n) { ret; }\n";

using LaunchKernel = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                  unsigned, CUstream, void**, void**);

void raw_launches(int count) {
    Device& device = current_device();
    if (!device.is_cuda()) {
        throw error(ErrorKind::unsupported,
                    {.call = "_raw_launches", .expected = "a GPU", .got = device.name()});
    }
    static const Image image{reinterpret_cast<const unsigned char*>(kPtx),
                             std::char_traits<char>::length(kPtx)};
    static const KernelDef def{.name = "nothing", .image = &image};
    static const auto launch = [] {
        std::string reason;
        void* library = platform::open_library("libcuda.so.1", &reason);
        auto* call = library == nullptr
                         ? nullptr
                         : reinterpret_cast<LaunchKernel>(platform::find_symbol(library, "cuLaunchKernel"));
        if (call == nullptr) throw error(ErrorKind::unsupported, {.call = "_raw_launches", .got = reason});
        return call;
    }();
    // The driver's own handle comes first in what a FunctionHandle points to.
    const CUfunction function = *reinterpret_cast<CUfunction*>(device.driver().function(def));
    const auto stream = reinterpret_cast<CUstream>(current_stream(device)->handle());
    std::uint64_t pointer = 0;
    float factor = 1;
    unsigned n = 16;
    void* params[] = {&pointer, &factor, &n};
    for (int i = 0; i < count; ++i) {
        if (launch(function, 1, 1, 1, 256, 1, 1, 0, stream, params, nullptr) != CUDA_SUCCESS) {
            throw error(ErrorKind::driver, {.call = "cuLaunchKernel", .got = "a failure in the raw loop"});
        }
    }
}

}  // namespace

void bind_benchmark(nb::module_& m) {
    m.def("_raw_launches", &raw_launches, nb::arg("count"), nb::call_guard<Unlocked>(),
          "Launches an empty kernel `count` times on the current stream by plain cuLaunchKernel calls.");
}

}  // namespace gpk::python
