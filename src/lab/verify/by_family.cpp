#include "lab/verify/by_family.h"

#include "core/foreign_text.h"
#include "lab/record/freshness.h"

namespace flashcore {

nlohmann::json json_of(const CountsBy& counts) {
  nlohmann::json object = nlohmann::json::object();
  for (const auto& [name, of] : counts) object[name] = {{"passed", of.passed}, {"failed", of.failed}};
  return object;
}

std::string family_of(const std::string& candidate) { return candidate.substr(0, candidate.find(':')); }

void FamilySources::add(const std::string& candidate, const PlacedProblem& problem, const DeviceLimits& limits) {
  const auto [source, launch] = hashes_of_tried(candidate, problem, limits);
  hashers_[family_of(candidate)].add(source).add(launch);
}

std::map<std::string, std::string> FamilySources::hashes() const {
  std::map<std::string, std::string> hashes;
  for (const auto& [family, hasher] : hashers_) hashes[family] = hasher.hex();
  return hashes;
}

void FamilySources::compare(JudgedFile& file, const std::set<std::string>& redrawn) const {
  auto told = file.document().at("sources").get<std::map<std::string, std::string>>();
  for (const auto& [family, hash] : hashes()) {
    const auto found = told.extract(family);
    if (found.empty()) file.complain("it does not say what {} was compiled from", excerpt(family));
    else if (found.mapped() != hash && !redrawn.contains(family))
      file.stale(file.rows().size(), family,
                 "what one of its kernels is compiled from, or how it is launched, has changed");
  }
  if (!told.empty())
    file.complain("it says what {} was compiled from, of which it has no case", excerpt(told.begin()->first));
}

}  // namespace flashcore
