// Sizes in bytes as people write them: "4GiB", "512 MB", "1048576".
#pragma once

#include <cstddef>
#include <string_view>

namespace gpk {

// Units: none or B, kB MB GB TB (powers of 1000), KiB MiB GiB TiB (powers of 1024). Throws Error (value),
// naming `call`, for another form, for 0 and for what does not fit size_t.
std::size_t parse_byte_size(std::string_view call, std::string_view text);

}  // namespace gpk
