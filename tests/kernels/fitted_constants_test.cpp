#include "kernels/fitted_constants.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/modelled_time.h"

namespace flashcore {
namespace {

struct Part {
  double us;
  int most;

  template <class Visit>
  static void fields(Visit&& visit) {
    visit("us", &Part::us);
    visit("most", &Part::most);
  }
};
struct Parts {
  std::vector<Part> parts;

  template <class Visit>
  static void fields(Visit&& visit) {
    visit("parts", &Parts::parts);
  }
};

nlohmann::json entry(int arch, int multiprocessors, double clock_mhz, double dram_peak_gbps, double us = 1) {
  return {{"fitted_on",
           {{"arch", arch},
            {"multiprocessors", multiprocessors},
            {"clock_mhz", clock_mhz},
            {"dram_peak_gbps", dram_peak_gbps},
            {"dram_gbps", 0.9 * dram_peak_gbps}}},
          {"model_uncertainty", 1.5},
          {"constants", {{"parts", {{{"us", us}, {"most", 3}}}}}}};
}

DeviceInfo gpu(const char* key) {
  DeviceInfo device;
  device.limits = limits_of_model("sm_90", key);
  device.key = key;
  device.id = "cuda:0";
  return device;
}

double expected(const char* candidate, const char* problem, const DeviceLimits& limits) {
  const Problem parsed = Problem::parse(problem);
  const Candidate chosen = parse_candidate(candidate, parsed, limits);
  return chosen.family->expected_us(chosen.config, parsed, limits).value();
}

TEST(FittedConstants, EveryFamilysFileIsRead) {
  const DeviceInfo h200 = gpu("h200");
  ASSERT_EQ(embedded_expected_times().size(), 3u);
  for (const auto& [path, text] : embedded_expected_times()) {
    const std::string family = std::string(path.substr(0, path.find('/')));
    const FittedDevice* device = fitted_device(family, h200.limits);
    ASSERT_NE(device, nullptr) << path;
    EXPECT_EQ(device->key, "h200") << path;
    EXPECT_EQ(distance_to(*device, h200.limits), 0) << path << " was fitted on another GPU than the h200 that is known";
    EXPECT_GT(expected(family.c_str(), "b1_h8_s128_d64_fp16", h200.limits), 1) << path;
  }
  EXPECT_EQ(fitted_device("sm80_fwd", h200.limits), nullptr);
}

TEST(FittedConstants, WhatIsWrongIsNamed) {
  const auto fault_of = [](const std::string& text) -> std::string {
    try {
      FittedConstants<Parts>(text, "here.json");
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kBadInput);
      return e.what();
    }
    return "none";
  };
  const auto changed = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json document = {{"h200", entry(90, 132, 1980, 4917)}};
    document[nlohmann::json::json_pointer(pointer)] = value;
    return fault_of(document.dump());
  };
  EXPECT_EQ(changed("/h200/model_uncertainty", 2), "none");
  EXPECT_NE(fault_of("{").find("here.json: this is not JSON"), std::string::npos);
  EXPECT_EQ(fault_of("{}"), "here.json must be an object of constants by device key, as \"h200\"");
  EXPECT_EQ(fault_of("[1]"), "here.json must be an object of constants by device key, as \"h200\"");
  EXPECT_EQ(changed("/h200", 7), "here.json: h200 must be an object");
  EXPECT_EQ(changed("/h200", {{"fitted_on", nlohmann::json::object()}}), "here.json: h200.fitted_on has no 'arch'");
  EXPECT_EQ(changed("/h200/note", "mine"),
            "here.json: h200 has 'note', which nothing reads; it holds: fitted_on, model_uncertainty, constants");
  EXPECT_EQ(changed("/h200/constants/parts/0/us", "1"),
            "here.json: h200.constants.parts[0].us is \"1\"; it must be a number greater than 0");
  EXPECT_EQ(changed("/h200/fitted_on/clock_mhz", 0),
            "here.json: h200.fitted_on.clock_mhz is 0; it must be a number greater than 0");
  EXPECT_NE(changed("/h200/constants/parts/0/most", 2.5).find("parts[0].most' is 2.5, not a whole number"),
            std::string::npos);
  EXPECT_NE(changed("/h200/constants/parts/0/most", -2).find("greater than 0"), std::string::npos);
  EXPECT_EQ(changed("/h200/constants/parts", nlohmann::json::array()),
            "here.json: h200.constants.parts must be a list of objects, and not empty");
}

TEST(FittedConstants, TheNearestDeviceIsTaken) {
  const nlohmann::json document = {{"big", entry(90, 132, 1980, 4917, 1)},
                                   {"small", entry(90, 66, 1980, 2400, 2)},
                                   {"old", entry(80, 108, 1410, 1555, 3)}};
  const FittedConstants<Parts> fitted(document.dump(), "here.json");
  DeviceLimits limits = limits_of_model("sm_90", "h100");
  const auto nearest = [&] { return fitted.nearest(limits).device.key; };
  EXPECT_EQ(nearest(), "big");
  limits.multiprocessors = 70, limits.dram_peak_gbps = 2000;
  EXPECT_EQ(nearest(), "small");
  // Of another architecture there is the nearest, though never before one of the same.
  limits.arch = 80, limits.multiprocessors = 132, limits.dram_peak_gbps = 4917;
  EXPECT_EQ(nearest(), "old");
  limits.arch = 120;
  EXPECT_EQ(nearest(), "big");
  // Nothing but SMs is known.
  limits.clock_mhz = limits.dram_peak_gbps = 0, limits.multiprocessors = 60;
  EXPECT_EQ(nearest(), "small");
  EXPECT_EQ(fitted.nearest(limits).constants.parts.at(0).us, 2);
  EXPECT_EQ(fitted.nearest(limits).device.model_uncertainty, 1.5);
}

// On the fitted device, and where the driver tells a clock that is off by a few MHz, nothing is scaled.
TEST(CarriedOver, NothingToItself) {
  const DeviceLimits own = limits_of_model("sm_90", "h200");
  DeviceLimits nearly = own, unknown = own;
  nearly.clock_mhz += 15, nearly.dram_peak_gbps -= 30;
  unknown.clock_mhz = unknown.dram_peak_gbps = 0;
  for (const DeviceLimits& limits : {own, nearly, unknown}) {
    const CarriedOver over = carry_over(*fitted_device("sm90_fwd", limits), limits);
    EXPECT_EQ(over.clock_factor, 1);
    EXPECT_EQ(over.sms_factor, 1);
    EXPECT_EQ(over.dram_bytes_per_us, 4.4e6);
  }
}

// Decoding waits for DRAM, and takes as much longer as its DRAM is slower; a long prefill waits for the SMs.
TEST(CarriedOver, AnH100HasItsOwnDram) {
  const DeviceLimits h100 = limits_of_model("sm_90", "h100"), h200 = limits_of_model("sm_90", "h200");
  const char* decode = "b64_h32_hk8_sq1_sk4096_d128_bf16";
  const double slower = h200.dram_peak_gbps / h100.dram_peak_gbps;
  EXPECT_NEAR(expected("sm90_short_fwd", decode, h100) / expected("sm90_short_fwd", decode, h200), slower, 0.1);
  const char* prefill = "b4_h32_hk8_s4096_d128_bf16_causal";
  EXPECT_NEAR(expected("sm90_fwd", prefill, h100) / expected("sm90_fwd", prefill, h200), 1, 0.01);
}

TEST(CarriedOver, FewerAndSlowerSmsTakeLonger) {
  const DeviceLimits pcie = limits_of_model("sm_90", "h100pcie"), h200 = limits_of_model("sm_90", "h200");
  const double slower = 132.0 / 114 * 1980 / 1755;
  const struct {
    const char *candidate, *problem;
  } kCases[] = {{"sm90_fwd", "b4_h32_hk8_s4096_d128_bf16_causal"},
                {"sm90_short_fwd:row_groups=1,key_groups=1,cluster=1,block_n=64,num_stages=2,pack_heads=1",
                 "b8_h32_s1024_d64_fp16_causal"}};
  for (const auto& [candidate, problem] : kCases)
    EXPECT_NEAR(expected(candidate, problem, pcie) / expected(candidate, problem, h200), slower, 0.1) << candidate;
  const char* direct = "sm80_short_fwd:row_blocks=1,key_warps=1,block_n=32,pack_heads=1";
  EXPECT_GT(expected(direct, "b8_h8_s64_d64_fp16", pcie), 1.1 * expected(direct, "b8_h8_s64_d64_fp16", h200));
}

TEST(ModelledTime, SaysWhoseConstantsItHas) {
  const Problem problem = Problem::parse("b1_h8_s512_d64_fp16");
  const auto on = [&](const DeviceInfo& device) {
    return modelled_time(parse_candidate("sm90_short_fwd", problem, device.limits), problem, device.limits).value();
  };
  EXPECT_EQ(describe_model(on(gpu("h200")), gpu("h200")), "its model, fitted on h200");
  EXPECT_EQ(carried_over_from(on(gpu("h200")), gpu("h200")), std::nullopt);
  EXPECT_EQ(describe_model(on(gpu("h100")), gpu("h100")),
            "its model, carried over from h200 to 132 SMs, 1980 MHz, 3352 GB/s of DRAM");
  EXPECT_EQ(carried_over_from(on(gpu("h100")), gpu("h100")), "h200");
  EXPECT_EQ(describe_model(on(gpu("mine")), gpu("mine")),
            "its model, carried over from h200 to 132 SMs; clock and DRAM bandwidth are not known, and taken to be the "
            "same");
  // Its model errs by 13%, sm90_fwd's by 4%.
  const ModelledTime modelled = on(gpu("h200"));
  EXPECT_EQ(modelled.cautious_us(), 1.08 * modelled.us);
  EXPECT_EQ(fitted_device("sm90_fwd", gpu("h200").limits)->model_uncertainty, 1);
  EXPECT_FALSE(modelled_time(parse_candidate("sm80_fwd", problem, gpu("h200").limits), problem, gpu("h200").limits));
}

TEST(ModelledTime, ADefaultsReasonHasNoNumberThatMayBeBelowTheFloor) {
  const Choice choice = dispatch(Problem::parse("b64_h32_hk8_sq1_sk4096_d128_bf16"), gpu("h100"));
  EXPECT_EQ(choice.reason, "default of sm90_short_fwd: by its model, carried over from h200");
}

}  // namespace
}  // namespace flashcore
