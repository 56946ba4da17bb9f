# Finds pybind11's headers (after Torch.cmake) and sets pybind11_parent, the folder to include.
#
# One pybind11 for the whole module. torch's headers include pybind11, and two versions of it in one
# shared object are one too many: their inline functions have the same names and other layouts.
# So a torch that ships pybind11 decides (the package index's does), else the installed one (Debian's).
# Only that folder is linked into the build: pybind11 must not bring torch's headers along.
set(pybind11_parent "${CMAKE_CURRENT_BINARY_DIR}/pybind11_parent")
file(MAKE_DIRECTORY "${pybind11_parent}")
find_path(pybind11_include pybind11/pybind11.h PATHS ${TORCH_INCLUDE_DIRS} NO_DEFAULT_PATH NO_CACHE)
if(NOT pybind11_include)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c "import pybind11; print(pybind11.get_include())"
    OUTPUT_VARIABLE pybind11_hint OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_path(pybind11_include pybind11/pybind11.h HINTS ${pybind11_hint} NO_CACHE REQUIRED)
endif()
file(CREATE_LINK "${pybind11_include}/pybind11" "${pybind11_parent}/pybind11" SYMBOLIC)
