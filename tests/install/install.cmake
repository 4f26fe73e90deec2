# cmake -DBUILD=... -P install.cmake: installs the build, moves the prefix, trains from there, and builds a user's project against it.
# The build folder's library must not be used by anything that runs here.
cmake_minimum_required(VERSION 3.25)

function(run folder)
  execute_process(COMMAND ${ARGN} WORKING_DIRECTORY ${folder} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "exit code ${code} of: ${ARGN}\n${out}${err}")
  endif()
  set(said "${out}${err}" PARENT_SCOPE)
endfunction()

function(expect_text text)
  string(FIND "${said}" "${text}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "'${text}' was not said, but: ${said}")
  endif()
endfunction()

file(REMOVE_RECURSE ${FOLDER})
file(MAKE_DIRECTORY ${FOLDER}/job)
run(${FOLDER} ${CMAKE_COMMAND} --install ${BUILD} --prefix ${FOLDER}/first)
file(RENAME ${FOLDER}/first ${FOLDER}/moved)
set(bin ${FOLDER}/moved/${BIN})

# Programs use the library beside them.
file(GLOB programs ${bin}/fsdp-*)
list(LENGTH programs count)
if(count LESS 9)
  message(FATAL_ERROR "${count} programs were installed: ${programs}")
endif()
if(CUDA)  # what libfsdp loads where there are GPUs
  list(APPEND programs ${FOLDER}/moved/${LIB}/libfsdp_cuda.so)
endif()
foreach(program IN LISTS programs)
  run(${FOLDER} ldd ${program})
  string(REGEX MATCH "libfsdp[^ ]* => ([^ ]*)" found "${said}")
  file(REAL_PATH "${CMAKE_MATCH_1}" library)
  cmake_path(GET library PARENT_PATH place)
  if(NOT found OR NOT place STREQUAL "${FOLDER}/moved/${LIB}")
    message(FATAL_ERROR "${program} uses the library in '${place}'")
  endif()
endforeach()
run(${FOLDER} ${bin}/fsdp-train --version)
expect_text("fsdp-train ${VERSION} (")

# A run from there.
file(WRITE ${FOLDER}/job/text.txt "The quick brown fox jumps over the lazy dog, and twenty bytes more follow.")
run(${FOLDER}/job ${bin}/fsdp-tokenize text.txt --out tokens.bin)
run(${FOLDER}/job ${MPIRUN} -np 2 ${bin}/fsdp-train tokens.bin --arch gpt2 --vocab-size 256 --decoder-layers 1 --decoder-embed-dim 16
  --decoder-attention-heads 2 --tokens-per-sample 8 --batch-size 1 --max-update 2)
expect_text("step 2/2")
run(${FOLDER}/job ${bin}/fsdp-inspect checkpoints)
expect_text("transformer.wte.weight")
run(${FOLDER}/job ${MPIRUN} -np 2 ${bin}/fsdp-doctor --device cpu)
expect_text(" ok       training ")

# A user's project: with the headers that were installed, each of which compiles by itself, and with the library.
file(GLOB_RECURSE headers RELATIVE ${FOLDER}/moved/${INCLUDE}/fsdp ${FOLDER}/moved/${INCLUDE}/fsdp/*.hpp)
list(TRANSFORM headers REPLACE "(.+)" "#include \"\\1\"\n")
string(JOIN "" includes ${headers})
file(WRITE ${FOLDER}/user/all_headers.cpp "${includes}")
file(COPY ${PROJECT}/ DESTINATION ${FOLDER}/user)
run(${FOLDER}/user ${CMAKE_COMMAND} -S . -B build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_CXX_FLAGS=${FLAGS}"
  "-DCMAKE_PREFIX_PATH=${FOLDER}/moved;${PREFIX_PATH}")
run(${FOLDER}/user ${CMAKE_COMMAND} --build build)
run(${FOLDER}/user ${MPIRUN} -np 2 build/user)
expect_text("fsdp ${VERSION}")
expect_text("2 ranks add up to 3")
file(REMOVE_RECURSE ${FOLDER})
