// What the tests of partitions share: where a kernel ran, and a scope that ends with its test.
#pragma once

#include <memory>
#include <utility>

#include "array/array.hpp"
#include "runtime/kernel.hpp"
#include "scheduler/partition.hpp"
#include "sim_support.hpp"

namespace partitions {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

// Writes one bit a group it ran on, as a kernel would that reads %smid.
struct WhereParams {
    std::int64_t* bits;
};
inline void where_host(const void* params, const gpk::LaunchConfig&) {
    std::int64_t bits = 0;
    for (const int group : gpk::sim_running_groups()) bits |= std::int64_t{1} << group;
    *static_cast<const WhereParams*>(params)->bits = bits;
}
inline constexpr gpk::KernelDef kWhereDef{.name = "where", .twin = where_host};
inline const gpk::Kernel kWhere{kWhereDef};

inline std::int64_t ran_on(const std::shared_ptr<gpk::Stream>& stream) {
    const gpk::StreamScope scope(stream);
    const gpk::Array x = gpk::Array::empty(stream->device(), {1}, gpk::DType::int64);
    stream->device().launcher().launch(*stream, kWhere, {}, WhereParams{x.as<std::int64_t>()}, {});
    std::int64_t bits = -1;
    x.copy_to_host(&bits);
    return bits;
}

struct Scope {
    explicit Scope(std::shared_ptr<gpk::Partition> entered)
        : partition(std::move(entered)), stream(partition->enter()) {}
    ~Scope() { partition->leave(stream); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    std::shared_ptr<gpk::Partition> partition;
    std::shared_ptr<gpk::Stream> stream;
};

}  // namespace partitions
