// KernelTimes: how long a piece of work takes on the device, by its name, grid and cost: as measured, and
// before that as its bytes and operations let one expect, at the rate of the same kernel's other sizes.
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
        const char* kernel = nullptr;  // its name; null of other work
        std::int64_t declared_ns = 0;  // what its cost comes to at the rates that are assumed
    };

    // `device_bandwidth` in bytes a second, 0 where it is not known.
    explicit KernelTimes(double device_bandwidth) : bandwidth_(device_bandwidth) {}
    // Of a kind of work that is new: an entry with a guess, in place of one that was there.
    Known& of(const WorkRecord& work) noexcept;
    // The same without an entry: of work that may never be launched as it is.
    std::int64_t expected_ns(const WorkRecord& work) const noexcept;
    // A measurement; `key` as in Known. What was replaced since is let go.
    void learn(std::uint64_t key, std::int64_t ns) noexcept;

   private:
    static constexpr std::size_t kEntries = 512, kProbes = 4, kKernels = 128;

    // Of a kernel, whatever its size: the longer a run, the more it counts, and the later.
    struct Rate {
        const char* kernel = nullptr;
        double measured_ns = 0, declared_ns = 0;
    };

    Known& find(std::uint64_t key) noexcept;
    std::int64_t declared_ns(const WorkRecord& work) const noexcept;
    std::int64_t guess(const char* kernel, std::int64_t declared_ns) const noexcept;
    static std::size_t slot_of(const char* kernel) noexcept;

    const double bandwidth_;
    std::array<Known, kEntries> entries_{};
    std::array<Rate, kKernels> rates_{};
};

}  // namespace gpk
