#include "llm/config.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/error.hpp"
#include "ops/rope_frequencies.hpp"

namespace gpk::llm {

namespace {

// Bounds that keep every product of two sizes far inside int64.
constexpr std::int64_t kMaxSize = 1 << 28;
constexpr std::int64_t kMaxLayers = 1 << 14;

struct ScalingName {
    std::string_view name;
    RopeScaling scaling;
};
constexpr ScalingName kScalings[] = {
    {"default", RopeScaling::none},
    {"none", RopeScaling::none},
    {"linear", RopeScaling::linear},
    {"llama3", RopeScaling::llama3},
};

RopeScaling scaling_from_name(const std::string& what, const std::string& name) {
    const auto found = std::find_if(std::begin(kScalings), std::end(kScalings),
                                    [&](const ScalingName& each) { return each.name == name; });
    if (found != std::end(kScalings)) return found->scaling;
    throw error(ErrorKind::unsupported, {.call = what,
                                         .argument = "rope_type",
                                         .expected = "default, linear or llama3",
                                         .got = io::json_quoted(name)});
}

// Typed reads of one JSON object. A key that is null counts as missing.
class Reader {
   public:
    Reader(const io::Json& json, std::string what) : json_(&json), what_(std::move(what)) {}

    const io::Json* find(std::string_view key) const {
        const io::Json* value = json_->find(key);
        return value == nullptr || value->is_null() ? nullptr : value;
    }
    std::int64_t integer(std::string_view key) const {
        const io::Json* value = find(key);
        if (value == nullptr) throw wrong(key, "an integer", "nothing");
        if (value->integer() == nullptr) throw wrong(key, "an integer", value->kind());
        return *value->integer();
    }
    std::int64_t integer(std::string_view key, std::int64_t fallback) const {
        return find(key) == nullptr ? fallback : integer(key);
    }
    double number(std::string_view key) const {
        const io::Json* value = find(key);
        if (value == nullptr) throw wrong(key, "a number", "nothing");
        if (!value->is_number()) throw wrong(key, "a number", value->kind());
        return value->number();
    }
    double number(std::string_view key, double fallback) const {
        return find(key) == nullptr ? fallback : number(key);
    }
    bool boolean(std::string_view key, bool fallback) const {
        const io::Json* value = find(key);
        if (value == nullptr) return fallback;
        if (value->boolean() == nullptr) throw wrong(key, "true or false", value->kind());
        return *value->boolean();
    }
    std::string string(std::string_view key, std::string_view fallback) const {
        const io::Json* value = find(key);
        if (value == nullptr) return std::string(fallback);
        if (value->string() == nullptr) throw wrong(key, "a string", value->kind());
        return *value->string();
    }
    // The object under `key`, or nothing.
    std::optional<Reader> object(std::string_view key) const {
        const io::Json* value = find(key);
        if (value == nullptr) return std::nullopt;
        if (value->object() == nullptr) throw wrong(key, "an object", value->kind());
        return Reader(*value, what_);
    }
    Error wrong(std::string_view key, std::string_view expected, std::string_view got) const {
        return error(ErrorKind::file, {.call = what_,
                                       .argument = std::string(key),
                                       .expected = std::string(expected),
                                       .got = std::string(got)});
    }
    const std::string& what() const { return what_; }

   private:
    const io::Json* json_;
    std::string what_;
};

// "rope_parameters" of transformers 5 holds what "rope_theta" and "rope_scaling" held before.
RopeConfig rope_from_json(const Reader& root) {
    RopeConfig rope;
    rope.theta = root.number("rope_theta", rope.theta);
    std::optional<Reader> parameters = root.object("rope_parameters");
    if (!parameters) parameters = root.object("rope_scaling");
    if (!parameters) return rope;
    rope.theta = parameters->number("rope_theta", rope.theta);
    if (parameters->number("partial_rotary_factor", 1) != 1) {
        throw parameters->wrong("partial_rotary_factor", "1", "another number");
    }
    rope.scaling = scaling_from_name(root.what(),
                                     parameters->string("rope_type", parameters->string("type", "default")));
    if (rope.scaling == RopeScaling::none) return rope;
    rope.factor = parameters->number("factor");
    if (rope.scaling == RopeScaling::linear) return rope;
    rope.low_freq_factor = parameters->number("low_freq_factor");
    rope.high_freq_factor = parameters->number("high_freq_factor");
    rope.original_max_positions = parameters->number("original_max_position_embeddings");
    return rope;
}

}  // namespace

void LlamaConfig::validate(const std::string& what) const {
    const auto require = [&](bool holds, const char* field, const char* expected, const std::string& got) {
        if (!holds)
            throw error(ErrorKind::file, {.call = what, .argument = field, .expected = expected, .got = got});
    };
    const struct {
        const char* field;
        std::int64_t value;
        std::int64_t limit;
    } sizes[] = {
        {"vocab_size", vocab_size, kMaxSize},      {"num_tokens", num_tokens, vocab_size},
        {"hidden_size", hidden_size, kMaxSize},    {"intermediate_size", intermediate_size, kMaxSize},
        {"num_layers", num_layers, kMaxLayers},    {"num_heads", num_heads, 1 << 15},
        {"num_kv_heads", num_kv_heads, num_heads}, {"head_dim", head_dim, 256},
        {"max_positions", max_positions, 1 << 30},
    };
    for (const auto& size : sizes) {
        require(size.value >= 1 && size.value <= size.limit, size.field,
                str("a number from 1 to ", size.limit).c_str(), str(size.value));
    }
    require(head_dim % 2 == 0, "head_dim", "an even number", str(head_dim));
    require(num_heads % num_kv_heads == 0, "num_kv_heads", str("a divisor of ", num_heads, " heads").c_str(),
            str(num_kv_heads));
    const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
    require(std::isfinite(rms_norm_eps) && rms_norm_eps >= 0, "rms_norm_eps", "a number >= 0",
            str(rms_norm_eps));
    require(positive(rope.theta), "rope_theta", "a number > 0", str(rope.theta));
    require(positive(rope.factor), "rope factor", "a number > 0", str(rope.factor));
    if (rope.scaling == RopeScaling::llama3) {
        require(positive(rope.low_freq_factor), "low_freq_factor", "a number > 0", str(rope.low_freq_factor));
        require(std::isfinite(rope.high_freq_factor) && rope.high_freq_factor > rope.low_freq_factor,
                "high_freq_factor", "a number above low_freq_factor", str(rope.high_freq_factor));
        require(positive(rope.original_max_positions), "original_max_position_embeddings", "a number > 0",
                str(rope.original_max_positions));
    }
}

LlamaConfig LlamaConfig::from_json(const io::Json& json, const std::string& what) {
    if (json.object() == nullptr) {
        throw error(ErrorKind::file,
                    {.call = what, .expected = "a JSON object", .got = std::string(json.kind())});
    }
    const Reader reader(json, what);
    if (const std::string type = reader.string("model_type", "llama"); type != "llama") {
        throw error(
            ErrorKind::unsupported,
            {.call = what, .argument = "model_type", .expected = "llama", .got = io::json_quoted(type)});
    }
    if (const std::string act = reader.string("hidden_act", "silu"); act != "silu") {
        throw error(
            ErrorKind::unsupported,
            {.call = what, .argument = "hidden_act", .expected = "silu", .got = io::json_quoted(act)});
    }
    LlamaConfig config;
    config.vocab_size = reader.integer("vocab_size");
    config.num_tokens = config.vocab_size;
    config.hidden_size = reader.integer("hidden_size");
    config.intermediate_size = reader.integer("intermediate_size");
    config.num_layers = reader.integer("num_hidden_layers");
    config.num_heads = reader.integer("num_attention_heads");
    config.num_kv_heads = reader.integer("num_key_value_heads", config.num_heads);
    config.head_dim =
        reader.integer("head_dim", config.num_heads > 0 ? config.hidden_size / config.num_heads : 0);
    config.max_positions = reader.integer("max_position_embeddings", 2048);
    config.rms_norm_eps = reader.number("rms_norm_eps", 1e-6);
    config.rope = rope_from_json(reader);
    config.attention_bias = reader.boolean("attention_bias", false);
    config.mlp_bias = reader.boolean("mlp_bias", false);
    config.tie_word_embeddings = reader.boolean("tie_word_embeddings", false);
    config.validate(what);
    return config;
}

LlamaConfig LlamaConfig::from_gguf(const io::Gguf& file) {
    const std::string& what = file.path();
    if (const std::string& architecture = file.string("general.architecture"); architecture != "llama") {
        throw error(ErrorKind::unsupported, {.call = what,
                                             .argument = "general.architecture",
                                             .expected = "llama",
                                             .got = io::json_quoted(architecture)});
    }
    LlamaConfig config;
    const io::TensorView& embedding = file.tensor("token_embd.weight");
    config.vocab_size = embedding.shape.empty() ? 0 : embedding.shape[0];
    config.num_tokens = config.vocab_size;
    if (const io::GgufValue* tokens = file.find_metadata("tokenizer.ggml.tokens")) {
        if (const auto* array = std::get_if<std::shared_ptr<const io::GgufArray>>(&tokens->value)) {
            config.num_tokens = std::min(config.vocab_size, static_cast<std::int64_t>((*array)->count));
        }
    }
    config.hidden_size = file.integer("llama.embedding_length");
    config.intermediate_size = file.integer("llama.feed_forward_length");
    config.num_layers = file.integer("llama.block_count");
    config.num_heads = file.integer("llama.attention.head_count");
    config.num_kv_heads = file.integer("llama.attention.head_count_kv", config.num_heads);
    const std::int64_t width = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
    config.head_dim = file.integer("llama.attention.key_length", width);
    config.max_positions = file.integer("llama.context_length");
    config.rms_norm_eps = file.number("llama.attention.layer_norm_rms_epsilon");
    config.rope.theta = file.number("llama.rope.freq_base", config.rope.theta);
    config.rope.scaling = scaling_from_name(what, file.string("llama.rope.scaling.type", "none"));
    if (config.rope.scaling == RopeScaling::linear)
        config.rope.factor = file.number("llama.rope.scaling.factor");
    if (config.rope.scaling == RopeScaling::llama3) {  // GGUF has it as the tensor rope_freqs.weight
        throw error(ErrorKind::unsupported, {.call = what,
                                             .argument = "llama.rope.scaling.type",
                                             .expected = "none or linear",
                                             .got = "\"llama3\""});
    }
    const auto require_head_dim = [&](const char* key) {
        if (const std::int64_t value = file.integer(key, config.head_dim); value != config.head_dim) {
            throw error(ErrorKind::unsupported,
                        {.call = what, .argument = key, .expected = str(config.head_dim), .got = str(value)});
        }
    };
    require_head_dim("llama.attention.value_length");
    require_head_dim("llama.rope.dimension_count");
    config.attention_bias = file.find("blk.0.attn_q.bias") != nullptr;
    config.mlp_bias = file.find("blk.0.ffn_gate.bias") != nullptr;
    config.tie_word_embeddings = file.find("output.weight") == nullptr;
    config.validate(what);
    return config;
}

std::vector<float> rope_frequencies(const LlamaConfig& config) {
    const RopeConfig& rope = config.rope;
    const auto variant = [&] {
        switch (rope.scaling) {
            case RopeScaling::linear: return ops::RopeVariant::linear;
            case RopeScaling::llama3: return ops::RopeVariant::llama3;
            case RopeScaling::none: break;
        }
        return ops::RopeVariant::plain;
    }();
    return ops::rope_frequencies("rope", {.variant = variant,
                                          .d = config.head_dim,
                                          .theta = rope.theta,
                                          .factor = rope.factor,
                                          .original_max_positions = rope.original_max_positions,
                                          .low_freq_factor = rope.low_freq_factor,
                                          .high_freq_factor = rope.high_freq_factor})
        .inv_freq;
}

}  // namespace gpk::llm
