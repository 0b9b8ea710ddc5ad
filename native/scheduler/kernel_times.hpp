// KernelTimes: how long a piece of work takes on the device, by its name, grid and cost: as measured, and
// before that as its bytes and operations let one expect.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/launcher.hpp"

namespace gpk {

class KernelTimes {
   public:
    struct Known {
        std::uint64_t key = 0;
        std::int64_t ns = 0;
        std::uint32_t measured = 0, launches = 0;
    };

    // `device_bandwidth` in bytes a second, 0 where it is not known.
    explicit KernelTimes(double device_bandwidth) : bandwidth_(device_bandwidth) {}
    // Of a kind of work that is new: an entry with a guess, in place of one that was there.
    Known& of(const WorkRecord& work) noexcept;
    // A measurement; `key` as in Known. What was replaced since is let go.
    void learn(std::uint64_t key, std::int64_t ns) noexcept;

   private:
    static constexpr std::size_t kEntries = 512, kProbes = 4;

    Known& find(std::uint64_t key) noexcept;

    const double bandwidth_;
    std::array<Known, kEntries> entries_{};
};

}  // namespace gpk
