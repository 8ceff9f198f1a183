# Adding a family touches one folder: every src/kernels/<folder>/family.cpp defines make_family_<folder>() (through
# FLASHCORE_FAMILY), and the list of them is made here.
file(GLOB family_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/*/family.cpp)
set(declarations "")
set(calls "")
foreach(file IN LISTS family_files)
  get_filename_component(folder ${file} DIRECTORY)
  get_filename_component(folder ${folder} NAME)
  string(APPEND declarations "std::unique_ptr<Family> make_family_${folder}();\n")
  string(APPEND calls "  families.push_back(make_family_${folder}());\n")
endforeach()
set(out ${CMAKE_BINARY_DIR}/families.cpp)
file(CONFIGURE OUTPUT ${out} CONTENT "// Made by cmake/families.cmake.
#include \"kernels/family.h\"
namespace flashcore {
${declarations}
std::vector<std::unique_ptr<Family>> make_all_families() {
  std::vector<std::unique_ptr<Family>> families;
${calls}  return families;
}
}  // namespace flashcore
" @ONLY)
target_sources(flashcore_kernels PRIVATE ${out})
