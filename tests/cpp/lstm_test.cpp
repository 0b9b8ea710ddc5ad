#include "ops/lstm.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.hpp"
#include "values.hpp"

namespace gpk {
namespace {

using values::download;
using values::random;
using values::relative_error;
using values::upload;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Layer {
    std::int64_t steps, batch, inputs, hidden;
    Array x, input, recurrent, input_bias, recurrent_bias, h, c;
};

Array scaled(const Dims& shape, DType dtype, double scale, unsigned seed) {
    auto drawn = random(element_count(shape), dtype, seed);
    for (double& value : drawn) value *= scale;
    return upload(drawn, shape, dtype);
}

Layer layer_of(std::int64_t steps, std::int64_t batch, std::int64_t inputs, std::int64_t hidden,
               DType dtype) {
    const double by = 1 / std::sqrt(static_cast<double>(hidden));
    return {steps,
            batch,
            inputs,
            hidden,
            scaled({steps, batch, inputs}, dtype, 1, 1),
            scaled({4 * hidden, inputs}, dtype, by, 2),
            scaled({4 * hidden, hidden}, dtype, by, 3),
            scaled({4 * hidden}, dtype, 1, 4),
            scaled({4 * hidden}, dtype, 1, 5),
            scaled({batch, hidden}, dtype, 0.5, 6),
            scaled({batch, hidden}, dtype, 1, 7)};
}

// output, then the last h and c.
std::vector<std::vector<double>> reference(const Layer& l, bool reverse) {
    const auto x = download(l.x), wi = download(l.input), wh = download(l.recurrent);
    const auto bi = download(l.input_bias), bh = download(l.recurrent_bias);
    auto h = download(l.h), c = download(l.c);
    std::vector<double> output(static_cast<std::size_t>(l.steps * l.batch * l.hidden));
    const auto at = [](std::int64_t index) { return static_cast<std::size_t>(index); };
    for (std::int64_t s = 0; s < l.steps; ++s) {
        const std::int64_t t = reverse ? l.steps - 1 - s : s;
        auto next = h;
        for (std::int64_t b = 0; b < l.batch; ++b) {
            for (std::int64_t u = 0; u < l.hidden; ++u) {
                double gates[4];
                for (std::int64_t g = 0; g < 4; ++g) {
                    const std::int64_t row = g * l.hidden + u;
                    double sum = bi[at(row)] + bh[at(row)];
                    for (std::int64_t k = 0; k < l.inputs; ++k)
                        sum += wi[at(row * l.inputs + k)] * x[at((t * l.batch + b) * l.inputs + k)];
                    for (std::int64_t k = 0; k < l.hidden; ++k)
                        sum += wh[at(row * l.hidden + k)] * h[at(b * l.hidden + k)];
                    gates[g] = sum;
                }
                double& cell = c[at(b * l.hidden + u)];
                cell = sigmoid(gates[1]) * cell + sigmoid(gates[0]) * std::tanh(gates[2]);
                next[at(b * l.hidden + u)] = sigmoid(gates[3]) * std::tanh(cell);
            }
        }
        h = next;
        std::copy(h.begin(), h.end(), output.begin() + t * l.batch * l.hidden);
    }
    return {output, h, c};
}

// One row of a batch, a few, more than share a read of the weight, and so many that a product is made of
// them; hidden sizes with and without whole vectors of 16 bytes, and those for the tensor cores.
TEST(Lstm, AgreesWithFloat64) {
    for (const auto& [dtype, bound] :
         {std::pair{DType::float32, 5e-6}, {DType::float16, 3e-3}, {DType::bfloat16, 2e-2}}) {
        for (const auto& [batch, hidden] : {std::pair<std::int64_t, std::int64_t>{1, 256},
                                            {1, 33},
                                            {7, 40},
                                            {8, 64},
                                            {11, 72},
                                            {16, 30},
                                            {17, 64},
                                            {40, 24},
                                            {3, 32},
                                            {33, 96},
                                            {64, 64},
                                            {70, 32}}) {
            const Layer l = layer_of(6, batch, 20, hidden, dtype);
            for (const bool reverse : {false, true}) {
                const auto got = ops::lstm(l.x, {l.input, l.recurrent, &l.input_bias, &l.recurrent_bias},
                                           &l.h, &l.c, reverse);
                const auto expected = reference(l, reverse);
                EXPECT_LE(relative_error(download(got.output), expected[0]), bound)
                    << name(dtype) << ", batch " << batch << ", hidden " << hidden;
                EXPECT_LE(relative_error(download(got.h), expected[1]), bound);
                EXPECT_LE(relative_error(download(got.c), expected[2]), bound);
            }
        }
    }
}

TEST(Lstm, RefusesWhatDoesNotFit) {
    const Layer l = layer_of(3, 2, 5, 4, DType::float32);
    const auto run = [&](const Array& x, const Array& recurrent, const Array* h) {
        return ops::lstm(x, {l.input, recurrent}, h, nullptr, false);
    };
    EXPECT_EQ(run(l.x, l.recurrent, nullptr).output.shape(), (Dims{3, 2, 4}));
    EXPECT_THROW(run(l.x.select(0, 0).select(0, 0), l.recurrent, nullptr), Error);
    EXPECT_THROW(run(l.x, l.recurrent.transpose({1, 0}), nullptr), Error);
    EXPECT_THROW(run(l.x, l.recurrent, &l.x), Error);
    EXPECT_THROW(run(ops::astype(l.x, DType::float16), l.recurrent, nullptr), Error);
}

}  // namespace
}  // namespace gpk
