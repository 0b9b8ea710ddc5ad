# `find_package(pygpukit)` for C++ programs. Its component is `cpp`; wheels hold only `python`.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS pygpukit EXPORT pygpukit
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT cpp)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/native/" DESTINATION include/pygpukit COMPONENT cpp
  FILES_MATCHING PATTERN "*.hpp" PATTERN "bindings" EXCLUDE)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/pygpukit")
file(WRITE "${PROJECT_BINARY_DIR}/pygpukitConfig.cmake" "include(CMakeFindDependencyMacro)
find_dependency(Threads)
include(\"\${CMAKE_CURRENT_LIST_DIR}/pygpukitTargets.cmake\")
")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/pygpukitConfigVersion.cmake"
  COMPATIBILITY SameMinorVersion)
install(EXPORT pygpukit NAMESPACE pygpukit:: FILE pygpukitTargets.cmake
  DESTINATION "${package_dir}" COMPONENT cpp)
install(FILES "${PROJECT_BINARY_DIR}/pygpukitConfig.cmake" "${PROJECT_BINARY_DIR}/pygpukitConfigVersion.cmake"
  DESTINATION "${package_dir}" COMPONENT cpp)
