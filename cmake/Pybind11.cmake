# Finds pybind11's headers (after Torch.cmake) and sets pybind11_parent, the folder to include: the installed
# pybind11 (Debian's), else the copy that a torch ships (the package index's).
#
# Only that folder is linked into the build, so that pybind11 does not add torch's headers.
set(pybind11_parent "${CMAKE_CURRENT_BINARY_DIR}/pybind11_parent")
file(MAKE_DIRECTORY "${pybind11_parent}")
ask_torch("${Python_EXECUTABLE}" torch)
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import pybind11; print(pybind11.get_include())"
  OUTPUT_VARIABLE pybind11_hint OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
find_path(pybind11_include pybind11/pybind11.h HINTS ${pybind11_hint} ${torch_INCLUDES} NO_CACHE REQUIRED)
file(CREATE_LINK "${pybind11_include}/pybind11" "${pybind11_parent}/pybind11" SYMBOLIC)
