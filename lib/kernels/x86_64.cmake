# The sets of instructions for which rows/cpu.cpp is compiled, by CpuLevel's numbers, and AMX, which counts as level 5.
set(FSDP_CPU_LEVELS 2 3 4)
set(flags_of_level_2 -march=x86-64-v2)
set(flags_of_level_3 -march=x86-64-v3)
set(flags_of_level_4 -march=x86-64-v4 -mprefer-vector-width=512)
set(FSDP_FUSING_FLAG -mfma)  # of a test
# The warnings are off because g++ 12 warns about its own headers (bug 105593).
set(FSDP_OTHER_LEVELS 5)
set(source_of_level_5 rows/amx.cpp)
set(flags_of_level_5 ${flags_of_level_4} -mavx512bf16 -mamx-tile -mamx-bf16 -Wno-uninitialized $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
set(FSDP_DEFAULT_BLAS oneDNN)
