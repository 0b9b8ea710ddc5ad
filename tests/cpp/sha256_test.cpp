#include "base/sha256.hpp"

#include <gtest/gtest.h>

#include <string>

namespace gpk {
namespace {

std::string hash(std::string_view text) { return Sha256().add(text).hex(); }

// FIPS 180-4's examples and NIST's long one.
TEST(Sha256, KnownAnswers) {
    EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(hash(std::string(1000000, 'a')),
              "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesMakeTheSameMessage) {
    const std::string text(1000, 'x');
    for (const std::size_t piece : {1u, 55u, 56u, 63u, 64u, 65u, 129u}) {
        Sha256 sum;
        for (std::size_t at = 0; at < text.size(); at += piece)
            sum.add(std::string_view(text).substr(at, piece));
        EXPECT_EQ(sum.hex(), hash(text)) << piece;
    }
}

TEST(Sha256, FieldsDoNotRunIntoOneAnother) {
    EXPECT_NE(Sha256().add_field("ab").add_field("c").hex(), Sha256().add_field("a").add_field("bc").hex());
}

}  // namespace
}  // namespace gpk
