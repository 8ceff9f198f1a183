# flashcore_embed(target name NAMESPACE ns FUNCTION f HEADER h ROOT dir PATTERNS p...)
# Compiles the matching files into `target` and defines
#   const std::map<std::string_view, std::string_view>& ns::f();   // path relative to ROOT -> text
# declared in HEADER. The text is taken in by the assembler (.incbin), so any size and any byte is fine.
function(flashcore_embed target name)
  cmake_parse_arguments(ARG "" "NAMESPACE;FUNCTION;HEADER;ROOT" "PATTERNS" ${ARGN})
  set(files)
  foreach(pattern IN LISTS ARG_PATTERNS)
    file(GLOB matched CONFIGURE_DEPENDS RELATIVE ${ARG_ROOT} ${ARG_ROOT}/${pattern})
    list(APPEND files ${matched})
  endforeach()
  list(REMOVE_DUPLICATES files)
  set(declarations "")
  set(entries "")
  set(depends)
  set(index 0)
  foreach(file IN LISTS files)
    set(symbol "flashcore_embed_${name}_${index}")
    string(APPEND declarations
      "__asm__(\".pushsection .rodata\\n${symbol}_begin:\\n.incbin \\\"${ARG_ROOT}/${file}\\\"\\n${symbol}_end:\\n.byte 0\\n.popsection\\n\");\n"
      "extern \"C\" const char ${symbol}_begin[], ${symbol}_end[];\n")
    string(APPEND entries "      {\"${file}\", {${symbol}_begin, static_cast<std::size_t>(${symbol}_end - ${symbol}_begin)}},\n")
    list(APPEND depends ${ARG_ROOT}/${file})
    math(EXPR index "${index} + 1")
  endforeach()
  set(out ${CMAKE_BINARY_DIR}/embedded/${name}.cpp)
  file(CONFIGURE OUTPUT ${out} CONTENT "// Made by cmake/embed.cmake.
#include \"${ARG_HEADER}\"
${declarations}
namespace ${ARG_NAMESPACE} {
const std::map<std::string_view, std::string_view>& ${ARG_FUNCTION}() {
  static const std::map<std::string_view, std::string_view> files = {
${entries}  };
  return files;
}
}  // namespace ${ARG_NAMESPACE}
" @ONLY)
  set_source_files_properties(${out} PROPERTIES OBJECT_DEPENDS "${depends}" SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  target_sources(${target} PRIVATE ${out})
endfunction()
