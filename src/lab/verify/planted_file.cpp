// Files of `flashcore check --planted --json`.

#include <algorithm>
#include <set>

#include "lab/record/outcome.h"
#include "lab/verify/judged_file.h"
#include "lab/verify/planted.h"
#include "lab/verify/row_facts.h"

namespace flashcore {
namespace {

using nlohmann::json;

const PlantedFault* fault_named(std::string_view name) {
  const auto& corpus = gpu_planted_faults();
  const auto fault = std::ranges::find(corpus, name, &PlantedFault::name);
  return fault == corpus.end() ? nullptr : &*fault;
}

// What was skipped because it shows elsewhere must show elsewhere only.
void check_skipped(JudgedFile& file, const std::set<std::string>& skipped) {
  const std::string where = text_in(file.document(), "device").starts_with("emulator") ? "emulator" : "cuda";
  for (const std::string& name : skipped) {
    const PlantedFault* fault = fault_named(name);
    if (fault == nullptr) file.stale(file.rows().size(), name, "the corpus has no such fault now");
    else if (fault->runs_on(where) || fault->runs_on("nvrtc"))
      file.complain("{}: it was skipped, and shows on {}", name, where);
  }
}

void compare_with_corpus(JudgedFile& file) {
  std::set<std::string> told;
  for (const json& name : file.document().at("not_here")) told.insert(name.get<std::string>());
  const std::size_t not_here = told.size();
  check_skipped(file, told);
  for (std::size_t i = 0; i < file.rows().size(); ++i) {
    const json& row = file.rows()[i];
    const std::string name = text_in(row, "name");
    if (!told.insert(name).second) file.complain("{}: it was run, and it shows elsewhere only", name);
    const PlantedFault* fault = fault_named(name);
    if (fault == nullptr) {
      file.stale(i, name, "the corpus has no such fault now");
      continue;
    }
    const std::string check = fault->check ? word_of(*fault->check) : "";
    if (text_in(row, "gate") != word_of(fault->gate) || text_in(row, "check") != check)
      file.stale(i, name, fmt::format("the corpus has {}/{} catch it now", word_of(fault->gate), check));
  }
  std::vector<std::string> lacks;
  for (const PlantedFault& fault : gpu_planted_faults())
    if (!told.contains(fault.name)) lacks.push_back(fault.name);
  if (!lacks.empty() && not_here + file.rows().size() == 1) file.remark("it is of one fault of {}", lacks.size() + 1);
  if (!lacks.empty() && not_here + file.rows().size() > 1)
    file.stale(
        file.rows().size(), "the file",
        fmt::format("{} of the corpus {} not in it: {}", lacks.size(), lacks.size() == 1 ? "is" : "are", lacks[0]));
}

}  // namespace

Verification verify_planted_file(const json& document) {
  JudgedFile file(document);
  std::size_t caught = 0, lacking = 0;
  for (const json& row : file.rows()) {
    const bool is_caught = row.at("caught").get<bool>();
    caught += is_caught;
    lacking += row.value("lacking", false);
    if (is_caught && text_in(row, "what").empty())
      file.complain("{}: it was caught, and no gate says why", name_of_row(row));
  }
  const std::size_t escaped = file.rows().size() - caught;
  file.compare_count("caught", caught);
  file.compare_count("skipped", document.at("not_here").size());
  const auto missed = document.at("missed").get<std::size_t>(), not_tried = document.at("lacking").get<std::size_t>();
  if (missed + not_tried != escaped || lacking > not_tried)
    file.complain("it counts {} missed and {} not tried, and {} of its rows were not caught", missed, not_tried,
                  escaped);
  file.expect_distinct("name");
  compare_with_corpus(file);
  file.judge_all_sources(text_in(document, "source_hash"));
  if (document.value("dirty", false))
    file.remark("the program was built from a tree with changes that no commit holds");
  if (escaped > 0) file.did_not_pass();
  return file.finish(
      file.rows().size(),
      fmt::format("it is of the present sources, and {} of {} planted faults were caught", caught, file.rows().size()));
}

}  // namespace flashcore
