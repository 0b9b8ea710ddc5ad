#include "llm/source.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "io/dequantize.hpp"
#include "io/ggml_codes.hpp"
#include "io/load.hpp"
#include "ops/elementwise.hpp"

namespace gpk::llm {

FileSource::FileSource(const io::TensorFile& file, io::LoadProgress progress)
    : WeightSource(file.path()), file_(file), progress_(std::move(progress)) {
    for (const io::TensorView& tensor : file.tensors()) all_bytes_ += tensor.bytes.size();
}

void FileSource::check_convertible(const std::string& name, DType dtype) const {
    io::check_convertible(file_.tensor(name), dtype);
}

void FileSource::load_into(const Array& to, const std::string& name,
                           std::span<const std::int64_t> rows) const {
    const io::TensorView& tensor = file_.tensor(name);
    io::load_into(to, tensor, rows, &pending_);
    note(tensor.bytes.size());
}

void FileSource::wait() const {
    pending_.wait();
    note(all_bytes_);
}

void FileSource::note(std::size_t bytes) const {
    done_bytes_ += std::min(bytes, all_bytes_ - done_bytes_);  // a tensor may be loaded twice
    if (progress_) progress_(done_bytes_, all_bytes_);
}

std::optional<ops::CodedMatrix> FileSource::coded(const std::string& name, std::span<const std::int64_t> rows,
                                                  DType dtype) const {
    const io::TensorView& tensor = file_.tensor(name);
    auto matrix = io::coded_matrix(tensor, dtype, rows);
    if (matrix) note(tensor.bytes.size());
    return matrix;
}

std::vector<std::string> ArraySource::names() const {
    std::vector<std::string> names;
    for (const auto& [name, array] : arrays_) names.push_back(name);
    return names;
}

const Array& ArraySource::at(const std::string& name) const {
    const auto found = arrays_.find(name);
    if (found != arrays_.end()) return found->second;
    throw error(ErrorKind::file,
                {.call = what(), .expected = "an array named " + io::shown(name), .got = "none"});
}

void ArraySource::check_convertible(const std::string& name, DType dtype) const {
    const Array& array = at(name);
    if (is_floating(array.dtype()) && is_floating(dtype)) return;
    throw error(ErrorKind::type, {.call = str(what(), ": ", io::shown(name)),
                                  .expected = "a floating dtype",
                                  .got = std::string(gpk::name(array.dtype()))});
}

void ArraySource::load_into(const Array& to, const std::string& name,
                            std::span<const std::int64_t> rows) const {
    const Array& from = at(name);
    if (rows.empty()) return ops::assign(to, from);
    for (std::size_t i = 0; i < rows.size(); ++i)
        ops::assign(to.select(0, static_cast<std::int64_t>(i)), from.select(0, rows[i]));
}

}  // namespace gpk::llm
