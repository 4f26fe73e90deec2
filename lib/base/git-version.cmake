# Writes OUT, a header with the commit of SOURCE, if the commit has changed. Every build runs it: cmake -DSOURCE=... -DOUT=... -P
# git-version.cmake.
cmake_minimum_required(VERSION 3.25)
set(FSDP_GIT "unknown")
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} describe --always --abbrev=12 --exclude=* --dirty=*
    WORKING_DIRECTORY ${SOURCE} OUTPUT_VARIABLE output RESULT_VARIABLE result ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(result EQUAL 0 AND output)
    set(FSDP_GIT "${output}")
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "#define FSDP_GIT \"@FSDP_GIT@\"\n" @ONLY)
