# Looks up the commit at every build. version.cpp is compiled again only if the commit has changed.
set(FSDP_GIT_HEADER ${PROJECT_BINARY_DIR}/generated/fsdp_git.hpp)
add_custom_target(fsdp_git_version BYPRODUCTS ${FSDP_GIT_HEADER} COMMENT "" VERBATIM
  COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUT=${FSDP_GIT_HEADER} -P ${CMAKE_CURRENT_LIST_DIR}/git-version.cmake)
add_dependencies(fsdp fsdp_git_version)
set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/version.cpp PROPERTIES
  INCLUDE_DIRECTORIES ${PROJECT_BINARY_DIR}/generated COMPILE_DEFINITIONS "FSDP_VERSION=\"${PROJECT_VERSION}\"")
