#include <gtest/gtest.h>

#include "base/error.hpp"
#include "llama_support.hpp"
#include "llm/generator.hpp"
#include "ops/accept_drafts.hpp"

namespace {

using namespace gpk;
using llm::GenerationOptions;
using llm::Model;
using llm::Strategy;

using Ids = std::vector<std::int32_t>;

std::shared_ptr<const llm::ModelWeights> some_weights(std::uint32_t seed, std::int64_t layers,
                                                      float scale = 1) {
    llm::ModelConfig config = small_config();
    config.num_layers = layers;
    config.layers.resize(static_cast<std::size_t>(layers));
    NamedTensors tensors = random_tensors(config, seed);
    // Layers that change little: the first ones guess well.
    for (auto& [name, tensor] : tensors) {
        if (name.find("o_proj") == std::string::npos && name.find("down_proj") == std::string::npos) continue;
        for (float& value : tensor.second) value *= scale;
    }
    const MemoryFile file(tensors);
    return llm::ModelWeights::load(test_device(), config, llm::FileSource(file), DType::float32);
}

struct Text {
    Ids tokens;
    llm::FinishReason reason = llm::FinishReason::none;
    std::int64_t length = 0;
    bool operator==(const Text&) const = default;
};

Text write(Model& model, const Ids& prompt, const GenerationOptions& options,
           llm::SpeculationStats* stats = nullptr) {
    model.truncate(0);
    llm::Generator generator(model, prompt, options);
    Text text;
    while (const auto token = generator.next()) text.tokens.push_back(*token);
    text.reason = generator.finish_reason();
    text.length = model.length();
    if (stats != nullptr) *stats = *stats + generator.stats().speculation;
    return text;
}

Ids some_ids(std::size_t count, std::uint32_t seed) {
    std::mt19937 generator(seed);
    Ids ids;
    while (ids.size() < count) ids.push_back(static_cast<std::int32_t>(generator() % 97));
    return ids;
}

TEST(Speculation, EveryStrategyWritesThePlainText) {
    const auto small = some_weights(40, 1);
    std::int64_t tokens = 0;
    for (const std::uint32_t seed : {11u, 23u}) {
        const auto weights = some_weights(seed, 4, 0.2f);
        Model plain(weights, {.max_length = 120});
        for (const bool use_graph : {true, false}) {
            Model model(weights, {.max_length = 120, .use_graph = use_graph});
            const auto draft =
                std::make_shared<Model>(seed == 11 ? small : weights, llm::ModelOptions{.max_length = 140});
            for (const Strategy strategy :
                 {Strategy::ngram, Strategy::early_layers, Strategy::jacobi, Strategy::draft_model}) {
                llm::SpeculationStats stats;
                for (const std::size_t length : {1u, 60u}) {
                    const Ids prompt = some_ids(length, seed);
                    for (const std::int64_t guesses : {0, 1, 7}) {
                        if (!use_graph && guesses == 1) continue;
                        GenerationOptions options{.max_tokens = use_graph ? 0 : 15};
                        const Text expected = write(plain, prompt, options);
                        options.speculation = {.strategy = strategy,
                                               .guesses = guesses,
                                               .layers = guesses == 1 ? 4 : 2,
                                               .draft = draft};
                        const Text text = write(model, prompt, options, &stats);
                        ASSERT_EQ(text, expected)
                            << static_cast<int>(strategy) << " " << guesses << " " << length;
                        tokens += static_cast<std::int64_t>(text.tokens.size());
                    }
                }
                if (use_graph) {
                    EXPECT_GT(stats.accepted, 0) << static_cast<int>(strategy);
                }
                EXPECT_LE(stats.accepted, stats.guessed);
            }
        }
    }
    EXPECT_GT(tokens, 4'000);
}

// In 16 bits the order of sums tells: rows of a pass must have the bits of steps op by op where no margin
// guards them.
TEST(Speculation, SixteenBitTextsAreThePlainOnes) {
    llm::ModelConfig config = small_config();
    config.hidden_size = 256;
    config.intermediate_size = 320;
    config.head_dim = 64;
    config.attention_scale = 0.125;
    config.ropes = {{.d = 64}};
    const NamedTensors tensors = random_tensors(config, 5);
    const MemoryFile file(tensors);
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
        const auto weights = llm::ModelWeights::load(test_device(), config, llm::FileSource(file), dtype);
        Model plain(weights, {.max_length = 500, .whole_step = false}), model(weights, {.max_length = 500});
        for (const std::uint32_t seed : {1u, 2u}) {
            GenerationOptions options{.max_tokens = test_device().driver().info().sm > 0 ? 400 : 25};
            const Ids prompt = some_ids(40, seed);
            const Text expected = write(plain, prompt, options);
            for (const Strategy strategy : {Strategy::ngram, Strategy::jacobi, Strategy::early_layers}) {
                options.speculation.strategy = strategy;
                EXPECT_EQ(write(model, prompt, options), expected)
                    << static_cast<int>(strategy) << " " << seed;
            }
        }
    }
}

TEST(Speculation, StopsWhereThePlainTextDoes) {
    const auto weights = some_weights(11, 3);
    Model model(weights, {.max_length = 120});
    const Ids prompt = some_ids(6, 1);
    const Ids whole = write(model, prompt, {.max_tokens = 80}).tokens;
    for (const std::size_t at : {0u, 3u, 40u, 70u}) {
        for (const std::int64_t max_tokens : {0, 1, 2, 41}) {
            GenerationOptions options{.max_tokens = max_tokens, .stop_tokens = {whole[at]}};
            const Text expected = write(model, prompt, options);
            for (const Strategy strategy : {Strategy::ngram, Strategy::jacobi}) {
                options.speculation.strategy = strategy;
                EXPECT_EQ(write(model, prompt, options), expected) << at << " " << max_tokens;
            }
        }
    }
}

TEST(Speculation, SlidesLikeThePlainText) {
    const auto weights = some_weights(11, 3);
    Model model(weights, {.max_length = 33});
    const Ids prompt = some_ids(20, 2);
    GenerationOptions options{.max_tokens = 100, .slide = true};
    const Text expected = write(model, prompt, options);
    EXPECT_EQ(expected.tokens.size(), 100u);
    options.speculation.strategy = Strategy::ngram;
    EXPECT_EQ(write(model, prompt, options), expected);
    // By hand: a new context of the later half each time.
    options.speculation = {};
    options.slide = false;
    options.max_tokens = 0;
    Ids text = prompt, tokens;
    while (tokens.size() < 100) {
        const Ids part = write(model, text, options).tokens;
        tokens.insert(tokens.end(), part.begin(), part.end());
        text.insert(text.end(), part.begin(), part.end());
        text.erase(text.begin(), text.end() - 16);
    }
    tokens.resize(100);
    EXPECT_EQ(tokens, expected.tokens);
}

TEST(Speculation, RefusesWhatItCannotDo) {
    const auto weights = some_weights(11, 3);
    Model model(weights, {.max_length = 40});
    const Ids prompt = some_ids(5, 3);
    const auto make = [&](const GenerationOptions& options) {
        model.truncate(0);
        llm::Generator generator(model, prompt, options);
        generator.next();
        generator.next();
    };
    const auto by = [](llm::Speculation speculation) {
        return GenerationOptions{.speculation = speculation};
    };
    EXPECT_THROW(make(by({.strategy = Strategy::ngram, .guesses = 8})), Error);
    EXPECT_THROW(make(by({.strategy = Strategy::ngram, .guesses = -1})), Error);
    EXPECT_THROW(make(by({.strategy = Strategy::early_layers, .layers = 4})), Error);
    EXPECT_THROW(make(by({.strategy = Strategy::draft_model})), Error);
    GenerationOptions sampled = by({.strategy = Strategy::ngram});
    sampled.choice.sampling.temperature = 1;
    EXPECT_THROW(make(sampled), Error);
    GenerationOptions told = by({.strategy = Strategy::ngram});
    told.choice.logprobs = 2;
    EXPECT_THROW(make(told), Error);
    EXPECT_THROW(llm::strategy_from_name("none"), Error);
    EXPECT_EQ(llm::strategy_from_name("jacobi"), Strategy::jacobi);
    Model batch(weights, {.max_length = 40, .slots = 2});
    EXPECT_THROW(batch.verifier(), Error);
    EXPECT_NO_THROW(make({.max_tokens = 3}));
}

struct Accepted {
    std::int32_t moved, close, position;
    Ids ids, log;
};

Accepted accept(const std::vector<float>& logits, const Ids& ids, double margin, bool refill) {
    const auto rows = static_cast<std::int64_t>(ids.size()),
               vocab = static_cast<std::int64_t>(logits.size()) / rows;
    const Array at = upload_ints(ids), position = upload_ints({3}),
                best = upload_ints(Ids(2 * kernels::kMostDraftRows, -9));
    const Array ticket = Array::empty(test_device(), {1}, DType::uint32);
    const std::uint32_t zero = 0;
    ticket.copy_from_host(&zero);
    PinnedPool& pool = PinnedPool::of(test_device());
    const PinnedBlock block = pool.allocate(30 * sizeof(std::int32_t));
    auto* host = reinterpret_cast<std::int32_t*>(block.data);
    std::fill_n(host, 30, -7);
    Accepted result{0, 0, 0, Ids(ids.size()), {}};
    for (int again = 0; again < 2; ++again) {  // the ticket is as before
        at.copy_from_host(ids.data());
        const std::int32_t three = 3;
        position.copy_from_host(&three);
        ops::accept_drafts(
            upload(logits, {rows, vocab}), at, position,
            {.best = best, .ticket = ticket, .log = host + 2, .log_size = 28, .accepted = host},
            {.count = vocab, .margin = margin, .refill = refill});
        at.copy_to_host(result.ids.data());
        position.copy_to_host(&result.position);
    }
    result.moved = host[0];
    result.close = host[1];
    result.log.assign(host + 2, host + 30);
    pool.release(block);
    return result;
}

TEST(AcceptDrafts, TakesWhatTheRowsChooseAndOneMore) {
    const std::int64_t vocab = 1030;
    for (const std::size_t rows : {1u, 2u, 5u, 8u}) {
        Ids best;
        auto logits = random_floats(static_cast<std::int64_t>(rows) * vocab, 4);
        for (std::size_t row = 0; row < rows; ++row) {
            best.push_back(static_cast<std::int32_t>(row * 61 + 7));
            logits[row * vocab + static_cast<std::size_t>(best.back())] = 9;
        }
        for (std::size_t good = 0; good < rows; ++good) {
            Ids ids{5};
            for (std::size_t i = 1; i < rows; ++i) ids.push_back(i <= good ? best[i - 1] : 1029);
            const Accepted found = accept(logits, ids, 0.5, false);
            EXPECT_EQ(found.moved, static_cast<std::int32_t>(good + 1));
            EXPECT_EQ(found.close, 0);
            EXPECT_EQ(found.position, 3 + found.moved);
            EXPECT_EQ(found.ids[0], best[good]);
            for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(found.log[4 + i], i <= good ? best[i] : -7) << i;
            const Accepted kept = accept(logits, ids, 0.5, true);
            for (std::size_t i = 0; i < rows; ++i) EXPECT_EQ(kept.ids[i], best[std::min(good + i, rows - 1)]);
        }
    }
}

TEST(AcceptDrafts, EndsBeforeARowWhoseLargestAreClose) {
    const std::int64_t vocab = 700;
    auto logits = random_floats(3 * vocab, 4);
    for (std::size_t row = 0; row < 3; ++row) logits[row * vocab + 20 + row] = 9;
    logits[vocab + 600] = 8.95f;  // of row 1; the deviation is about 1
    const Accepted close = accept(logits, {5, 20, 21}, 0.1, false);
    EXPECT_EQ(close.moved, 1);
    EXPECT_EQ(close.close, 1);
    EXPECT_EQ(close.position, 4);
    EXPECT_EQ(close.ids[0], 20);
    EXPECT_EQ(close.log[4], 20);
    EXPECT_EQ(close.log[5], -7);
    EXPECT_EQ(accept(logits, {5, 20, 21}, 0.02, false).moved, 3);
    logits[600] = 9;  // equals: the lower id, where nothing says that they are close
    EXPECT_EQ(accept(logits, {5, 20, 21}, 0, false).moved, 3);
    EXPECT_EQ(accept(logits, {5, 20, 21}, 0.1, false).moved, 0);
    EXPECT_EQ(accept(logits, {5, 20, 21}, 0.1, false).ids[0], 5);
    logits[3] = NAN;
    const Accepted bad = accept(logits, {5, 20, 21}, 0.1, false);
    EXPECT_EQ(bad.moved, 1);
    EXPECT_EQ(bad.log[4], -1);
}

}  // namespace
