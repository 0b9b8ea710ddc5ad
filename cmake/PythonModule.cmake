# The Python module pygpukit._native and its type stub.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
  OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind CONFIG REQUIRED)

file(GLOB bindings CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/native/bindings/*.cpp")
# Not the stable ABI: through it a call costs more, and calls are what users count.
nanobind_add_module(_native NB_STATIC NB_DOMAIN pygpukit ${bindings})
target_link_libraries(_native PRIVATE pygpukit::pygpukit)
target_compile_definitions(_native PRIVATE PYGPUKIT_VERSION="${PROJECT_VERSION}")
pygpukit_compile_options(_native)
pygpukit_precompile(_native "${PROJECT_SOURCE_DIR}/native/bindings/common.hpp")

nanobind_add_stub(_native_stub
  MODULE _native
  INCLUDE_PRIVATE
  OUTPUT "${PROJECT_BINARY_DIR}/_native.pyi"
  PYTHON_PATH "$<TARGET_FILE_DIR:_native>"
  PATTERN_FILE "${PROJECT_SOURCE_DIR}/cmake/stub_patterns.txt"
  DEPENDS _native)

install(TARGETS _native LIBRARY DESTINATION pygpukit COMPONENT python)
install(FILES "${PROJECT_BINARY_DIR}/_native.pyi" DESTINATION pygpukit COMPONENT python)
