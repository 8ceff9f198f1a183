#pragma once
// Files of the laboratory that are no tables of times (flashcore.planted/1 and others): what their questions have in
// common. A judge asks whether the summary of a file is what its rows say, and tells what contradicts.

#include <fmt/format.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/json_number.h"
#include "device/device.h"
#include "lab/compare/bench.h"

namespace flashcore {

// A whole number that fits. Error kBadInput if it is none, or missing.
template <class Int>
Int whole_in(const nlohmann::json& object, const char* key) {
  Int value = 0;
  get_whole(object, key, value);
  return value;
}

class JudgedFile {
 public:
  // Asks at once what does not go by the schema: digest, dates, whether the run came to its end.
  explicit JudgedFile(const nlohmann::json& document);

  const nlohmann::json& document() const { return document_; }
  // The rows under "results". Error kBadInput if there is none.
  const nlohmann::json& rows() const;

  template <typename... Args>
  void complain(fmt::format_string<Args...> format, Args&&... args) {
    verification_.wrong.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void remark(fmt::format_string<Args...> format, Args&&... args) {
    verification_.remarks.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  void stale(std::size_t row, const std::string& name, std::string why);
  void unknown(std::size_t row, const std::string& name, std::string why);
  void incomplete(std::string why);
  void did_not_pass() { verification_.did_not_pass = true; }

  // "it counts 110 caught, and 109 of its rows are".
  void compare_count(const char* key, std::size_t rows);
  // No two rows have one.
  void expect_distinct(const char* key);
  // A number that follows from others of the file. NaN follows from NaN.
  void compare_number(const std::string& what, double says, double follows);

  // The device that ran its cases. Complains of one that no run names, and if it does not say when.
  DeviceInfo device_of_run();

  // Whether times of it may be compared with those of today. `object` may name a condition.
  bool has_known_condition(const std::string& name, const nlohmann::json& object);

  // Is the kernel that was tested the one that ships? By "candidate_hash" of the row, of `candidate` on `problem` and
  // the row's device; without it (an older file) by the hash of all sources in `source_hash`.
  void judge_source(std::size_t row, const std::string& name, const nlohmann::json& holder,
                    const std::string& candidate, const std::string& problem);
  // The same of a file that says only what all sources were.
  void judge_all_sources(const std::string& recorded);

  // `told`: the sentence of a file in which nothing is wrong.
  Verification finish(std::size_t rows, const std::string& told);

 private:
  const nlohmann::json& document_;
  Verification verification_;
};

// What a writer says of the candidate of a row, for judge_source: {"problem", "source", "launch"}.
inline constexpr const char* kCandidateHash = "candidate_hash";
nlohmann::json candidate_hash_of(std::string_view candidate, const PlacedProblem& problem, const DeviceLimits& limits);

// By schema. A judge may throw json::exception for what it cannot read.
using FileJudge = std::function<Verification(const nlohmann::json& document)>;
using FileJudges = std::map<std::string, FileJudge, std::less<>>;

// Those of this room; lab/diagnose/diagnosis_files.h has more.
FileJudges check_file_judges();
// Error kBadInput if the file cannot be read as one of its schema, or if nobody judges that.
Verification judge_by_schema(const nlohmann::json& document, const std::string& origin, const FileJudges& judges);

Verification verify_planted_file(const nlohmann::json& document);
Verification verify_needles_file(const nlohmann::json& document);
Verification verify_fuzz_file(const nlohmann::json& document);
Verification verify_neighbours_file(const nlohmann::json& document);
Verification verify_crosscheck_file(const nlohmann::json& document);
Verification verify_invert_file(const nlohmann::json& document);
Verification verify_tune_file(const nlohmann::json& document);
Verification verify_conformance_file(const nlohmann::json& document);

}  // namespace flashcore
