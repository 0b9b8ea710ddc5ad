#include "io/tensor_view.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"

namespace gpk::io {

void TensorView::read(std::size_t offset, std::span<std::byte> out) const {
    const auto from = bytes.subspan(offset, out.size());
    if (file != nullptr) return file->read(static_cast<std::size_t>(from.data() - file->bytes().data()), out);
    std::copy(from.begin(), from.end(), out.begin());
}

std::vector<std::string> TensorFile::names() const {
    std::vector<std::string> names;
    names.reserve(tensors_.size());
    for (const TensorView& tensor : tensors_) names.push_back(tensor.name);
    return names;
}

const TensorView* TensorFile::find(std::string_view name) const noexcept {
    const auto found = index_.find(name);
    return found == index_.end() ? nullptr : &tensors_[found->second];
}

const TensorView& TensorFile::tensor(std::string_view name) const {
    if (const TensorView* found = find(name)) return *found;
    throw error(ErrorKind::file, {.call = path_,
                                  .expected = str("a tensor ", shown(name)),
                                  .got = str("none of that name among ", tensors_.size())});
}

void TensorFile::add(TensorView tensor) {
    if (!index_.emplace(tensor.name, tensors_.size()).second) {
        throw error(ErrorKind::file, {.call = str(path_, ": tensor ", shown(tensor.name)),
                                      .expected = "each name once",
                                      .got = "it twice"});
    }
    tensors_.push_back(std::move(tensor));
}

std::int64_t stored_bytes(const std::string& what, StoredType type, const Dims& shape) {
    const StoredTypeInfo& stored = info(type);
    // An extent of 0 counts as 1 here, so that strides of an empty tensor cannot overflow either.
    std::int64_t span = 1, count = 1;
    for (const std::int64_t extent : shape) {
        if (extent < 0) {
            throw error(ErrorKind::file,
                        {.call = what, .expected = "extents of 0 or more", .got = to_string(shape)});
        }
        // 8 bytes an element at most, and ggml's widest blocks stay below that.
        const std::int64_t factor = std::max<std::int64_t>(extent, 1);
        if (span > std::numeric_limits<std::int64_t>::max() / 8 / factor) {
            throw error(ErrorKind::file,
                        {.call = what, .expected = "a size below 2**63 bytes", .got = to_string(shape)});
        }
        span *= factor;
        count *= extent;
    }
    if (is_quantized(type) && (shape.empty() || shape.back() % stored.block_elements != 0)) {
        throw error(ErrorKind::file, {.call = what,
                                      .expected = str("a last axis of whole ", stored.name, " blocks of ",
                                                      stored.block_elements, " elements"),
                                      .got = str("shape ", to_string(shape))});
    }
    return count / stored.block_elements * stored.block_bytes;
}

std::string shown(std::string_view name) {
    constexpr std::size_t kLongest = 100;
    static constexpr char kHex[] = "0123456789abcdef";
    std::string text = "'";
    for (const char c : name.substr(0, kLongest)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7f) {
            text += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
        } else {
            text += c;
        }
    }
    // A cut must not split a character: drop what is left of one.
    if (name.size() > kLongest) {
        while ((static_cast<unsigned char>(text.back()) & 0xc0) == 0x80) text.pop_back();
        if ((static_cast<unsigned char>(text.back()) & 0x80) != 0) text.pop_back();
        text += "...";
    }
    return text + "'";
}

}  // namespace gpk::io
