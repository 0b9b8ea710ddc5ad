# benchmarks/scheduling: one executable, run by `python -m pygpukit.benchmark --scheduling`.
file(GLOB benchmarks CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/benchmarks/scheduling/*.cpp")
add_executable(pygpukit_benchmarks ${benchmarks})
target_link_libraries(pygpukit_benchmarks PRIVATE pygpukit::pygpukit)
target_include_directories(pygpukit_benchmarks PRIVATE "${PROJECT_SOURCE_DIR}/benchmarks/scheduling")
pygpukit_compile_options(pygpukit_benchmarks)
enable_testing()
add_test(NAME pygpukit_benchmarks COMMAND pygpukit_benchmarks --quick --device cpu)
