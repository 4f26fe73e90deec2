# The sets of instructions for which rows/cpu.cpp is compiled, by CpuLevel's numbers, and BFMMLA, which counts as level 10.
set(FSDP_CPU_LEVELS 8 9)
set(no_spills $<$<CXX_COMPILER_ID:GNU>:-fno-schedule-insns>)  # without it, g++ 12 spills the sums of products
set(flags_of_level_8 -march=armv8-a ${no_spills})
set(flags_of_level_9 -march=armv8.2-a+sve ${no_spills})
set(FSDP_OTHER_LEVELS 10)
set(source_of_level_10 rows/bfmmla.cpp)
set(flags_of_level_10 -march=armv8.2-a+bf16)
set(FSDP_DEFAULT_BLAS OpenBLAS)  # Debian's oneDNN 2.6.3 has only a portable product in fp32 here, and none in bf16
