// A model whose caller is now in one partition of the SMs, now in another, and in a capture.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/error.hpp"
#include "llama_support.hpp"
#include "llm/batch.hpp"
#include "llm/generator.hpp"
#include "partition_support.hpp"
#include "runtime/graph.hpp"

namespace {

using namespace gpk;
using llm::GenerationOptions;
using llm::Model;
using llm::Strategy;
using partitions::Scope;
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

// Its steps are graphs, which stay on the SMs of their capture.
TEST(ModelPlaces, TheTextIsTheSameInEveryPartition) {
    Device& device = test_device();
    if (device.info().sm_groups < 4) GTEST_SKIP() << "no SM partitions here";
    PartitionManager manager({.device = &device});
    const auto a = manager.create("a", "", PartitionLimits().compute(0.25));
    const auto b = manager.create("b", "", PartitionLimits().compute(0.5));
    Model model = some_model();
    for (const Strategy strategy : {Strategy::none, Strategy::jacobi}) {
        const Ids expected = write(model, strategy);
        EXPECT_EQ(expected.size(), 20u);
        for (int round = 0; round < 2; ++round) {
            for (const auto& partition : {a, b}) {
                const Scope scope(partition);
                const StreamScope stream(scope.stream);
                EXPECT_EQ(write(model, strategy), expected) << partition->name();
                EXPECT_EQ(write(model, strategy), expected) << partition->name();
            }
            EXPECT_EQ(write(model, strategy), expected);
        }
        // The same partition, elsewhere.
        manager.resize(*a, PartitionLimits().compute(0.5));
        const Scope scope(a);
        const StreamScope stream(scope.stream);
        EXPECT_EQ(write(model, strategy), expected);
        manager.resize(*a, PartitionLimits().compute(0.25));
    }
}

// Threads share the default stream; each model captures its steps while others queue theirs.
TEST(ModelPlaces, ThreadsWriteTheirOwnTexts) {
    const llm::ModelConfig config = small_config();
    const NamedTensors tensors = random_tensors(config, 5);
    const MemoryFile file(tensors);
    const auto weights =
        llm::ModelWeights::load(test_device(), config, llm::FileSource(file), DType::float32);
    const auto text = [&](Strategy strategy) {
        Model model(weights, {.max_length = 40});
        return write(model, strategy);
    };
    const Ids expected = text(Strategy::none);
    std::atomic<int> wrong = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
        threads.emplace_back([&, i] {
            for (int round = 0; round < 15; ++round) {
                try {
                    if (text(i % 2 == 0 ? Strategy::none : Strategy::jacobi) != expected) ++wrong;
                } catch (const Error&) {
                    ++wrong;
                }
            }
        });
    }
    for (std::thread& each : threads) each.join();
    EXPECT_EQ(wrong, 0);
}

// Steps that are one launch on SM 90, whose blocks wait for each other: one on each SM of the partition.
TEST(ModelPlaces, OneLaunchStepsRunInPartitions) {
    Device& device = test_device();
    if (device.info().sm_groups < 4) GTEST_SKIP() << "no SM partitions here";
    PartitionManager manager({.device = &device});
    const auto part = manager.create("part", "", PartitionLimits().compute(0.25));
    llm::ModelConfig config = small_config();
    config.hidden_size = 192;
    config.intermediate_size = 320;
    config.num_heads = 4;
    config.head_dim = 64;
    config.attention_scale = 0.125;
    config.ropes = {{.d = 64}};
    const NamedTensors tensors = random_tensors(config, 5);
    const MemoryFile file(tensors);
    const auto weights = llm::ModelWeights::load(device, config, llm::FileSource(file), DType::float16);
    Model model(weights, {.max_length = 64});
    const auto logits = [&] {
        model.truncate(0);
        model.prefill(kPrompt);
        std::vector<float> all;
        for (const std::int32_t token : {7, 8, 9, 10}) {
            const std::vector<float> row = download(model.decode(token));
            all.insert(all.end(), row.begin(), row.end());
        }
        return all;
    };
    const std::vector<float> expected = logits();
    for (int round = 0; round < 2; ++round) {
        const Scope scope(part);
        const StreamScope stream(scope.stream);
        const std::vector<float> got = logits();
        ASSERT_EQ(got.size(), expected.size());
        double difference = 0, norm = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
            difference += (got[i] - expected[i]) * (got[i] - expected[i]);
            norm += expected[i] * expected[i];
        }
        EXPECT_GT(norm, 0);
        EXPECT_LE(std::sqrt(difference / norm), 1e-2);
    }
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
