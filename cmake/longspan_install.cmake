# What `cmake --install` lays down: the libraries with their headers, a package that find_package
# reads, the program, and the licence. tests/install/run holds it to that.
include(CMakePackageConfigHelpers)

set(LONGSPAN_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/longspan)
set(LONGSPAN_INCLUDE_DIR ${CMAKE_INSTALL_INCLUDEDIR}/longspan)

# Headers include each other by their path from the root of the tree, so they keep it.
set(longspan_header_exclusions PATTERN "catalog" EXCLUDE PATTERN "mpi_detail.h" EXCLUDE
    PATTERN "cuda_error.h" EXCLUDE PATTERN "libraries.h" EXCLUDE
    PATTERN "nccl_communicators.h" EXCLUDE) # these need the toolkit's own
foreach(folder base models hwprofiles planner frameworks validation engine)
  install(
    DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}
    DESTINATION ${LONGSPAN_INCLUDE_DIR}
    FILES_MATCHING
    PATTERN "*.h" ${longspan_header_exclusions})
endforeach()
# Headers whose first comment says "Internal to" are for the library's own files. What they say is
# read when they are installed, as it may have changed since the configuration.
install(CODE "set(longspan_headers \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${LONGSPAN_INCLUDE_DIR}\")")
install(CODE [[
  file(GLOB_RECURSE headers "${longspan_headers}/*.h")
  foreach(header IN LISTS headers)
    file(STRINGS "${header}" internal LIMIT_COUNT 1 REGEX "^// .*Internal to")
    if(internal)
      file(REMOVE "${header}")
    endif()
  endforeach()
]])

install(
  EXPORT longspan-targets
  NAMESPACE longspan::
  DESTINATION ${LONGSPAN_CMAKE_DIR})
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/longspan-config.cmake.in
  ${PROJECT_BINARY_DIR}/longspan-config.cmake
  INSTALL_DESTINATION ${LONGSPAN_CMAKE_DIR}
  PATH_VARS LONGSPAN_INCLUDE_DIR)
# Before 1.0 a minor version may change interfaces.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/longspan-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/longspan-config.cmake
              ${PROJECT_BINARY_DIR}/longspan-config-version.cmake
              ${PROJECT_SOURCE_DIR}/cmake/FindCBC.cmake
        DESTINATION ${LONGSPAN_CMAKE_DIR})

if(TARGET longspan)
  install(TARGETS longspan RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/longspan)
