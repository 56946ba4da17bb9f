# Asks the chosen Python where its torch is, and sets
#   TORCH_INCLUDE_DIRS, TORCH_LIBRARIES (full paths), TORCH_CXX11_ABI (0 or 1)
#
# find_package(Torch) is left alone: it drags in torch's compiler flags and CUDA search, and on Debian
# finds the system's torch whichever Python was asked for.
if(NOT ZEROCOPY_TORCH_OF STREQUAL Python_EXECUTABLE)  # importing torch takes seconds: ask once
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c [[
import torch, torch.utils.cpp_extension as ext
facts = [
    torch.__version__,
    str(int(torch._C._GLIBCXX_USE_CXX11_ABI)),
    ";".join(ext.include_paths()),
    ";".join(ext.library_paths()),
]
print("\ntorch-facts|" + "|".join(facts))
]]
    OUTPUT_VARIABLE torch_output ERROR_VARIABLE torch_complaint RESULT_VARIABLE torch_status)
  if(NOT torch_status EQUAL 0 OR
     NOT torch_output MATCHES "torch-facts\\|([^|]*)\\|([01])\\|([^|]*)\\|([^|\n]*)")
    message(FATAL_ERROR "${Python_EXECUTABLE} cannot tell where its torch is:\n${torch_complaint}")
  endif()
  set(ZEROCOPY_TORCH_OF "${Python_EXECUTABLE}" CACHE INTERNAL "the Python that was asked")
  set(ZEROCOPY_TORCH_VERSION "${CMAKE_MATCH_1}" CACHE INTERNAL "")
  set(ZEROCOPY_TORCH_ABI "${CMAKE_MATCH_2}" CACHE INTERNAL "")
  set(ZEROCOPY_TORCH_INCLUDES "${CMAKE_MATCH_3}" CACHE INTERNAL "")
  set(ZEROCOPY_TORCH_LIBRARY_DIRS "${CMAKE_MATCH_4}" CACHE INTERNAL "")
endif()
message(STATUS "torch ${ZEROCOPY_TORCH_VERSION} of ${Python_EXECUTABLE}")

set(TORCH_CXX11_ABI "${ZEROCOPY_TORCH_ABI}")
set(TORCH_INCLUDE_DIRS "")
foreach(dir IN LISTS ZEROCOPY_TORCH_INCLUDES)
  if(IS_DIRECTORY "${dir}")  # torch names folders of old layouts that need not be there
    list(APPEND TORCH_INCLUDE_DIRS "${dir}")
  endif()
endforeach()

set(TORCH_LIBRARIES "")
foreach(name IN ITEMS torch_python torch_cpu torch c10)
  # Not cached: another Python means another file.
  find_library(torch_library ${name} PATHS ${ZEROCOPY_TORCH_LIBRARY_DIRS} NO_DEFAULT_PATH NO_CACHE REQUIRED)
  list(APPEND TORCH_LIBRARIES "${torch_library}")
  unset(torch_library)
endforeach()
