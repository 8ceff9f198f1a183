#pragma once
// What a results file says that the source gives again without its device, at the cost of minutes, or of an hour where
// caches are long: registers by the compiler, bounds by the fp64 reference.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace flashcore {

struct Recomputed {
  std::vector<std::string> wrong;    // one sentence for each value that comes out otherwise
  std::vector<std::string> remarks;  // what could not be computed here, and why
};

// Of rows of flashcore.bench/1:
// - a fresh row of a GPU is compiled; equal machine code has the row's registers, and the compiler that the row names
//   makes the row's code of the same text;
// - a row's correctness bound is what the reference gives now on some data pattern of its problem: one above all of
// them
//   is wrong, another one is a remark, because the reference may have changed.
Recomputed recompute_rows(const nlohmann::json& rows);

}  // namespace flashcore
