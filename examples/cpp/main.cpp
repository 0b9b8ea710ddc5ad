// Makes two matrices, multiplies them, and scales the product with a kernel of its own, compiled here and
// now: by NVRTC for the GPU, by the C++ compiler for the simulated device. PYGPUKIT_DEVICE chooses.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <vector>

#include "jit/jit_kernel.hpp"
#include "ops/launch.hpp"
#include "ops/matmul.hpp"

namespace {

constexpr const char* kSource = R"(
extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
})";

gpk::Array from_host(gpk::Device& device, const gpk::Dims& shape, const std::vector<float>& values) {
    const gpk::Array array = gpk::Array::empty(device, shape, gpk::DType::float32);
    array.copy_from_host(values.data());
    return array;
}

void scale(const gpk::Array& x, float factor) {
    const auto kernel = gpk::jit::JitKernel::compile(x.device(), kSource, "scale");
    const gpk::jit::Signature& signature = kernel->signature();
    std::vector<std::byte> params(signature.params_bytes);
    gpk::jit::pack_pointer(signature, signature.parameters[0], x.data(), x.dtype(), params.data());
    gpk::jit::pack_scalar(signature, signature.parameters[1], double{factor}, params.data());
    gpk::jit::pack_scalar(signature, signature.parameters[2], x.size(), params.data());
    const auto& stream = gpk::current_stream(x.device());
    x.storage()->before_write(stream);
    kernel->launch(*stream, gpk::ops::grid_for(x.size()), params.data());
}

int run() {
    constexpr int n = 256;
    std::vector<float> a(n * n), b(n * n), c(n * n);
    for (int i = 0; i < n * n; ++i) {
        a[i] = std::sin(static_cast<float>(i));
        b[i] = std::cos(static_cast<float>(i));
    }
    gpk::Device& device = gpk::current_device();
    const gpk::Array product = gpk::ops::matmul(from_host(device, {n, n}, a), from_host(device, {n, n}, b));
    scale(product, 0.5f);
    product.copy_to_host(c.data());

    double worst = 0;
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
            double expected = 0;
            for (int k = 0; k < n; ++k) expected += 0.5 * double{a[i * n + k]} * double{b[k * n + j]};
            worst = std::max(worst, std::abs(expected - double{c[i * n + j]}));
        }
    }
    std::printf("0.5 * a @ b of %d x %d on %s: largest error %.1e\n", n, n, device.name().c_str(), worst);
    return worst < 1e-3 ? 0 : 1;
}

}  // namespace

int main() {
    try {
        return run();
    } catch (const std::exception& failure) {
        std::fprintf(stderr, "%s\n", failure.what());
        return 1;
    }
}
