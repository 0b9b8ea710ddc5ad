// The flags that a user gives for a kernel, in NVRTC's spelling, checked and taken apart.
#pragma once

#include <string>
#include <vector>

namespace gpk::jit {

struct Flags {
    std::vector<std::string> all;       // as given, for NVRTC
    std::vector<std::string> for_host;  // those that mean the same to a host compiler: -I, -D, -U, -std
    std::vector<std::string> include_folders;  // of -I
    std::vector<std::string> pre_includes;     // of -include
};

// Throws Error (value) for a flag that would change what is produced (architecture, PTX, linking), or
// that lacks its value.
Flags parse_flags(const std::vector<std::string>& flags);

// Everything that `source` may include from the user's folders, and the identity of the toolkit's
// headers that it names: text that changes when they do. False where it cannot be told
// (an #include of a macro): such a kernel is compiled anew each time.
bool included_identity(const std::string& source, const Flags& flags, const std::string& toolkit_include,
                       std::string* identity);

}  // namespace gpk::jit
