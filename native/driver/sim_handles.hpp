// The handles that a simulated device gives out.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>

#include "base/log.hpp"
#include "driver/sim_error.hpp"

namespace gpk::sim_handles {

template <class Handle, class Object>
const std::shared_ptr<Object>& find(const char* call, const char* what, Handle handle,
                                    const std::unordered_map<Handle, std::shared_ptr<Object>>& known) {
    const auto found = known.find(handle);
    if (found == known.end()) {
        throw sim_error(call, sim_code::kInvalidHandle, str("not a live ", what));
    }
    return found->second;
}

// A handle is the object's address.
template <class Handle, class Object>
Handle keep(std::shared_ptr<Object> object, std::unordered_map<Handle, std::shared_ptr<Object>>& known) {
    const auto handle = reinterpret_cast<Handle>(object.get());
    known.emplace(handle, std::move(object));
    return handle;
}

template <class Handle, class Object>
std::shared_ptr<Object> forget(const char* call, Handle handle,
                               std::unordered_map<Handle, std::shared_ptr<Object>>& known) {
    const auto found = known.find(handle);
    if (found == known.end()) {
        log(LogLevel::warning, str(call, ": not a live handle"));
        return nullptr;
    }
    auto object = std::move(found->second);
    known.erase(found);
    return object;
}

}  // namespace gpk::sim_handles
