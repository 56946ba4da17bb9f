# libdeflate as an imported target. Debian 12's package has no CMake configuration.
find_path(LIBDEFLATE_INCLUDE_DIR libdeflate.h REQUIRED)
if(ZEROCOPY_STATIC)
  find_library(LIBDEFLATE_LIBRARY libdeflate.a REQUIRED)
else()
  find_library(LIBDEFLATE_LIBRARY deflate REQUIRED)
endif()
mark_as_advanced(LIBDEFLATE_INCLUDE_DIR LIBDEFLATE_LIBRARY)

add_library(libdeflate INTERFACE)
target_include_directories(libdeflate SYSTEM INTERFACE "${LIBDEFLATE_INCLUDE_DIR}")
target_link_libraries(libdeflate INTERFACE "${LIBDEFLATE_LIBRARY}")
