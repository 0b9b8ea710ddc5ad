// How the pool makes room, one step after another, each dearer than the last.
#pragma once

#include "memory/pool.hpp"

namespace gpk {

// `attempt` gives something that is true once there is room. The caller holds driver_mutex_.
template <class Attempt>
auto MemoryPool::with_room(std::size_t bytes, const Tenant* tenant, Attempt&& attempt) {
    auto got = attempt();
    if (!got && harvest(Harvest::idle_chunks) > 0) got = attempt();
    while (!got && evictor_.make_room(bytes, nullptr, tenant)) got = attempt();
    if (!got && harvest(Harvest::everything) > 0) got = attempt();
    return got;
}

}  // namespace gpk
