#include "driver/driver.hpp"

#include <vector>

#include "base/error.hpp"

namespace gpk {

void check_sm_groups(const DeviceInfo& info, std::span<const int> groups) {
    if (info.sm_groups == 0) {
        throw error(ErrorKind::unsupported,
                    {.call = "SM partition",
                     .got = str(info.name, ", whose driver has no green contexts"),
                     .fix = "use an NVIDIA driver of CUDA 12.4 or newer, or a partition without SMs"});
    }
    std::vector<bool> seen(static_cast<std::size_t>(info.sm_groups));
    const auto refuse = [&](const std::string& got) {
        throw error(ErrorKind::value,
                    {.call = "SM partition",
                     .argument = "groups",
                     .expected = str("one or more distinct indices from 0 to ", info.sm_groups - 1),
                     .got = got});
    };
    if (groups.empty()) refuse("none");
    for (const int group : groups) {
        if (group < 0 || group >= info.sm_groups) refuse(str(group));
        if (seen[static_cast<std::size_t>(group)]) refuse(str(group, " twice"));
        seen[static_cast<std::size_t>(group)] = true;
    }
}

void check_tensor_map(const DeviceInfo& info, const TensorMapDef& def) {
    if (info.sm != 0 && info.sm < 90) {
        throw error(ErrorKind::unsupported, {.call = "tensor_map",
                                             .expected = "SM 90 or newer",
                                             .got = str("SM ", info.sm, " (", info.name, ")")});
    }
    const auto require = [](bool holds, const char* argument, const char* expected, std::uint64_t got) {
        if (holds) return;
        throw error(ErrorKind::value,
                    {.call = "tensor_map", .argument = argument, .expected = expected, .got = str(got)});
    };
    const bool rank_fits = def.rank >= 1 && def.rank <= kMaxTensorMapRank;
    require(rank_fits, "rank", "1 to 5", static_cast<std::uint64_t>(def.rank));
    require(def.address != 0 && def.address % 16 == 0, "address", "a multiple of 16", def.address);
    for (int i = 0; i < def.rank; ++i) {
        require(def.extents[i] >= 1 && def.extents[i] <= std::uint64_t{1} << 32, "extents", "1 to 2^32",
                def.extents[i]);
        require(def.box[i] >= 1 && def.box[i] <= 256, "box", "1 to 256", def.box[i]);
    }
    for (int i = 0; i + 1 < def.rank; ++i) {
        const std::uint64_t stride = def.strides_bytes[i];
        require(stride % 16 == 0 && stride < std::uint64_t{1} << 40, "strides_bytes",
                "multiples of 16 below 2^40", stride);
    }
    require(!def.to_tf32 || def.dtype == DType::float32, "to_tf32", "true for float32 only", 1);
    const std::uint64_t row_bytes = def.box[0] * itemsize(def.dtype);
    require(row_bytes % 16 == 0, "box", "an innermost extent of a multiple of 16 bytes", row_bytes);
    if (def.swizzle == TensorSwizzle::none) return;
    const std::uint64_t swizzle_bytes = std::uint64_t{16} << static_cast<int>(def.swizzle);
    require(row_bytes <= swizzle_bytes, "box", "an innermost extent of no more bytes than the swizzle's",
            row_bytes);
}

}  // namespace gpk
