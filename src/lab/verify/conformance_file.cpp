// Files of `flashcore check --conformance --record`.

#include <algorithm>

#include "lab/verify/conformance.h"
#include "lab/verify/judged_file.h"
#include "lab/verify/row_facts.h"

namespace flashcore {

using nlohmann::json;

Verification verify_conformance_file(const json& document) {
  JudgedFile file(document);
  const ConformanceRecording recording = parse_conformance(document), built_in = recorded_conformance();
  const json failures = document.value("failures", json::object());
  const bool is_built_in_device = text_in(part(document, "device"), "key") == "h200";  // results/h200/conformance.json
  std::size_t row = 0, known = 0;
  for (const ConformanceTest& test : conformance_tests()) {
    const auto entry = recording.tests.find(test.name);
    if (entry == recording.tests.end()) {
      if (!failures.contains(test.name))
        file.stale(row, test.name, "it is not in the file: taken out, or newer than it");
      continue;
    }
    ++known;
    if (entry->second.hash != conformance_hash(test))
      file.stale(row, test.name, "it has changed since it was recorded");
    // Words of one test on one kind of hardware are the same in every recording.
    const auto ours = built_in.tests.find(test.name);
    if (is_built_in_device && ours != built_in.tests.end() && ours->second.hash == entry->second.hash &&
        ours->second.words != entry->second.words)
      file.complain("{}: its outputs are others than those of the recording that this program carries", test.name);
    ++row;
  }
  if (known < recording.tests.size())
    file.stale(row, "the file", fmt::format("{} of its tests are none now", recording.tests.size() - known));
  for (const auto& [name, why] : failures.items())
    if (recording.tests.contains(name)) file.complain("{}: it has outputs, and it failed: {}", name, why.dump());
  if (!failures.empty()) file.did_not_pass();
  return file.finish(recording.tests.size(), fmt::format("all {} micro-tests are what they were when recorded{}", known,
                                                         failures.empty() ? "" : ", some of which failed"));
}

}  // namespace flashcore
