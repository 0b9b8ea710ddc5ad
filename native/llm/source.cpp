#include "llm/source.hpp"

#include "base/error.hpp"
#include "io/dequantize.hpp"
#include "io/ggml_codes.hpp"
#include "io/load.hpp"
#include "ops/elementwise.hpp"

namespace gpk::llm {

void FileSource::check_convertible(const std::string& name, DType dtype) const {
    io::check_convertible(file_.tensor(name), dtype);
}

void FileSource::load_into(const Array& to, const std::string& name,
                           std::span<const std::int64_t> rows) const {
    io::load_into(to, file_.tensor(name), rows, &pending_);
}

std::optional<ops::CodedMatrix> FileSource::coded(const std::string& name, std::span<const std::int64_t> rows,
                                                  DType dtype) const {
    return io::coded_matrix(file_.tensor(name), dtype, rows);
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
