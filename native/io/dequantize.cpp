#include "io/dequantize.hpp"

#include <algorithm>
#include <cstring>

#include "base/error.hpp"
#include "base/float_types.hpp"
#include "base/parallel.hpp"
#include "io/ggml_blocks.hpp"
#include "kernels/host.hpp"

namespace gpk::io {

namespace {

// -- Stored elements -> float32 --------------------------------------------------------------------

// `blocks` blocks (single elements of a plain type) from bytes of any alignment.
using Decode = void (*)(const std::byte* from, std::int64_t blocks, float* to);

template <class T>
inline void decode_plain(const std::byte* from, std::int64_t count, float* to) {
    for (std::int64_t i = 0; i < count; ++i) {
        T value;
        std::memcpy(&value, from + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
        to[i] = static_cast<float>(value);
    }
}

GPK_SIMD void decode_f16(const std::byte* from, std::int64_t count, float* to) {
    decode_plain<float16>(from, count, to);
}
GPK_SIMD void decode_bf16(const std::byte* from, std::int64_t count, float* to) {
    decode_plain<bfloat16>(from, count, to);
}
void decode_f32(const std::byte* from, std::int64_t count, float* to) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
}

template <class T>
Decode decoder_of() {
    return [](const std::byte* from, std::int64_t count, float* to) { decode_plain<T>(from, count, to); };
}

Decode decoder(StoredType type) {
    switch (type) {
        case StoredType::f16: return decode_f16;
        case StoredType::bf16: return decode_bf16;
        case StoredType::f32: return decode_f32;
        case StoredType::f64: return decoder_of<double>();
        case StoredType::f8_e4m3: return decoder_of<float8_e4m3>();
        case StoredType::f8_e5m2: return decoder_of<float8_e5m2>();
        case StoredType::q4_0: return decode_q4_0;
        case StoredType::q4_1: return decode_q4_1;
        case StoredType::q5_0: return decode_q5_0;
        case StoredType::q5_1: return decode_q5_1;
        case StoredType::q8_0: return decode_q8_0;
        case StoredType::q2_k: return decode_q2_k;
        case StoredType::q3_k: return decode_q3_k;
        case StoredType::q4_k: return decode_q4_k;
        case StoredType::q5_k: return decode_q5_k;
        case StoredType::q6_k: return decode_q6_k;
        default: return nullptr;  // integers and bools
    }
}

// -- float32 -> elements of the target -------------------------------------------------------------

using Encode = void (*)(const float* from, std::int64_t count, std::byte* to);

template <class T>
inline void encode_plain(const float* from, std::int64_t count, std::byte* to) {
    for (std::int64_t i = 0; i < count; ++i) {
        const T value(from[i]);
        std::memcpy(to + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
    }
}

GPK_SIMD void encode_f16(const float* from, std::int64_t count, std::byte* to) {
    encode_plain<float16>(from, count, to);
}
GPK_SIMD void encode_bf16(const float* from, std::int64_t count, std::byte* to) {
    encode_plain<bfloat16>(from, count, to);
}

Encode encoder(DType dtype) {
    switch (dtype) {
        case DType::float16: return encode_f16;
        case DType::bfloat16: return encode_bf16;
        case DType::float32: return encode_plain<float>;
        case DType::float64: return encode_plain<double>;
        case DType::float8_e4m3: return encode_plain<float8_e4m3>;
        case DType::float8_e5m2: return encode_plain<float8_e5m2>;
        default: return nullptr;
    }
}

constexpr std::int64_t kTile = 4096;  // elements: whole blocks of every type, and the first cache holds it
constexpr std::int64_t kGrain = 16;   // tiles a thread takes at least

}  // namespace

void check_convertible(const TensorView& tensor, DType target) {
    if (target == tensor.dtype || (decoder(tensor.type) != nullptr && is_floating(target))) return;
    throw error(ErrorKind::type,
                {.call = str("load: tensor ", shown(tensor.name)),
                 .expected = is_floating(tensor.dtype) ? "a floating dtype" : std::string(name(tensor.dtype)),
                 .got = str(name(target), " for stored ", info(tensor.type).name)});
}

void convert(const TensorView& tensor, std::int64_t first, std::int64_t count, DType target,
             std::span<std::byte> out) {
    check_convertible(tensor, target);
    const StoredTypeInfo& stored = info(tensor.type);
    const std::int64_t size = tensor.size();
    if (first < 0 || count < 0 || first > size || count > size - first ||
        first % stored.block_elements != 0 || count % stored.block_elements != 0 ||
        out.size() != static_cast<std::size_t>(count) * itemsize(target)) {
        throw error(ErrorKind::value,
                    {.call = str("convert: tensor ", shown(tensor.name)),
                     .expected = str("whole blocks of its ", size, " elements, and room for them"),
                     .got = str(count, " elements from ", first, " and ", out.size(), " bytes")});
    }
    const std::byte* const from = tensor.bytes.data() + first / stored.block_elements * stored.block_bytes;
    const Decode decode = decoder(tensor.type);
    const Encode encode = encoder(target);
    const auto item_bytes = static_cast<std::int64_t>(itemsize(target));
    parallel_for((count + kTile - 1) / kTile, kGrain, [&](std::int64_t begin, std::int64_t end) {
        float values[kTile];
        for (std::int64_t tile = begin; tile < end; ++tile) {
            const std::int64_t start = tile * kTile;
            const std::int64_t elements = std::min(kTile, count - start);
            const std::int64_t blocks = elements / stored.block_elements;
            const std::byte* const source = from + start / stored.block_elements * stored.block_bytes;
            std::byte* const to = out.data() + start * item_bytes;
            if (tensor.type == StoredType::bool_) {
                // Any byte may be in the file; a bool is 0 or 1.
                std::transform(source, source + elements, to,
                               [](std::byte b) { return std::byte{b != std::byte{0}}; });
            } else if (target == tensor.dtype && !is_quantized(tensor.type)) {
                std::memcpy(to, source, static_cast<std::size_t>(elements * item_bytes));
            } else {
                decode(source, blocks, values);
                encode(values, elements, to);
            }
        }
    });
}

std::vector<float> read_float32(const TensorView& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.size()));
    convert(tensor, 0, tensor.size(), DType::float32, std::as_writable_bytes(std::span(values)));
    return values;
}

}  // namespace gpk::io
