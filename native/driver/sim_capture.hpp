// Stream capture on the simulated device, with the rules of the CUDA programming guide ("Creating a
// graph using stream capture"). The driver's lock is held in every call.
#pragma once

#include <memory>
#include <vector>

#include "driver/sim_queue.hpp"

namespace gpk {

class SimCapture : public std::enable_shared_from_this<SimCapture> {
   public:
    static void begin(const char* call, const std::shared_ptr<SimStream>& stream);
    // Takes all its streams out of capture mode, and throws where the capture is not sound.
    static std::shared_ptr<SimGraph> end(const char* call, const std::shared_ptr<SimStream>& stream);

    // Work on a capturing stream: a node behind the stream's tail. `graph` recorded whole.
    void add(const char* call, SimStream& stream, SimWork work);
    void add(const char* call, SimStream& stream, const SimGraph& graph);
    void record(const char* call, SimEvent& event, const SimStream& stream);
    // stream_wait_event where the stream, the event, or both are in a capture.
    static void wait(const char* call, const std::shared_ptr<SimStream>& stream, const SimEvent& event);

    // For what a capture forbids: invalidates it and throws CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
    [[noreturn]] void refuse(const char* call, const char* what);
    // event_query, event_synchronize or event_elapsed_ms of a captured event.
    [[noreturn]] void refuse_event(const char* call);
    void invalidate() noexcept { valid_ = false; }

   private:
    void check_valid(const char* call) const;
    bool joined(const std::vector<int>& tail) const;

    std::weak_ptr<SimStream> origin_;
    std::vector<std::weak_ptr<SimStream>> streams_;  // all that take part
    std::shared_ptr<SimGraph> graph_ = std::make_shared<SimGraph>();
    bool valid_ = true;
    bool active_ = true;
};

}  // namespace gpk
