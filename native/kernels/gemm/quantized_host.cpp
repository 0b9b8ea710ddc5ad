#include "kernels/gemm/quantized_host.hpp"

#include <algorithm>
#include <array>

#include "kernels/host.hpp"

namespace gpk::kernels {

namespace {

typedef float Floats __attribute__((vector_size(64)));
typedef std::uint32_t Words __attribute__((vector_size(64)));
typedef std::int32_t Signed __attribute__((vector_size(64)));
typedef std::uint32_t LooseWords __attribute__((vector_size(64), aligned(1), may_alias));
typedef float LooseFloats __attribute__((vector_size(64), aligned(4), may_alias));
constexpr int kLanes = 16;

// Where the scales of a row lie: those of a step one after another, `stride` floats apart.
struct RowScales {
    enum class Spread : std::uint8_t { row, one, two, four, four_halves, blocks } spread;
    const float* scales;   // of groups
    const float* offsets;  // or null
    const float8_e4m3* blocks;
};

// What a row's sum is multiplied by, beside the scales of its parts.
float factor_of(const QuantLayout& w, std::int64_t row) {
    if (w.format == QuantFormat::nvfp4) return *w.global;
    return w.group == 0 ? static_cast<const float*>(w.scales)[row] : 1;
}

const std::array<float, 256>& e4m3_values() {
    static const std::array<float, 256> values = [] {
        std::array<float, 256> all{};
        for (int code = 0; code < 256; ++code) {
            float8_e4m3 value;
            value.bits = static_cast<std::uint8_t>(code);
            all[static_cast<std::size_t>(code)] = static_cast<float>(value);
        }
        return all;
    }();
    return values;
}

RowScales scales_of(const QuantLayout& w, std::int64_t row) {
    using Spread = RowScales::Spread;
    if (w.format == QuantFormat::nvfp4) {
        const auto* blocks =
            static_cast<const float8_e4m3*>(w.scales) + nvfp4_scale(row, 0, quant_steps(w.format, w.k));
        return {Spread::blocks, e4m3_values().data(), nullptr, blocks};
    }
    const auto* scales = static_cast<const float*>(w.scales);
    if (w.group == 0) return {Spread::row, scales, nullptr, nullptr};
    const std::int64_t at = quant_group_place(row, 0, quant_groups(w.format, w.k, w.group));
    const std::int64_t groups = quant_step(w.format) / w.group;
    const Spread spread = groups == 1                     ? Spread::one
                          : groups == 2                   ? Spread::two
                          : w.format == QuantFormat::int4 ? Spread::four
                                                          : Spread::four_halves;
    return {spread, scales + at, w.offsets == nullptr ? nullptr : w.offsets + at, nullptr};
}

// The first scale of a step among those of all.
std::int64_t first_scale(const RowScales& s, std::int64_t step) {
    using Spread = RowScales::Spread;
    switch (s.spread) {
        case Spread::row: return 0;
        case Spread::one: return step * kQuantRows;
        case Spread::two: return step * 2 * kQuantRows;
        case Spread::four:
        case Spread::four_halves: return step * 4 * kQuantRows;
        case Spread::blocks: break;
    }
    return 0;  // a table of all values
}

// Macros, not functions: vectors of a function are lowered for the target that it was written for, before it
// is copied into another's.

// A scale for each lane: the word t * 4 + j of a row has, of 4 bits, unit j, of 8 bits half of unit j / 2.
#define GPK_SPREAD(to, s, from, codes)                                                 \
    switch ((s).spread) {                                                              \
        case RowScales::Spread::row: to = Floats{} + 1; break;                         \
        case RowScales::Spread::one: to = Floats{} + (from)[0]; break;                 \
        case RowScales::Spread::two: {                                                 \
            const float a = (from)[0], b = (from)[16];                                 \
            to = Floats{a, a, b, b, a, a, b, b, a, a, b, b, a, a, b, b};               \
            break;                                                                     \
        }                                                                              \
        case RowScales::Spread::four: {                                                \
            const float a = (from)[0], b = (from)[16], c = (from)[32], d = (from)[48]; \
            to = Floats{a, b, c, d, a, b, c, d, a, b, c, d, a, b, c, d};               \
            break;                                                                     \
        }                                                                              \
        case RowScales::Spread::four_halves: {                                         \
            const float a = (from)[0], b = (from)[16], c = (from)[32], d = (from)[48]; \
            to = Floats{a, a, c, c, a, a, c, c, b, b, d, d, b, b, d, d};               \
            break;                                                                     \
        }                                                                              \
        case RowScales::Spread::blocks: {                                              \
            float v[8];                                                                \
            for (int e = 0; e < 8; ++e) v[e] = (s).scales[(codes)[e].bits];            \
            to = Floats{v[0], v[1], v[2], v[3], v[0], v[1], v[2], v[3],                \
                        v[4], v[5], v[6], v[7], v[4], v[5], v[6], v[7]};               \
            break;                                                                     \
        }                                                                              \
    }

#define GPK_PLANE_int4(to, w, p) \
    to = __builtin_convertvector(reinterpret_cast<Signed>(((w) >> (4 * (p))) & 15u), Floats)
#define GPK_PLANE_int8(to, w, p) \
    to = __builtin_convertvector(reinterpret_cast<Signed>((w) << (24 - 8 * (p))) >> 24, Floats)
// A small float's magnitude with `mantissa` bits: its normals by moving the bits and their exponent's bias,
// the few others as whole multiples of the least.
#define GPK_PLANE_SMALL(to, magnitude, sign, mantissa, bias, least)                                        \
    do {                                                                                                   \
        const Words m_ = (magnitude);                                                                      \
        const Floats tiny_ = __builtin_convertvector(reinterpret_cast<Signed>(m_), Floats) * (least);      \
        const Words moved_ = (m_ << (23 - (mantissa))) + (static_cast<std::uint32_t>(127 - (bias)) << 23); \
        const Words bits_ = m_ < (1u << (mantissa)) ? reinterpret_cast<Words>(tiny_) : moved_;             \
        to = reinterpret_cast<Floats>(bits_ | (sign));                                                     \
    } while (false)
#define GPK_PLANE_nvfp4(to, w, p) \
    GPK_PLANE_SMALL(to, ((w) >> (4 * (p))) & 7u, ((w) << (28 - 4 * (p))) & 0x80000000u, 1, 1, 0.5f)
#define GPK_PLANE_fp8(to, w, p)                                                                    \
    do {                                                                                           \
        const Words magnitude_ = ((w) >> (8 * (p))) & 0x7fu;                                       \
        Floats value_;                                                                             \
        GPK_PLANE_SMALL(value_, magnitude_, ((w) << (24 - 8 * (p))) & 0x80000000u, 3, 7, 0x1p-9f); \
        const Words nan_ = reinterpret_cast<Words>(magnitude_ == 0x7fu) & 0x7fc00000u;             \
        to = reinterpret_cast<Floats>(reinterpret_cast<Words>(value_) | nan_);                     \
    } while (false)

// A step of row r after the first: its codes as numbers, in planes, and their scales.
#define GPK_STEP(format, planes, r)                                                                 \
    const Words w = *reinterpret_cast<const LooseWords*>(data + step * kQuantTileBytes + (r) * 64); \
    Floats q[planes], scale = {}, offset = {};                                                      \
    _Pragma("GCC unroll 8") for (int p = 0; p < planes; ++p) { GPK_PLANE_##format(q[p], w, p); }    \
    const std::int64_t first = first_scale(s, step) + (r);                                          \
    GPK_SPREAD(scale, s, s.scales + first, s.blocks + step * 128 + (r) * 8)                         \
    if (s.offsets != nullptr) GPK_SPREAD(offset, s, s.offsets + first, s.blocks)

// sum += that step times row i of x.
#define GPK_ADD_STEP(planes, i, sum)                                                                        \
    do {                                                                                                    \
        const float* at = x + (i) * pitch + step * planes * kLanes;                                         \
        const Floats x_sum = *reinterpret_cast<const LooseFloats*>(x_sums + ((i) * steps + step) * kLanes); \
        Floats part = x_sum * -zero, other = {};                                                            \
        _Pragma("GCC unroll 4") for (int p = 0; p < planes; p += 2) {                                       \
            part += q[p] * *reinterpret_cast<const LooseFloats*>(at + p * kLanes);                          \
            other += q[p + 1] * *reinterpret_cast<const LooseFloats*>(at + (p + 1) * kLanes);               \
        }                                                                                                   \
        sum += (part + other) * scale;                                                                      \
        if (s.offsets != nullptr) sum += x_sum * offset;                                                    \
    } while (false)

#define GPK_SUM(to, lanes)                                            \
    do {                                                              \
        float parts_[4] = {};                                         \
        for (int e = 0; e < kLanes; ++e) parts_[e % 4] += (lanes)[e]; \
        to = (parts_[0] + parts_[1]) + (parts_[2] + parts_[3]);       \
    } while (false)

// tile_<format>: y[r] = row r of 16 dot x, which reads memory in order. product_<format>: y[i] = the row dot
// x[i]. weights_<format>: a step of the row, in the order of lanes. `data`: the (first) row's 64 bytes of the
// first step. `zero`: the code of 0.
#define GPK_ROW_LOOPS(format, planes)                                                                   \
    GPK_SIMD void tile_##format(const std::uint8_t* data, std::int64_t steps, const RowScales& s,       \
                                float zero, const float* x, const float* x_sums, float* y) {            \
        constexpr std::int64_t pitch = 0; /* one row of x */                                            \
        Floats sums[kQuantRows] = {};                                                                   \
        for (std::int64_t step = 0; step < steps; ++step) {                                             \
            for (int r = 0; r < kQuantRows; ++r) {                                                      \
                GPK_STEP(format, planes, r)                                                             \
                GPK_ADD_STEP(planes, 0, sums[r]);                                                       \
            }                                                                                           \
        }                                                                                               \
        for (int r = 0; r < kQuantRows; ++r) GPK_SUM(y[r], sums[r]);                                    \
    }                                                                                                   \
    GPK_SIMD void product_##format(const std::uint8_t* data, std::int64_t steps, const RowScales& s,    \
                                   float zero, const float* x, std::int64_t pitch, const float* x_sums, \
                                   int rows, float* y) {                                                \
        Floats sums[kQuantizedRows];                                                                    \
        for (int i = 0; i < rows; ++i) sums[i] = Floats{};                                              \
        for (std::int64_t step = 0; step < steps; ++step) {                                             \
            GPK_STEP(format, planes, 0)                                                                 \
            for (int i = 0; i < rows; ++i) GPK_ADD_STEP(planes, i, sums[i]);                            \
        }                                                                                               \
        for (int i = 0; i < rows; ++i) GPK_SUM(y[i], sums[i]);                                          \
    }                                                                                                   \
    GPK_SIMD void weights_##format(const std::uint8_t* data, std::int64_t step, const RowScales& s,     \
                                   float zero, float* out) {                                            \
        GPK_STEP(format, planes, 0)                                                                     \
        _Pragma("GCC unroll 8") for (int p = 0; p < planes; ++p) {                                      \
            Floats value = (q[p] - zero) * scale;                                                       \
            if (s.offsets != nullptr) value += offset;                                                  \
            *reinterpret_cast<LooseFloats*>(out + p * kLanes) = value;                                  \
        }                                                                                               \
    }
GPK_ROW_LOOPS(int8, 4)
GPK_ROW_LOOPS(int4, 8)
GPK_ROW_LOOPS(fp8, 4)
GPK_ROW_LOOPS(nvfp4, 8)

constexpr int kPlanes[kQuantFormats] = {4, 8, 4, 8};
constexpr decltype(&tile_int8) kTileProducts[kQuantFormats] = {tile_int8, tile_int4, tile_fp8, tile_nvfp4};
constexpr decltype(&product_int8) kProducts[kQuantFormats] = {product_int8, product_int4, product_fp8,
                                                              product_nvfp4};
constexpr decltype(&weights_int8) kWeights[kQuantFormats] = {weights_int8, weights_int4, weights_fp8,
                                                             weights_nvfp4};

// The column of a step that a lane's code has in a plane, by quantized.hpp's order of bits; and back.
struct Columns {
    std::array<std::int16_t, 128> of_place{};
    std::array<std::int32_t, 128> place{};
};
Columns columns_of(int bits) {
    Columns columns;
    for (int column = 0; column < 512 / bits; ++column) {
        const int t = column % 32 / 8, bit = quant_bit(bits, column / 32, column % 8);
        const int lane = t * 4 + bit / 32, plane = bit % 32 / bits;
        columns.of_place[static_cast<std::size_t>(plane * kLanes + lane)] = static_cast<std::int16_t>(column);
        columns.place[static_cast<std::size_t>(column)] = plane * kLanes + lane;
    }
    return columns;
}
const Columns& columns_of(QuantFormat format) {
    static const Columns four = columns_of(4), eight = columns_of(8);
    return quant_bits(format) == 4 ? four : eight;
}

GPK_SIMD void take_scaled(const float* from, const std::int32_t* places, float factor, std::int64_t count,
                          float* to) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = from[places[i]] * factor;
}

float zero_of(const QuantLayout& w) {
    return w.format == QuantFormat::int4 && w.offsets == nullptr ? 8.0f : 0.0f;
}

const std::uint8_t* row_data(const QuantLayout& w, std::int64_t row) {
    return static_cast<const std::uint8_t*>(w.data) + quant_chunk(row, 0, 0, quant_steps(w.format, w.k));
}

}  // namespace

void dequantize_row(const QuantLayout& w, std::int64_t row, float* out) {
    const RowScales scales = scales_of(w, row);
    const float factor = factor_of(w, row);
    const Columns& columns = columns_of(w.format);
    const int step_length = quant_step(w.format);
    float values[128];
    for (std::int64_t first = 0; first < w.k; first += step_length, out += step_length) {
        kWeights[static_cast<int>(w.format)](row_data(w, row), first / step_length, scales, zero_of(w),
                                             values);
        take_scaled(values, columns.place.data(), factor, std::min<std::int64_t>(step_length, w.k - first),
                    out);
    }
}

void QuantizedRows::allocate() {
    steps_ = quant_steps(w_.format, w_.k);
    planes_of_step_ = kPlanes[static_cast<int>(w_.format)];
    columns_ = columns_of(w_.format).of_place.data();
    pitch_ = steps_ * planes_of_step_ * kLanes;
    planes_.resize(static_cast<std::size_t>(m_ * pitch_));
    sums_.resize(static_cast<std::size_t>(m_ * steps_ * kLanes));
}

void QuantizedRows::multiply(std::int64_t tile, float* y) const {
    const int format = static_cast<int>(w_.format);
    const std::int64_t first = tile * kQuantRows;
    if (m_ == 1) {
        kTileProducts[format](row_data(w_, first), steps_, scales_of(w_, first), zero_of(w_), planes_.data(),
                              sums_.data(), y);
    }
    for (std::int64_t row = first; row < first + kQuantRows; ++row, y += m_) {
        if (m_ > 1) {
            kProducts[format](row_data(w_, row), steps_, scales_of(w_, row), zero_of(w_), planes_.data(),
                              pitch_, sums_.data(), m_, y);
        }
        const float factor = factor_of(w_, row);
        for (int i = 0; i < m_; ++i) y[i] *= factor;
    }
}

}  // namespace gpk::kernels
