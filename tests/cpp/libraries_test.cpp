#include "driver/libraries.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace gpk {
namespace {

TEST(Libraries, EachIsReportedWithAPathOrAReason) {
    const auto all = library_statuses();
    ASSERT_EQ(all.size(), 5u);
    EXPECT_EQ(all[0].name, "libcuda");
    EXPECT_EQ(all[1].name, "NVRTC");
    EXPECT_EQ(all[2].name, "NVRTC builtins");
    EXPECT_EQ(all[3].name, "cuBLASLt");
    EXPECT_EQ(all[4].name, "NCCL");
    for (const auto& library : all) {
        EXPECT_NE(library.path.empty(), library.problem.empty()) << library.name << ": " << library.problem;
        if (!library.path.empty()) {
            EXPECT_EQ(library.path.front(), '/');
            EXPECT_FALSE(library.version.empty()) << library.name;
            EXPECT_FALSE(library.how.empty());
        }
    }
}

TEST(Libraries, TheReferenceStays) {
    const FoundLibrary& first = find_library(Library::nvrtc);
    set_library_folders({"/nonexistent/site-packages", "", "relative"});
    EXPECT_EQ(&find_library(Library::nvrtc), &first);
}

}  // namespace
}  // namespace gpk
