# cmake -DSOURCE=checkout -DOUT=file.cpp -P commit.cmake: which commit the program is built from (cli/built_commit.h).
# At every build; the file changes, and one object with it, where the commit does or the sources cease to be its.
set(commit "")
set(dirty false)
find_program(GIT git)
if(GIT)
  set(ask ${GIT} -c core.fsmonitor=false -C ${SOURCE})
  execute_process(COMMAND ${ask} rev-parse --show-toplevel OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  file(REAL_PATH ${SOURCE} source)
  # A copy in somebody else's repository has no commit.
  if(top STREQUAL source)
    execute_process(COMMAND ${ask} rev-parse --verify HEAD OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    execute_process(COMMAND ${ask} status --porcelain --untracked-files=no -- src include python cmake CMakeLists.txt
                    OUTPUT_VARIABLE changes ERROR_QUIET)
    if(NOT changes STREQUAL "")
      set(dirty true)
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUT} CONTENT "// Made by cmake/commit.cmake.
#include \"cli/built_commit.h\"
namespace flashcore::cli {
const char* const kBuiltCommit = \"@commit@\";
const bool kBuiltDirty = @dirty@;
}  // namespace flashcore::cli
" @ONLY)
