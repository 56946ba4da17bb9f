# libdeflate as an imported target. Debian 12's package has no CMake configuration.
find_path(LIBDEFLATE_INCLUDE_DIR libdeflate.h REQUIRED)
find_library(LIBDEFLATE_SHARED_LIBRARY deflate REQUIRED)
set(libdeflate_library "${LIBDEFLATE_SHARED_LIBRARY}")
if(ZEROCOPY_STATIC)
  find_library(LIBDEFLATE_STATIC_LIBRARY libdeflate.a REQUIRED)
  # Since Debian 13 the static library is compiled without -fPIC, and cannot be a part of a module. A wheel then has a
  # copy of the shared library, which auditwheel adds.
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_FLAGS -fPIC)
  set(CMAKE_REQUIRED_INCLUDES "${LIBDEFLATE_INCLUDE_DIR}")
  set(CMAKE_REQUIRED_LINK_OPTIONS -shared)
  set(CMAKE_REQUIRED_LIBRARIES "${LIBDEFLATE_STATIC_LIBRARY}")
  check_cxx_source_compiles([[
#include <libdeflate.h>
unsigned checksum(const void* bytes) { return libdeflate_crc32(0, bytes, 1); }
]] LIBDEFLATE_STATIC_IS_PIC)
  foreach(name IN ITEMS FLAGS INCLUDES LINK_OPTIONS LIBRARIES)
    unset(CMAKE_REQUIRED_${name})
  endforeach()
  if(LIBDEFLATE_STATIC_IS_PIC)
    set(libdeflate_library "${LIBDEFLATE_STATIC_LIBRARY}")
  endif()
endif()
mark_as_advanced(LIBDEFLATE_INCLUDE_DIR LIBDEFLATE_SHARED_LIBRARY LIBDEFLATE_STATIC_LIBRARY)

add_library(libdeflate INTERFACE)
target_include_directories(libdeflate SYSTEM INTERFACE "${LIBDEFLATE_INCLUDE_DIR}")
target_link_libraries(libdeflate INTERFACE "${libdeflate_library}")
