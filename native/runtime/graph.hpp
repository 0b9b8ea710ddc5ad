// Graph: work captured once from a stream and launched many times as one piece.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>

#include "driver/driver.hpp"
#include "runtime/cost.hpp"
#include "runtime/stream.hpp"

namespace gpk {

// Something that a graph's work uses and that must live as long as the graph: its storages, and the
// arena that the memory layer allocates from during the capture.
class GraphResource {
   public:
    virtual ~GraphResource() = default;
    // Before a launch on `stream`: orders it behind other streams' use of the same memory.
    virtual void before_launch(const std::shared_ptr<Stream>& stream) = 0;
    // Whether it still matters once the capture has ended.
    virtual bool needed() const { return true; }
};

class Graph {
   public:
    // Runs `work` with `stream` current and captures what it queues. An exception from `work` ends the
    // capture, leaves the stream as it was, and goes on to the caller.
    static std::shared_ptr<Graph> capture(const std::shared_ptr<Stream>& stream,
                                          const std::function<void()>& work);
    ~Graph();
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    // The two halves, for callers whose capture is a scope. abandon() may follow begin() only.
    static std::shared_ptr<Graph> begin(const std::shared_ptr<Stream>& stream);
    void end();
    void abandon() noexcept;

    // Error (unsupported) on a stream of other SMs than those of the capture.
    void launch(const std::shared_ptr<Stream>& stream);
    void check_place(const Stream& stream) const;
    GraphHandle handle() const noexcept { return handle_; }
    const Cost& cost() const noexcept { return cost_; }
    std::size_t node_count() const;
    Device& device() const noexcept { return stream_->device(); }
    bool ready() const noexcept { return handle_ != nullptr; }

    void add_cost(const Cost& cost) noexcept;
    // Resources by what they stand for, so that each is kept once.
    std::shared_ptr<GraphResource>& resource(const void* key) { return resources_[key]; }
    // The memory layer's arena for this graph, made by it at the first allocation.
    std::shared_ptr<GraphResource> arena;

   private:
    explicit Graph(std::shared_ptr<Stream> stream) : stream_(std::move(stream)) {}

    std::shared_ptr<Stream> stream_;    // captured from
    std::shared_ptr<SmPartition> sms_;  // where: a captured kernel stays in the context of its capture
    GraphHandle handle_ = nullptr;
    Cost cost_;
    std::shared_ptr<Stream> last_launch_;
    std::unordered_map<const void*, std::shared_ptr<GraphResource>> resources_;
};

}  // namespace gpk
