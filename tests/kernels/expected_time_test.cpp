// What the models of Family::expected_us are for: choosing well, on the times that they were fitted to.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/files.h"
#include "kernels/family.h"

namespace flashcore {
namespace {

// Problem id -> candidate -> us.
using Times = std::map<std::string, std::map<std::string, double>>;

const Times& measured() {
  static const Times times = [] {
    Times all;
    const auto document =
        nlohmann::json::parse(read_file(std::string(FLASHCORE_SOURCE_DIR) + "/results/landscapes/hopper_times.json"));
    for (const auto& [id, entries] : document.at("times_us").items()) {
      for (const auto& entry : entries) {
        const auto candidate = document.at("candidates").at(entry.at(0).get<std::size_t>()).get<std::string>();
        // A family that is gone; its times stay as evidence (docs/design/hopper-forward.md).
        if (!candidate.starts_with("sm90_decode_fwd:")) all[id][candidate] = entry.at(1);
      }
    }
    return all;
  }();
  return times;
}

DeviceInfo gpu(const char* key) {
  DeviceInfo device;
  device.limits = limits_of_arch("sm_90");
  device.key = key;
  device.id = "cuda:0";
  return device;
}

// How much slower dispatch's choices are than the best that was measured, of those that were measured.
struct Regret {
  std::vector<double> ratios;
  std::string worst;  // in words

  void add(const std::string& id, const std::string& candidate) {
    const auto& times = measured().at(id);
    const auto own = times.find(candidate);
    if (own == times.end()) return;
    double best = own->second;
    for (const auto& [name, us] : times) best = std::min(best, us);
    const double ratio = own->second / best;
    if (ratios.empty() || ratio > *std::max_element(ratios.begin(), ratios.end()))
      worst = fmt::format("{} takes {:.1f} us with {}, {:.1f} are possible", id, own->second, candidate, best);
    ratios.push_back(ratio);
  }
  double mean() const {
    double sum = 0;
    for (const double ratio : ratios) sum += std::log(ratio);
    return std::exp(sum / static_cast<double>(ratios.size()));
  }
  double below(double share) {
    std::sort(ratios.begin(), ratios.end());
    return ratios[static_cast<std::size_t>(share * static_cast<double>(ratios.size() - 1))];
  }
};

// With the tuned table and without: a neighbour's entry must not do harm.
TEST(ExpectedTime, ChoosesNearlyTheBestOfWhatWasMeasured) {
  for (const char* key : {"h200", "no table"}) {
    Regret regret;
    for (const auto& [id, times] : measured()) regret.add(id, dispatch(Problem::parse(id), gpu(key)).candidate.print());
    EXPECT_GT(regret.ratios.size(), measured().size() * 9 / 10) << key;
    EXPECT_LT(regret.mean(), 1.03) << key;
    EXPECT_LT(regret.below(0.95), 1.17) << key << ": " << regret.worst;
    EXPECT_LT(regret.below(1), 1.3) << key << ": " << regret.worst;
  }
}

// The times are of an order that can be believed, too: half of them within 10%.
TEST(ExpectedTime, IsCloseToTheMeasured) {
  const DeviceInfo device = gpu("h200");
  std::vector<double> errors;
  for (const auto& [id, times] : measured()) {
    const Problem problem = Problem::parse(id);
    for (const auto& [name, us] : times) {
      const Candidate candidate = parse_candidate(name, problem, device.limits);
      if (const auto expected = candidate.family->expected_us(candidate.config, problem, device.limits))
        errors.push_back(std::abs(std::log(*expected / us)));
    }
  }
  ASSERT_GT(errors.size(), 2000u);
  std::nth_element(errors.begin(), errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2), errors.end());
  EXPECT_LT(errors[errors.size() / 2], 0.1);
}

// Three tiles of 128 rows for two SMs' worth of work, or two of 192: what is left over decides.
TEST(ExpectedTime, FillsTheDevice) {
  const auto consumers = [](const char* id) {
    const std::string config = dispatch(Problem::parse(id), gpu("no table")).candidate.print();
    return config.substr(config.find("num_consumers="), 15);
  };
  EXPECT_EQ(consumers("b1_h12_s2048_d128_bf16"), "num_consumers=3");  // 132 tiles, against 192
  EXPECT_EQ(consumers("b4_h8_s1024_d128_bf16"), "num_consumers=2");   // 256 in two rounds, against 192 in two
  EXPECT_EQ(consumers("b96_h16_s128_d64_fp16"), "num_consumers=2");   // 256 rows would be half empty
}

}  // namespace
}  // namespace flashcore
