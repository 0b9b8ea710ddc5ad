#include "ops/counters.hpp"

#include <algorithm>
#include <utility>

#include "runtime/device.hpp"
#include "runtime/launcher.hpp"

namespace gpk::ops {

namespace {

// Zero again after each call.
class GraphCounters final : public GraphResource {
   public:
    explicit GraphCounters(Array array) : array_(std::move(array)) {}
    const Array& array() const { return array_; }
    void before_launch(const std::shared_ptr<Stream>&) override {}  // they are the graph's own

   private:
    Array array_;
};

Array zeros_of(Device& device, std::int64_t count) {
    Array counters = Array::empty(device, {count}, DType::uint32);
    const auto& stream = current_stream(device);
    const UseScope scope;
    counters.storage()->before_write(stream);
    device.launcher().fill(*stream, counters.data(), 0, counters.nbytes());
    return counters;
}

}  // namespace

Array zero_counters(Device& device, std::int64_t count) {
    static constexpr char kKey = 0;
    Graph* graph = current_stream(device)->capture();
    if (graph == nullptr) return zeros_of(device, count);
    if (const auto known = std::dynamic_pointer_cast<GraphCounters>(graph->resource(&kKey))) {
        if (known->array().size() >= count) return known->array();
    }
    constexpr std::int64_t kLeast = 1 << 17;  // what attention hands on too, so that others are seldom needed
    Array zeros = zeros_of(device, std::max(count, kLeast));
    graph->resource(&kKey) = std::make_shared<GraphCounters>(zeros);
    return zeros;
}

}  // namespace gpk::ops
