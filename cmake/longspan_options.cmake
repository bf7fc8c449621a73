# An interface target carries the flags that every file of the project is compiled with. The instruction
# set is the same everywhere: Eigen's inline code must not differ between objects.
add_library(longspan_options INTERFACE)
target_compile_options(longspan_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic>)
if(LONGSPAN_ARCH)
  target_compile_options(longspan_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${LONGSPAN_ARCH}>)
endif()
# No multiplication is fused with an addition unless the code says so. Otherwise the optimisation level
# decides how sums are rounded, and builds choose differently between plans that are equally fast.
target_compile_options(longspan_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(LONGSPAN_WERROR)
  target_compile_options(longspan_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(LONGSPAN_MOLD)  # links in a fifth of the time of GNU ld, and there are dozens of programs
  find_program(LONGSPAN_MOLD_PROGRAM mold)
  if(LONGSPAN_MOLD_PROGRAM)
    target_link_options(longspan_options INTERFACE
      $<$<NOT:$<BOOL:$<TARGET_PROPERTY:LONGSPAN_NO_MOLD>>>:-fuse-ld=mold>)
  endif()
endif()
if(LONGSPAN_PCH AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(longspan_options INTERFACE -fpch-preprocess)  # what ccache needs
endif()
if(LONGSPAN_SANITIZE)
  target_compile_options(longspan_options INTERFACE -fsanitize=${LONGSPAN_SANITIZE}
                                                   -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(longspan_options INTERFACE -fsanitize=${LONGSPAN_SANITIZE})
endif()

# Headers from outside the project that most files include are compiled once (LONGSPAN_PCH): the
# larger part of compiling a file was reading them. The compiler wants the same flags where such
# headers are made and where they are used, so libraries (-fPIC) and programs (-fPIE) have their
# own. No header of the project is among them, and every file includes what it uses: builds with
# LONGSPAN_PCH off (release) and scripts/lint hold it to that.
set(LONGSPAN_PCH_HEADERS
    <algorithm> <array> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <optional> <set>
    <string> <string_view> <utility> <vector> <fmt/format.h>)

# Files of a library are compiled together, a few at a time (LONGSPAN_UNITY): what headers instantiate
# is then compiled once for all of them, which under sanitizers is half of the time. So names in
# anonymous namespaces differ between the files of a library; builds with LONGSPAN_UNITY off hold
# every file to its own includes.
set(LONGSPAN_UNITY_FILES 8)

# Code that runs once takes longer to optimise than that saves: of tests, much; of programs with flags
# and JSON, nearly all. What they call in libraries is optimised as the preset says.
set(LONGSPAN_TEST_OPTIONS $<$<NOT:$<CONFIG:Release>>:-O1>)
set(LONGSPAN_PROGRAM_OPTIONS $<$<NOT:$<CONFIG:Release>>:-O0>)

# longspan_precompile(TARGET NAME KIND LIBRARY|EXECUTABLE [MAIN] LINK ... HEADERS ...): the first call
# with a NAME makes the headers of that name, as a target of that kind; the others use them. MAIN: an
# executable whose LINK has no main().
function(longspan_precompile target)
  cmake_parse_arguments(ARG "MAIN" "NAME" "KIND;LINK;HEADERS;OPTIONS" ${ARGN})
  if(NOT LONGSPAN_PCH)
    return()
  endif()
  set(made longspan_headers_${ARG_NAME})
  if(NOT TARGET ${made})
    set(source ${PROJECT_BINARY_DIR}/${made}.cpp)
    set(content "")
    if(ARG_MAIN)
      set(content "int main() {}\n")
    endif()
    file(CONFIGURE OUTPUT ${source} CONTENT "${content}")
    if(ARG_KIND STREQUAL "LIBRARY")
      add_library(${made} STATIC ${source})
    else()
      add_executable(${made} ${source})
    endif()
    target_link_libraries(${made} PRIVATE longspan_options fmt::fmt ${ARG_LINK})
    target_compile_options(${made} PRIVATE ${ARG_OPTIONS})
    target_precompile_headers(${made} PRIVATE ${LONGSPAN_PCH_HEADERS} ${ARG_HEADERS})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${made})
endfunction()

# longspan_precompile_program(TARGET): the headers of programs with flags and JSON. CLI11's is not one
# of them: precompiled it costs every file two seconds, since its functions are all inline.
function(longspan_precompile_program target)
  target_compile_options(${target} PRIVATE ${LONGSPAN_PROGRAM_OPTIONS})
  longspan_precompile(${target} NAME program KIND EXECUTABLE MAIN
                      LINK nlohmann_json::nlohmann_json
                      OPTIONS ${LONGSPAN_PROGRAM_OPTIONS}
                      HEADERS <nlohmann/json.hpp>)
endfunction()

# longspan_unity(TARGET): its files may be compiled together.
function(longspan_unity target)
  if(LONGSPAN_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON
                                               UNITY_BUILD_BATCH_SIZE ${LONGSPAN_UNITY_FILES})
    # GCC takes the files for headers, which must not have types of an anonymous namespace.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

# longspan_joined(VAR NAME SOURCE...): sets VAR to the sources; with LONGSPAN_UNITY to one file of this
# name in the build folder that includes them all. For languages and properties of sources that
# longspan_unity() does not join.
function(longspan_joined var name)
  set(${var} ${ARGN} PARENT_SCOPE)
  if(LONGSPAN_UNITY)
    set(joined ${CMAKE_CURRENT_BINARY_DIR}/${name})
    list(TRANSFORM ARGN REPLACE "(.+)" "#include \"\\1\"" OUTPUT_VARIABLE lines)
    list(JOIN lines "\n" lines)
    file(GENERATE OUTPUT ${joined} CONTENT "${lines}\n")
    set(${var} ${joined} PARENT_SCOPE)
  endif()
endfunction()

# longspan_taken(TARGET LINK...): if LONGSPAN_UNSANITIZED names the library, makes the target from the
# file that LONGSPAN_UNSANITIZED_FROM has, with these dependencies, and sets TAKEN.
function(longspan_taken target)
  set(taken OFF)
  if(target IN_LIST LONGSPAN_UNSANITIZED)
    set(taken ON)
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
    add_library(${target} INTERFACE)
    target_include_directories(${target} INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>)
    set(file ${LONGSPAN_UNSANITIZED_FROM}/${folder}/lib${target}.a)
    target_link_libraries(${target} INTERFACE $<BUILD_INTERFACE:${file}> ${ARGN})
  endif()
  set(TAKEN ${taken} PARENT_SCOPE)
endfunction()

# longspan_library(SUBJECT [UNITY] SOURCES ... LINK ...): a static library longspan_<subject>, exported
# as longspan::<subject>, whose headers are included by their path from the root of the tree. UNITY:
# its files may be compiled together.
function(longspan_library subject)
  cmake_parse_arguments(ARG "UNITY" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  set(target longspan_${subject})
  longspan_taken(${target} ${ARG_LINK} ${ARG_PRIVATE_LINK})
  if(TAKEN)
    add_library(longspan::${subject} ALIAS ${target})
    install(TARGETS ${target} EXPORT longspan-targets)
    return()
  endif()
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(longspan::${subject} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${subject})
  target_include_directories(
    ${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                     $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/longspan>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK}
                                         $<BUILD_INTERFACE:longspan_options>)
  longspan_precompile(${target} NAME library KIND LIBRARY)
  if(ARG_UNITY)
    longspan_unity(${target})
  endif()
  install(TARGETS ${target} EXPORT longspan-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()
