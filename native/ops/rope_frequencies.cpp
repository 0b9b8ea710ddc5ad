#include "ops/rope_frequencies.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "base/error.hpp"

namespace gpk::ops {

namespace {

constexpr std::int64_t kMostElements = 1 << 16;

struct Name {
    std::string_view name;
    RopeVariant variant;
};
constexpr Name kNames[] = {
    {"plain", RopeVariant::plain}, {"linear", RopeVariant::linear},     {"dynamic", RopeVariant::dynamic},
    {"yarn", RopeVariant::yarn},   {"longrope", RopeVariant::longrope}, {"llama3", RopeVariant::llama3},
};

void require(const char* call, const char* argument, bool holds, const char* expected, double got) {
    if (holds) return;
    throw error(ErrorKind::value,
                {.call = call, .argument = argument, .expected = expected, .got = str(got)});
}

bool positive(double value) { return std::isfinite(value) && value > 0; }

void validate(const char* call, const RopeSettings& s) {
    const auto is = [&](auto... variants) { return ((s.variant == variants) || ...); };
    using enum RopeVariant;
    require(call, "d", s.d >= 2 && s.d % 2 == 0 && s.d <= kMostElements, "an even number from 2 to 65536",
            static_cast<double>(s.d));
    require(call, "theta", positive(s.theta), "a finite number > 0", s.theta);
    require(call, "factor", positive(s.factor), "a finite number > 0", s.factor);
    if (s.attention_factor) {
        require(call, "attention_factor", positive(*s.attention_factor), "a finite number > 0",
                *s.attention_factor);
    }
    if (!is(plain, linear)) {
        require(call, "original_max_positions",
                positive(s.original_max_positions) && (!is(longrope) || s.original_max_positions > 1),
                is(longrope) ? "a finite number > 1" : "a finite number > 0", s.original_max_positions);
    }
    if (is(dynamic, longrope)) {
        require(call, "sequence_length", std::isfinite(s.sequence_length) && s.sequence_length >= 0,
                "0 or more", s.sequence_length);
    }
    if (is(dynamic)) require(call, "d", s.d > 2, "more than 2 for 'dynamic'", static_cast<double>(s.d));
    if (is(llama3)) {
        require(call, "low_freq_factor", positive(s.low_freq_factor), "a finite number > 0",
                s.low_freq_factor);
        require(call, "high_freq_factor",
                std::isfinite(s.high_freq_factor) && s.high_freq_factor > s.low_freq_factor,
                "a number above low_freq_factor", s.high_freq_factor);
    }
    if (is(yarn)) {
        require(call, "theta", s.theta > 1, "a number above 1 for 'yarn'", s.theta);
        require(call, "beta_slow", positive(s.beta_slow), "a finite number > 0", s.beta_slow);
        require(call, "beta_fast", std::isfinite(s.beta_fast) && s.beta_fast >= s.beta_slow,
                "a number of at least beta_slow", s.beta_fast);
        require(call, "mscale", std::isfinite(s.mscale) && s.mscale >= 0, "0 or more", s.mscale);
        require(call, "mscale_all_dim", std::isfinite(s.mscale_all_dim) && s.mscale_all_dim >= 0, "0 or more",
                s.mscale_all_dim);
    }
    if (is(longrope)) {
        for (const auto& [argument, factors] :
             {std::pair{"short_factor", &s.short_factor}, std::pair{"long_factor", &s.long_factor}}) {
            if (static_cast<std::int64_t>(factors->size()) != s.d / 2) {
                throw error(ErrorKind::value, {.call = call,
                                               .argument = argument,
                                               .expected = str(s.d / 2, " numbers"),
                                               .got = str(factors->size())});
            }
            for (const double value : *factors)
                require(call, argument, positive(value), "finite numbers > 0", value);
        }
    }
}

// What a plain frequency is the reciprocal of.
float period(double theta, std::int64_t i, std::int64_t d) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(d);
    return static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
}

// The theta of a sequence longer than the model was trained with.
double dynamic_theta(const RopeSettings& s) {
    const double length = std::max(s.sequence_length, s.original_max_positions);
    const double stretch = s.factor * length / s.original_max_positions - (s.factor - 1);
    const auto d = static_cast<double>(s.d);
    return s.theta * std::pow(stretch, d / (d - 2));
}

float llama3_frequency(const RopeSettings& s, float frequency) {
    const auto factor = static_cast<float>(s.factor), context = static_cast<float>(s.original_max_positions);
    const auto low = static_cast<float>(s.low_freq_factor), high = static_cast<float>(s.high_freq_factor);
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
    if (wavelength > context / low) return frequency / factor;
    if (wavelength < context / high) return frequency;
    const float smooth = (context / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

// Between which elements the frequencies go over from plain to divided: those that turn beta_fast and
// beta_slow times over the original context.
struct YarnRange {
    double low, high;

    explicit YarnRange(const RopeSettings& s) {
        const auto element_of = [&](double turns) {
            return static_cast<double>(s.d) *
                   std::log(s.original_max_positions / (turns * 2 * std::numbers::pi)) /
                   (2 * std::log(s.theta));
        };
        low = element_of(s.beta_fast), high = element_of(s.beta_slow);
        if (s.truncate) low = std::floor(low), high = std::ceil(high);
        low = std::max(low, 0.0);
        high = std::min(high, static_cast<double>(s.d - 1));
        if (low == high) high += 0.001;
    }
    float divided(std::int64_t i) const {
        const double ramp = (static_cast<double>(i) - low) / (high - low);
        return static_cast<float>(std::clamp(ramp, 0.0, 1.0));
    }
};

float yarn_frequency(const RopeSettings& s, const YarnRange& range, std::int64_t i) {
    const float plain = period(s.theta, i, s.d), share = range.divided(i);
    return share / (static_cast<float>(s.factor) * plain) + (1 - share) / plain;
}

double yarn_scale(double factor, double mscale) {
    return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double attention_factor(const RopeSettings& s) {
    if (s.attention_factor) return *s.attention_factor;
    switch (s.variant) {
        case RopeVariant::yarn:
            return s.mscale > 0 && s.mscale_all_dim > 0
                       ? yarn_scale(s.factor, s.mscale) / yarn_scale(s.factor, s.mscale_all_dim)
                       : yarn_scale(s.factor, 1);
        case RopeVariant::longrope:
            return s.factor <= 1 ? 1.0
                                 : std::sqrt(1 + std::log(s.factor) / std::log(s.original_max_positions));
        default: return 1;
    }
}

}  // namespace

RopeVariant rope_variant(const char* call, std::string_view name) {
    std::string known;
    for (const Name& each : kNames) {
        if (each.name == name) return each.variant;
        known += str(known.empty() ? "'" : ", '", each.name, "'");
    }
    throw error(ErrorKind::value,
                {.call = call, .argument = "variant", .expected = known, .got = str("'", name, "'")});
}

RopeFrequencies rope_frequencies(const char* call, const RopeSettings& s) {
    validate(call, s);
    RopeFrequencies out{.inv_freq = std::vector<float>(static_cast<std::size_t>(s.d / 2)),
                        .attention_factor = attention_factor(s)};
    const double theta = s.variant == RopeVariant::dynamic ? dynamic_theta(s) : s.theta;
    const auto& factors = s.sequence_length > s.original_max_positions ? s.long_factor : s.short_factor;
    const YarnRange yarn(s);  // of no meaning to the other variants
    for (std::int64_t i = 0; i < s.d / 2; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const float plain = 1.0f / period(theta, i, s.d);
        out.inv_freq[at] = [&] {
            switch (s.variant) {
                case RopeVariant::linear: return plain / static_cast<float>(s.factor);
                case RopeVariant::yarn: return yarn_frequency(s, yarn, i);
                case RopeVariant::longrope:
                    return 1.0f / (static_cast<float>(factors[at]) * period(theta, i, s.d));
                case RopeVariant::llama3: return llama3_frequency(s, plain);
                case RopeVariant::plain:
                case RopeVariant::dynamic: break;
            }
            return plain;
        }();
    }
    return out;
}

}  // namespace gpk::ops
