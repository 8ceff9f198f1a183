#pragma once
// Which state of the sources the program was built from; made by cmake/commit.cmake.

namespace flashcore::cli {

extern const char* const kBuiltCommit;  // empty: it was no git checkout
extern const bool kBuiltDirty;          // the sources were not those of the commit

}  // namespace flashcore::cli
