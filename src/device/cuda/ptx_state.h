#pragma once
// Reads PTX far enough to tell which variables of a module keep what a launch writes: ones in global memory that the
// code does more with than load from. A cubin cannot tell, for NVRTC puts each constexpr variable there, used or not.

#include <string>
#include <string_view>
#include <vector>

namespace flashcore::cuda {

// The names, mangled as in the PTX, in order. An address that is only computed with, compared and loaded from keeps
// nothing: that is a table. Every other use of it counts, also one that this function does not know.
std::vector<std::string> find_kept_variables(std::string_view ptx);

}  // namespace flashcore::cuda
