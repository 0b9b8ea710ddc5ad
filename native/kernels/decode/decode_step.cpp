#include "kernels/decode/decode_step.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "kernels/attention/attend_host.hpp"
#include "kernels/attention/rope_host.hpp"
#include "kernels/decode/decode_texts.hpp"
#include "kernels/gemm/gate_host.hpp"
#include "kernels/gemm/gemv_host.hpp"
#include "kernels/gemm/quantized_host.hpp"
#include "kernels/host.hpp"

namespace gpk {
extern const Image image_decode_step_bfloat16_sm90, image_decode_step_float16_sm90;
extern const Image image_decode_step_codes_bfloat16_sm90, image_decode_step_codes_float16_sm90;
extern const Image image_decode_texts_bfloat16_sm90, image_decode_texts_float16_sm90;
}  // namespace gpk

namespace gpk::kernels {

namespace {

template <class T, int D>
struct HostStep {
    const DecodeStepParams& p;
    const std::int64_t cache;  // elements before the text's keys
    const std::int32_t position;
    const RopeAngles angles;
    const std::int64_t of_heads = std::int64_t{p.heads} * D, kv = std::int64_t{p.kv_heads} * D;
    std::vector<T> hidden, x, qkv;
    std::vector<float> sums;

    explicit HostStep(const DecodeStepParams& p, std::int64_t cache = 0)
        : p(p), cache(cache), position(*p.position), angles(p.rope, static_cast<float>(position)) {}

    static float at(const void* of, std::int64_t i) {
        return of == nullptr ? 0.0f : static_cast<float>(static_cast<const T*>(of)[i]);
    }

    // sums = weights x + bias
    void multiply(const void* weights, const DecodeCodes& codes, const void* bias, std::int64_t n) {
        sums.resize(static_cast<std::size_t>(n));
        multiply(weights, codes, n, sums.data());
        for (std::int64_t i = 0; bias != nullptr && i < n; ++i)
            sums[static_cast<std::size_t>(i)] += at(bias, i);
    }
    void multiply(const void* weights, const DecodeCodes& codes, std::int64_t n, float* to) const {
        const auto k = static_cast<std::int64_t>(x.size());
        if (codes.bits != 16) return multiply_codes(codes.layout(weights, n, k), to);
        GemmProblem problem{};
        problem.batches = 1;
        problem.a = x.data(), problem.b = weights, problem.c = to;
        problem.m = 1, problem.n = n, problem.k = k;
        problem.a_row = k, problem.a_col = 1;
        problem.b_row = 1, problem.b_col = k;
        problem.c_row = n, problem.c_col = 1;
        gemv_rows_host<T, float>(problem);
    }
    void multiply_codes(const QuantLayout& w, float* to) const {
        const QuantizedRows row(
            w, 1, [&](int, std::int64_t i) { return static_cast<float>(x[static_cast<std::size_t>(i)]); });
        parallel_for(quant_tiles(w.n), 2, [&](std::int64_t begin, std::int64_t end) {
            float of_tile[kQuantRows];
            for (std::int64_t tile = begin; tile < end; ++tile) {
                row.multiply(tile, of_tile);
                const std::int64_t first = tile * kQuantRows;
                std::copy_n(of_tile, std::min<std::int64_t>(kQuantRows, w.n - first), to + first);
            }
        });
    }
    void normalize(const void* weight) {
        double squares = 0;
        for (const T each : hidden) {
            const auto value = static_cast<double>(static_cast<float>(each));
            squares += value * value;
        }
        const auto mean = static_cast<float>(squares / p.hidden);
        const float scale = 1.0f / std::sqrt(mean + p.norm_eps);
        x.resize(hidden.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
            x[i] = T(static_cast<float>(hidden[i]) * scale * at(weight, static_cast<std::int64_t>(i)));
        }
    }
    void add_to_hidden() {
        for (std::size_t i = 0; i < hidden.size(); ++i)
            hidden[i] = T(static_cast<float>(hidden[i]) + static_cast<float>(T(sums[i])));
    }

    std::vector<float> normalized_head(const T* head, const void* weight) const {
        std::vector<float> y(head, head + D);
        if (weight == nullptr) return y;
        float squares = 0;
        for (const float each : y) squares += each * each;
        const float scale = 1.0f / std::sqrt(squares / D + p.norm_eps);
        for (int i = 0; i < D; ++i) y[static_cast<std::size_t>(i)] *= scale * at(weight, i);
        return y;
    }
    void attend(const DecodeStepLayer& layer) {
        T *q = qkv.data(), *k = q + of_heads, *v = k + kv;
        for (std::int64_t head = 0; head < p.heads; ++head)
            rotate_head(normalized_head(q + head * D, layer.q_norm).data(), q + head * D, D, angles);
        const std::int64_t stride = std::int64_t{p.capacity} * D;
        T *keys = static_cast<T*>(layer.keys) + cache, *values = static_cast<T*>(layer.values) + cache;
        for (std::int64_t head = 0; head < p.kv_heads && position < p.capacity; ++head) {
            const std::int64_t place = head * stride + std::int64_t{position} * D;
            rotate_head(normalized_head(k + head * D, layer.k_norm).data(), keys + place, D, angles);
            std::copy_n(v + head * D, D, values + place);
        }
        const std::int64_t last = std::min(position, p.capacity - 1);
        const std::int64_t first = std::max<std::int64_t>(last - layer.left, 0);
        x.resize(static_cast<std::size_t>(of_heads));
        parallel_for(p.heads, 1, [&](std::int64_t begin, std::int64_t end) {
            HostAttention attention;
            for (std::int64_t head = begin; head < end; ++head) {
                const std::int64_t from = head / (p.heads / p.kv_heads) * stride + first * D;
                const KeyRange<T> range{keys + from, values + from, D, D, last - first + 1, D};
                attention.score(range, q + head * D, p.scale);
                attention.combine(range, x.data() + head * D);
            }
        });
    }

    void embed() {
        const std::int64_t token = *p.token;
        if (p.embedding_codes.bits == 16) {
            std::copy_n(static_cast<const T*>(p.embedding) + token * p.hidden, p.hidden, hidden.begin());
            return;
        }
        const QuantLayout table = p.embedding_codes.layout(p.embedding, p.vocab, p.hidden);
        for (std::size_t i = 0; i < hidden.size(); ++i)
            hidden[i] = T(dequantized(table, token, static_cast<std::int64_t>(i)));
    }

    void run() {
        if (position < 0) return;
        hidden.assign(static_cast<std::size_t>(p.hidden), T(0.0f));
        if (*p.token >= 0 && *p.token < p.vocab) embed();
        for (std::int32_t i = 0; i < p.layer_count; ++i) {
            const DecodeStepLayer& layer = p.layers[i];
            const auto codes = [&](DecodePart part) {
                return p.codes == nullptr ? DecodeCodes::none() : p.codes[i].of[static_cast<int>(part)];
            };
            normalize(layer.attention_norm);
            multiply(layer.qkv, codes(DecodePart::qkv), layer.qkv_bias, of_heads + 2 * kv);
            qkv.resize(sums.size());
            std::transform(sums.begin(), sums.end(), qkv.begin(), [](float sum) { return T(sum); });
            attend(layer);
            multiply(layer.out, codes(DecodePart::out), layer.out_bias, p.hidden);
            add_to_hidden();
            normalize(layer.mlp_norm);
            multiply(layer.gate_up, codes(DecodePart::gate_up), layer.gate_up_bias,
                     2 * std::int64_t{p.intermediate});
            x.resize(static_cast<std::size_t>(p.intermediate));
            gate_rows(p.glu, sums.data(), 1, p.intermediate, x.data(), p.intermediate);
            multiply(layer.down, codes(DecodePart::down), layer.down_bias, p.hidden);
            add_to_hidden();
        }
        normalize(p.final_norm);
        multiply(p.head, p.head_codes, p.vocab, p.logits);
        if (p.chooses) choose();
    }
    void choose() const {
        std::int32_t best = 0;
        for (std::int32_t i = 1; i < p.num_tokens && !std::isnan(p.logits[best]); ++i)
            if (std::isnan(p.logits[i]) || p.logits[i] > p.logits[best]) best = i;
        if (!std::isfinite(p.logits[best])) best = -1;
        *p.token = best;
        *p.position = position + 1;
        if (p.log != nullptr && position + 1 < p.log_size) p.log[position + 1] = best;
    }
};

template <class T, int D>
void decode_step_host(const DecodeStepParams& p) {
    HostStep<T, D>(p).run();
}
template <class T, int D>
void decode_texts_host(const DecodeTextsParams& p) {
    for (std::int32_t text = 0; text < p.texts; ++text) {
        DecodeStepParams of_text = p.step;
        of_text.token += text, of_text.position += text;
        of_text.logits += std::int64_t{text} * p.step.vocab;
        HostStep<T, D>(of_text, text * p.text_cache).run();
    }
}

#define GPK_ROW(d, symbol, image_name, host)              \
    Kernel(KernelDef{.name = #symbol "_d" #d,             \
                     .image = &image_##image_name##_sm90, \
                     .twin = host,                        \
                     .max_shared_bytes = kAllSharedBytes, \
                     .waits_for_predecessor = true}),
#define GPK_STEP(T, d, symbol, image_name) \
    GPK_ROW(d, symbol, image_name, (twin<DecodeStepParams, decode_step_host<T, d>>))
#define GPK_PLAIN(T, type, d) GPK_STEP(T, d, decode_step_##type, decode_step_##type)
#define GPK_CODES(T, type, d, form) GPK_STEP(T, d, decode_step_##form##_##type, decode_step_codes_##type)
#define GPK_TEXTS(T, type, d) \
    GPK_ROW(d, decode_texts_##type, decode_texts_##type, (twin<DecodeTextsParams, decode_texts_host<T, d>>))
// Of float16 and of bfloat16: those of numbers, then those of each DecodeForm, with heads of 64 and of 128.
const Kernel kKernels[2][8] = {{GPK_DECODE_STEP_FLOAT16(GPK_PLAIN) GPK_DECODE_CODES_FLOAT16(GPK_CODES)},
                               {GPK_DECODE_STEP_BFLOAT16(GPK_PLAIN) GPK_DECODE_CODES_BFLOAT16(GPK_CODES)}};
const Kernel kTexts[2][2] = {{GPK_DECODE_TEXTS_FLOAT16(GPK_TEXTS)}, {GPK_DECODE_TEXTS_BFLOAT16(GPK_TEXTS)}};
#undef GPK_TEXTS
#undef GPK_CODES
#undef GPK_PLAIN
#undef GPK_STEP
#undef GPK_ROW

}  // namespace

const Kernel* decode_texts(DType dtype, std::int64_t head_dim) {
    if (decode_step(dtype, head_dim, std::nullopt) == nullptr) return nullptr;
    return &kTexts[dtype == DType::bfloat16 ? 1 : 0][head_dim == 128 ? 1 : 0];
}
const Kernel* decode_step(DType dtype, std::int64_t head_dim, std::optional<DecodeForm> codes) {
    if ((head_dim != 64 && head_dim != 128) || (dtype != DType::float16 && dtype != DType::bfloat16))
        return nullptr;
    const int row = codes ? 1 + static_cast<int>(*codes) : 0;
    return &kKernels[dtype == DType::bfloat16 ? 1 : 0][2 * row + (head_dim == 128 ? 1 : 0)];
}

}  // namespace gpk::kernels
