// A model whose caller is in a capture.
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "llama_support.hpp"
#include "llm/batch.hpp"
#include "llm/generator.hpp"
#include "runtime/graph.hpp"

namespace {

using namespace gpk;
using llm::GenerationOptions;
using llm::Model;
using llm::Strategy;
using Ids = std::vector<std::int32_t>;

const Ids kPrompt = {3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5};

Model some_model() {
    const llm::ModelConfig config = small_config();
    const NamedTensors tensors = random_tensors(config, 5);
    const MemoryFile file(tensors);
    return {llm::ModelWeights::load(test_device(), config, llm::FileSource(file), DType::float32),
            {.max_length = 64}};
}

Ids write(Model& model, Strategy strategy) {
    model.truncate(0);
    llm::Generator generator(model, kPrompt,
                             {.max_tokens = 20, .choice = {}, .speculation = {.strategy = strategy}});
    Ids ids;
    while (const auto token = generator.next()) ids.push_back(*token);
    return ids;
}

// A step that only becomes part of a graph gives no token.
TEST(ModelPlaces, ACaptureIsNoPlaceForAText) {
    Model model = some_model();
    const Ids expected = write(model, Strategy::none);
    const auto stream = Stream::create(test_device());
    const auto refused = [&](const auto& work) {
        const StreamScope scope(stream);
        const auto graph = Graph::begin(stream);
        ErrorKind kind = ErrorKind::value;
        try {
            work();
            ADD_FAILURE() << "not refused";
        } catch (const Error& reason) {
            kind = reason.kind();
        }
        graph->abandon();
        EXPECT_EQ(kind, ErrorKind::unsupported);
    };
    model.truncate(0);
    refused([&] { llm::Generator(model, kPrompt, {}); });
    llm::Generator generator(model, kPrompt, {.max_tokens = 20});
    Ids ids;
    while (const auto token = generator.next()) {
        ids.push_back(*token);
        if (ids.size() < 20) refused([&] { generator.next(); });
    }
    EXPECT_EQ(ids, expected);

    llm::Batch batch(model);
    batch.add(kPrompt, {.max_tokens = 20});
    ids.clear();
    while (ids.size() < 20) {
        refused([&] { batch.step(); });
        for (const llm::BatchToken& each : batch.step()) ids.push_back(each.token);
    }
    EXPECT_EQ(ids, expected);
}

}  // namespace
