#pragma once
// A campaign whose commands are a function of the test's.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/files.h"
#include "lab/campaign/run.h"
#include "temporary_folder.h"

namespace flashcore::test {

// A campaign whose commands answer what a test says.
class CampaignTest : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("FLASHCORE_TUNED", (folder_.path() / "tuned.json").c_str(), 1);
    options_.folder = folder_.path() / "campaign";
    std::filesystem::create_directories(options_.folder);
    options_.program = "/bin/flashcore";
    options_.device = open_device("cpu")->info();
    options_.suite = "smoke";
    options_.problems.name = "smoke";
    options_.problems.problems = {{"tiny", PlacedProblem::parse(kProblem)}};
    options_.budget_seconds = 100;
  }
  void TearDown() override { unsetenv("FLASHCORE_TUNED"); }

  CampaignResult go(std::optional<CampaignState> earlier = std::nullopt) {
    return run_campaign(
        options_, std::move(earlier), {}, [this] { return stop_; },
        [this](const auto& argv, const auto& variables, const auto& log, double seconds, const auto&) {
          ran_.push_back(argv);
          variables_.push_back(variables);
          limits_.push_back(seconds);
          write_file_atomically(log, "");
          const CommandEnd end = answer_(argv);
          if (!end.cancelled && (end.exit_code == 0 || end.exit_code == 1)) write_missing(argv);
          return end;
        });
  }
  // A folder without a campaign.
  void again() {
    std::filesystem::remove_all(options_.folder);
    std::filesystem::create_directories(options_.folder);
    ran_.clear();
    variables_.clear();
  }
  static std::string verb_of(const std::vector<std::string>& argv) { return argv[1] == "-m" ? argv[2] : argv[1]; }
  static void write_json(const std::vector<std::string>& argv, const nlohmann::json& document) {
    for (std::size_t i = 0; i + 1 < argv.size(); ++i)
      if (argv[i] == "--json") write_file_atomically(argv[i + 1], document.dump());
  }
  // What a command that judged leaves, where the test's answer has not written it.
  static void write_missing(const std::vector<std::string>& argv) {
    for (std::size_t i = 0; i + 1 < argv.size(); ++i) {
      const bool is_file = argv[i] == "--json" || argv[i] == "--store" || argv[i] == "--write-baseline" ||
                           argv[i] == "--out" || argv[i] == "--html";
      if (is_file && !std::filesystem::exists(argv[i + 1]))
        write_file_atomically(argv[i + 1], argv[i] == "--json" ? "{}" : "");
    }
  }
  // Each file that a command is to write.
  void write_results(const std::vector<std::string>& argv) const {
    write_json(argv, nlohmann::json::object());
    for (std::size_t i = 0; i + 1 < argv.size(); ++i)
      if (argv[i] == "--store" || argv[i] == "--write-baseline") write_file_atomically(argv[i + 1], "");
  }
  int times_run(const std::string& verb) const {
    return static_cast<int>(std::count_if(ran_.begin(), ran_.end(), [&](const auto& a) { return verb_of(a) == verb; }));
  }

  static constexpr const char* kProblem = "b1_h1_s64_d64_fp32";
  const test::TemporaryFolder folder_;
  CampaignOptions options_;
  bool stop_ = false;
  std::vector<std::vector<std::string>> ran_;
  std::vector<Variables> variables_;  // of each of them
  std::vector<double> limits_;
  std::function<CommandEnd(const std::vector<std::string>&)> answer_ = [](const auto&) {
    return CommandEnd{.exit_code = 0};
  };
};

}  // namespace flashcore::test
