# Bridges to torch: csrc/bridge compiled against the headers of one release.
#
# find_package(Torch) is not used: it adds torch's compiler flags and CUDA search, and on Debian finds
# the system's torch for every Python.

# ask_torch(<python> <prefix>) asks a Python where its torch is, and sets
#   <prefix>_VERSION (empty without a torch), <prefix>_CXX11_ABI (0 or 1), <prefix>_INCLUDES, <prefix>_LIBRARIES,
#   <prefix>_PYTHON (the tag of extension modules)
function(ask_torch python prefix)
  string(MD5 key "${python}")
  if(NOT DEFINED "ZEROCOPY_TORCH_${key}")  # importing torch takes seconds: ask once
    execute_process(
      COMMAND "${python}" -c [[
import importlib.util
if importlib.util.find_spec("torch") is None:
    raise SystemExit("\ntorch-facts|")
import sysconfig, torch, torch.utils.cpp_extension as ext
facts = [
    torch.__version__,
    str(int(torch.compiled_with_cxx11_abi())),
    ";".join(ext.include_paths()),
    ";".join(ext.library_paths()),
    sysconfig.get_config_var("SOABI"),
]
print("\ntorch-facts|" + "|".join(facts) + "|")
]]
      OUTPUT_VARIABLE output ERROR_VARIABLE complaint)
    if(NOT "${output}${complaint}" MATCHES "torch-facts(\\|[^\n]*)")
      message(FATAL_ERROR "${python} cannot tell where its torch is:\n${complaint}")
    endif()
    set("ZEROCOPY_TORCH_${key}" "${CMAKE_MATCH_1}" CACHE INTERNAL "what ${python} says of its torch")
  endif()
  set(field "([^|]*)\\|")
  if("${ZEROCOPY_TORCH_${key}}" MATCHES "^\\|${field}${field}${field}${field}${field}")
    set(version "${CMAKE_MATCH_1}")
    set(abi "${CMAKE_MATCH_2}")
    set(folders "${CMAKE_MATCH_3}")
    set(library_folders "${CMAKE_MATCH_4}")
    set(tag "${CMAKE_MATCH_5}")
  else()
    set(version "")
  endif()

  set(includes "")
  foreach(folder IN LISTS folders)
    if(IS_DIRECTORY "${folder}")  # torch lists folders of old layouts, which may be missing
      list(APPEND includes "${folder}")
    endif()
  endforeach()
  set(libraries "")
  if(version)
    foreach(name IN ITEMS torch_python torch_cpu torch c10)
      # Not cached, since each Python has another file.
      find_library(library ${name} PATHS ${library_folders} NO_DEFAULT_PATH NO_CACHE REQUIRED)
      list(APPEND libraries "${library}")
      unset(library)
    endforeach()
  endif()
  set(${prefix}_VERSION "${version}" PARENT_SCOPE)
  set(${prefix}_CXX11_ABI "${abi}" PARENT_SCOPE)
  set(${prefix}_INCLUDES "${includes}" PARENT_SCOPE)
  set(${prefix}_LIBRARIES "${libraries}" PARENT_SCOPE)
  set(${prefix}_PYTHON "${tag}" PARENT_SCOPE)
endfunction()

# make_bridge(<version> <C++ ABI> <source> INCLUDES ... LIBRARIES ...) builds
# bridges/libzerocopy_bridge-<release>-<C++ ABI>.so. Python finds that name by zerocopy/_native/stamp.py. <release> is the
# minor release, or the whole version of a pre-release. If the libraries are a system's, whose names have a version, the
# name ends with -system: the file cannot be linked to those of the package index too.
function(make_bridge version abi source)
  cmake_parse_arguments(torch "" "" "INCLUDES;LIBRARIES" ${ARGN})
  string(REGEX REPLACE "[+].*" "" release "${version}")
  if(release MATCHES "^([0-9]+[.][0-9]+)([.][0-9]+)*([.]post[0-9]+)?$")
    set(release "${CMAKE_MATCH_1}")
  endif()
  set(name "zerocopy_bridge-${release}-${abi}")
  list(GET torch_LIBRARIES -1 library)
  if(NOT TARGET "${library}")
    file(REAL_PATH "${library}" library)
    if(library MATCHES "[.]so[.]")
      string(APPEND name "-system")
    endif()
  endif()
  if(TARGET "${name}")
    return()
  endif()
  message(STATUS "${name}: ${version}")

  add_library("${name}" MODULE "${source}")
  target_include_directories("${name}" PRIVATE csrc)
  # torch's headers include pybind11: the copy that a torch ships is the one to compile them with.
  find_path(own_pybind11 pybind11/pybind11.h PATHS ${torch_INCLUDES} NO_DEFAULT_PATH NO_CACHE)
  if(NOT own_pybind11)
    target_include_directories("${name}" SYSTEM BEFORE PRIVATE "${pybind11_parent}")
  endif()
  target_include_directories("${name}" SYSTEM PRIVATE ${torch_INCLUDES})
  foreach(folder IN LISTS torch_INCLUDES)  # torch's messages have the paths of headers
    target_compile_options("${name}" PRIVATE "-fmacro-prefix-map=${folder}=torch/include")
  endforeach()
  target_compile_definitions("${name}" PRIVATE
    _GLIBCXX_USE_CXX11_ABI=${abi}
    ZEROCOPY_BRIDGE_TORCH="${version}"
    ZEROCOPY_BRIDGE_PYTHON="${Python_SOABI}")
  target_link_libraries("${name}" PRIVATE zerocopy_options Python::Module ${torch_LIBRARIES})
  # `import torch` comes first and has loaded these libraries, so the bridge needs no path to them.
  set_target_properties("${name}" PROPERTIES SKIP_BUILD_RPATH ON
    LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/bridges")
  add_dependencies(bridges "${name}")
endfunction()

# add_bridge(<python> <source>) builds a bridge to the torch of a Python.
function(add_bridge python source)
  ask_torch("${python}" torch)
  if(NOT torch_VERSION)
    message(STATUS "${python} has no torch: no bridge is built for it")
    return()
  endif()
  if(NOT torch_PYTHON STREQUAL Python_SOABI)
    message(FATAL_ERROR "${python} is ${torch_PYTHON}, and the build is for ${Python_SOABI}: choose the same Python")
  endif()
  make_bridge("${torch_VERSION}" "${torch_CXX11_ABI}" "${source}"
    INCLUDES ${torch_INCLUDES} LIBRARIES ${torch_LIBRARIES})
endfunction()

# add_bridges_to_headers(<folder> <source>) builds bridges to the releases whose headers are in <folder>/<version>, as the
# package index has them. The libraries of these releases are not there: empty ones with their names are linked.
function(add_bridges_to_headers folder source)
  set(libraries "")
  file(WRITE "${CMAKE_CURRENT_BINARY_DIR}/empty.cpp" "")
  foreach(name IN ITEMS torch_python torch_cpu torch c10)
    add_library("empty_${name}" SHARED "${CMAKE_CURRENT_BINARY_DIR}/empty.cpp")
    set_target_properties("empty_${name}" PROPERTIES OUTPUT_NAME "${name}"
      LIBRARY_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/empty_libraries")
    list(APPEND libraries "empty_${name}")
  endforeach()
  file(GLOB versions RELATIVE "${folder}" "${folder}/*")
  foreach(version IN LISTS versions)
    set(includes "${folder}/${version}" "${folder}/${version}/torch/csrc/api/include")
    set(abis 1)
    if(version VERSION_LESS 2.7)  # the package index had builds with the old ABI, other distributors with the new one
      list(APPEND abis 0)
    endif()
    foreach(abi IN LISTS abis)
      make_bridge("${version}" "${abi}" "${source}" INCLUDES ${includes} LIBRARIES -Wl,--no-as-needed ${libraries})
    endforeach()
  endforeach()
endfunction()
