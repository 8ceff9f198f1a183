# libflashcore.so: the C API (src/api) over kernels and what is below. Only fc_* is visible, the C++ runtime is inside,
# and beside it lies the one library that Debian has no archive of (Highway), so that the two files are all a program or
# a wheel needs.
flashcore_layer(api LINK flashcore_kernels)
target_include_directories(flashcore_api PUBLIC $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>)

set_target_properties(flashcore_api PROPERTIES UNITY_BUILD OFF)  # its one public file is compiled for the shared library
add_library(flashcore_shared SHARED)
set_target_properties(flashcore_shared PROPERTIES
  OUTPUT_NAME flashcore EXPORT_NAME flashcore LINKER_LANGUAGE CXX
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS ${CMAKE_SOURCE_DIR}/src/api/flashcore.map
  BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
target_sources(flashcore_shared PRIVATE ${CMAKE_SOURCE_DIR}/src/api/flashcore.cpp)
target_link_libraries(flashcore_shared PRIVATE flashcore_api)
target_link_options(flashcore_shared PRIVATE
  -Wl,--version-script=${CMAKE_SOURCE_DIR}/src/api/flashcore.map -Wl,--no-undefined -Wl,--exclude-libs,ALL -Wl,--gc-sections
  # Never unloaded: its threads would be left without their code, and forks without their handlers.
  -Wl,-z,nodelete)
target_include_directories(flashcore_shared PUBLIC
  $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

include(CMakePackageConfigHelpers)
install(TARGETS flashcore_shared EXPORT flashcoreTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/flashcore DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT flashcoreTargets NAMESPACE flashcore:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashcore)
configure_file(${CMAKE_SOURCE_DIR}/cmake/flashcoreConfig.cmake.in ${CMAKE_BINARY_DIR}/flashcoreConfig.cmake @ONLY)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/flashcoreConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/flashcoreConfig.cmake ${CMAKE_BINARY_DIR}/flashcoreConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashcore)
# Relative, so that an installed tree may be moved.
file(RELATIVE_PATH FLASHCORE_PC_UP /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
configure_file(${CMAKE_SOURCE_DIR}/cmake/flashcore.pc.in ${CMAKE_BINARY_DIR}/flashcore.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/flashcore.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Highway travels along, under the name that the loader asks for.
get_target_property(flashcore_highway hwy::hwy IMPORTED_LOCATION_NONE)
if(NOT flashcore_highway)
  get_target_property(flashcore_highway hwy::hwy LOCATION)
endif()
file(REAL_PATH ${flashcore_highway} flashcore_highway_file)
get_filename_component(flashcore_highway_name ${flashcore_highway} NAME)
string(REGEX MATCH "\\.so\\.[0-9]+" flashcore_highway_version ${flashcore_highway_file})
set(flashcore_highway_name "libhwy${flashcore_highway_version}")
install(FILES ${flashcore_highway_file} DESTINATION ${CMAKE_INSTALL_LIBDIR} RENAME ${flashcore_highway_name})
# Beside what is built, too: there and here it is found by $ORIGIN.
file(COPY_FILE ${flashcore_highway_file} ${CMAKE_BINARY_DIR}/${flashcore_highway_name} ONLY_IF_DIFFERENT)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
