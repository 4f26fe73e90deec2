# What a package has that the installation has not. CPack runs this after it has installed to CPACK_TEMPORARY_INSTALL_DIRECTORY.
set(root ${CPACK_TEMPORARY_INSTALL_DIRECTORY})
if(NOT CPACK_GENERATOR STREQUAL "DEB")  # a self-contained folder
  if(NOT CPACK_FSDP_LIBDIR STREQUAL "lib")  # such as lib64
    file(GLOB libraries ${root}/${CPACK_FSDP_LIBDIR}/libfsdp*.so*)
    file(COPY ${libraries} DESTINATION ${root}/lib)
    file(REMOVE_RECURSE ${root}/${CPACK_FSDP_LIBDIR})
  endif()
  if(CPACK_FSDP_WITHOUT_CUDA)
    file(REMOVE ${root}/lib/libfsdp_cuda.so ${root}/lib/libfsdp_cudnn.so)
  endif()
  set(ENV{LD_LIBRARY_PATH} ${root}/lib:$ENV{LD_LIBRARY_PATH})
  if(CPACK_FSDP_AARCH64_ROOT)  # a cross-build
    set(libraries_of --root ${CPACK_FSDP_AARCH64_ROOT})
  endif()
  execute_process(COMMAND ${CPACK_FSDP_PACKAGING}/bundle ${libraries_of} ${root} COMMAND_ERROR_IS_FATAL ANY)
  return()
endif()

# The system's loader finds all libraries: those of this package in /usr, those of CUDA through ld.so.conf, as NVIDIA's packages set it up.
file(GLOB objects ${root}/usr/bin/fsdp-* ${root}/usr/${CPACK_FSDP_LIBDIR}/libfsdp*.so*)
foreach(object IN LISTS objects)
  if(NOT IS_SYMLINK ${object})
    file(RPATH_REMOVE FILE ${object})
  endif()
endforeach()

set(doc ${root}/usr/share/doc/fsdp)
file(REMOVE ${doc}/LICENSE)  # `copyright` names Debian's own copy of it
file(COPY ${CPACK_FSDP_PACKAGING}/debian/copyright DESTINATION ${doc})
file(COPY ${CPACK_FSDP_PACKAGING}/debian/lintian-overrides DESTINATION ${root}/usr/share/lintian/overrides)
file(RENAME ${root}/usr/share/lintian/overrides/lintian-overrides ${root}/usr/share/lintian/overrides/fsdp)
file(COPY ${CPACK_FSDP_CHANGELOG} DESTINATION ${doc})
file(GLOB pages ${root}/usr/share/man/man1/*)
execute_process(COMMAND gzip --best --no-name ${doc}/changelog.Debian ${pages} COMMAND_ERROR_IS_FATAL ANY)
