#pragma once
// Do the figures of a results file follow from each other? A rate that counts masked pairs, a time below its own floor,
// an interval that its samples do not give: none of them was measured.

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace flashcore {

struct Audit {
  std::vector<std::string> wrong;                  // one sentence for each figure that does not follow
  std::vector<std::string> without_samples;        // problems with ratios that nothing in the file can confirm
  std::vector<std::string> times_without_samples;  // with times that nothing can, and no ratios
  // Sessions whose clocks were lowered, or whose machine was busy: told, and no fault of the file.
  std::vector<std::string> remarks;
};

// Of a flashcore.bench/1 document: its rates, floor and "decode" against the problem, the time and the device's
// ceilings; what a peer run or bench derived against the raw samples; that only what passed has a time, and what
// that stands on (lab/verify/evidence.h); that no row is there twice, and that a row without a peer of
// the others says why.
Audit audit_document(const nlohmann::json& document);
std::vector<std::string> audit_results(const nlohmann::json& document);  // `wrong` of it

// A row with the figures that its raw samples and its device's ceilings give, if it has others: its statistics or its
// floor are of an older flashcore. None if it has them, or has nothing to derive them from.
std::optional<nlohmann::json> with_figures_anew(const nlohmann::json& row);

}  // namespace flashcore
