# Compiler options shared by the library, the Python module and the tests.
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)

# For nvcc too, whatever launches the C++ compiler.
find_program(PYGPUKIT_CCACHE ccache)
mark_as_advanced(PYGPUKIT_CCACHE)
if(PYGPUKIT_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # It finds files with precompiled headers again only so.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    "${CMAKE_COMMAND}" -E env CCACHE_SLOPPINESS=pch_defines,time_macros "${PYGPUKIT_CCACHE}")
  add_compile_options($<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()

# Host twins are loops over data, worth -O3; the rest is control flow, where -O3 only adds size.
set(PYGPUKIT_FAST_LOOPS "$<$<CONFIG:Release>:-O3>")

# Instrumentation must cover every object that is linked together.
if(PYGPUKIT_SANITIZE)
  string(REPLACE ";" "," sanitizers "${PYGPUKIT_SANITIZE}")
  add_compile_options(-fsanitize=${sanitizers} -fno-sanitize-recover=all -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${sanitizers})
  if(sanitizers MATCHES "thread")
    # ThreadSanitizer starts after the loader has asked which clone to take, and crashes in that call.
    add_compile_definitions(GPK_NO_TARGET_CLONES)
  endif()
endif()
if(PYGPUKIT_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR
      "PYGPUKIT_BUILD_FUZZERS needs clang (libFuzzer); the compiler is ${CMAKE_CXX_COMPILER_ID}. "
      "Configure with -DCMAKE_CXX_COMPILER=clang++.")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

function(pygpukit_compile_options target)
  target_compile_options(${target} PRIVATE
    $<$<CONFIG:Release>:-O2>
    -Wall -Wextra
    # std::stable_sort of libstdc++ 12 calls a function that it declares deprecated, and clang says so.
    $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-declarations>
    $<$<BOOL:${PYGPUKIT_WERROR}>:-Werror>
    # No paths of the building machine in what is shipped.
    "-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=")
endfunction()

# What most files include: parsing it again for each was two fifths of the C++ compiler's time. For g++ alone;
# clang, which the sanitizers' builds use, shows what a file should include itself.
set(PYGPUKIT_COMMON_HEADERS
  <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <cstdint> <cstring> <deque> <functional>
  <map> <memory> <mutex> <optional> <span> <string> <string_view> <thread> <unordered_map> <utility> <vector>)
function(pygpukit_precompile target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
endfunction()
