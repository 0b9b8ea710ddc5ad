#include "runtime/graph.hpp"

#include "base/error.hpp"
#include "runtime/device.hpp"
#include "runtime/tenant.hpp"

namespace gpk {

std::shared_ptr<Graph> Graph::begin(const std::shared_ptr<Stream>& stream) {
    if (stream->capture_ != nullptr) {
        throw error(ErrorKind::value, {.call = "Graph.capture",
                                       .argument = "stream",
                                       .expected = "a stream that is not being captured",
                                       .got = "one whose capture is under way",
                                       .fix = "end that capture first"});
    }
    std::shared_ptr<Graph> graph(new Graph(stream));
    const auto here = stream->stay();
    graph->sms_ = stream->sms_;
    stream->device().driver().capture_begin(stream->handle());
    stream->capture_ = graph.get();
    return graph;
}

void Graph::end() {
    if (stream_->capture_ != this) {
        throw error(ErrorKind::value, {.call = "Graph.end",
                                       .expected = "a graph whose capture is under way",
                                       .got = "one whose capture has ended"});
    }
    try {
        handle_ = device().driver().capture_end(stream_->handle());
    } catch (...) {
        abandon();
        throw;
    }
    stream_->capture_ = nullptr;
    std::erase_if(resources_, [](const auto& entry) { return !entry.second->needed(); });
}

void Graph::abandon() noexcept {
    if (stream_->capture_ != this) return;
    Driver& driver = device().driver();
    try {
        driver.graph_destroy(driver.capture_end(stream_->handle()));
    } catch (const Error&) {
        // The capture was already broken by what made the caller abandon it.
    }
    stream_->capture_ = nullptr;
}

std::shared_ptr<Graph> Graph::capture(const std::shared_ptr<Stream>& stream,
                                      const std::function<void()>& work) {
    const StreamScope scope(stream);
    std::shared_ptr<Graph> graph = begin(stream);
    try {
        work();
    } catch (...) {
        graph->abandon();
        throw;
    }
    graph->end();
    return graph;
}

Graph::~Graph() {
    abandon();
    if (handle_ != nullptr) device().driver().graph_destroy(handle_);
}

void Graph::check_place(const Stream& stream) const {
    if (stream.sms() != sms_) {
        const auto where = [](const std::shared_ptr<SmPartition>& sms) {
            return sms ? str("an SM partition of ", sms->multiprocessors(), " multiprocessors")
                       : std::string("all multiprocessors");
        };
        throw error(ErrorKind::unsupported,
                    {.call = "Graph.launch",
                     .argument = "stream",
                     .expected = str("one of the SM partition that it was captured in (", where(sms_), ")"),
                     .got = str("one on ", where(stream.sms())),
                     .fix = "capture the work again in the partition where it is to run"});
    }
}

void Graph::launch(const std::shared_ptr<Stream>& stream) {
    if (handle_ == nullptr) {
        throw error(ErrorKind::value, {.call = "Graph.launch",
                                       .expected = "a captured graph",
                                       .got = "one whose capture has not ended"});
    }
    if (&stream->device() != &device()) {
        throw error(ErrorKind::value, {.call = "Graph.launch",
                                       .argument = "stream",
                                       .expected = str("a stream on ", device().name()),
                                       .got = str("one on ", stream->device().name())});
    }
    check_place(*stream);
    if (stream->capture() != nullptr) {
        throw error(ErrorKind::unsupported, {.call = "Graph.launch",
                                             .got = "a launch inside another capture",
                                             .fix = "capture the work itself"});
    }
    // Two launches use the same memory, so they follow one another on every stream.
    if (last_launch_ && last_launch_ != stream) stream->wait(*last_launch_);
    for (auto& [key, resource] : resources_) resource->before_launch(stream);
    if (arena) arena->before_launch(stream);
    device().launcher().graph(*stream, *this);
    last_launch_ = stream;
}

std::size_t Graph::node_count() const {
    return handle_ == nullptr ? 0 : device().driver().graph_node_count(handle_);
}

void Graph::add_cost(const Cost& cost) noexcept {
    cost_.flops += cost.flops;
    cost_.bytes += cost.bytes;
}

}  // namespace gpk
