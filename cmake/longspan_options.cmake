# One interface target carries the flags that every file of the project is compiled with. The
# instruction set is the same everywhere: Eigen's inline code must not differ between objects.
add_library(longspan_options INTERFACE)
target_compile_options(longspan_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic>)
if(LONGSPAN_ARCH)
  target_compile_options(longspan_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=${LONGSPAN_ARCH}>)
endif()
if(LONGSPAN_WERROR)
  target_compile_options(longspan_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(LONGSPAN_SANITIZE)
  target_compile_options(longspan_options INTERFACE -fsanitize=${LONGSPAN_SANITIZE}
                                                   -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(longspan_options INTERFACE -fsanitize=${LONGSPAN_SANITIZE})
endif()

# longspan_library(NAME subject SOURCES ... LINK ...): a static library longspan_<subject>, exported
# as longspan::<subject>, whose headers are included by their path from the root of the tree.
function(longspan_library subject)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  set(target longspan_${subject})
  add_library(${target} STATIC ${ARG_SOURCES})
  add_library(longspan::${subject} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${subject})
  target_include_directories(
    ${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                     $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/longspan>)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_libraries(${target} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK}
                                         $<BUILD_INTERFACE:longspan_options>)
  install(TARGETS ${target} EXPORT longspan-targets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()
