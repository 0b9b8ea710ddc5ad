// Weights in 8 or 4 bits, and products with them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "array/array.hpp"
#include "kernels/activation/glu.hpp"  // GluOp
#include "kernels/gemm/quantized.hpp"

namespace gpk::ops {

// A weight [n, k] of fewer bits, in tiles that the kernels read (kernels/gemm/quantized.hpp).
struct QuantizedWeight {
    QuantFormat format = QuantFormat::int8;
    std::int64_t n = 0, k = 0;
    std::int64_t group = 0;         // weights along k that share a scale; 0: a row, or as the format says
    DType dtype = DType::bfloat16;  // of the weight that it was made from
    Array data, scales;
    Array offsets, global;  // hold nothing where the format has none
    // int32 [k], where codes are in another order along k: the column of each code, and the code of each
    // column.
    Array columns, places;

    std::size_t nbytes() const noexcept;
    QuantLayout layout() const;
    // What a launch that reads the weight names: the scales again where the format has none.
    const Array& offsets_or_scales() const noexcept { return offsets.defined() ? offsets : scales; }
    const Array& global_or_scales() const noexcept { return global.defined() ? global : scales; }
};

struct QuantizeOptions {
    std::optional<std::int64_t> group = {};  // int4: 32, 64 or 128, as where there is none
    bool zero_points = false;                // int4: a zero point for each group, else codes are symmetric
    bool per_tensor = false;                 // fp8: one scale for all, else one for each row
};

std::string_view name(QuantFormat format);                  // "int8", "int4", "fp8", "nvfp4"
QuantFormat quant_format_from_name(std::string_view name);  // throws Error (value), listing them

// From float32, float16 or bfloat16 [n, k]; every value to the nearest that its scale allows, ties to even.
//
//   int8    scale = max |w| / 127 of the row (float32)
//   int4    max |w| / 7 of the group, or (max - min) / 15 with zero points, rounded to bfloat16
//   fp8     e4m3, scale = max |w| / 448 of the row or the tensor (float32)
//   nvfp4   e2m1; of 16 along k max |w| / 6 (e4m3), times max |w| / (6 * 448) of the tensor (float32)
//
// A row (group, block, tensor) with a NaN or an infinity becomes NaN.
QuantizedWeight quantize(const Array& weight, QuantFormat format, const QuantizeOptions& options = {});

// The weight [n, k] in float32, float16 or bfloat16; or `rows` of it from `first` on, in the order of its
// codes.
Array dequantize(const QuantizedWeight& weight, DType dtype);
Array dequantize(const QuantizedWeight& weight, DType dtype, std::int64_t first, std::int64_t rows);

// All of it into a contiguous array [n, k], in the order of its codes.
void dequantize_into(const QuantizedWeight& weight, const Array& out);

// x @ weight.T + bias: x (..., k) of float32, float16 or bfloat16, bias (n,). The result has x's dtype, or
// float32 where asked for. Few rows multiply by codes that become numbers in registers; many by parts of the
// dequantised weight. From 17 rows on it may be rounded to x's dtype. `out` may be any array of the result.
Array linear(const Array& x, const QuantizedWeight& weight, const Array* bias = nullptr,
             std::optional<DType> dtype = std::nullopt, const Array* out = nullptr);

// A matrix (n, k) of codes as a file holds it. read() gives a row: codes (int8: signed bytes; int4: 0 to 15;
// fp8: the bits of e4m3), of each group of k its scale, and its offset where `offsets`. Threads call it at
// once.
struct CodedMatrix {
    QuantFormat format;  // not nvfp4
    std::int64_t n, k;
    std::int64_t group;  // one that kernels/gemm/gemv_quantized.hpp lists
    bool offsets;        // int4 without them: code 8 is 0
    DType dtype;         // of what it stands for
    // Where codes are in another order along k: the column that each is of. Else null.
    std::shared_ptr<const std::vector<std::int32_t>> columns = nullptr;
    std::function<void(std::int64_t row, std::uint8_t* codes, float* scales, float* offsets)> read;
};
// Whether two matrices' rows may follow each other in one, and the one that they make.
bool same_form(const CodedMatrix& a, const CodedMatrix& b);
CodedMatrix join_rows(const CodedMatrix& first, const CodedMatrix& second);

// The same codes, scales and offsets in the kernels' order.
QuantizedWeight pack_codes(Device& device, const CodedMatrix& matrix);

// Rows of a quantised table by ids (int32, any shape), as embedding() gives those of an array: ids.shape +
// (k,) of float32, float16 or bfloat16.
Array embedding(const QuantizedWeight& table, const Array& ids, DType dtype, const Array* out = nullptr);

// x (rows, k) or a copy of it whose rows begin at 16 bytes, as kernels of few rows want it.
Array aligned_rows(const Array& x);

// Weights [n, k] of so many experts, one after another, each in `format` as quantize() makes it.
class QuantizedExperts {
   public:
    QuantizedExperts(Device& device, QuantFormat format, std::int64_t experts, std::int64_t n, std::int64_t k,
                     DType dtype);
    std::int64_t experts() const noexcept { return experts_; }
    // The form of all, and their arrays, with an axis of experts in front.
    const QuantizedWeight& all() const noexcept { return all_; }
    QuantizedWeight expert(std::int64_t index) const;
    void set(std::int64_t index, const Array& weight) const;

   private:
    std::int64_t experts_;
    QuantizedWeight all_;
};

// As grouped_linear of the dequantised weights: x (rows, k) sorted by expert, offsets (experts + 1) int32 on
// the device; with `gate`, n is 2 h, gates first, and the result (rows, h). Few rows an expert multiply with
// the codes, of more the experts are dequantised in parts.
Array grouped_linear(const Array& x, const QuantizedExperts& weight, const Array& offsets,
                     std::optional<GluOp> gate = std::nullopt);

}  // namespace gpk::ops
