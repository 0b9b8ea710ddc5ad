// Codes that a file holds, into the order that the kernels read.
#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.hpp"
#include "base/parallel.hpp"
#include "kernels/gemm/gemv_quantized.hpp"
#include "ops/quantize.hpp"

namespace gpk::ops {

namespace {

void check(const CodedMatrix& matrix) {
    constexpr std::int64_t kMost = std::int64_t{1} << 31;
    const bool sized = matrix.n > 0 && matrix.k > 0 && matrix.n < kMost && matrix.k < kMost;
    const bool known = matrix.format != QuantFormat::nvfp4 &&
                       quant_group_exists(matrix.format, matrix.group) &&
                       (!matrix.offsets || (matrix.group != 0 && matrix.format != QuantFormat::fp8));
    if (sized && known) return;
    throw error(ErrorKind::value,
                {.call = "pack_codes",
                 .argument = "matrix",
                 .expected = "codes of a format and group that kernels read, 1 to 2**31 - 1 rows and columns",
                 .got = str(name(matrix.format), " with a group of ", matrix.group, ", ", matrix.n, " x ",
                            matrix.k)});
}

// The codes of a row (in whole steps, zeros past k) to its places in a tile.
template <int kBits>
void pack_row(const std::uint8_t* codes, std::int64_t row, std::int64_t steps, std::uint8_t* data) {
    constexpr int kStep = 512 / kBits, kUnits = kStep / 32;
    for (std::int64_t step = 0; step < steps; ++step, codes += kStep) {
        for (int t = 0; t < 4; ++t) {
            std::uint32_t words[4] = {};
            for (int u = 0; u < kUnits; ++u) {
                for (int i = 0; i < 8; ++i) {
                    const int bit = quant_bit(kBits, u, i);
                    words[bit / 32] |= static_cast<std::uint32_t>(codes[32 * u + 8 * t + i]) << (bit % 32);
                }
            }
            std::memcpy(data + quant_chunk(row, step, t, steps), words, sizeof(words));
        }
    }
}

}  // namespace

bool same_form(const CodedMatrix& a, const CodedMatrix& b) {
    return a.format == b.format && a.k == b.k && a.group == b.group && a.offsets == b.offsets &&
           a.dtype == b.dtype &&
           (a.columns == b.columns ||
            (a.columns != nullptr && b.columns != nullptr && *a.columns == *b.columns));
}

CodedMatrix join_rows(const CodedMatrix& first, const CodedMatrix& second) {
    CodedMatrix both = first;
    both.n += second.n;
    both.read = [n = first.n, a = first.read, b = second.read](std::int64_t row, std::uint8_t* codes,
                                                               float* scales, float* offsets) {
        if (row < n) return a(row, codes, scales, offsets);
        b(row - n, codes, scales, offsets);
    };
    return both;
}

QuantizedWeight pack_codes(Device& device, const CodedMatrix& matrix) {
    check(matrix);
    QuantizedWeight w;
    w.format = matrix.format, w.n = matrix.n, w.k = matrix.k;
    w.group = matrix.group, w.dtype = matrix.dtype;
    const std::int64_t tiles = quant_tiles(w.n), steps = quant_steps(w.format, w.k);
    const std::int64_t groups = quant_groups(w.format, w.k, w.group);
    const int step_length = quant_step(w.format);
    w.data = Array::empty(device, {tiles, steps, kQuantTileBytes}, DType::uint8);
    const Dims shape = w.group == 0 ? Dims{tiles * kQuantRows} : Dims{tiles, groups, kQuantRows};
    w.scales = Array::empty(device, shape, DType::float32);
    if (matrix.offsets) w.offsets = Array::empty(device, shape, DType::float32);

    std::vector<std::uint8_t> data(w.data.nbytes());
    std::vector<float> scales(static_cast<std::size_t>(w.scales.size()));
    std::vector<float> offsets(matrix.offsets ? scales.size() : 0);
    parallel_for(tiles, 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<std::uint8_t> codes(static_cast<std::size_t>(steps * step_length));
        std::vector<float> row_scales(static_cast<std::size_t>(groups)), row_offsets(row_scales.size());
        for (std::int64_t row = begin * kQuantRows; row < std::min(end * kQuantRows, w.n); ++row) {
            matrix.read(row, codes.data(), row_scales.data(), row_offsets.data());
            if (quant_bits(w.format) == 4) {
                pack_row<4>(codes.data(), row, steps, data.data());
            } else {
                pack_row<8>(codes.data(), row, steps, data.data());
            }
            for (std::int64_t group = 0; group < groups; ++group) {
                const auto at =
                    static_cast<std::size_t>(w.group == 0 ? row : quant_group_place(row, group, groups));
                scales[at] = row_scales[static_cast<std::size_t>(group)];
                if (matrix.offsets) offsets[at] = row_offsets[static_cast<std::size_t>(group)];
            }
        }
    });
    w.data.copy_from_host(data.data());
    w.scales.copy_from_host(scales.data());
    if (matrix.offsets) w.offsets.copy_from_host(offsets.data());
    if (matrix.columns != nullptr) {
        std::vector<std::int32_t> places(static_cast<std::size_t>(w.k));
        for (std::size_t i = 0; i < places.size(); ++i)
            places[static_cast<std::size_t>((*matrix.columns)[i])] = static_cast<std::int32_t>(i);
        w.columns = Array::empty(device, {w.k}, DType::int32);
        w.places = Array::empty(device, {w.k}, DType::int32);
        w.columns.copy_from_host(matrix.columns->data());
        w.places.copy_from_host(places.data());
    }
    return w;
}

}  // namespace gpk::ops
