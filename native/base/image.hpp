// A fat binary embedded in the library by the build: device code for several architectures.
#pragma once

#include <cstddef>

namespace gpk {

struct Image {
    const unsigned char* data = nullptr;  // null in a build without device code
    std::size_t size = 0;
};

}  // namespace gpk
