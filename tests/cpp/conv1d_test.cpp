#include "ops/conv1d.hpp"

#include <gtest/gtest.h>

#include "base/error.hpp"
#include "values.hpp"

namespace gpk {
namespace {

using values::download;
using values::random_array;
using values::relative_error;

// x: (batch, channels, length), weight: (outputs, channels / groups, taps).
std::vector<double> reference(const Array& x, const Array& weight, const Array* bias,
                              const ops::Conv1dSettings& s) {
    const std::int64_t batch = x.shape()[0], channels = x.shape()[1], length = x.shape()[2];
    const std::int64_t outputs = weight.shape()[0], inner = weight.shape()[1], taps = weight.shape()[2];
    const std::int64_t positions = (length + 2 * s.padding - s.dilation * (taps - 1) - 1) / s.stride + 1;
    const auto from = download(x), factors = download(weight);
    const auto added =
        bias != nullptr ? download(*bias) : std::vector<double>(static_cast<std::size_t>(outputs));
    std::vector<double> y;
    for (std::int64_t b = 0; b < batch; ++b) {
        for (std::int64_t o = 0; o < outputs; ++o) {
            const std::int64_t first = o / (outputs / s.groups) * inner;
            for (std::int64_t l = 0; l < positions; ++l) {
                double sum = added[static_cast<std::size_t>(o)];
                for (std::int64_t c = 0; c < inner; ++c) {
                    for (std::int64_t t = 0; t < taps; ++t) {
                        const std::int64_t at = l * s.stride + t * s.dilation - s.padding;
                        if (at < 0 || at >= length) continue;
                        sum += factors[static_cast<std::size_t>((o * inner + c) * taps + t)] *
                               from[static_cast<std::size_t>((b * channels + first + c) * length + at)];
                    }
                }
                y.push_back(sum);
            }
        }
    }
    return y;
}

struct Case {
    Dims x, weight;
    ops::Conv1dSettings settings;
};

// Both ways: by a product, and as it stands for few channels a group.
TEST(Conv1d, AgreesWithFloat64) {
    const Case cases[] = {
        {{2, 40, 33}, {24, 40, 1}, {}},
        {{1, 80, 300}, {48, 80, 3}, {.padding = 1}},
        {{2, 48, 61}, {32, 48, 3}, {.stride = 2, .padding = 1}},
        {{2, 16, 70}, {8, 16, 5}, {.padding = 6, .dilation = 3}},
        {{3, 32, 40}, {16, 16, 4}, {.stride = 3, .groups = 2}},
        {{2, 24, 1000}, {24, 1, 7}, {.padding = 3, .groups = 24}},
        {{2, 6, 50}, {12, 1, 3}, {.dilation = 2, .groups = 6}},
        {{2, 3, 500}, {5, 3, 4}, {.stride = 5, .padding = 9}},
        {{1, 4, 1}, {16, 4, 9}, {.padding = 4}},
    };
    for (const auto& [dtype, bound] :
         {std::pair{DType::float32, 2e-6}, {DType::float16, 8e-4}, {DType::bfloat16, 6e-3}}) {
        for (const Case& each : cases) {
            const Array x = random_array(each.x, dtype, 1), weight = random_array(each.weight, dtype, 2);
            const Array bias = random_array({each.weight[0]}, dtype, 3);
            const Array y = ops::conv1d(x, weight, &bias, each.settings);
            EXPECT_LE(relative_error(download(y), reference(x, weight, &bias, each.settings)), bound)
                << to_string(each.x) << " with " << to_string(each.weight) << " of " << name(dtype);
            // As views: the length first, and every second output.
            const Array turned = ops::contiguous(x.transpose({2, 0, 1})).transpose({1, 2, 0});
            const Array some =
                weight.slice(0, 0, 2, each.weight[0] / 2 / each.settings.groups * each.settings.groups);
            if (some.shape()[0] == 0) continue;
            EXPECT_LE(relative_error(download(ops::conv1d(turned, some, nullptr, each.settings)),
                                     reference(x, some, nullptr, each.settings)),
                      bound);
        }
    }
}

// More rows than a grid has along y.
TEST(Conv1d, ManyRows) {
    const Array x = random_array({1100, 64, 3}, DType::float32, 1),
                weight = random_array({64, 1, 2}, DType::float32, 2);
    const ops::Conv1dSettings settings{.groups = 64};
    EXPECT_LE(relative_error(download(ops::conv1d(x, weight, nullptr, settings)),
                             reference(x, weight, nullptr, settings)),
              2e-6);
}

TEST(Conv1d, RefusesWhatDoesNotFit) {
    const Array x = random_array({2, 4, 9}, DType::float32, 1),
                weight = random_array({6, 4, 3}, DType::float32, 2);
    for (const ops::Conv1dSettings& settings : {ops::Conv1dSettings{.stride = 0},
                                                {.stride = std::int64_t{1} << 62},
                                                {.padding = -1},
                                                {.dilation = 5},
                                                {.groups = 3},
                                                {.groups = 2}}) {
        EXPECT_THROW(ops::conv1d(x, weight, nullptr, settings), Error);
    }
    EXPECT_THROW(ops::conv1d(x, weight, &x, {}), Error);
    EXPECT_THROW(ops::conv1d(x, ops::astype(weight, DType::float16), nullptr, {}), Error);
    EXPECT_THROW(ops::conv1d(ops::astype(x, DType::int32), ops::astype(weight, DType::int32), nullptr, {}),
                 Error);
}

}  // namespace
}  // namespace gpk
