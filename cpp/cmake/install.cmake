# cmake --install: the library, its headers, the programs, and what find_package(attnport_bundle) reads.
include(CMakePackageConfigHelpers)
set(ATTNPORT_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/attnport_bundle")
configure_package_config_file("${CMAKE_CURRENT_SOURCE_DIR}/cmake/attnport_bundleConfig.cmake.in"
  "${CMAKE_CURRENT_BINARY_DIR}/attnport_bundleConfig.cmake" INSTALL_DESTINATION "${ATTNPORT_CMAKE_DIR}"
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/attnport_bundleConfigVersion.cmake"
  VERSION ${PROJECT_VERSION} COMPATIBILITY SameMajorVersion)
install(TARGETS attnport_bundle ${ATTNPORT_PROGRAM_TARGETS} EXPORT attnport_bundleTargets
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
install(DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}/include/attnport" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT attnport_bundleTargets NAMESPACE attnport:: DESTINATION "${ATTNPORT_CMAKE_DIR}")
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/attnport_bundleConfig.cmake"
  "${CMAKE_CURRENT_BINARY_DIR}/attnport_bundleConfigVersion.cmake" DESTINATION "${ATTNPORT_CMAKE_DIR}")
