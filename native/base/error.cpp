#include "base/error.hpp"

namespace gpk {

Error error(ErrorKind kind, const ErrorParts& parts) {
    std::string text = parts.call;
    if (!parts.argument.empty()) text += ": argument '" + parts.argument + "'";
    if (!parts.expected.empty()) text += ": expected " + parts.expected;
    if (!parts.got.empty()) text += (parts.expected.empty() ? ": " : ", got ") + parts.got;
    if (!parts.fix.empty()) text += "; " + parts.fix;
    return Error(kind, std::move(text));
}

namespace {

// CUDA_ERROR_OUT_OF_MEMORY, which SimDriver reports too.
constexpr int kOutOfMemory = 2;

}  // namespace

DriverError::DriverError(std::string call, int code, std::string code_name, const std::string& description)
    : Error(code == kOutOfMemory ? ErrorKind::memory : ErrorKind::driver,
            str(call, " failed: ", code_name, " (", code, ")", description.empty() ? "" : ": ", description)),
      call_(std::move(call)),
      code_name_(std::move(code_name)),
      code_(code) {}

DeviceLostError::DeviceLostError(const std::string& device, const DriverError& first)
    : DriverError(first.call(), first.code(), first.code_name(),
                  str(device, " is lost to this process since then; restart the process")) {}

}  // namespace gpk
