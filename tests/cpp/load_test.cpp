#include "io/load.hpp"

#include "base/float_types.hpp"
#include "io/dequantize.hpp"
#include "io_support.hpp"
#include "runtime/graph.hpp"
#include "support.hpp"

namespace {

using namespace gpk;
using namespace gpk::io;
using io_test::Bytes;

TensorView view(StoredType type, const Dims& shape, std::span<const std::byte> bytes) {
    return {"w", type, info(type).dtype, shape, bytes};
}

template <class T>
std::vector<T> values_of(const Array& array) {
    std::vector<T> values(static_cast<std::size_t>(array.size()));
    array.copy_to_host(values.data());
    return values;
}

Bytes floats(std::int64_t count) {
    Bytes bytes;
    bytes.reserve(static_cast<std::size_t>(count) * 4);
    for (std::int64_t i = 0; i < count; ++i) io_test::put(bytes, static_cast<float>(i % 4099) * 0.5f);
    return bytes;
}

TEST(LoadTensor, UploadsAsStored) {
    const Bytes bytes = floats(6);
    const Array array = load_tensor(test_device(), view(StoredType::f32, {2, 3}, bytes), DType::float32);
    EXPECT_EQ(array.shape(), (Dims{2, 3}));
    EXPECT_EQ(array.dtype(), DType::float32);
    EXPECT_FALSE(array.writable());
    EXPECT_TRUE(array.is_contiguous());
    EXPECT_EQ(values_of<float>(array), (std::vector<float>{0, 0.5f, 1, 1.5f, 2, 2.5f}));
}

TEST(LoadTensor, Converts) {
    const Bytes bytes = floats(6);
    const Array array = load_tensor(test_device(), view(StoredType::f32, {6}, bytes), DType::bfloat16);
    EXPECT_EQ(array.dtype(), DType::bfloat16);
    const auto values = values_of<bfloat16>(array);
    for (int i = 0; i < 6; ++i)
        EXPECT_EQ(static_cast<float>(values[static_cast<std::size_t>(i)]), 0.5f * static_cast<float>(i));
}

TEST(LoadTensor, ConvertsInPieces) {
    // More than the staging buffer holds, and no multiple of anything.
    constexpr std::int64_t kCount = 5'000'011;
    const Bytes bytes = floats(kCount);
    const auto values =
        values_of<double>(load_tensor(test_device(), view(StoredType::f32, {kCount}, bytes), DType::float64));
    for (std::int64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(values[static_cast<std::size_t>(i)], static_cast<double>(i % 4099) * 0.5) << i;
    }
}

TEST(LoadTensor, ScalarEmptyAndBool) {
    const Bytes bytes = floats(2);
    const auto scalar = view(StoredType::f32, {}, std::span(bytes).subspan(4));
    EXPECT_EQ(values_of<float>(load_tensor(test_device(), scalar, DType::float32)), std::vector<float>{0.5f});
    const Array empty = load_tensor(test_device(), view(StoredType::f16, {0, 7}, {}), DType::float32);
    EXPECT_EQ(empty.shape(), (Dims{0, 7}));
    EXPECT_FALSE(empty.writable());
    const Bytes flags = {std::byte{0}, std::byte{7}};
    const Array loaded = load_tensor(test_device(), view(StoredType::bool_, {2}, flags), DType::bool_);
    EXPECT_EQ(values_of<std::uint8_t>(loaded), (std::vector<std::uint8_t>{0, 1}));
}

TEST(LoadTensor, Dequantises) {
    Bytes bytes;
    for (int block = 0; block < 6; ++block) {
        io_test::put(bytes, float16(0.5f + static_cast<float>(block)));
        for (int i = 0; i < 32; ++i) io_test::put(bytes, static_cast<std::int8_t>(i * 5 - 80 + block));
    }
    const TensorView tensor = view(StoredType::q8_0, {3, 64}, bytes);
    EXPECT_EQ(values_of<float>(load_tensor(test_device(), tensor, DType::float32)), read_float32(tensor));
}

TEST(LoadTensor, ReordersRows) {
    const Bytes bytes = floats(12);
    const std::vector<std::int64_t> rows = {2, 0, 1};
    for (const StoredType type : {StoredType::f32, StoredType::i32}) {
        const TensorView tensor = view(type, {3, 2, 2}, bytes);
        const auto values = values_of<std::uint32_t>(load_tensor(test_device(), tensor, tensor.dtype, rows));
        for (std::size_t i = 0; i < 12; ++i) {
            std::uint32_t expected;
            std::memcpy(&expected, &bytes[(static_cast<std::size_t>(rows[i / 4]) * 4 + i % 4) * 4], 4);
            EXPECT_EQ(values[i], expected) << i;
        }
    }
}

TEST(LoadTensor, ReordersManyRowsInPieces) {
    constexpr std::int64_t kRows = 3001, kColumns = 1700;  // 20 MB of float32
    const Bytes bytes = floats(kRows * kColumns);
    std::vector<std::int64_t> rows(kRows);
    for (std::int64_t i = 0; i < kRows; ++i) rows[static_cast<std::size_t>(i)] = i * 7 % kRows;
    const auto values = values_of<float>(
        load_tensor(test_device(), view(StoredType::f32, {kRows, kColumns}, bytes), DType::float32, rows));
    for (std::int64_t i = 0; i < kRows * kColumns; ++i) {
        const std::int64_t source = rows[static_cast<std::size_t>(i / kColumns)] * kColumns + i % kColumns;
        ASSERT_EQ(values[static_cast<std::size_t>(i)], static_cast<float>(source % 4099) * 0.5f) << i;
    }
}

TEST(LoadTensor, RefusesWhatDoesNotFit) {
    const Bytes bytes = floats(64);
    const auto kind_of = [](const auto& call) {
        try {
            call();
        } catch (const Error& e) {
            EXPECT_NE(std::string_view(e.what()).find("tensor 'w'"), std::string_view::npos) << e.what();
            return e.kind();
        }
        ADD_FAILURE() << "no error";
        return ErrorKind::driver;
    };
    const auto load = [&](StoredType type, const Dims& shape, DType target,
                          std::vector<std::int64_t> rows = {}) {
        return kind_of([&] { load_tensor(test_device(), view(type, shape, bytes), target, rows); });
    };
    EXPECT_EQ(load(StoredType::f32, {4}, DType::int32), ErrorKind::type);
    EXPECT_EQ(load(StoredType::f32, {4, 2}, DType::float32, {0, 1}), ErrorKind::value);
    EXPECT_EQ(load(StoredType::f32, {}, DType::float32, {0}), ErrorKind::value);
    EXPECT_EQ(load(StoredType::q4_0, {32}, DType::float32, std::vector<std::int64_t>(32)), ErrorKind::value);
    EXPECT_EQ(load(StoredType::f32, {2, 2}, DType::float32, {0, 2}), ErrorKind::index);
    EXPECT_EQ(load(StoredType::f32, {2, 2}, DType::float32, {-1, 0}), ErrorKind::index);

    const auto stream = Stream::create(test_device());
    EXPECT_EQ(kind_of([&] {
                  Graph::capture(stream, [&] {
                      load_tensor(test_device(), view(StoredType::f32, {4}, bytes), DType::float32);
                  });
              }),
              ErrorKind::unsupported);
}

}  // namespace
