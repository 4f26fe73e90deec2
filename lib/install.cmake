# `cmake --install`: the programs (apps/), libfsdp, its headers, and the files that find_package(fsdp) and pkg-config read. The targets are
# fsdp::fsdp and fsdp::testing.
#
# Programs include <fsdp/fsdp.hpp> (docs/api.md), and their tests <fsdp/check_gradients.hpp>. All other headers are in
# include/fsdp/internal/, and have the same paths as here, for example "plan/plan.hpp". Headers that need another library's headers (mpi.h,
# dnnl.hpp, cuda_runtime.h) or the flags of one instruction set are not installed, and no installed header includes them: the test "install"
# compiles all that are. Of the row kernels, only the headers for user-defined optimizers are installed (docs/extending-optimizer.md).
include(CMakePackageConfigHelpers)
set_target_properties(fsdp PROPERTIES INSTALL_RPATH $ORIGIN)
install(TARGETS fsdp fsdp_testing EXPORT fsdp-targets)
install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fsdp/internal FILES_MATCHING PATTERN "*.hpp"
  REGEX "${FSDP_OTHER_PROCESSORS}" EXCLUDE
  PATTERN "testing" EXCLUDE PATTERN "comm/mpi" EXCLUDE PATTERN "device/cuda" EXCLUDE PATTERN "kernels/cuda" EXCLUDE PATTERN "kernels/cudnn" EXCLUDE PATTERN "kernels/rows" EXCLUDE PATTERN "kernels/launch.hpp" EXCLUDE
  PATTERN "kernels/tile_product.hpp" EXCLUDE PATTERN "kernels/gemm_library.hpp" EXCLUDE)
foreach(header IN ITEMS optimizer pointwise dropout lanes narrow)
  install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/kernels/rows/${header}.hpp DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fsdp/internal/kernels/rows)
endforeach()
install(FILES ${CMAKE_CURRENT_SOURCE_DIR}/api/fsdp.hpp ${CMAKE_CURRENT_SOURCE_DIR}/testing/check_gradients.hpp
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/fsdp)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/fsdp)
install(EXPORT fsdp-targets NAMESPACE fsdp:: DESTINATION ${package_folder})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/fsdp-config.cmake.in ${PROJECT_BINARY_DIR}/generated/fsdp-config.cmake
  INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/generated/fsdp-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/generated/fsdp-config.cmake ${PROJECT_BINARY_DIR}/generated/fsdp-config-version.cmake
  DESTINATION ${package_folder})

file(RELATIVE_PATH from_pc_to_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
foreach(package IN ITEMS fsdp fsdp-testing)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${package}.pc.in ${PROJECT_BINARY_DIR}/generated/${package}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/generated/${package}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
