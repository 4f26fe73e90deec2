# Compares docs/options.md with the options that PROGRAM prints.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${PROGRAM} --help-markdown OUTPUT_VARIABLE section COMMAND_ERROR_IS_FATAL ANY)
file(READ ${DOC} doc)
string(FIND "${doc}" "${section}" at)
if(section STREQUAL "" OR at EQUAL -1)
  message(FATAL_ERROR "docs/options.md is out of date for ${PROGRAM}; run tools/update-options-doc FOLDER-OF-PROGRAMS")
endif()
