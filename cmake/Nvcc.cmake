# Finds nvcc. It only turns .cu files into fat binaries; no CUDA library is linked, so no toolkit
# package and no CUDA language are enabled.
include(CudaArchs)

# PYGPUKIT_NVCC, PATH, CUDA_HOME, CUDA_PATH, then NVIDIA's wheels beside the building Python.
function(pygpukit_find_nvcc out)
  set(nvcc "${PYGPUKIT_NVCC}")
  if(NOT nvcc)
    find_program(found nvcc NO_CACHE NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH NO_CMAKE_SYSTEM_PATH)
    if(NOT found)
      find_program(found nvcc NO_CACHE PATHS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin NO_DEFAULT_PATH)
    endif()
    if(NOT found)
      pygpukit_nvcc_in_wheels(found)
    endif()
    set(nvcc "${found}")
  endif()
  if(NOT EXISTS "${nvcc}")
    message(FATAL_ERROR
      "nvcc was not found. Put it on PATH, set PYGPUKIT_NVCC (now '${PYGPUKIT_NVCC}') or CUDA_HOME, install the "
      "wheels nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt, nvidia-cuda-runtime and nvidia-cuda-cccl, or "
      "set PYGPUKIT_CUDA=0 to build for the simulated device only.")
  endif()
  set(${out} "${nvcc}" PARENT_SCOPE)
endfunction()

function(pygpukit_nvcc_in_wheels out)
  set(${out} "" PARENT_SCOPE)
  find_package(Python 3.10 QUIET COMPONENTS Interpreter)
  if(NOT Python_EXECUTABLE)
    return()
  endif()
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
      "import glob, nvidia; print(*(f for p in nvidia.__path__ for f in sorted(glob.glob(p + '/cu*/bin/nvcc'))), sep=';')"
    OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(found)
    list(GET found 0 nvcc)
    set(${out} "${nvcc}" PARENT_SCOPE)
  endif()
endfunction()

# The options that compile for one architecture, and the kind and number that `fatbinary` gives to the result.
function(pygpukit_arch_options arch options kind number)
  string(REPLACE "-virtual" "" bare "${arch}")
  if(arch STREQUAL bare)
    set(${options} -cubin -arch=sm_${bare} PARENT_SCOPE)
    set(${kind} elf PARENT_SCOPE)
  else()
    set(${options} -ptx -arch=compute_${bare} PARENT_SCOPE)
    set(${kind} ptx PARENT_SCOPE)
  endif()
  set(${number} ${bare} PARENT_SCOPE)
endfunction()

# Compiles an empty kernel; the text of the failure, or nothing, goes to `failure`, and the folder of the
# real nvcc (the one on PATH may be a wrapper) to `tools`.
function(pygpukit_try_nvcc nvcc arch failure tools)
  set(probe "${PROJECT_BINARY_DIR}/nvcc_probe")
  file(WRITE "${probe}.cu" "extern \"C\" __global__ void probe(int* p) { *p = 1; }\n")
  pygpukit_arch_options(${arch} options kind number)
  set(command "${nvcc}" ${ARGN} ${options} -o "${probe}.out" "${probe}.cu")
  execute_process(COMMAND ${command} RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
  set(${failure} "" PARENT_SCOPE)
  if(failed)
    set(${failure} "${text}\n(${failed})" PARENT_SCOPE)
  endif()
  execute_process(COMMAND ${command} --dryrun OUTPUT_VARIABLE text ERROR_VARIABLE text)
  string(REGEX MATCH "_HERE_=([^\n]+)" here "${text}")
  set(${tools} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

# Sets what the kernels' rules need: PYGPUKIT_ARCHS, PYGPUKIT_NVCC_COMMAND (a command line up to the
# architecture and the files), PYGPUKIT_FATBINARY and PYGPUKIT_COMPRESSION, its options.
function(pygpukit_setup_nvcc)
  pygpukit_find_nvcc(nvcc)
  message(STATUS "CUDA compiler: ${nvcc}")
  pygpukit_cuda_archs(archs)
  set(options -c -std=c++20 -O3)
  # The host compiler only preprocesses; ours is preferred to nvcc's choice because it is known to be there.
  set(ccbin -ccbin "${CMAKE_CXX_COMPILER}")
  set(key "${nvcc};${ccbin};${options};${archs}")
  if(NOT "${PYGPUKIT_NVCC_CHECKED}" STREQUAL "${key}")
    foreach(arch IN LISTS archs)
      pygpukit_try_nvcc("${nvcc}" ${arch} failure tools ${options} ${ccbin})
      if(failure AND ccbin)
        set(ccbin "")
        pygpukit_try_nvcc("${nvcc}" ${arch} failure tools ${options})
      endif()
      if(failure)
        message(FATAL_ERROR
          "${nvcc} cannot compile for the architecture ${arch} (CUDA 12.8 or newer knows all of them; "
          "PYGPUKIT_NVCC names another nvcc, PYGPUKIT_CUDA_ARCHS other architectures):\n${failure}")
      endif()
    endforeach()
    find_program(fatbinary fatbinary NO_CACHE HINTS "${tools}" REQUIRED)
    set(PYGPUKIT_NVCC_CCBIN "${ccbin}" CACHE INTERNAL "")
    set(PYGPUKIT_FATBINARY "${fatbinary}" CACHE INTERNAL "")
    set(PYGPUKIT_NVCC_CHECKED "${key}" CACHE INTERNAL "")
  endif()
  # A fifth smaller than by default; `fatbinary` knows it from CUDA 12.8 on.
  execute_process(COMMAND "${PYGPUKIT_FATBINARY}" --help OUTPUT_VARIABLE text ERROR_QUIET)
  set(compression -compress-all)
  if(text MATCHES "compress-mode")
    list(APPEND compression -compress-mode=size)
  endif()
  set(PYGPUKIT_COMPRESSION "${compression}" PARENT_SCOPE)
  set(PYGPUKIT_ARCHS "${archs}" PARENT_SCOPE)
  set(PYGPUKIT_NVCC_COMMAND ${PYGPUKIT_CCACHE} "${nvcc}" ${options} ${PYGPUKIT_NVCC_CCBIN} PARENT_SCOPE)
endfunction()
