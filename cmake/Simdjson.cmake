# simdjson::simdjson: the installed library, or its source compiled in. Wheels need a static
# library, which Debian does not have.
if(ZEROCOPY_SIMDJSON_SOURCE)
  add_library(simdjson STATIC "${ZEROCOPY_SIMDJSON_SOURCE}/singleheader/simdjson.cpp")
  target_include_directories(simdjson SYSTEM PUBLIC "${ZEROCOPY_SIMDJSON_SOURCE}/singleheader")
  target_compile_features(simdjson PUBLIC cxx_std_17)
  add_library(simdjson::simdjson ALIAS simdjson)
else()
  find_package(simdjson REQUIRED)
endif()
