// Driver::tensor_map: what both drivers refuse, and that the simulated one knows the memory it names.
#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "base/error.hpp"
#include "driver/driver.hpp"
#include "support.hpp"

namespace gpk {
namespace {

class TensorMaps : public ::testing::Test {
   protected:
    void SetUp() override {
        if (driver.info().sm != 0 && driver.info().sm < 90) GTEST_SKIP() << "needs SM 90";
        memory = driver.allocate(kBytes);
    }
    ~TensorMaps() override {
        if (memory != 0) driver.free(memory);
    }

    // 64 rows of 256 bytes, in boxes of 8 rows of 128 bytes.
    TensorMapDef rows() const {
        return {.address = memory,
                .dtype = DType::bfloat16,
                .rank = 2,
                .extents = {128, 64},
                .strides_bytes = {256},
                .box = {64, 8},
                .swizzle = TensorSwizzle::bytes_128};
    }
    void refuses(const std::function<void(TensorMapDef&)>& change) {
        TensorMapDef def = rows();
        change(def);
        try {
            driver.tensor_map(def);
            ADD_FAILURE() << "was not refused";
        } catch (const Error& e) {
            EXPECT_EQ(e.kind(), ErrorKind::value) << e.what();
        }
    }

    static constexpr std::size_t kBytes = 64 * 256;
    Driver& driver = test_device().driver();
    DevicePtr memory = 0;
};

TEST_F(TensorMaps, HoldTheirAddress) {
    const TensorMap first = driver.tensor_map(rows());
    TensorMapDef moved = rows();
    moved.address += 256;
    moved.extents[1] -= 1;
    const TensorMap second = driver.tensor_map(moved);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&first) % 64, 0u);
    EXPECT_NE(first.words[0], second.words[0]);
}

TEST_F(TensorMaps, AreRefusedWhereTheCopyEngineCannotHaveThem) {
    refuses([](TensorMapDef& d) { d.rank = 0; });
    refuses([](TensorMapDef& d) { d.rank = 6; });
    refuses([](TensorMapDef& d) { d.address = 0; });
    refuses([](TensorMapDef& d) { d.address += 8; });
    refuses([](TensorMapDef& d) { d.extents[0] = 0; });
    refuses([](TensorMapDef& d) { d.extents[1] = (std::uint64_t{1} << 32) + 1; });
    refuses([](TensorMapDef& d) { d.strides_bytes[0] = 264; });
    refuses([](TensorMapDef& d) { d.strides_bytes[0] = std::uint64_t{1} << 40; });
    refuses([](TensorMapDef& d) { d.box[1] = 0; });
    refuses([](TensorMapDef& d) { d.box[1] = 257; });
    refuses([](TensorMapDef& d) { d.box[0] = 4; });
    refuses([](TensorMapDef& d) { d.box[0] = 128; });
    refuses([](TensorMapDef& d) { d.swizzle = TensorSwizzle::bytes_64; });
    refuses([](TensorMapDef& d) { d.to_tf32 = true; });  // of bfloat16
}

TEST_F(TensorMaps, OfTheSimulatedDeviceMustLieInItsMemory) {
    if (driver.kind() != "cpu") GTEST_SKIP() << "a GPU finds out when the kernel runs";
    TensorMapDef def = rows();
    def.extents[1] += 1;
    EXPECT_THROW(driver.tensor_map(def), DriverError);
}

}  // namespace
}  // namespace gpk
