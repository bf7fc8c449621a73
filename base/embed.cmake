# longspan_embed(TARGET FUNCTION FOLDER): adds to TARGET a generated source that defines
#   std::span<const EmbeddedFile> longspan::FUNCTION()
# over every FOLDER/*.yaml, sorted by name. The source is written again when one of them changes.
function(longspan_embed target function folder)
  if(target IN_LIST LONGSPAN_UNSANITIZED)
    return()  # its library has them
  endif()
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.yaml)
  list(SORT files)
  set(script ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/embed_script.cmake)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${function}.cpp)
  string(REPLACE ";" "|" joined "${files}")
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DFILES=${joined} -DFUNCTION=${function} -DOUTPUT=${output}
            -P ${script}
    DEPENDS ${files} ${script}
    COMMENT "Embedding ${folder} of ${target}"
    VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
