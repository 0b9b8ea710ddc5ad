# Each native/kernels/<family>/<name>.cu becomes `gpk::image_<name>`: a fat binary inside the library,
# or an empty image where the build is without CUDA, so that the callers are the same.
if(PYGPUKIT_CUDA)
  include(Nvcc)
endif()

function(pygpukit_embed_kernels target)
  file(GLOB kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/native/kernels/*/*.cu")
  if(PYGPUKIT_CUDA AND kernels)
    pygpukit_nvcc_command(nvcc)
  endif()
  set(seen "")
  foreach(source IN LISTS kernels)
    cmake_path(GET source STEM LAST_ONLY name)
    if(name IN_LIST seen)
      message(FATAL_ERROR "Two kernel files are named ${name}.cu; the name becomes gpk::image_${name} and must be unique.")
    endif()
    list(APPEND seen "${name}")
    set(stem "${PROJECT_BINARY_DIR}/kernels/${name}")
    set(embed "${PROJECT_SOURCE_DIR}/cmake/EmbedImage.cmake")
    if(PYGPUKIT_CUDA)
      add_custom_command(
        OUTPUT "${stem}.fatbin" "${stem}.cpp"
        COMMAND ${nvcc} -I "${PROJECT_SOURCE_DIR}/native" -MD -MF "${stem}.d" -MT "${stem}.fatbin"
                -o "${stem}.fatbin" "${source}"
        COMMAND "${CMAKE_COMMAND}" "-DNAME=${name}" "-DSTEM=${stem}" -DCUDA=ON -P "${embed}"
        DEPENDS "${source}" "${embed}" "${PROJECT_SOURCE_DIR}/cmake/image.cpp.in"
        DEPFILE "${stem}.d"
        COMMENT "Compiling kernels ${name}.cu"
        VERBATIM)
    else()
      add_custom_command(
        OUTPUT "${stem}.cpp"
        COMMAND "${CMAKE_COMMAND}" "-DNAME=${name}" "-DSTEM=${stem}" -DCUDA=OFF -P "${embed}"
        DEPENDS "${embed}"
        COMMENT ""
        VERBATIM)
    endif()
    target_sources(${target} PRIVATE "${stem}.cpp")
  endforeach()
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/kernels")
endfunction()
