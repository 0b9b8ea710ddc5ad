// Errors: one type, one factory. A message says what was called, which argument, what was expected,
// what came, and what to do.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <utility>

namespace gpk {

enum class ErrorKind {
    value,        // a shape, a size, a number out of range   -> ValueError
    type,         // a dtype or a kind of object              -> TypeError
    index,        // an index or axis out of range            -> IndexError
    memory,       // device or host memory exhausted          -> MemoryError
    driver,       // a driver call failed                     -> RuntimeError
    unsupported,  // this device, driver or build cannot      -> RuntimeError
    exchange,     // an array that another library's form of it cannot tell, or tells wrongly -> BufferError
    file,         // a file from outside is not what it says  -> ValueError
    compile,      // a user's kernel did not compile          -> RuntimeError
};

class Error : public std::exception {
   public:
    Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}
    ErrorKind kind() const noexcept { return kind_; }
    const char* what() const noexcept override { return message_.c_str(); }

   private:
    ErrorKind kind_;
    std::string message_;
};

struct ErrorParts {
    std::string call;
    std::string argument = {};
    std::string expected = {};
    std::string got = {};
    std::string fix = {};
};

// "matmul: argument 'b': expected ..., got ...; <what to do>"
Error error(ErrorKind kind, const ErrorParts& parts);

// A failed driver call: keeps the call's and the error's name for programs that look at them.
class DriverError : public Error {
   public:
    DriverError(std::string call, int code, std::string code_name, const std::string& description);
    const std::string& call() const noexcept { return call_; }
    const std::string& code_name() const noexcept { return code_name_; }
    int code() const noexcept { return code_; }

   private:
    std::string call_;
    std::string code_name_;
    int code_;
};

// What later work on a device gets, once a failure has broken the device for this process. Keeps the call and
// the code of that failure.
class DeviceLostError : public DriverError {
   public:
    DeviceLostError(const std::string& device, const DriverError& first);
};

// The parts written one after another, as a stream would.
template <class... Parts>
std::string str(const Parts&... parts) {
    std::ostringstream out;
    (out << ... << parts);
    return out.str();
}

}  // namespace gpk
