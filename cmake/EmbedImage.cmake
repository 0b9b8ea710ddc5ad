# Script: writes ${STEM}.cpp, which embeds ${STEM}.fatbin. It runs after nvcc, so that the size is a literal and
# the image a constant: nothing is left to initialise at load time.
file(SIZE "${STEM}.fatbin" SIZE)
configure_file("${CMAKE_CURRENT_LIST_DIR}/image.cpp.in" "${STEM}.cpp" @ONLY)
file(TOUCH "${STEM}.cpp")  # recompiled even where the size, and so this text, is the same
