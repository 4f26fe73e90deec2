# Checks that the objects of the row kernels define only symbols with their level in the name: if a function of a shared header were
# compiled there with AVX-512, the linker could use it for the whole program.
# Usage: cmake -DNM=nm -DLEVEL=4 -DOBJECT=file -P symbols.cmake
execute_process(COMMAND ${NM} --defined-only --demangle ${OBJECT} OUTPUT_VARIABLE text RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${NM} failed on ${OBJECT}")
endif()
string(REPLACE ";" "," text "${text}")
string(REPLACE "\n" ";" lines "${text}")
set(own 0)
foreach(line IN LISTS lines)
  if(line MATCHES "^[0-9a-f]+ [TWVuBDR] (.*)$")
    set(name "${CMAKE_MATCH_1}")
    if(name MATCHES "run_rows<${LEVEL}, |run_attention<${LEVEL}, |run_tile_product<${LEVEL}, |CpuLanes<${LEVEL}>|small_gemm<${LEVEL}>")
      math(EXPR own "${own} + 1")
    elseif(NOT name MATCHES "^(DW\\.ref|__gxx_personality|__clang_call_terminate)")  # clang's call of std::terminate() has no vector code
      message(SEND_ERROR "level ${LEVEL} defines ${name}")
    endif()
  endif()
endforeach()
if(own EQUAL 0)
  message(FATAL_ERROR "no kernels found in ${OBJECT}")
endif()
message(STATUS "${own} symbols of level ${LEVEL}")
