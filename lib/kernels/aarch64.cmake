# The sets of instructions for which rows/cpu.cpp is compiled, by CpuLevel's numbers.
set(FSDP_CPU_LEVELS 8 9)
set(flags_of_level_8 -march=armv8-a)
set(flags_of_level_9 -march=armv8.2-a+sve)
