# A setting comes from -D, else from the environment variable of the same name, else the default. It is
# not cached, so that a changed environment counts at the next configure of the same build folder.
macro(pygpukit_setting name default)
  if(NOT DEFINED ${name})
    if(DEFINED ENV{${name}})
      set(${name} "$ENV{${name}}")
    else()
      set(${name} "${default}")
    endif()
  endif()
endmacro()
