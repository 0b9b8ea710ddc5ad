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
      "nvcc was not found (looked for: '${nvcc}'). Put it on PATH, set PYGPUKIT_NVCC or CUDA_HOME, install the "
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

# Compiles an empty kernel with `options`; the text of the failure, or nothing, goes to `out`.
function(pygpukit_try_nvcc nvcc out)
  set(probe "${PROJECT_BINARY_DIR}/nvcc_probe")
  file(WRITE "${probe}.cu" "extern \"C\" __global__ void probe(int* p) { *p = 1; }\n")
  execute_process(COMMAND "${nvcc}" ${ARGN} -o "${probe}.fatbin" "${probe}.cu"
    RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
  if(failed)
    set(${out} "${text}\n(${failed})" PARENT_SCOPE)
  else()
    set(${out} "" PARENT_SCOPE)
  endif()
endfunction()

# The nvcc command line up to the input and output files. The host compiler only preprocesses here;
# ours is preferred to nvcc's own choice because it is the one known to be there.
function(pygpukit_nvcc_command out)
  pygpukit_find_nvcc(nvcc)
  pygpukit_gencode_options(gencode)
  set(options --fatbin -std=c++20 -O3 ${gencode} -Xfatbin=-compress-all --compress-mode=balance)
  set(key "${nvcc};${CMAKE_CXX_COMPILER};${options}")
  if(NOT "${PYGPUKIT_NVCC_CHECKED}" STREQUAL "${key}")
    pygpukit_try_nvcc("${nvcc}" failure ${options} -ccbin "${CMAKE_CXX_COMPILER}")
    set(ccbin -ccbin "${CMAKE_CXX_COMPILER}")
    if(failure)
      pygpukit_try_nvcc("${nvcc}" failure ${options})
      set(ccbin "")
    endif()
    if(failure)
      message(FATAL_ERROR "${nvcc} cannot compile a kernel:\n${failure}")
    endif()
    set(PYGPUKIT_NVCC_CCBIN "${ccbin}" CACHE INTERNAL "")
    set(PYGPUKIT_NVCC_CHECKED "${key}" CACHE INTERNAL "")
  endif()
  message(STATUS "CUDA compiler: ${nvcc}")
  set(${out} "${nvcc}" ${options} ${PYGPUKIT_NVCC_CCBIN} PARENT_SCOPE)
endfunction()
