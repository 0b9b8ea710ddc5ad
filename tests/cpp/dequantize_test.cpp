#include "io/dequantize.hpp"

#include <bit>
#include <cmath>
#include <limits>

#include "base/float_types.hpp"
#include "io_support.hpp"

namespace {

using namespace gpk;
using namespace gpk::io;
using io_test::Bytes;
using io_test::put;

TensorView view(StoredType type, const Dims& shape, std::span<const std::byte> bytes) {
    return {"w", type, info(type).dtype, shape, bytes};
}

template <class T>
std::vector<T> converted(const TensorView& tensor, DType target) {
    std::vector<T> values(static_cast<std::size_t>(tensor.size()));
    convert(tensor, 0, tensor.size(), target, std::as_writable_bytes(std::span(values)));
    return values;
}

std::uint16_t half_bits(float value) { return float16(value).bits; }

// qs[l] holds elements l and l + 16.
Bytes nibble_block(std::initializer_list<float> scales) {
    Bytes block;
    for (const float scale : scales) put(block, half_bits(scale));
    for (int l = 0; l < 16; ++l) put(block, static_cast<std::uint8_t>(l | (15 - l) << 4));
    return block;
}

TEST(Dequantize, Q4_0ByHand) {
    const Bytes block = nibble_block({0.5f});
    const auto values = read_float32(view(StoredType::q4_0, {32}, block));
    for (int l = 0; l < 16; ++l) {
        EXPECT_EQ(values[l], 0.5f * static_cast<float>(l - 8));
        EXPECT_EQ(values[l + 16], 0.5f * static_cast<float>(15 - l - 8));
    }
}

TEST(Dequantize, Q4_1ByHand) {
    const Bytes block = nibble_block({-2.0f, 3.0f});
    const auto values = read_float32(view(StoredType::q4_1, {32}, block));
    for (int l = 0; l < 16; ++l) {
        EXPECT_EQ(values[l], 3.0f - 2.0f * static_cast<float>(l));
        EXPECT_EQ(values[l + 16], 3.0f - 2.0f * static_cast<float>(15 - l));
    }
}

TEST(Dequantize, Q8_0ByHand) {
    Bytes block;
    put(block, half_bits(0.25f));
    for (int l = 0; l < 32; ++l) put(block, static_cast<std::int8_t>(l * 8 - 128));
    const auto values = read_float32(view(StoredType::q8_0, {32}, block));
    for (int l = 0; l < 32; ++l) EXPECT_EQ(values[l], 0.25f * static_cast<float>(l * 8 - 128));
}

// 512 elements of each format, from bytes of a formula, and what gguf.quants.dequantize (gguf 0.19)
// makes of them: the sum, the sum weighted with 1, 2, 3, ..., and eight elements.
struct Reference {
    StoredType type;
    int scales[2];  // where the block's float16 numbers lie; -1 for none
    double sum, weighted;
    double elements[8];
};

constexpr int kElements[] = {0, 1, 17, 100, 250, 333, 401, 511};

constexpr Reference kReferences[] = {
    {StoredType::q4_0,
     {0, -1},
     -0.32385826110839844,
     -67.59519958496094,
     {0.00390625, 0.005859375, -0.005859375, 0.0009851455688476562, -0.0059795379638671875,
      0.006031036376953125, 0.0040435791015625, -0.0010194778442382812}},
    {StoredType::q4_1,
     {0, 2},
     4.282236099243164,
     1119.5475730895996,
     {0.003948211669921875, 0.012737274169921875, 0.005901336669921875, 0.0039825439453125,
      0.01200103759765625, 0.016124725341796875, 0.004085540771484375, 0.0031003952026367188}},
    {StoredType::q5_0,
     {0, -1},
     -0.4138908386230469,
     -69.88105392456055,
     {-0.0068359375, -0.0068359375, 0.0087890625, 0.012806892395019531, -0.004982948303222656,
      -0.0010051727294921875, -0.003032684326171875, -0.0020389556884765625}},
    {StoredType::q5_1,
     {0, 2},
     8.72209358215332,
     2274.8582191467285,
     {0.028362274169921875, 0.019573211669921875, 0.014690399169921875, 0.023685455322265625,
      0.0199737548828125, 0.029191970825195312, 0.012172698974609375, 0.026548385620117188}},
    {StoredType::q8_0,
     {0, -1},
     0.86236572265625,
     -116.07135009765625,
     {0.02734375, 0.044921875, 0.041015625, -0.08964824676513672, 0.07773399353027344, 0.08644485473632812,
      -0.0444793701171875, 0.051993370056152344}},
    {StoredType::q2_k,
     {80, 82},
     2.693537712097168,
     451.2799882888794,
     {0.00390625, 0.001953125, 0.0126953125, 0.001659393310546875, -0.001018524169921875,
      -0.0020427703857421875, -0.007149696350097656, 0.0025606155395507812}},
    {StoredType::q3_k,
     {108, -1},
     -1.2125625610351562,
     -474.8905420303345,
     {0.04296875, -0.021484375, 0.0205078125, 0.05859375, -0.0546875, -0.0470123291015625,
      -0.07639503479003906, -0.025465011596679688}},
    {StoredType::q4_k,
     {0, 2},
     80.84707832336426,
     19584.503425598145,
     {-0.0435333251953125, -0.0347442626953125, -0.0464630126953125, 0.0609588623046875, 0.07515335083007812,
      0.06842041015625, -0.015362739562988281, 0.07204437255859375}},
    {StoredType::q5_k,
     {0, 2},
     199.18144416809082,
     54225.898124694824,
     {-0.0200958251953125, -0.0113067626953125, 0.0238494873046875, 0.0365447998046875, 1.0273017883300781,
      -0.04944610595703125, 0.049698829650878906, 0.5365009307861328}},
    {StoredType::q6_k,
     {208, -1},
     34.45792770385742,
     9755.478336334229,
     {-0.02734375, 0.041015625, 0.6767578125, 0.720703125, -3.017578125, 0.0, -0.6111602783203125,
      -0.46228790283203125}},
};

class DequantizeReference : public testing::TestWithParam<Reference> {
   protected:
    Bytes blocks() const {
        const int block_bytes = info(GetParam().type).block_bytes;
        const int count = 512 / info(GetParam().type).block_elements;
        Bytes bytes;
        for (int i = 0; i < count * block_bytes; ++i)
            bytes.push_back(static_cast<std::byte>((i * i * 7 + i * 37 + 11) >> 2));
        for (int block = 0; block < count; ++block) {
            for (int j = 0; j < 2 && GetParam().scales[j] >= 0; ++j) {
                const auto bits = static_cast<std::uint16_t>(0x1400 + 0x2c * j + 3 * block);
                std::memcpy(&bytes[static_cast<std::size_t>(block * block_bytes + GetParam().scales[j])],
                            &bits, 2);
            }
        }
        return bytes;
    }
};

TEST_P(DequantizeReference, EqualsGguf) {
    const Bytes bytes = blocks();
    const auto values = read_float32(view(GetParam().type, {2, 256}, bytes));
    double sum = 0, weighted = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        sum += values[i];
        weighted += values[i] * static_cast<double>(i + 1);
    }
    EXPECT_NEAR(sum, GetParam().sum, 1e-12);
    EXPECT_NEAR(weighted, GetParam().weighted, 1e-9);
    for (int i = 0; i < 8; ++i) {
        EXPECT_EQ(values[static_cast<std::size_t>(kElements[i])], static_cast<float>(GetParam().elements[i]))
            << kElements[i];
    }
}

TEST_P(DequantizeReference, ReadsFromAnyAddressAndBlock) {
    Bytes bytes = blocks();
    const auto expected = read_float32(view(GetParam().type, {2, 256}, bytes));
    bytes.insert(bytes.begin(), std::byte{0});
    const auto shifted = view(GetParam().type, {2, 256}, std::span(bytes).subspan(1));
    EXPECT_EQ(read_float32(shifted), expected);
    std::vector<float> second(256);
    convert(shifted, 256, 256, DType::float32, std::as_writable_bytes(std::span(second)));
    EXPECT_EQ(second, std::vector<float>(expected.begin() + 256, expected.end()));
}

TEST_P(DequantizeReference, RoundsOnceTo16Bits) {
    const Bytes bytes = blocks();
    const TensorView tensor = view(GetParam().type, {512}, bytes);
    const auto expected = read_float32(tensor);
    const auto halves = converted<float16>(tensor, DType::float16);
    const auto brains = converted<bfloat16>(tensor, DType::bfloat16);
    const auto doubles = converted<double>(tensor, DType::float64);
    for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(halves[i].bits, float16(expected[i]).bits);
        EXPECT_EQ(brains[i].bits, bfloat16(expected[i]).bits);
        EXPECT_EQ(doubles[i], expected[i]);
    }
}

INSTANTIATE_TEST_SUITE_P(Formats, DequantizeReference, testing::ValuesIn(kReferences), [](const auto& test) {
    return std::string(kStoredTypes[static_cast<int>(test.param.type)].name);
});

TEST(Convert, FloatsOfEveryKind) {
    const std::vector<double> values = {0, -0.0, 1, -1.5, 0.1, 448, 3e-5, 1e-8, 65504, 1e30, INFINITY};
    Bytes f64, f32, f16, bf16;
    for (const double value : values) {
        put(f64, value);
        put(f32, static_cast<float>(value));
        put(f16, float16(static_cast<float>(value)));
        put(bf16, bfloat16(static_cast<float>(value)));
    }
    const Dims shape{static_cast<std::int64_t>(values.size())};
    EXPECT_EQ(converted<double>(view(StoredType::f64, shape, f64), DType::float64), values);
    const auto from_f64 = converted<float>(view(StoredType::f64, shape, f64), DType::float32);
    const auto from_f32 = converted<bfloat16>(view(StoredType::f32, shape, f32), DType::bfloat16);
    const auto from_f16 = converted<float>(view(StoredType::f16, shape, f16), DType::float32);
    const auto from_bf16 = converted<float16>(view(StoredType::bf16, shape, bf16), DType::float16);
    const auto to_f8 = converted<float8_e4m3>(view(StoredType::f32, shape, f32), DType::float8_e4m3);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const auto value = static_cast<float>(values[i]);
        EXPECT_EQ(from_f64[i], value);
        EXPECT_EQ(from_f32[i].bits, bfloat16(value).bits);
        EXPECT_EQ(from_f16[i], static_cast<float>(float16(value)));
        EXPECT_EQ(from_bf16[i].bits, float16(static_cast<float>(bfloat16(value))).bits);
        EXPECT_EQ(to_f8[i].bits, float8_e4m3(value).bits);
    }
}

TEST(Convert, IntegersAndBoolsAsThemselves) {
    Bytes bytes;
    for (const std::int64_t value : {INT64_MIN, std::int64_t{-1}, INT64_MAX}) put(bytes, value);
    EXPECT_EQ(converted<std::int64_t>(view(StoredType::i64, {3}, bytes), DType::int64),
              (std::vector<std::int64_t>{INT64_MIN, -1, INT64_MAX}));
    const Bytes flags = {std::byte{0}, std::byte{1}, std::byte{2}, std::byte{255}};
    EXPECT_EQ(converted<std::uint8_t>(view(StoredType::bool_, {4}, flags), DType::bool_),
              (std::vector<std::uint8_t>{0, 1, 1, 1}));
    const auto refuse = [&](StoredType type, DType target) {
        try {
            check_convertible(view(type, {1}, bytes), target);
            ADD_FAILURE() << "no error";
        } catch (const Error& e) {
            EXPECT_EQ(e.kind(), ErrorKind::type);
            EXPECT_NE(std::string_view(e.what()).find("tensor 'w'"), std::string_view::npos) << e.what();
        }
    };
    refuse(StoredType::i64, DType::float32);
    refuse(StoredType::i8, DType::int16);
    refuse(StoredType::bool_, DType::uint8);
    refuse(StoredType::f32, DType::int32);
    refuse(StoredType::q4_0, DType::int8);
}

TEST(Convert, CoversLargeTensorsOnAllCores) {
    constexpr std::int64_t kCount = 300'001;
    Bytes bytes;
    for (std::int64_t i = 0; i < kCount; ++i) put(bytes, static_cast<float>(i % 1000));
    const auto values = converted<float16>(view(StoredType::f32, {kCount}, bytes), DType::float16);
    for (std::int64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(static_cast<float>(values[static_cast<std::size_t>(i)]), static_cast<float>(i % 1000)) << i;
    }
    EXPECT_TRUE(read_float32(view(StoredType::f32, {0, 3}, {})).empty());
}

TEST(Convert, ChecksItsRange) {
    const Bytes bytes(36);
    const TensorView tensor = view(StoredType::q4_0, {64}, bytes);
    Bytes out(64 * 4);
    const auto try_range = [&](std::int64_t first, std::int64_t count, std::size_t room) {
        convert(tensor, first, count, DType::float32, std::span(out).first(room));
    };
    EXPECT_NO_THROW(try_range(32, 32, 128));
    EXPECT_NO_THROW(try_range(64, 0, 0));
    EXPECT_THROW(try_range(0, 31, 124), Error);
    EXPECT_THROW(try_range(16, 32, 128), Error);
    EXPECT_THROW(try_range(32, 64, 256), Error);
    EXPECT_THROW(try_range(-32, 32, 128), Error);
    EXPECT_THROW(try_range(0, -32, 0), Error);
    EXPECT_THROW(try_range(0, 64, 255), Error);
}

// float16's own conversions select instead of branching; SmallFloat is the plain form of them.
TEST(Float16, EqualsThePlainFormOnTheHost) {
    using Plain = detail::SmallFloat<5, 10, true>;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        float16 half;
        half.bits = static_cast<std::uint16_t>(bits);
        ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(half)),
                  std::bit_cast<std::uint32_t>(Plain::decode(bits)))
            << bits;
    }
    for (std::uint64_t bits = 0; bits < 0x100000000; bits += 1021) {  // a prime: all low bits occur
        const float value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
        ASSERT_EQ(float16(value).bits, Plain::encode(value)) << bits;
    }
    // Ties, the last subnormal, the first normal, the largest and what rounds past it.
    for (const float value : {0x1p-25f, 0x1.000002p-25f, 0x1.8p-24f, 0x1.ffcp-15f, 0x1.ffep-15f, 0x1p-14f,
                              0x1.002p0f, 0x1.006p0f, 65504.0f, 65519.996f, 65520.0f, 65536.0f, 1e38f}) {
        ASSERT_EQ(float16(value).bits, Plain::encode(value)) << value;
        ASSERT_EQ(float16(-value).bits, Plain::encode(-value)) << value;
    }
}

}  // namespace
