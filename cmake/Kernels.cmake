# A kernel file named <name>_sm90.cu uses instructions of SM 90a alone (wgmma) and is compiled for nothing
# else; where that is not among the architectures its image is empty, and the op takes another variant.
#
# Each native/kernels/<family>/<name>.cu becomes `gpk::image_<name>`: a fat binary inside the library,
# or an empty image where the build is without CUDA, so that the callers are the same.
if(PYGPUKIT_CUDA)
  include(Nvcc)
endif()

# Machine code of 80 runs on 86 and 89, too. Beside it these alone are compiled for 89, since they have
# instructions of it, so that a wheel for all architectures stays under 20 MB.
set(PYGPUKIT_KERNELS_OF_SM89 attention_decode_float8)

function(pygpukit_embed_kernels target)
  file(GLOB kernels CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/native/kernels/*/*.cu")
  if(PYGPUKIT_CUDA AND kernels)
    pygpukit_setup_nvcc()
  endif()
  file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/kernels")
  set(seen "")
  foreach(source IN LISTS kernels)
    cmake_path(GET source STEM LAST_ONLY name)
    if(name IN_LIST seen)
      message(FATAL_ERROR
        "Two kernel files are named ${name}.cu; the name becomes gpk::image_${name} and must be unique.")
    endif()
    list(APPEND seen "${name}")
    set(stem "${PROJECT_BINARY_DIR}/kernels/${name}")
    set(archs "")
    if(PYGPUKIT_CUDA)
      set(archs "${PYGPUKIT_ARCHS}")
      if(name MATCHES "_sm90$")
        list(FILTER archs INCLUDE REGEX "^90a$")
      endif()
      if("80" IN_LIST archs)
        list(REMOVE_ITEM archs 86)
        if(NOT name IN_LIST PYGPUKIT_KERNELS_OF_SM89)
          list(REMOVE_ITEM archs 89)
        endif()
      endif()
    endif()
    if(archs)
      pygpukit_compile_kernel("${source}" "${stem}" ${name} "${archs}")
    else()
      file(CONFIGURE OUTPUT "${stem}.cpp" CONTENT "#include \"base/image.hpp\"

namespace gpk {
extern const Image image_${name};
const Image image_${name} = {nullptr, 0};
}  // namespace gpk
")
    endif()
    target_sources(${target} PRIVATE "${stem}.cpp")
    set_source_files_properties("${stem}.cpp" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endforeach()
endfunction()

# One nvcc run an architecture: they run side by side, and ccache is right. (It preprocesses for a single
# architecture; on a run for several it would miss a change under `#if __CUDA_ARCH__`.)
function(pygpukit_compile_kernel source stem name archs)
  set(parts "")
  set(images "")
  foreach(arch IN LISTS archs)
    pygpukit_arch_options(${arch} options kind number)
    set(part "${stem}.${arch}")
    add_custom_command(
      OUTPUT "${part}"
      COMMAND ${PYGPUKIT_NVCC_COMMAND} ${options} -I "${PROJECT_SOURCE_DIR}/native"
              -MD -MF "${part}.d" -MT "${part}" -o "${part}" "${source}"
      DEPENDS "${source}"
      DEPFILE "${part}.d"
      COMMENT "Compiling ${name}.cu for ${arch}"
      VERBATIM)
    list(APPEND parts "${part}")
    list(APPEND images "--image3=kind=${kind},sm=${number},file=${part}")
  endforeach()
  set(embed "${PROJECT_SOURCE_DIR}/cmake/EmbedImage.cmake")
  add_custom_command(
    OUTPUT "${stem}.fatbin" "${stem}.cpp"
    COMMAND "${PYGPUKIT_FATBINARY}" "--create=${stem}.fatbin" -64 ${PYGPUKIT_COMPRESSION} ${images}
    COMMAND "${CMAKE_COMMAND}" "-DNAME=${name}" "-DSTEM=${stem}" -P "${embed}"
    DEPENDS ${parts} "${embed}" "${PROJECT_SOURCE_DIR}/cmake/image.cpp.in"
    COMMENT "Embedding ${name}"
    VERBATIM)
endfunction()
