# Compiler options of zerocopy. Targets link zerocopy_options to use them.
set(CMAKE_CXX_STANDARD 20)  # torch 2.13's headers need it, 1.13's accept it
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)  # clang-tidy reads them

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths are relative to the checkout, so other build folders and checkouts share cached objects.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}" CCACHE_NOHASHDIR=1
    CCACHE_SLOPPINESS=pch_defines,time_macros  # without it, no file that uses a precompiled header is cached
    "${CCACHE_PROGRAM}")
endif()

add_library(zerocopy_warnings INTERFACE)

# -Wconversion and -Wsign-conversion: sizes and offsets come from hostile files, so no number may
# change its value without an explicit cast.
target_compile_options(zerocopy_warnings INTERFACE
  -Wall -Wextra -Wpedantic
  -Wshadow
  -Wconversion -Wsign-conversion
  -Wold-style-cast -Wcast-align -Wcast-qual
  -Wnon-virtual-dtor -Woverloaded-virtual
  -Wformat=2 -Wundef
  $<$<BOOL:${ZEROCOPY_WERROR}>:-Werror>
)

add_library(zerocopy_options INTERFACE)
target_link_libraries(zerocopy_options INTERFACE zerocopy_warnings)

if(ZEROCOPY_SANITIZE)
  set(sanitize -fsanitize=${ZEROCOPY_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  if(NOT ZEROCOPY_BUILD_PYTHON)
    list(APPEND sanitize -O1)  # The core alone compiles in two thirds of the time so.
  endif()
  target_compile_options(zerocopy_options INTERFACE ${sanitize})
  target_link_options(zerocopy_options INTERFACE ${sanitize})
endif()

# The standard library's range checks are cheap, and abort with a line number on an overrun.
if(ZEROCOPY_SANITIZE)
  target_compile_definitions(zerocopy_options INTERFACE _GLIBCXX_ASSERTIONS)
endif()
