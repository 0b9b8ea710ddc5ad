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

}  // namespace gpk
