#include <gtest/gtest.h>

#include "base/error.hpp"
#include "llama_support.hpp"
#include "llm/generator.hpp"
#include "llm/model.hpp"

namespace {

using namespace gpk;
using llm::Model;
using llm::ModelConfig;
using llm::ModelWeights;

std::vector<std::int32_t> some_tokens(std::size_t count, std::int64_t vocab, std::uint32_t seed = 1) {
    std::mt19937 generator(seed);
    std::vector<std::int32_t> tokens(count);
    for (auto& token : tokens)
        token = static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(vocab));
    return tokens;
}

std::shared_ptr<const ModelWeights> load(const ModelConfig& config, const NamedTensors& tensors,
                                         DType dtype = DType::float32) {
    const MemoryFile file(tensors);
    return ModelWeights::load(test_device(), config, llm::FileSource(file), dtype);
}

// Relative to the norm of the reference.
double distance(const std::vector<float>& a, const std::vector<double>& b) {
    if (a.size() != b.size()) return INFINITY;
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return std::sqrt(difference / norm);
}

std::vector<double> last_row(const std::vector<double>& logits, std::int64_t vocab) {
    return {logits.end() - vocab, logits.end()};
}

TEST(Model, ScoresMatchFloat64) {
    ModelConfig plain = small_config();
    ModelConfig biased = small_config();
    biased.qkv_bias = biased.out_bias = biased.mlp_bias = true;
    ModelConfig tied = small_config();
    tied.tie_word_embeddings = true;
    tied.ropes = {{.variant = ops::RopeVariant::linear, .d = 12, .factor = 4}};
    ModelConfig llama3 = small_config();
    llama3.num_kv_heads = 6;
    llama3.ropes = {{.variant = ops::RopeVariant::llama3,
                     .d = 12,
                     .theta = 500,
                     .factor = 8,
                     .original_max_positions = 32,
                     .low_freq_factor = 1,
                     .high_freq_factor = 4}};
    for (const ModelConfig& config : {plain, biased, tied, llama3}) {
        const NamedTensors tensors = random_tensors(config, 7);
        const auto weights = load(config, tensors);
        for (const std::size_t count : {1, 5, 30}) {
            const auto tokens = some_tokens(count, config.vocab_size);
            Model model(weights, {});
            const Array logits = model.score(tokens);
            EXPECT_EQ(logits.shape(), (Dims{static_cast<std::int64_t>(count), config.vocab_size}));
            EXPECT_LE(distance(download(logits), llama_reference(config, tensors, tokens)), 1e-5);
            EXPECT_EQ(model.length(), static_cast<std::int64_t>(count));
        }
    }
}

TEST(Model, SixteenBitModelsStayNear) {
    const ModelConfig config = small_config();
    const NamedTensors tensors = random_tensors(config, 7);
    const auto tokens = some_tokens(20, config.vocab_size);
    const auto expected = llama_reference(config, tensors, tokens);
    for (const auto& [dtype, bound] : {std::pair{DType::float16, 6e-3}, {DType::bfloat16, 5e-2}}) {
        Model model(load(config, tensors, dtype), {});
        EXPECT_LE(distance(download(model.score(tokens)), expected), bound) << name(dtype);
    }
}

TEST(Model, DecodeGoesOnFromPrefillWithAndWithoutAGraph) {
    const ModelConfig config = small_config();
    const NamedTensors tensors = random_tensors(config, 3);
    const auto weights = load(config, tensors);
    const auto tokens = some_tokens(24, config.vocab_size);
    for (const bool use_graph : {false, true}) {
        Model model(weights, {.max_length = 24, .use_graph = use_graph});
        model.prefill(std::span(tokens).first(11));
        for (std::size_t i = 11; i < tokens.size(); ++i) {
            const std::vector<float> logits = download(model.decode(tokens[i]));
            const std::vector<std::int32_t> so_far(tokens.begin(),
                                                   tokens.begin() + static_cast<std::ptrdiff_t>(i) + 1);
            const auto expected = last_row(llama_reference(config, tensors, so_far), config.vocab_size);
            EXPECT_LE(distance(logits, expected), 1e-5) << "token " << i << " graph " << use_graph;
            EXPECT_EQ(model.chosen(), std::max_element(logits.begin(), logits.end()) - logits.begin());
        }
        EXPECT_EQ(model.length(), 24);
    }
}

TEST(Model, LongPromptsAndTruncationGiveTheSame) {
    ModelConfig config = small_config();
    config.max_positions = 4096;
    const auto weights = load(config, random_tensors(config, 3));
    const auto tokens = some_tokens(2200, config.vocab_size);  // more than one piece
    Model whole(weights, {});
    const std::vector<float> expected = download(whole.prefill(tokens));
    Model parts(weights, {});
    parts.prefill(std::span(tokens).first(1900));
    parts.prefill(some_tokens(50, config.vocab_size, 2));
    parts.truncate(1900);
    const std::vector<float> logits = download(parts.prefill(std::span(tokens).subspan(1900)));
    EXPECT_LE(distance(logits, {expected.begin(), expected.end()}), 1e-5);
    EXPECT_THROW(parts.truncate(2201), Error);
    EXPECT_THROW(parts.truncate(-1), Error);
}

TEST(Model, ReadsLlamaCppNamesAndPutsQAndKBack) {
    ModelConfig config = small_config();
    config.qkv_bias = config.out_bias = true;
    const NamedTensors tensors = random_tensors(config, 5);
    const auto tokens = some_tokens(9, config.vocab_size);
    Model expected(load(config, tensors), {}), model(load(config, as_gguf(tensors, config)), {});
    EXPECT_EQ(download(model.score(tokens)), download(expected.score(tokens)));
}

TEST(Model, DividesFrequenciesByGgufFactors) {
    ModelConfig config = small_config();
    NamedTensors tensors = as_gguf(random_tensors(config, 5), config);
    tensors["rope_freqs.weight"] = {{6}, {1, 2, 4, 8, 8, 8}};
    EXPECT_EQ(load(config, tensors)->rope_divisors, (std::vector<float>{1, 2, 4, 8, 8, 8}));
    // As if each pair turned by so much less.
    const auto tokens = some_tokens(9, config.vocab_size);
    const auto score = [&](const NamedTensors& of) {
        return download(Model(load(config, of), {}).score(tokens));
    };
    const auto divided = score(tensors);
    tensors.erase("rope_freqs.weight");
    EXPECT_NE(divided, score(tensors));
    config.ropes = {{.variant = ops::RopeVariant::linear, .d = 12, .factor = 4}};
    const auto linear = score(tensors);
    config.ropes = {{.d = 12}};
    tensors["rope_freqs.weight"] = {{6}, {4, 4, 4, 4, 4, 4}};
    EXPECT_EQ(score(tensors), linear);
    tensors["rope_freqs.weight"].second[2] = 0;
    EXPECT_THROW(load(config, tensors), Error);
}

// The message of the Error that loading gives.
std::string load_error(const ModelConfig& config, const NamedTensors& tensors) {
    try {
        load(config, tensors);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

TEST(Model, NamesTheTensorThatDoesNotFit) {
    const ModelConfig config = small_config();
    const NamedTensors good = random_tensors(config, 1);
    const std::string q = "model.layers.1.self_attn.q_proj.weight";
    NamedTensors tensors = good;
    tensors[q].first = {40, 72};
    EXPECT_NE(load_error(config, tensors).find(q), std::string::npos);
    EXPECT_NE(load_error(config, tensors).find("(72, 40)"), std::string::npos);
    tensors = good;
    tensors.erase(q);
    EXPECT_NE(load_error(config, tensors).find(q), std::string::npos);
    tensors = good;
    tensors["model.layers.0.self_attn.q_proj.bias"] = {{72}, random_floats(72, 1)};
    EXPECT_NE(load_error(config, tensors).find("self_attn.q_proj.bias"), std::string::npos);
    tensors = good;
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{6}, random_floats(6, 1)};
    EXPECT_EQ(load_error(config, tensors), "");
    EXPECT_THROW(load(config, good, DType::int32), Error);
}

TEST(Model, TiedModelsIgnoreAStoredHead) {
    ModelConfig config = small_config();
    NamedTensors tensors = random_tensors(config, 1);  // with a head
    config.tie_word_embeddings = true;
    const auto weights = load(config, tensors);
    EXPECT_EQ(weights->lm_head.weight.data(), weights->embedding.data());
    EXPECT_FALSE(weights->embedding.writable());
    tensors.erase("lm_head.weight");
    EXPECT_EQ(load(config, tensors)->parameters, weights->parameters);
}

TEST(Model, RefusesTokensAndLengthsThatDoNotFit) {
    const ModelConfig config = small_config();
    const auto weights = load(config, random_tensors(config, 1));
    EXPECT_THROW(Model(weights, {.max_length = 1025}), Error);
    EXPECT_THROW(Model(weights, {.max_length = -1}), Error);
    Model model(weights, {.max_length = 4});
    EXPECT_THROW(model.decode(), Error);
    EXPECT_THROW(model.chosen(), Error);
    EXPECT_THROW(model.prefill({}), Error);
    EXPECT_THROW(model.prefill(std::vector<std::int32_t>{0, 97}), Error);
    EXPECT_THROW(model.prefill(std::vector<std::int32_t>{-1}), Error);
    EXPECT_THROW(model.prefill(some_tokens(5, 97)), Error);
    EXPECT_EQ(model.length(), 0);
    model.prefill(some_tokens(3, 97));
    model.decode();
    EXPECT_THROW(model.decode(), Error);
    EXPECT_THROW(model.decode(1), Error);
    EXPECT_EQ(model.length(), 4);
}

std::vector<std::int32_t> generate(Model& model, const std::vector<std::int32_t>& prompt,
                                   const llm::GenerationOptions& options, llm::FinishReason reason) {
    llm::Generator generator(model, prompt, options);
    std::vector<std::int32_t> tokens;
    while (const auto token = generator.next()) tokens.push_back(*token);
    EXPECT_EQ(generator.finish_reason(), reason);
    EXPECT_EQ(generator.next(), std::nullopt);
    EXPECT_EQ(generator.stats().prompt_tokens, static_cast<std::int64_t>(prompt.size()));
    EXPECT_EQ(generator.stats().generated_tokens, static_cast<std::int64_t>(tokens.size()));
    return tokens;
}

TEST(Generator, StopsAtTokensLengthsAndTheContextsEnd) {
    const ModelConfig config = small_config();
    const auto weights = load(config, random_tensors(config, 11));
    const auto prompt = some_tokens(6, config.vocab_size);
    Model model(weights, {.max_length = 20});
    const auto tokens = generate(model, prompt, {.max_tokens = 15}, llm::FinishReason::length);
    ASSERT_EQ(tokens.size(), 15u);
    EXPECT_EQ(model.length(), 20);

    // Token by token, each the best after all those before it.
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        std::vector<std::int32_t> text = prompt;
        text.insert(text.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(i));
        Model fresh(weights, {});
        fresh.prefill(text);
        EXPECT_EQ(fresh.chosen(), tokens[i]) << i;
    }

    model.truncate(0);
    EXPECT_EQ(generate(model, prompt, {}, llm::FinishReason::context), tokens);
    model.truncate(0);
    const std::int32_t stop = tokens[4];
    const auto first = std::find(tokens.begin(), tokens.end(), stop);
    EXPECT_EQ(generate(model, prompt, {.max_tokens = 10, .stop_tokens = {-5, stop}}, llm::FinishReason::stop),
              (std::vector<std::int32_t>(tokens.begin(), first)));
    EXPECT_EQ(model.length(), 6 + (first - tokens.begin()));

    model.truncate(0);
    EXPECT_THROW(llm::Generator(model, prompt, {.max_tokens = 16}), Error);
    EXPECT_THROW(llm::Generator(model, prompt, {.max_tokens = -1}), Error);
    EXPECT_THROW(llm::Generator(model, some_tokens(21, 97), {}), Error);
    EXPECT_EQ(model.length(), 0);
}

TEST(Generator, SamplesTheSameFromTheSameSeed) {
    const ModelConfig config = small_config();
    const auto weights = load(config, random_tensors(config, 11));
    const auto prompt = some_tokens(6, config.vocab_size);
    const auto run = [&](std::uint64_t seed, bool use_graph) {
        Model model(weights, {.use_graph = use_graph});
        return generate(
            model, prompt,
            {.max_tokens = 20, .choice = {.sampling = {.temperature = 1, .top_k = 20, .seed = seed}}},
            llm::FinishReason::length);
    };
    EXPECT_EQ(run(1, true), run(1, false));
    EXPECT_NE(run(1, true), run(2, true));
}

TEST(Generator, NeverChoosesPadding) {
    ModelConfig config = small_config();
    config.num_tokens = 3;
    const auto weights = load(config, random_tensors(config, 11));
    for (const double temperature : {0.0, 5.0}) {
        Model model(weights, {});
        for (const auto token :
             generate(model, {1}, {.max_tokens = 40, .choice = {.sampling = {.temperature = temperature}}},
                      llm::FinishReason::length)) {
            EXPECT_LT(token, 3);
        }
    }
}

TEST(ModelConfig, ReadsBothFormsOfConfigJson) {
    const std::string sizes =
        R"("vocab_size": 10, "hidden_size": 8, "intermediate_size": 9, "num_hidden_layers": 2,
        "num_attention_heads": 4, )";
    const auto read = [&](const std::string& rest) {
        return ModelConfig::from_json(io::Json::parse("{" + sizes + rest + "}", "config.json"),
                                      "config.json");
    };
    const ModelConfig plain = read(R"("rope_theta": 500, "rope_scaling": null, "head_dim": null)");
    EXPECT_EQ(plain.head_dim, 2);
    EXPECT_EQ(plain.num_kv_heads, 4);
    EXPECT_EQ(plain.ropes[0].theta, 500);
    EXPECT_EQ(plain.ropes[0].variant, ops::RopeVariant::plain);
    EXPECT_FALSE(plain.tie_word_embeddings);

    const ModelConfig linear = read(R"("rope_scaling": {"type": "linear", "factor": 2.5}, "head_dim": 6)");
    EXPECT_EQ(linear.ropes[0].variant, ops::RopeVariant::linear);
    EXPECT_EQ(linear.ropes[0].factor, 2.5);
    EXPECT_EQ(linear.ropes[0].theta, 10000);
    EXPECT_EQ(linear.head_dim, 6);

    const ModelConfig llama3 =
        read(R"("rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8,
        "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64},
        "attention_bias": true, "tie_word_embeddings": true, "num_key_value_heads": 2)");
    EXPECT_EQ(llama3.ropes[0].variant, ops::RopeVariant::llama3);
    EXPECT_EQ(llama3.ropes[0].theta, 5e5);
    EXPECT_TRUE(llama3.qkv_bias && llama3.out_bias && llama3.tie_word_embeddings && !llama3.mlp_bias);

    for (
        const char* bad : {
            R"("rope_scaling": {"type": "spiral", "factor": 2})",
            R"("rope_scaling": {"type": "yarn", "factor": -2})",
            R"("rope_scaling": {"type": "longrope", "factor": 2, "short_factor": [1, 1], "long_factor": [1]})",
            R"("rope_scaling": {"rope_type": "linear"})",
            R"("rope_scaling": {"rope_type": "linear", "factor": 0})",
            R"("rope_scaling": 3)",
            R"("rope_parameters": {"partial_rotary_factor": 1.5})",
            R"("rope_parameters": {"partial_rotary_factor": 0})",
            R"("rope_theta": -1)",
            R"("rope_theta": "big")",
            R"("model_type": "bert")",
            R"("hidden_act": "relu6")",
            R"("layer_types": ["full_attention"])",
            R"("layer_types": ["full_attention", "linear_attention"])",
            R"("layer_types": ["full_attention", "sliding_attention"], "sliding_window": 0)",
            R"("final_logit_softcapping": -1)",
            R"("query_pre_attn_scalar": 0)",
            R"("query_pre_attn_scalar": 1e-320)",
            R"("final_logit_softcapping": 1e308)",
            R"("rope_theta": 1e-320, "head_dim": 6)",
            R"("rope_scaling": {"type": "linear", "factor": 1e-320})",
            R"("scale_attn_by_inverse_layer_idx": true)",
            R"("scale_attn_weights": false)",
            R"("use_bidirectional_attention": true)",
            R"("add_cross_attention": 0.5)",
            R"("head_dim": 3)",
            R"("head_dim": 1000000)",
            R"("num_key_value_heads": 3)",
            R"("max_position_embeddings": 0)",
            R"("rms_norm_eps": -1)",
            R"("attention_bias": 1)",
        }) {
        EXPECT_THROW(read(bad), Error) << bad;
    }
    EXPECT_THROW(ModelConfig::from_json(io::Json::parse("[]", "x"), "x"), Error);
    EXPECT_THROW(ModelConfig::from_json(io::Json::parse("{}", "x"), "x"), Error);
    EXPECT_THROW(ModelConfig::from_json(io::Json::parse(R"({"vocab_size": 1e30})", "x"), "x"), Error);
}

// As in the published 4B model's config.json, which leaves out what is transformers' default.
TEST(ModelConfig, WhatAGemma3LeavesOutIsTransformersDefault) {
    const ModelConfig c = ModelConfig::from_json(io::Json::parse(R"({"model_type": "gemma3",
        "vision_config": {"hidden_size": 1152}, "text_config": {"model_type": "gemma3_text",
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}})",
                                                                 "config.json"),
                                                 "config.json");
    EXPECT_EQ(c.hidden_size, 2560);
    EXPECT_EQ(c.vocab_size, 262208);
    EXPECT_EQ(c.num_heads, 8);
    EXPECT_EQ(c.num_kv_heads, 4);
    EXPECT_EQ(c.head_dim, 256);
    EXPECT_EQ(c.max_positions, 131072);
    EXPECT_EQ(c.attention_scale, 1.0 / 16);
    ASSERT_EQ(c.ropes.size(), 2u);
    EXPECT_EQ(c.ropes[0].theta, 1e6);
    EXPECT_EQ(c.ropes[0].factor, 8);
    EXPECT_EQ(c.ropes[1].theta, 1e4);
    EXPECT_EQ(c.ropes[1].variant, ops::RopeVariant::plain);
    EXPECT_EQ(c.layers[4].window, 1024);
    EXPECT_EQ(c.layers[5].window, 0);
    EXPECT_TRUE(c.tie_word_embeddings);
}

TEST(ModelConfig, WhetherTheWeightsOfExpertsAreNormalizedIsTheFamilysUnlessTheFileSaysSo) {
    const auto normalized = [](const std::string& family, const std::string& said) {
        const std::string text = R"({"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_experts": 4, "num_experts_per_tok": 2,
            "model_type": ")" + family +
                                 '"' + said + '}';
        return ModelConfig::from_json(io::Json::parse(text, "x"), "x").experts.normalized;
    };
    EXPECT_TRUE(normalized("mixtral", ""));
    EXPECT_FALSE(normalized("qwen3_moe", ""));
    EXPECT_TRUE(normalized("qwen3_moe", R"(, "norm_topk_prob": true)"));
}

// The values of transformers' _compute_llama3_parameters for theta 10000, 8 elements, a context of 64.
TEST(ModelConfig, Llama3FrequenciesFollowTransformers) {
    ModelConfig config = small_config();
    config.head_dim = 8;
    config.ropes = {{.variant = ops::RopeVariant::llama3,
                     .d = 8,
                     .factor = 8,
                     .original_max_positions = 64,
                     .low_freq_factor = 1,
                     .high_freq_factor = 4}};
    const auto f = llm::rope_frequencies(config, 0, 64).inv_freq;
    ASSERT_EQ(f.size(), 4u);
    EXPECT_EQ(f[0], 1.0f);                                               // wavelength 6.3 < 64 / 4: kept
    const double smooth = (64 / (2 * 3.141592653589793 / 0.1) - 1) / 3;  // wavelength 62.8: between
    EXPECT_NEAR(f[1], (1 - smooth) * 0.1 / 8 + smooth * 0.1, 1e-8);
    EXPECT_NEAR(f[2], 0.01 / 8, 1e-9);  // wavelength 628 > 64: divided
    EXPECT_NEAR(f[3], 0.001 / 8, 1e-10);
}

}  // namespace
