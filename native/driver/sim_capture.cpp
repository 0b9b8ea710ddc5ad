#include "driver/sim_capture.hpp"

#include <algorithm>
#include <utility>

#include "driver/sim_error.hpp"

namespace gpk {

void SimCapture::begin(const char* call, const std::shared_ptr<SimStream>& stream) {
    if (stream->capture) throw sim_error(call, sim_code::kIllegalState, "the stream is capturing already");
    auto capture = std::make_shared<SimCapture>();
    capture->origin_ = stream;
    capture->streams_.push_back(stream);
    stream->capture = std::move(capture);
    stream->tail.clear();
}

std::shared_ptr<SimGraph> SimCapture::end(const char* call, const std::shared_ptr<SimStream>& stream) {
    const auto capture = stream->capture;
    if (!capture) throw sim_error(call, sim_code::kIllegalState, "the stream is not capturing");
    if (capture->origin_.lock() != stream) {
        capture->invalidate();
        throw sim_error(call, sim_code::kCaptureUnmatched, "the capture was begun on another stream");
    }
    const bool joined = capture->joined(stream->tail);
    capture->active_ = false;
    for (const auto& part : capture->streams_) {
        if (const auto held = part.lock()) {
            held->capture = nullptr;
            held->tail.clear();
        }
    }
    capture->check_valid(call);
    if (!joined) {
        throw sim_error(call, sim_code::kCaptureUnjoined,
                        "work on another stream was not joined to the one the capture was begun on");
    }
    auto graph = std::exchange(capture->graph_, std::make_shared<SimGraph>());
    graph->finish();
    return graph;
}

// Everything captured must come before the origin's tail.
bool SimCapture::joined(const std::vector<int>& tail) const {
    std::vector<bool> seen(graph_->nodes.size());
    std::vector<int> open = tail;
    while (!open.empty()) {
        const auto node = static_cast<std::size_t>(open.back());
        open.pop_back();
        if (seen[node]) continue;
        seen[node] = true;
        const auto& after = graph_->nodes[node].after;
        open.insert(open.end(), after.begin(), after.end());
    }
    return std::find(seen.begin(), seen.end(), false) == seen.end();
}

void SimCapture::check_valid(const char* call) const {
    if (!valid_) {
        throw sim_error(call, sim_code::kCaptureInvalidated, "an earlier error made the capture invalid");
    }
}

void SimCapture::add(const char* call, SimStream& stream, SimWork work) {
    check_valid(call);
    graph_->nodes.push_back({std::move(work), stream.tail});
    stream.tail.assign(1, static_cast<int>(graph_->nodes.size()) - 1);
}

void SimCapture::add(const char* call, SimStream& stream, const SimGraph& graph) {
    check_valid(call);
    if (graph.nodes.empty()) return;
    const int base = static_cast<int>(graph_->nodes.size());
    std::vector<int> ends;
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
        SimGraph::Node node = graph.nodes[i];
        for (int& before : node.after) before += base;
        if (node.after.empty()) node.after = stream.tail;
        graph_->nodes.push_back(std::move(node));
        if (graph.followers[i].empty()) ends.push_back(base + static_cast<int>(i));
    }
    stream.tail = std::move(ends);
}

void SimCapture::record(const char* call, SimEvent& event, const SimStream& stream) {
    check_valid(call);
    event.capture = shared_from_this();
    event.nodes = stream.tail;
    event.point = nullptr;
}

void SimCapture::wait(const char* call, const std::shared_ptr<SimStream>& stream, const SimEvent& event) {
    const auto own = stream->capture;
    const auto other = event.capture;
    if (own) own->check_valid(call);
    if (!other) {
        own->invalidate();
        throw sim_error(call, sim_code::kCaptureIsolation,
                        "a capturing stream cannot wait for an event recorded outside the capture");
    }
    if (!other->active_) {
        if (own) own->invalidate();
        throw sim_error(call, sim_code::kCapturedEvent, "the event was recorded in a capture that has ended");
    }
    other->check_valid(call);
    if (own && own != other) {
        own->invalidate();
        other->invalidate();
        throw sim_error(call, sim_code::kCaptureMerge, "the event belongs to another capture");
    }
    if (!own) {
        stream->capture = other;
        stream->tail = event.nodes;
        other->streams_.push_back(stream);
        return;
    }
    for (const int node : event.nodes) {
        if (std::find(stream->tail.begin(), stream->tail.end(), node) == stream->tail.end()) {
            stream->tail.push_back(node);
        }
    }
}

void SimCapture::refuse(const char* call, const char* what) {
    if (active_) invalidate();
    throw sim_error(call, sim_code::kCaptureUnsupported, what);
}

void SimCapture::refuse_event(const char* call) {
    if (active_) invalidate();
    throw sim_error(call, sim_code::kCapturedEvent, "the event was last recorded in a capture");
}

}  // namespace gpk
