#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "base/error.hpp"
#include "llm/architectures.hpp"
#include "llm/config.hpp"

namespace gpk::llm {

namespace {

// Typed reads of one JSON object. A key that is null counts as missing; what is missing may be in `defaults`.
class Reader {
   public:
    Reader(const io::Json& json, std::string what, const io::Json* defaults = nullptr)
        : json_(&json), defaults_(defaults), what_(std::move(what)) {}

    const io::Json* find(std::string_view key) const {
        const io::Json* value = json_->find(key);
        if (value != nullptr && !value->is_null()) return value;
        return defaults_ == nullptr ? nullptr : defaults_->find(key);
    }
    // The first of two names of one thing that is there; the first where neither is.
    std::string_view either(std::string_view key, std::string_view other) const {
        return find(key) == nullptr && find(other) != nullptr ? other : key;
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
    std::vector<double> numbers(std::string_view key) const {
        const io::Json* value = find(key);
        if (value == nullptr || value->array() == nullptr)
            throw wrong(key, "an array of numbers", value == nullptr ? "nothing" : value->kind());
        std::vector<double> out;
        for (const io::Json& each : *value->array()) {
            if (!each.is_number()) throw wrong(key, "an array of numbers", each.kind());
            out.push_back(each.number());
        }
        return out;
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
    const io::Json* defaults_;
    std::string what_;
};

template <class T>
struct Named {
    std::string_view name;
    T value;
};

template <class T, std::size_t N>
T from_name(const Reader& reader, std::string_view key, const std::string& name, const Named<T> (&table)[N]) {
    const auto found = std::find_if(std::begin(table), std::end(table),
                                    [&](const Named<T>& each) { return each.name == name; });
    if (found != std::end(table)) return found->value;
    std::string known;
    for (const Named<T>& each : table) known += (known.empty() ? "" : ", ") + std::string(each.name);
    throw error(ErrorKind::unsupported, {.call = reader.what(),
                                         .argument = std::string(key),
                                         .expected = "one of " + known,
                                         .got = io::json_quoted(name)});
}

constexpr Named<ops::RopeVariant> kRopeTypes[] = {
    {"default", ops::RopeVariant::plain},     {"linear", ops::RopeVariant::linear},
    {"dynamic", ops::RopeVariant::dynamic},   {"yarn", ops::RopeVariant::yarn},
    {"longrope", ops::RopeVariant::longrope}, {"llama3", ops::RopeVariant::llama3},
};
constexpr Named<Activation> kActivations[] = {
    {"silu", Activation::silu},
    {"gelu", Activation::gelu},
    {"gelu_new", Activation::gelu_tanh},
    {"gelu_pytorch_tanh", Activation::gelu_tanh},
};

// `parameters`: the rotation's own object, where there is one; `theta`: what stands outside of it.
ops::RopeSettings rope_from(const Reader& root, const std::optional<Reader>& parameters, double theta,
                            const ModelConfig& config) {
    ops::RopeSettings rope;
    rope.theta = theta;
    const Reader& r = parameters ? *parameters : root;
    const double part = r.number("partial_rotary_factor", root.number("partial_rotary_factor", 1));
    if (!(part > 0 && part <= 1)) throw r.wrong("partial_rotary_factor", "a number from 0 to 1", str(part));
    rope.d = static_cast<std::int64_t>(static_cast<double>(config.head_dim) * part);
    if (!parameters) return rope;
    rope.theta = r.number("rope_theta", rope.theta);
    const std::string_view key = r.either("rope_type", "type");
    rope.variant = from_name(r, key, r.string(key, "default"), kRopeTypes);
    if (rope.variant == ops::RopeVariant::plain) return rope;
    const double trained = static_cast<double>(config.max_positions);
    // dynamic has no context but the configuration's, as transformers computes it.
    rope.original_max_positions = rope.variant == ops::RopeVariant::dynamic
                                      ? trained
                                      : r.number("original_max_position_embeddings",
                                                 root.number("original_max_position_embeddings", trained));
    const bool given = r.find("factor") != nullptr;
    const bool derived = rope.variant == ops::RopeVariant::yarn || rope.variant == ops::RopeVariant::longrope;
    rope.factor = derived && !given ? trained / rope.original_max_positions : r.number("factor");
    if (r.find("attention_factor") != nullptr) rope.attention_factor = r.number("attention_factor");
    if (rope.variant == ops::RopeVariant::llama3) {
        rope.low_freq_factor = r.number("low_freq_factor");
        rope.high_freq_factor = r.number("high_freq_factor");
        rope.original_max_positions = r.number("original_max_position_embeddings");
    } else if (rope.variant == ops::RopeVariant::yarn) {
        rope.beta_fast = r.number("beta_fast", rope.beta_fast);
        rope.beta_slow = r.number("beta_slow", rope.beta_slow);
        rope.truncate = r.boolean("truncate", rope.truncate);
        rope.mscale = r.number("mscale", rope.mscale);
        rope.mscale_all_dim = r.number("mscale_all_dim", rope.mscale_all_dim);
    } else if (rope.variant == ops::RopeVariant::longrope) {
        rope.short_factor = r.numbers("short_factor");
        rope.long_factor = r.numbers("long_factor");
    }
    return rope;
}

// "rope_parameters" of transformers 5 holds what "rope_theta" and "rope_scaling" held before. Where layers
// with a window turn by another base, the first rotation is that of the others, the second theirs.
std::vector<ops::RopeSettings> ropes_from(const Reader& root, const ModelConfig& config) {
    const double theta = root.number("rope_theta", 10000);
    std::optional<Reader> parameters = root.object("rope_parameters");
    if (parameters) {
        const std::optional<Reader> full = parameters->object("full_attention");
        if (!full) return {rope_from(root, parameters, theta, config)};
        return {rope_from(root, full, theta, config),
                rope_from(root, parameters->object("sliding_attention"), theta, config)};
    }
    parameters = root.object("rope_scaling");
    std::vector<ops::RopeSettings> ropes = {rope_from(root, parameters, theta, config)};
    if (root.find("rope_local_base_freq") != nullptr)
        ropes.push_back(rope_from(root, std::nullopt, root.number("rope_local_base_freq"), config));
    return ropes;
}

ExpertsConfig experts_from(const Reader& root, const ModelConfig& config) {
    ExpertsConfig experts;
    experts.count = root.integer(root.either("num_experts", "num_local_experts"));
    experts.of_token = root.integer("num_experts_per_tok");
    experts.size = root.integer("moe_intermediate_size", config.intermediate_size);
    experts.normalized = root.boolean("norm_topk_prob", false);
    return experts;
}

// Keys are looked for once, not once a layer: a file may have millions of them, and thousands of layers.

// Which layers have experts: each `decoder_sparse_step`th, but for those of "mlp_only_layers".
std::vector<bool> sparse_layers(const Reader& root, const ModelConfig& config) {
    std::vector<bool> sparse(static_cast<std::size_t>(config.num_layers));
    if (config.experts.count <= 0) return sparse;
    const std::int64_t step = root.integer("decoder_sparse_step", 1);
    if (step < 1) throw root.wrong("decoder_sparse_step", "a number from 1 on", str(step));
    for (std::size_t i = 0; i < sparse.size(); ++i) sparse[i] = static_cast<std::int64_t>(i + 1) % step == 0;
    if (root.find("mlp_only_layers") == nullptr) return sparse;
    for (const double layer : root.numbers("mlp_only_layers")) {
        if (layer >= 0 && layer < static_cast<double>(sparse.size()) && layer == std::floor(layer))
            sparse[static_cast<std::size_t>(layer)] = false;
    }
    return sparse;
}

// Which layers have a window, where no "layer_types" says so.
std::vector<bool> windowed_layers(const Reader& root, const ModelConfig& config) {
    const Windows kind = config.architecture->windows;
    const std::int64_t pattern = root.integer("sliding_window_pattern", 6);
    if (pattern < 1) throw root.wrong("sliding_window_pattern", "a number from 1 on", str(pattern));
    const bool trails = kind == Windows::trailing && root.boolean("use_sliding_window", false);
    const std::int64_t first =
        trails ? root.integer("max_window_layers", config.num_layers) : config.num_layers;
    std::vector<bool> windowed;
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
        windowed.push_back(kind == Windows::all || (kind == Windows::even && i % 2 == 0) ||
                           (kind == Windows::of_six && (i + 1) % pattern != 0) || i >= first);
    }
    return windowed;
}

std::vector<LayerConfig> layers_from(const Reader& root, const ModelConfig& config) {
    constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention";
    const std::int64_t window = root.integer("sliding_window", 0);
    const bool two_ropes = config.ropes.size() > 1;
    const std::vector<bool> windowed = windowed_layers(root, config), sparse = sparse_layers(root, config);
    const io::Json* types = root.find("layer_types");
    if (types != nullptr) {
        if (types->array() == nullptr) throw root.wrong("layer_types", "an array of names", types->kind());
        if (static_cast<std::int64_t>(types->array()->size()) != config.num_layers) {
            throw root.wrong("layer_types", str("one for each of ", config.num_layers, " layers"),
                             str(types->array()->size()));
        }
    }
    std::vector<LayerConfig> layers;
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
        const auto at = static_cast<std::size_t>(i);
        bool sliding = windowed[at];
        if (types != nullptr) {
            const std::string* type = (*types->array())[at].string();
            if (type == nullptr || (*type != kFull && *type != kSliding)) {
                throw root.wrong("layer_types", "full_attention or sliding_attention",
                                 type == nullptr ? "no string" : io::json_quoted(*type));
            }
            sliding = *type == kSliding;
        }
        if (sliding && window < 1 && (types != nullptr || config.architecture->windows != Windows::all))
            throw root.wrong("sliding_window", "a number of tokens", str(window));
        layers.push_back(
            {.window = sliding ? window : 0, .rope = sliding && two_ropes ? 1u : 0u, .sparse = sparse[at]});
    }
    return layers;
}

// What would change a model, and is not there: the only value that is understood.
constexpr Named<bool> kUnderstood[] = {
    {"scale_attn_weights", true},
    {"scale_attn_by_inverse_layer_idx", false},
    {"add_cross_attention", false},
    {"use_bidirectional_attention", false},
};

void refuse_variants(const Reader& root) {
    for (const Named<bool>& each : kUnderstood) {
        if (root.boolean(each.name, each.value) == each.value) continue;
        throw error(ErrorKind::unsupported, {.call = root.what(),
                                             .argument = std::string(each.name),
                                             .expected = each.value ? "true" : "false",
                                             .got = each.value ? "false" : "true"});
    }
}

}  // namespace

ModelConfig ModelConfig::from_json(const io::Json& json, const std::string& what) {
    if (json.object() == nullptr) {
        throw error(ErrorKind::file,
                    {.call = what, .expected = "a JSON object", .got = std::string(json.kind())});
    }
    const Reader file(json, what);
    const std::string type = file.string("model_type", "llama");
    // A model that sees, too: what writes is described by a configuration of its own.
    const Architecture* part = writing_part_of(type);
    const io::Json* text = part == nullptr ? nullptr : file.find("text_config");
    if (text != nullptr && text->object() == nullptr)
        throw file.wrong("text_config", "an object", text->kind());
    const io::Json& own = text == nullptr ? json : *text;
    const Architecture& a = architecture_of_json(
        what, text == nullptr ? type : Reader(own, what).string("model_type", part->model_type));
    const io::Json defaults = io::Json::parse(a.defaults, what);
    const Reader root(own, what, &defaults);
    ModelConfig c;
    refuse_variants(root);
    c.architecture = &a;
    c.vocab_size = root.integer("vocab_size");
    c.num_tokens = c.vocab_size;
    c.hidden_size = root.integer(root.either("hidden_size", "n_embd"));
    c.num_layers = root.integer(root.either("num_hidden_layers", "n_layer"));
    c.num_heads = root.integer(root.either("num_attention_heads", "n_head"));
    c.num_kv_heads = root.integer("num_key_value_heads", c.num_heads);
    c.head_dim = root.integer("head_dim", c.num_heads > 0 ? c.hidden_size / c.num_heads : 0);
    const std::string_view width = root.either("intermediate_size", "n_inner");
    // GPT-2's configurations leave it out where it is four times the hidden size.
    c.intermediate_size = a.gated ? root.integer(width) : root.integer(width, 4 * c.hidden_size);
    c.max_positions = root.integer(root.either("max_position_embeddings", "n_positions"), 2048);
    c.norm_eps =
        a.norm == NormKind::rms ? root.number("rms_norm_eps", 1e-6) : root.number("layer_norm_epsilon", 1e-5);
    // Gemma's files name one that the models do not use as "hidden_act", and the right one beside it.
    const std::string_view act =
        a.scaled_embedding ? "hidden_activation" : root.either("hidden_act", "activation_function");
    c.activation =
        root.find(act) == nullptr ? a.activation : from_name(root, act, root.string(act, ""), kActivations);
    const bool attention_bias = root.boolean("attention_bias", a.biases);
    c.qkv_bias = attention_bias || a.qkv_bias;
    c.out_bias = attention_bias;
    c.mlp_bias = root.boolean("mlp_bias", a.biases);
    c.tie_word_embeddings = root.boolean("tie_word_embeddings", a.tied);
    c.attention_scale = 1 / std::sqrt(root.number("query_pre_attn_scalar", static_cast<double>(c.head_dim)));
    c.attention_soft_cap = root.number("attn_logit_softcapping", 0);
    c.logits_soft_cap = root.number("final_logit_softcapping", 0);
    if (!a.learned_positions) c.ropes = ropes_from(root, c);
    if (a.experts) c.experts = experts_from(root, c);
    if (c.num_layers >= 1 && c.num_layers <= 1 << 14) c.layers = layers_from(root, c);
    c.validate(what);
    return c;
}

}  // namespace gpk::llm
