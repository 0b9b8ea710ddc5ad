// Captures and graphs on SimDriver: CUDA's rules, and orders that respect the recorded dependencies.
#include <vector>

#include "driver/sim_driver.hpp"
#include "sim_support.hpp"

using namespace gpk;
using namespace sim;

namespace {

std::int64_t* words(DevicePtr pointer) { return reinterpret_cast<std::int64_t*>(pointer); }

}  // namespace

class SimCaptures : public ::testing::TestWithParam<bool> {
   protected:
    void start(std::uint64_t seed) {
        driver = make_sim_driver({.memory_bytes = 1 << 20, .interleaved = GetParam(), .seed = seed});
        one = driver->stream_create(0);
        two = driver->stream_create(0);
        event = driver->event_create(false);
        back = driver->event_create(false);
        x = driver->allocate(8);
        y = driver->allocate(8);
        *words(x) = *words(y) = 0;
    }
    void SetUp() override { start(11); }
    void affine(StreamHandle stream, DevicePtr at, std::int64_t factor, std::int64_t term) {
        const AffineParams params{words(at), factor, term, 1};
        driver->launch(stream, driver->function(kAffine), {}, &params, sizeof params);
    }
    // A capture that failed leaves both streams usable.
    void expect_usable() {
        for (const StreamHandle stream : {one, two}) {
            *words(x) = 1;
            affine(stream, x, 2, 0);
            driver->stream_synchronize(stream);
            EXPECT_EQ(*words(x), 2);
        }
    }

    std::unique_ptr<SimDriver> driver;
    StreamHandle one, two;
    EventHandle event, back;
    DevicePtr x, y;
};
INSTANTIATE_TEST_SUITE_P(Modes, SimCaptures, ::testing::Bool(),
                         [](const auto& mode) { return mode.param ? "interleaved" : "immediate"; });

TEST_P(SimCaptures, RecordsInsteadOfRunningAndReplays) {
    driver->capture_begin(one);
    {
        AffineParams params{words(x), 2, 1, 1};
        driver->launch(one, driver->function(kAffine), {}, &params, sizeof params);
        params = {nullptr, 0, 0, 0};  // the graph has its own copy
    }
    affine(one, x, 10, 0);
    const GraphHandle graph = driver->capture_end(one);
    EXPECT_EQ(driver->graph_node_count(graph), 2u);
    driver->synchronize();
    EXPECT_EQ(*words(x), 0);
    driver->graph_launch(graph, one);
    driver->graph_launch(graph, one);
    affine(one, x, 1, 5);
    driver->stream_synchronize(one);
    EXPECT_EQ(*words(x), 215);
    EXPECT_EQ(driver->live_graphs(), 1u);
    driver->graph_launch(graph, two);
    driver->graph_destroy(graph);  // the launch under way keeps what it needs
    EXPECT_EQ(driver->live_graphs(), 0u);
    driver->stream_synchronize(two);
    EXPECT_EQ(*words(x), 4310);
    expect_code("CUDA_ERROR_INVALID_HANDLE", [&] { driver->graph_launch(graph, one); });
}

TEST_P(SimCaptures, AnEmptyGraphIsLegal) {
    driver->capture_begin(one);
    const GraphHandle graph = driver->capture_end(one);
    EXPECT_EQ(driver->graph_node_count(graph), 0u);
    driver->graph_launch(graph, one);
    driver->synchronize();
}

TEST_P(SimCaptures, JoinedStreamsAreCapturedWithTheirOrder) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        start(seed);
        driver->capture_begin(one);
        affine(one, x, 1, 3);
        driver->event_record(event, one);
        driver->stream_wait_event(two, event);  // `two` joins
        driver->copy_on_device(two, y, x, 8);
        affine(two, y, 2, 0);
        driver->event_record(back, two);
        affine(one, x, 0, 100);  // may run before or after what `two` does with y, not before its copy
        driver->stream_wait_event(one, back);
        driver->copy_on_device(one, x, y, 8);
        // Without an edge between `affine(one, x, 0, 100)` and the copy on `two`, y is 6 or 200.
        const GraphHandle graph = driver->capture_end(one);
        EXPECT_EQ(driver->graph_node_count(graph), 5u);
        driver->graph_launch(graph, one);
        driver->stream_synchronize(one);
        if (GetParam()) {
            EXPECT_TRUE(*words(x) == 6 || *words(x) == 200) << *words(x) << " seed " << seed;
        } else {
            EXPECT_EQ(*words(x), 6);
        }
        expect_usable();  // `two` has left the capture too
    }
}

TEST_P(SimCaptures, ReplaysTakeEveryLegalOrder) {
    int six = 0, other = 0;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
        start(seed);
        driver->capture_begin(one);
        driver->event_record(event, one);
        driver->stream_wait_event(two, event);
        affine(one, x, 1, 1);  // two roots that touch the same word
        affine(two, x, 6, 0);
        driver->event_record(back, two);
        driver->stream_wait_event(one, back);
        const GraphHandle graph = driver->capture_end(one);
        driver->graph_launch(graph, one);
        driver->synchronize();
        *words(x) == 6 ? ++six : ++other;
    }
    if (GetParam()) {
        EXPECT_GT(six, 10);
        EXPECT_GT(other, 10);
    } else {
        EXPECT_EQ(six, 100);  // as recorded
    }
}

TEST_P(SimCaptures, LaunchesOfOneGraphFollowEachOther) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        start(seed);
        driver->capture_begin(one);
        driver->copy_on_device(one, y, x, 8);
        affine(one, y, 1, 1);
        driver->copy_on_device(one, x, y, 8);
        const GraphHandle graph = driver->capture_end(one);
        for (int i = 0; i < 3; ++i) {
            driver->graph_launch(graph, one);
            driver->graph_launch(graph, two);
        }
        driver->synchronize();
        EXPECT_EQ(*words(x), 6) << "seed " << seed;
    }
}

TEST_P(SimCaptures, AGraphLaunchedInACaptureBecomesPartOfIt) {
    driver->capture_begin(one);
    affine(one, x, 2, 0);
    affine(one, x, 1, 1);
    const GraphHandle inner = driver->capture_end(one);
    driver->capture_begin(one);
    affine(one, x, 0, 5);
    driver->graph_launch(inner, one);
    affine(one, x, 10, 0);
    const GraphHandle outer = driver->capture_end(one);
    driver->graph_destroy(inner);
    driver->graph_launch(outer, one);
    driver->synchronize();
    EXPECT_EQ(*words(x), 110);
}

TEST_P(SimCaptures, AnUnjoinedStreamIsAnError) {
    driver->capture_begin(one);
    driver->event_record(event, one);
    driver->stream_wait_event(two, event);
    affine(two, x, 1, 1);
    expect_code("CUDA_ERROR_STREAM_CAPTURE_UNJOINED", [&] { driver->capture_end(one); });
    EXPECT_EQ(driver->live_graphs(), 0u);
    expect_usable();
}

TEST_P(SimCaptures, WaitingForACapturingStreamInvalidatesTheCapture) {
    const std::function<void()> forbidden[] = {
        [&] { driver->stream_synchronize(one); },
        [&] { driver->stream_query(one); },
        [&] { driver->synchronize(); },
        [&] {
            std::int64_t word;
            driver->copy_to_host(one, &word, x, 8);
        },
        [&] {
            std::int64_t word = 0;
            driver->copy_to_device(one, x, &word, 8);
        },
    };
    for (const auto& call : forbidden) {
        driver->capture_begin(one);
        affine(one, x, 1, 1);
        expect_code("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", call);
        expect_code("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", [&] { affine(one, x, 1, 1); });
        expect_code("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", [&] { driver->event_record(event, one); });
        expect_code("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", [&] { driver->capture_end(one); });
        expect_usable();
    }
}

TEST_P(SimCaptures, EventsDoNotCrossTheCapturesBorder) {
    driver->event_record(event, two);
    driver->capture_begin(one);
    expect_code("CUDA_ERROR_STREAM_CAPTURE_ISOLATION", [&] { driver->stream_wait_event(one, event); });
    expect_code("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", [&] { driver->capture_end(one); });
    expect_usable();

    driver->capture_begin(one);
    driver->event_record(event, one);
    expect_code("CUDA_ERROR_CAPTURED_EVENT", [&] { driver->event_query(event); });
    expect_code("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", [&] { driver->capture_end(one); });
    expect_code("CUDA_ERROR_CAPTURED_EVENT", [&] { driver->event_synchronize(event); });
    expect_code("CUDA_ERROR_CAPTURED_EVENT", [&] { driver->stream_wait_event(two, event); });
    driver->event_record(event, two);  // makes it an ordinary event again
    driver->event_synchronize(event);
    driver->stream_wait_event(one, event);
    expect_usable();
}

TEST_P(SimCaptures, CapturesDoNotMerge) {
    driver->capture_begin(one);
    driver->capture_begin(two);
    driver->event_record(event, one);
    expect_code("CUDA_ERROR_STREAM_CAPTURE_MERGE", [&] { driver->stream_wait_event(two, event); });
    for (const StreamHandle stream : {one, two}) {
        expect_code("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", [&] { driver->capture_end(stream); });
    }
    expect_usable();
}

TEST_P(SimCaptures, CapturesBeginAndEndWhereTheyShould) {
    expect_code("CUDA_ERROR_ILLEGAL_STATE", [&] { driver->capture_end(one); });
    driver->capture_begin(one);
    expect_code("CUDA_ERROR_ILLEGAL_STATE", [&] { driver->capture_begin(one); });
    driver->event_record(event, one);
    driver->stream_wait_event(two, event);
    expect_code("CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", [&] { driver->capture_end(two); });
    expect_code("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", [&] { driver->capture_end(one); });
    expect_usable();
}

TEST_P(SimCaptures, OtherStreamsGoOnDuringACapture) {
    driver->capture_begin(one);
    affine(one, x, 1, 1);
    affine(two, y, 1, 7);
    driver->stream_synchronize(two);
    EXPECT_EQ(*words(y), 7);
    driver->free(driver->allocate(64));
    driver->graph_launch(driver->capture_end(one), one);
    driver->synchronize();
    EXPECT_EQ(*words(x), 1);
}

TEST_P(SimCaptures, ADestroyedStreamEndsItsCapture) {
    driver->capture_begin(one);
    driver->event_record(event, one);
    driver->stream_wait_event(two, event);
    driver->stream_destroy(two);
    expect_code("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", [&] { driver->capture_end(one); });
    two = driver->stream_create(0);
    expect_usable();
}

TEST_P(SimCaptures, PinnedCopiesReadTheirSourceAtEachReplay) {
    auto* pinned = static_cast<std::int64_t*>(driver->allocate_host(16));
    driver->capture_begin(one);
    driver->copy_to_device(one, x, pinned, 8);
    affine(one, x, 10, 0);
    driver->copy_to_host(one, pinned + 1, x, 8);
    const GraphHandle graph = driver->capture_end(one);
    for (const std::int64_t value : {3, 4}) {
        pinned[0] = value;
        driver->graph_launch(graph, one);
        driver->stream_synchronize(one);
        EXPECT_EQ(pinned[1], value * 10);
    }
    driver->free_host(pinned);
}
