# What PYGPUKIT_CUDA_ARCHS may say:
#
#   80 86 89 90a 100a 120a   machine code for that architecture; beside 80, most kernels leave 86 and 89 to it
#   80-virtual               PTX, which the driver compiles for this and every newer GPU
#   native                   machine code for this machine's own GPUs
#   release                  everything that a published wheel carries
#
# Empty: PTX for 80, machine code for 90a and for this machine's own GPUs.
set(PYGPUKIT_RELEASE_ARCHS 80 86 89 90a 100a 120a 80-virtual)

function(pygpukit_cuda_archs out)
  string(REGEX REPLACE "[, ]+" ";" archs "${PYGPUKIT_CUDA_ARCHS}")
  list(REMOVE_ITEM archs "")
  if(NOT archs)
    set(archs 80-virtual 90a)
  endif()
  if("native" IN_LIST archs OR NOT PYGPUKIT_CUDA_ARCHS)
    pygpukit_own_archs(own)
    if("native" IN_LIST archs AND NOT own)
      message(FATAL_ERROR
        "PYGPUKIT_CUDA_ARCHS: 'native' asks for this machine's GPUs, and nvidia-smi names none of SM 80 or newer.")
    endif()
    list(REMOVE_ITEM archs native)
    list(APPEND archs ${own})
  endif()
  list(TRANSFORM archs REPLACE "^release$" "${PYGPUKIT_RELEASE_ARCHS}")
  list(REMOVE_DUPLICATES archs)
  foreach(arch IN LISTS archs)
    if(NOT arch MATCHES "^([0-9]+)[af]?(-virtual)?$" OR CMAKE_MATCH_1 LESS 80)
      message(FATAL_ERROR
        "PYGPUKIT_CUDA_ARCHS: '${arch}' is not an architecture. Expected a list such as "
        "'80;90a;80-virtual' (80 or newer), 'native' or 'release'.")
    endif()
  endforeach()
  string(REPLACE ";" " " shown "${archs}")
  message(STATUS "CUDA architectures: ${shown}")
  set(${out} "${archs}" PARENT_SCOPE)
endfunction()

# The architectures of the GPUs in this machine, as far as nvidia-smi tells; from 90 on with the suffix
# for architecture-specific instructions.
function(pygpukit_own_archs out)
  set(own "")
  find_program(PYGPUKIT_NVIDIA_SMI nvidia-smi)
  mark_as_advanced(PYGPUKIT_NVIDIA_SMI)
  if(PYGPUKIT_NVIDIA_SMI)
    execute_process(COMMAND "${PYGPUKIT_NVIDIA_SMI}" --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE lines RESULT_VARIABLE failed ERROR_QUIET TIMEOUT 20)
    if(NOT failed)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${lines}")
      foreach(capability IN LISTS capabilities)
        string(REPLACE "." "" arch "${capability}")
        if(arch GREATER_EQUAL 90)
          string(APPEND arch "a")
        endif()
        string(REGEX MATCH "^[0-9]+" number "${arch}")
        if(number GREATER_EQUAL 80)
          list(APPEND own "${arch}")
        endif()
      endforeach()
    endif()
  endif()
  set(${out} "${own}" PARENT_SCOPE)
endfunction()
