#include "driver/driver.hpp"

#include "base/error.hpp"

namespace gpk {

void Driver::lacks(const char* call) const {
    throw error(ErrorKind::unsupported, {.call = call, .got = str("a driver without it (", kind(), ")")});
}

}  // namespace gpk
