// The rotation frequencies of the variants of rotary embedding by which models read more tokens than they
// were trained with. Host functions: a model makes its table once.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace gpk::ops {

// plain      Su et al. 2021, arXiv:2104.09864
// linear     positions divided by the factor: Chen et al. 2023, arXiv:2306.15595
// dynamic    a base that grows with the sequence ("NTK-aware")
// yarn       Peng et al. 2023, arXiv:2309.00071: low frequencies as linear, high ones as plain
// longrope   Ding et al. 2024, arXiv:2402.13753: a factor for each frequency, another set for long sequences
// llama3     Llama 3.1's: as yarn, with other bounds between low and high
enum class RopeVariant : std::uint8_t { plain, linear, dynamic, yarn, longrope, llama3 };

// Throws Error (value), naming `call`, for another name.
RopeVariant rope_variant(const char* call, std::string_view name);

// Names are those of Hugging Face's configurations where it has one.
struct RopeSettings {
    RopeVariant variant = RopeVariant::plain;
    std::int64_t d = 0;  // elements of a head that turn; even
    double theta = 10000;
    double factor = 1;  // linear, dynamic, yarn, llama3; longrope: the new context over the old
    double original_max_positions = 8192;  // tokens that the model was first trained with; not plain, linear
    double sequence_length = 0;            // dynamic, longrope: the tokens that the table is for
    double low_freq_factor = 1;            // llama3
    double high_freq_factor = 4;
    double beta_fast = 32;  // yarn: turns over the original context above which nothing is divided,
    double beta_slow = 1;   // and below which all is
    bool truncate = true;   // yarn: whether the two bounds are rounded to whole elements
    double mscale = 0;      // yarn, of attention_factor where both are given
    double mscale_all_dim = 0;
    std::optional<double> attention_factor =
        std::nullopt;                       // of cosine and sine; yarn and longrope know their own
    std::vector<double> short_factor = {};  // longrope: [d / 2], for up to original_max_positions tokens
    std::vector<double> long_factor = {};   // and for more
};

struct RopeFrequencies {
    std::vector<float> inv_freq;  // [d / 2]
    double attention_factor = 1;
};

// float32 throughout, as transformers computes it, so that large positions turn alike. Throws Error (value),
// naming `call` and the setting, for numbers that make no table.
RopeFrequencies rope_frequencies(const char* call, const RopeSettings& settings);

}  // namespace gpk::ops
