// GGUF's blocks as codes: the numbers that dequantising them gives, to the bit.
#include "io/ggml_codes.hpp"

#include <gtest/gtest.h>

#include <random>

#include "io/dequantize.hpp"
#include "values.hpp"

namespace {

using namespace gpk;
using namespace gpk::io;

struct Blocks {
    StoredType type;
    std::vector<std::size_t> halves;  // where float16 stand in a block
    double most_bits;                 // of a weight on the device
};
const Blocks kBlocks[] = {
    {StoredType::q4_0, {0}, 5},     {StoredType::q4_1, {0, 2}, 6}, {StoredType::q5_0, {0}, 9},
    {StoredType::q5_1, {0, 2}, 10}, {StoredType::q8_0, {0}, 9},    {StoredType::q2_k, {80, 82}, 12},
    {StoredType::q3_k, {108}, 10},  {StoredType::q4_k, {0, 2}, 6}, {StoredType::q5_k, {0, 2}, 10},
    {StoredType::q6_k, {208}, 10},
};

// Random blocks of a matrix [n, k]; every bit that may stand in a file but for scales that are no numbers.
std::vector<std::byte> random_blocks(const Blocks& kind, std::int64_t n, std::int64_t k) {
    const StoredTypeInfo& stored = info(kind.type);
    std::mt19937 random(static_cast<unsigned>(kind.type));
    std::vector<std::byte> bytes(
        static_cast<std::size_t>(n * k / stored.block_elements * stored.block_bytes));
    for (std::byte& each : bytes) each = static_cast<std::byte>(random() & 255);
    for (std::size_t block = 0; block < bytes.size(); block += static_cast<std::size_t>(stored.block_bytes)) {
        for (const std::size_t at : kind.halves) {
            const float16 value(static_cast<float>(random() % 4001) / 1000 - 2);
            std::memcpy(bytes.data() + block + at, &value, sizeof(value));
        }
    }
    return bytes;
}

TensorView view(const Blocks& kind, std::int64_t n, std::int64_t k, std::span<const std::byte> bytes) {
    return {"w", kind.type, info(kind.type).dtype, {n, k}, bytes};
}

std::vector<double> widened(const std::vector<float>& values) { return {values.begin(), values.end()}; }

TEST(GgmlCodes, AreTheNumbersOfTheFileToTheBit) {
    for (const Blocks& kind : kBlocks) {
        for (const auto& [n, k] : {std::pair{19, 256}, {33, 768}}) {
            const auto bytes = random_blocks(kind, n, k);
            const TensorView tensor = view(kind, n, k, bytes);
            const auto matrix = coded_matrix(tensor, DType::float32);
            ASSERT_TRUE(matrix) << info(kind.type).name;
            const auto w = ops::pack_codes(test_device(), *matrix);
            EXPECT_EQ(values::download(ops::dequantize(w, DType::float32)), widened(read_float32(tensor)))
                << info(kind.type).name;
            if (n == 33) continue;  // rows past n take memory as well
            EXPECT_LE(static_cast<double>(w.nbytes()) * 8 / static_cast<double>(32 * k), kind.most_bits)
                << info(kind.type).name;
        }
    }
}

TEST(GgmlCodes, TakesRowsInAnotherOrder) {
    for (const Blocks& kind : kBlocks) {
        const auto bytes = random_blocks(kind, 4, 256);
        const TensorView tensor = view(kind, 4, 256, bytes);
        const auto straight = widened(read_float32(tensor));
        const std::int64_t order[] = {2, 0, 3, 1};
        const auto w = ops::pack_codes(test_device(), *coded_matrix(tensor, DType::float32, order));
        const auto got = values::download(ops::dequantize(w, DType::float32));
        for (std::ptrdiff_t row = 0; row < 4; ++row) {
            EXPECT_TRUE(std::equal(got.begin() + row * 256, got.begin() + (row + 1) * 256,
                                   straight.begin() + order[row] * 256))
                << info(kind.type).name << ", row " << row;
        }
    }
}

TEST(GgmlCodes, NothingElseIsCodes) {
    const std::vector<std::byte> bytes(4 * 64);
    EXPECT_FALSE(coded_matrix({"w", StoredType::f32, DType::float32, {2, 32}, bytes}, DType::float32));
    const auto blocks = std::span(bytes).first(34);
    EXPECT_FALSE(coded_matrix({"w", StoredType::q8_0, DType::float32, {32}, blocks}, DType::float32));
    EXPECT_FALSE(coded_matrix({"w", StoredType::q8_0, DType::float32, {0, 32}, {}}, DType::float32));
}

}  // namespace
