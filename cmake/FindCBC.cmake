# Finds COIN-OR's branch and cut solver by its C interface: the target CBC::CBC. CBC's own packages
# bring a file for pkg-config only. The other libraries of COIN-OR come with it: it is linked to them.
find_path(CBC_INCLUDE_DIR coin/Cbc_C_Interface.h)
find_library(CBC_LIBRARY CbcSolver)
mark_as_advanced(CBC_INCLUDE_DIR CBC_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CBC REQUIRED_VARS CBC_LIBRARY CBC_INCLUDE_DIR)
if(CBC_FOUND AND NOT TARGET CBC::CBC)
  add_library(CBC::CBC UNKNOWN IMPORTED)
  set_target_properties(CBC::CBC PROPERTIES IMPORTED_LOCATION "${CBC_LIBRARY}"
                                            INTERFACE_INCLUDE_DIRECTORIES "${CBC_INCLUDE_DIR}")
endif()
