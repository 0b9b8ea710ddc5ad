// What the tests of eviction share: a small device whose pages are its granularity, and work on arrays.
#pragma once

#include <vector>

#include "array/array.hpp"
#include "memory/pool.hpp"
#include "runtime/kernel.hpp"
#include "runtime/tenant.hpp"
#include "sim_support.hpp"

namespace sim {

inline constexpr std::size_t kPage = 4096;
inline constexpr std::int64_t kWords = kPage / 8;

inline const gpk::Kernel affine_kernel{kAffine};
inline const gpk::Kernel mix_kernel{kMix};

inline gpk::SimOptions paged(std::uint64_t seed = 0, bool interleaved = false) {
    return {.interleaved = interleaved, .seed = seed, .physical_granularity = kPage};
}

inline void affine(const gpk::Array& x, std::int64_t factor, std::int64_t term) {
    const auto& stream = gpk::current_stream(x.device());
    const gpk::UseScope scope;
    x.storage()->before_write(stream);
    x.device().launcher().launch(*stream, affine_kernel, {},
                                 AffineParams{x.as<std::int64_t>(), factor, term, x.size()}, {});
}

// to = to * 3 + from
inline void mix(const gpk::Array& to, const gpk::Array& from) {
    const auto& stream = gpk::current_stream(to.device());
    const gpk::UseScope scope;
    from.storage()->before_read(stream);
    to.storage()->before_write(stream);
    to.device().launcher().launch(*stream, mix_kernel, {},
                                  MixParams{to.as<std::int64_t>(), from.as<std::int64_t>(), to.size()}, {});
}

// Of `pages` pages, each word `value` plus its index.
inline gpk::Array counted(gpk::Device& device, std::int64_t value, std::int64_t pages = 1) {
    gpk::Array x = gpk::Array::empty(device, {pages * kWords}, gpk::DType::int64);
    std::vector<std::int64_t> host(static_cast<std::size_t>(x.size()));
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = value + static_cast<std::int64_t>(i);
    x.copy_from_host(host.data());
    return x;
}

inline std::vector<std::int64_t> words(const gpk::Array& x) {
    std::vector<std::int64_t> host(static_cast<std::size_t>(x.size()));
    x.copy_to_host(host.data());
    return host;
}

inline bool holds_counted(const gpk::Array& x, std::int64_t value) {
    const auto host = words(x);
    for (std::size_t i = 0; i < host.size(); ++i) {
        if (host[i] != value + static_cast<std::int64_t>(i)) return false;
    }
    return true;
}

}  // namespace sim
