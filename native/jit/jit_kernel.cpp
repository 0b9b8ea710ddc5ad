#include "jit/jit_kernel.hpp"

#include "base/error.hpp"
#include "base/log.hpp"
#include "jit/compile.hpp"
#include "jit/host_compile.hpp"
#include "runtime/graph.hpp"

namespace gpk::jit {

namespace {

constexpr std::uint32_t kMaxGridX = 0x7fffffff;  // CUDA C++ Programming Guide, "Technical Specifications"
constexpr std::uint32_t kMaxGridYZ = 65535;
constexpr std::uint32_t kMaxBlockZ = 64;

// A graph runs the kernel again and again, so it holds it.
class KeptKernel final : public GraphResource {
   public:
    explicit KeptKernel(std::shared_ptr<const JitKernel> kernel) : kernel_(std::move(kernel)) {}
    void before_launch(const std::shared_ptr<Stream>&) override {}

   private:
    std::shared_ptr<const JitKernel> kernel_;
};

std::string text(const Dim3& d) { return str("(", d.x, ", ", d.y, ", ", d.z, ")"); }

}  // namespace

std::shared_ptr<JitKernel> JitKernel::compile(Device& device, const std::string& source,
                                              const std::string& function, const JitOptions& options) {
    std::shared_ptr<JitKernel> result(new JitKernel(device, parse_signature(source, function)));
    KernelDef def;
    if (device.is_cuda()) {
        Compiled compiled = compile_cubin(source, result->signature_, device.info().sm, options.flags);
        result->symbol_ = std::move(compiled.symbol);
        result->code_ = std::move(compiled.image);
        result->from_cache_ = compiled.from_cache;
        result->image_ = {reinterpret_cast<const unsigned char*>(result->code_.data()), result->code_.size()};
        def.image = &result->image_;
    } else {
        const HostCompiled compiled = compile_host(source, result->signature_, options.flags);
        result->symbol_ = result->signature_.name;
        result->from_cache_ = compiled.from_cache;
        def.twin = compiled.twin;
    }
    def.name = result->symbol_.c_str();
    if (result->signature_.dynamic_shared) def.max_shared_bytes = kAllSharedBytes;
    result->kernel_ = std::make_unique<Kernel>(def);
    // Loaded now, so that what cannot be loaded is known here and not at the first launch.
    result->kernel_->on(device);
    result->max_threads_ = static_cast<std::uint32_t>(device.info().max_threads_per_block);
    result->max_shared_bytes_ = device.info().shared_bytes_per_block;
    if (device.is_cuda()) {
        const FunctionInfo info = result->info();
        result->max_threads_ = static_cast<std::uint32_t>(info.max_threads_per_block);
        result->max_shared_bytes_ -= std::min(result->max_shared_bytes_, std::uint64_t{info.shared_bytes});
    }
    return result;
}

JitKernel::~JitKernel() {
    if (image_.data == nullptr) return;
    try {
        device_.synchronize();  // it may still run
    } catch (const Error& failure) {
        log(LogLevel::info, str("kernel '", signature_.name, "': ", failure.what()));
    }
    device_.driver().unload(image_);
}

FunctionInfo JitKernel::info() const { return device_.driver().function_info(kernel_->on(device_)); }

void JitKernel::check(const LaunchConfig& config) const {
    const auto refuse = [&](const char* argument, std::string expected, std::string got) {
        return error(ErrorKind::value, {.call = signature_.text(),
                                        .argument = argument,
                                        .expected = std::move(expected),
                                        .got = std::move(got)});
    };
    const auto& [grid, block, shared_bytes, cluster] = config;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > kMaxGridX || grid.y > kMaxGridYZ ||
        grid.z > kMaxGridYZ) {
        throw refuse("grid", str("1 to ", text({kMaxGridX, kMaxGridYZ, kMaxGridYZ})), text(grid));
    }
    const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
    if (block.x > max_threads_ || block.y > max_threads_ || block.z > kMaxBlockZ || threads == 0 ||
        threads > max_threads_) {
        throw refuse("block",
                     str("1 to ", max_threads_, " threads, at most ", kMaxBlockZ, " of them along z"),
                     text(block));
    }
    if (shared_bytes > max_shared_bytes_) {
        throw refuse("shared_bytes", str("at most ", max_shared_bytes_, " on this device"),
                     str(shared_bytes));
    }
    if (cluster == 0 || grid.x % cluster != 0) {
        throw refuse("cluster", str("a divisor of the grid's x, ", grid.x), str(cluster));
    }
}

void JitKernel::launch(Stream& stream, const LaunchConfig& config, const void* params, const Cost& cost) {
    if (&stream.device() != &device_) {
        throw error(ErrorKind::value, {.call = signature_.text(),
                                       .argument = "stream",
                                       .expected = str("a stream on ", device_.name()),
                                       .got = str("one on ", stream.device().name())});
    }
    check(config);
    if (Graph* const graph = stream.capture()) {
        auto& kept = graph->resource(this);
        if (!kept) kept = std::make_shared<KeptKernel>(shared_from_this());
    }
    device_.launcher().launch(stream, *kernel_, config, params, signature_.params_bytes, cost);
}

}  // namespace gpk::jit
