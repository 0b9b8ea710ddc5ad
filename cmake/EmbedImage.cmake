# Script: writes ${STEM}.cpp, which embeds ${STEM}.fatbin. It runs after nvcc, so that the size is a literal and
# the image a constant: nothing is left to initialise at load time.
if(CUDA)
  file(SIZE "${STEM}.fatbin" SIZE)
  configure_file("${CMAKE_CURRENT_LIST_DIR}/image.cpp.in" "${STEM}.cpp.new" @ONLY)
  file(READ "${STEM}.cpp.new" text)
  file(REMOVE "${STEM}.cpp.new")
else()
  set(text "#include \"base/image.hpp\"

namespace gpk {
extern const Image image_${NAME};
const Image image_${NAME} = {nullptr, 0};
}  // namespace gpk
")
endif()
file(WRITE "${STEM}.cpp" "${text}")
