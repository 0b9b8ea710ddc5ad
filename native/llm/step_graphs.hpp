// Work that comes again and again, as graphs.
#pragma once

#include <map>
#include <memory>

#include "base/error.hpp"
#include "runtime/graph.hpp"
#include "runtime/stream.hpp"

namespace gpk::llm {

// By what the work is: a Key says all that its kernels and their arguments depend on.
template <class Key>
class StepGraphs {
   public:
    // Queues what `work` queues on the current stream, which is `stream`. Loading a kernel's code is not
    // allowed in a capture, so the first time runs without one, and so does the first on other SMs: a graph
    // stays on those of its capture. Inside a caller's own capture the work becomes part of that.
    template <class Work>
    void run(const std::shared_ptr<Stream>& stream, const Key& key, Work&& work) {
        const std::shared_ptr<SmPartition> here = stream->sms();
        const auto known = graphs_.find(key);
        const bool ready = known != graphs_.end() && known->second.sms == here;
        if (!ready || stream->capture() != nullptr) {
            work();
            if (!ready) graphs_.insert_or_assign(key, Kept{here, nullptr});
            return;
        }
        std::shared_ptr<Graph>& graph = known->second.graph;
        if (!graph) graph = Graph::capture(apart_from(stream), work);
        graph->launch(stream);
    }

   private:
    // A stream of the same SMs for the capture: other threads may be using this one, and what they queue
    // meanwhile would become part of the graph.
    static std::shared_ptr<Stream> apart_from(const std::shared_ptr<Stream>& stream) {
        try {
            return Stream::create_for(stream->tenant(), stream->device());
        } catch (const Error&) {
            return stream;  // its tenant has all the streams that it may have
        }
    }

    struct Kept {
        std::shared_ptr<SmPartition> sms;
        std::shared_ptr<Graph> graph;  // nothing before its kernels were launched once
    };
    std::map<Key, Kept> graphs_;
};

}  // namespace gpk::llm
