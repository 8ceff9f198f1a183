#include "lab/diagnose/timeline.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "device/emulator/emulator_device.h"
#include "kernels/instrumented.h"
#include "lab/harness/patch.h"
#include "lab/report/timeline_page.h"
#include "lab/verify/conformance.h"

namespace flashcore {
namespace {

using tile::Activity;
using tile::Role;

constexpr std::size_t kTrack = 256;

// One track as a device leaves it: (activity, clock) in order.
struct Written {
  Role role = Role::kWarp;
  unsigned cta = 0, warp = 0, sm = 0;
  std::uint64_t clock = 0, time_ns = 0, last_ns = 0;
  std::vector<std::pair<Activity, unsigned>> marks;
  unsigned dropped = 0;
};

std::vector<std::byte> buffer_of(const std::vector<Written>& tracks) {
  std::vector<std::byte> bytes(tracks.size() * kTrack);
  for (std::size_t i = 0; i < tracks.size(); ++i) {
    const Written& w = tracks[i];
    const tile::TrackHeader header = {tile::kTrackMark + static_cast<unsigned>(w.role),
                                      w.cta,
                                      w.warp,
                                      w.sm,
                                      w.clock,
                                      w.time_ns,
                                      w.dropped,
                                      0,
                                      w.last_ns,
                                      {}};
    std::memcpy(bytes.data() + i * kTrack, &header, sizeof header);
    std::size_t at = i * kTrack + sizeof header;
    for (const auto& [activity, low] : w.marks) {
      const tile::TrackRecord record = {low, static_cast<unsigned>(activity) << tile::kItemBits | 3};
      std::memcpy(bytes.data() + at, &record, sizeof record);
      at += sizeof record;
    }
  }
  return bytes;
}

std::vector<RawTrack> decoded(const std::vector<Written>& tracks, std::vector<std::string>& faults) {
  return decode_tracks(buffer_of(tracks), kTrack, faults);
}
std::string fault_of(const Written& track) {
  std::vector<std::string> faults;
  decoded({track}, faults);
  return faults.empty() ? "" : faults.front();
}

const Written kGood = {.marks = {{Activity::kSetUp, 10},
                                 {Activity::kQk, 15},
                                 {Activity::kSoftmax, 30},
                                 {Activity::kPv, 50},
                                 {Activity::kEnd, 60}}};

TEST(TimelineTracks, SegmentsFollowEachOtherWithoutAGap) {
  std::vector<std::string> faults;
  Written good = kGood;
  // The lower half of the clock turns over within the track.
  good.clock = 0xffff'fff0u;
  for (auto& [activity, low] : good.marks) low += 0xffff'fff0u;
  const std::vector<RawTrack> tracks = decoded({good}, faults);
  EXPECT_TRUE(faults.empty()) << faults.front();
  ASSERT_EQ(tracks.size(), 1u);
  const std::vector<Segment>& s = tracks[0].track.segments;
  ASSERT_EQ(s.size(), 4u);
  EXPECT_EQ(s[0].begin, 0xffff'fffau);
  for (std::size_t i = 1; i < s.size(); ++i) EXPECT_EQ(s[i].begin, s[i - 1].end);
  EXPECT_EQ(s[3].end - s[0].begin, 50u);
  EXPECT_EQ(s[1].item, 3u);
}

TEST(TimelineTracks, WhatMarksCannotLeaveIsAFault) {
  EXPECT_EQ(fault_of(kGood), "");
  Written track = kGood;
  track.marks.pop_back();
  EXPECT_NE(fault_of(track).find("has no end"), std::string::npos);
  track.dropped = 2;
  EXPECT_EQ(fault_of(track), "") << "a full track has no end";
  track = kGood;
  track.marks.push_back({Activity::kSetUp, 70});
  EXPECT_NE(fault_of(track).find("behind its end"), std::string::npos);
  track = kGood;
  track.marks[2].first = static_cast<Activity>(99);
  EXPECT_NE(fault_of(track).find("no mark writes"), std::string::npos);
  track = kGood;
  track.marks[2].second = 3;
  EXPECT_NE(fault_of(track).find("goes back"), std::string::npos);
  track = kGood;
  track.marks.erase(track.marks.begin() + 3);
  EXPECT_NE(fault_of(track).find("no mark of 'P·V'"), std::string::npos);
  track.marks.clear();
  EXPECT_NE(fault_of(track).find("has no end"), std::string::npos);
  std::vector<std::byte> other = buffer_of({kGood});
  other[0] = std::byte{99};
  std::vector<std::string> faults;
  EXPECT_TRUE(decode_tracks(other, kTrack, faults).empty());
  EXPECT_EQ(faults.size(), 1u);
}

TEST(TimelineTracks, WarpsWithoutARoleAreNoTracks) {
  std::vector<std::string> faults;
  EXPECT_TRUE(decode_tracks(std::vector<std::byte>(4 * kTrack), kTrack, faults).empty());
  EXPECT_TRUE(faults.empty());
}

// Two SMs whose clocks differ by a million: the common time puts them side by side, to its own resolution.
TEST(TimelineTracks, ClocksOfSmsAreAligned) {
  std::vector<std::string> faults;
  Written near = kGood, far = kGood;
  near.clock = 1000, near.time_ns = 5000, near.last_ns = 5030;
  far.sm = 1, far.cta = 1, far.clock = 1'001'000, far.time_ns = 5100, far.last_ns = 5130;
  for (auto& mark : near.marks) mark.second += 1000;
  for (auto& mark : far.marks) mark.second += 1'001'000;
  std::vector<RawTrack> tracks = decoded({near, far}, faults);
  EXPECT_NEAR(clock_of_tracks(tracks), 2000, 1) << "60 cycles in 30 ns";
  align_clocks(tracks, 2000);
  EXPECT_EQ(tracks[0].track.begin(), 10u);
  EXPECT_EQ(tracks[1].track.begin(), 210u) << "100 ns later";
}

// A full track drops its end too: its last mark is earlier than the time of its end.
TEST(TimelineTracks, AFullTrackDoesNotShiftTheAxis) {
  std::vector<std::string> faults;
  Written whole = kGood, full = kGood;
  whole.clock = full.clock = 1000;
  whole.time_ns = full.time_ns = 5000, whole.last_ns = 5030, full.last_ns = 9000;
  for (auto& mark : whole.marks) mark.second += 1000;
  for (auto& mark : full.marks) mark.second += 1000;
  full.warp = 1, full.dropped = 7, full.marks.pop_back();
  std::vector<RawTrack> tracks = decoded({whole, full}, faults);
  EXPECT_TRUE(faults.empty()) << faults.front();
  EXPECT_NEAR(clock_of_tracks(tracks), 2000, 1) << "60 cycles in 30 ns, of the whole track alone";
  align_clocks(tracks, 2000);
  EXPECT_EQ(tracks[0].track.begin(), 10u);
  EXPECT_EQ(tracks[1].track.begin(), 10u);
  // A track whose end was not read, though nothing says that it was dropped.
  full.dropped = 0;
  tracks = decoded({whole, full}, faults);
  EXPECT_NEAR(clock_of_tracks(tracks), 2000, 1);
}

TEST(TimelineTracks, AClockThatIsNotKnownStillCountsCycles) {
  Timeline timeline;
  timeline.device.limits.kind = DeviceKind::kCuda;
  EXPECT_STREQ(timeline.unit(), "cycles");
  timeline.device.limits.emulated = true;
  EXPECT_STREQ(timeline.unit(), "steps");
}

Timeline made_up() {
  Timeline timeline;
  timeline.candidate = "sm90_fwd:<script>";
  timeline.device.name = "a \"GPU\"";
  timeline.clock_mhz = 1000;
  timeline.launched_ctas = timeline.recorded_ctas = 1;
  Track consumer;
  consumer.role = Role::kConsumer, consumer.warp = 4, consumer.sm = 7;
  consumer.segments = {{Activity::kWaitK, 0, 0, 40},
                       {Activity::kQk, 2, 40, 50},
                       {Activity::kSoftmax, 2, 50, 80},
                       {Activity::kPv, 2, 80, 100}};
  Track producer;
  producer.role = Role::kProducer, producer.sm = 7;
  producer.segments = {{Activity::kLoadK, 2, 10, 20}, {Activity::kWaitSlot, 2, 20, 90}};
  timeline.tracks = {producer, consumer};
  return timeline;
}

TEST(TimelineSums, SharesOfARoleAreOneTogether) {
  const Timeline timeline = made_up();
  std::map<Role, double> shares;
  for (const ActivitySum& sum : activity_sums(timeline)) shares[sum.role] += sum.share;
  EXPECT_DOUBLE_EQ(shares[Role::kConsumer], 1);
  EXPECT_DOUBLE_EQ(shares[Role::kProducer], 1);
  const ActivitySum first = activity_sums(timeline)[2];
  EXPECT_EQ(first.activity, Activity::kWaitK) << "the longest of the role first";
  EXPECT_DOUBLE_EQ(first.share, 0.4);
  EXPECT_DOUBLE_EQ(multiplying_share(timeline), 0.3) << "10 and 20 of 100";
}

TEST(TimelineSums, TheTraceHasAnEventForEachSegmentAndNamesForAll) {
  const nlohmann::json trace = timeline_trace(made_up());
  std::map<std::string, int> kinds;
  for (const auto& event : trace.at("traceEvents")) ++kinds[event.at("ph").get<std::string>()];
  EXPECT_EQ(kinds["X"], 6);
  EXPECT_EQ(kinds["M"], 6) << "two of the process, two of each thread";
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X" || event.at("name") != "softmax") continue;
    EXPECT_DOUBLE_EQ(event.at("ts").get<double>(), 0.050) << "1000 cycles are a microsecond";
    EXPECT_DOUBLE_EQ(event.at("dur").get<double>(), 0.030);
  }
}

TEST(TimelinePage, TextIsEscapedAndNothingIsLoaded) {
  const std::string page = timeline_html(made_up());
  EXPECT_EQ(page.find("sm90_fwd:<script>"), std::string::npos);
  EXPECT_NE(page.find("sm90_fwd:&lt;script&gt;"), std::string::npos);
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(page.find("src=\"http"), std::string::npos);
  Timeline broken = made_up();
  broken.faults = {"a & b"};
  broken.dropped = 5;
  EXPECT_NE(timeline_html(broken).find("Not to be believed:</b> a &amp; b"), std::string::npos);
  EXPECT_NE(timeline_html(broken).find("Not the whole launch"), std::string::npos);
  EXPECT_NE(timeline_html(broken).find("shares are of the beginning"), std::string::npos);
  Timeline unknown = made_up();
  unknown.clock_mhz = 0;
  EXPECT_EQ(timeline_html(unknown).find("The emulator has no time"), std::string::npos);
  EXPECT_NE(timeline_html(unknown).find("The clock is not known"), std::string::npos);
  unknown.device.limits.emulated = true;
  EXPECT_NE(timeline_html(unknown).find("The emulator has no time"), std::string::npos);
}

// --- on the emulator ------------------------------------------------------------------------------------------------

Timeline recorded(const std::string& candidate, const char* problem_id, TimelineOptions options = {}) {
  const auto device = open_emulator();
  const Problem parsed = Problem::parse(problem_id);
  const PlacedProblem problem = {parsed, parsed.ragged() ? Layout::kBshd : Layout::kBhsd};
  return record_timeline(*device, problem, parse_candidate(candidate, problem, device->info().limits), options);
}

std::map<Activity, int> counts_of(const Track& track) {
  std::map<Activity, int> counts;
  for (const Segment& segment : track.segments) ++counts[segment.activity];
  return counts;
}

constexpr const char* kSm90 =
    "sm90_fwd:num_consumers=2,block_n=32,num_stages=2,q_stages=2,ping_pong=1,rescale_threshold=0,scheduler=1,cluster=1,"
    "key_groups=1";

// 128 rows of 128 keys: one tile, four blocks. Every warp's time is covered, and every block has its marks.
TEST(TimelineRecord, OfAWarpSpecialisedKernelHasEveryRoleAndBlock) {
  const Timeline timeline = recorded(kSm90, "b1_h1_s128_d64_fp16");
  EXPECT_TRUE(timeline.faults.empty()) << timeline.faults.front();
  EXPECT_EQ(timeline.dropped, 0u);
  ASSERT_EQ(timeline.tracks.size(), 9u) << "a producer and eight consumer warps";
  for (const Track& track : timeline.tracks) {
    for (std::size_t i = 1; i < track.segments.size(); ++i)
      ASSERT_EQ(track.segments[i].begin, track.segments[i - 1].end) << "warp " << track.warp;
    std::map<Activity, int> counts = counts_of(track);
    if (track.role == Role::kProducer) {
      EXPECT_EQ(track.warp, 0u);
      EXPECT_EQ(counts[Activity::kLoadK], 4);
      EXPECT_EQ(counts[Activity::kLoadV], 4);
      EXPECT_EQ(counts[Activity::kLoadQ], 2);
    } else {
      EXPECT_EQ(track.role, Role::kConsumer);
      // The first block has one turn of Q·K; each later one is issued before and after the wait for V.
      EXPECT_EQ(counts[Activity::kQk], 1 + 2 * 3);
      EXPECT_EQ(counts[Activity::kSoftmax], 4);
      EXPECT_EQ(counts[Activity::kWaitK], 4);
      EXPECT_EQ(counts[Activity::kWaitV], 4);
      EXPECT_EQ(counts[Activity::kWaitTurn], 4);
      EXPECT_EQ(counts[Activity::kWaitTile], 2) << "one tile, and that there is no other";
      EXPECT_GE(counts[Activity::kEpilogue], 1);
    }
  }
  EXPECT_GT(multiplying_share(timeline), 0.0);
}

TEST(TimelineRecord, OnTheEmulatorMarksTakeNoStep) {
  const Timeline timeline = recorded(kSm90, "b1_h1_s128_d64_fp16");
  EXPECT_GT(timeline.distortion.plain_steps, 100u);
  EXPECT_EQ(timeline.distortion.instrumented_steps, timeline.distortion.plain_steps);
  EXPECT_LE(timeline.end(), timeline.distortion.plain_steps);
  EXPECT_GT(timeline.end(), timeline.distortion.plain_steps / 2);
}

// Steps are of what depends on what: neither the seed of the scheduler nor its turns change them.
TEST(TimelineRecord, StepsAreTheSameUnderAnotherSchedule) {
  const auto one = timeline_json(recorded(kSm90, "b1_h1_s128_d64_fp16"));
  setenv("FLASHCORE_EMULATOR_SEED", "77", 1);
  const auto other = timeline_json(recorded(kSm90, "b1_h1_s128_d64_fp16"));
  unsetenv("FLASHCORE_EMULATOR_SEED");
  EXPECT_EQ(one.at("tracks"), other.at("tracks"));
}

TEST(TimelineRecord, EveryFamilyWithMarksLeavesATimeline) {
  const struct {
    const char *candidate, *problem;
    std::set<Role> roles;
  } kCases[] = {
      {"sm80_fwd", "b1_h2_s100_d64_fp16_causal", {Role::kWarp}},
      {"sm80_fwd:num_stages=2,persistent=1", "b1_h8_s200_d64_fp16_causal", {Role::kWarp}},
      {"sm80_short_fwd", "b1_h2_s40_d64_fp16", {Role::kWarp}},
      {"sm80_decode_fwd", "b2_h4_hk2_sq2_sk300_d64_fp16_causal_raggedhalving_page16", {Role::kWarp}},
      {"sm80_wide_fwd", "b1_h16_hk1_sq2_sk150_d512_bf16_causal", {Role::kWarp}},
      {"sm90_wide_fwd", "b1_h2_sq70_sk150_d512_bf16_causal", {Role::kProducer, Role::kConsumer}},
      {"sm90_short_fwd", "b1_h2_s70_d64_fp16_causal", {Role::kWarp}},
      {"sm89_fp8_fwd:num_stages=3,persistent=1", "b1_h8_s200_d64_e4m3_causal", {Role::kWarp}},
      {"sm90_fp8_fwd", "b1_h2_s150_d64_e4m3_causal", {Role::kProducer, Role::kConsumer, Role::kTransposer}},
      {"sm90_fwd", "b1_h2_s300_d64_fp16_causal_wl40", {Role::kProducer, Role::kConsumer}},
      {"sm90_fwd", "b2_h2_s100_d64_fp16_raggedhalving", {Role::kProducer, Role::kConsumer}},
  };
  std::set<std::string> seen;
  for (const auto& c : kCases) {
    const Timeline timeline = recorded(c.candidate, c.problem);
    EXPECT_TRUE(timeline.faults.empty()) << c.candidate << ": " << timeline.faults.front();
    std::set<Role> roles;
    for (const Track& track : timeline.tracks) roles.insert(track.role);
    EXPECT_EQ(roles, c.roles) << c.candidate;
    seen.insert(std::string(c.candidate).substr(0, std::string(c.candidate).find(':')));
  }
  const std::vector<std::string> all = families_with_marks();
  EXPECT_EQ(seen, std::set<std::string>(all.begin(), all.end()));
}

// A kernel that forgets a mark: its role's end, its P·V.
TEST(TimelineRecord, AMissingMarkIsNoticed) {
  const struct {
    const char *name, *file, *from, *to, *said;
  } kFaults[] = {
      {"no_end", "sm90_fwd/consumer.cuh", "    Base::end_role();\n", "", "has no end"},
      {"no_producer_end", "tile/producer.cuh", "  loader.marks.end_role();\n", "", "(producer) has no end"},
      {"no_softmax", "sm80_fwd/kernel.cuh", "    mark(Activity::kSoftmax, block);\n", "", "no mark of 'softmax'"},
      {"marks_after", "sm80_fwd/kernel.cuh", "    cta.run(ptx::ctaid_x());\n  }\n  cta.end_role();",
       "    cta.run(ptx::ctaid_x());\n  }\n  cta.end_role();\n  cta.begin_role(tile::Role::kWarp);", "goes back"},
  };
  for (const auto& fault : kFaults) {
    Patch patch;
    patch.name = fault.name, patch.trusted = true;
    patch.family = std::string(fault.file).starts_with("sm80") ? "sm80_fwd" : "sm90_fwd";
    patch.replace = {{fault.file, fault.from, fault.to}};
    const PatchScope scope({patch});
    const Timeline timeline = recorded(patch.family_name(), "b1_h1_s128_d64_fp16");
    ASSERT_FALSE(timeline.faults.empty()) << fault.name;
    bool said = false;
    for (const std::string& text : timeline.faults) said = said || text.find(fault.said) != std::string::npos;
    EXPECT_TRUE(said) << fault.name << ": " << timeline.faults.front();
  }
}

// Its marks are whole, and its outputs are those of the plain build: what is wrong is both.
TEST(TimelineRecord, OfAWrongKernelThereIsNoTime) {
  Patch patch;
  patch.name = "wrong", patch.trusted = true, patch.family = "sm80_fwd";
  patch.replace = {{"sm80_fwd/kernel.cuh", "update(acc_s[m], params.scale_log2, rescale)",
                    "update(acc_s[m], params.scale_log2 * 1.5f, rescale)"}};
  const PatchScope scope({patch});
  const Timeline timeline = recorded(patch.family_name(), "b1_h1_s64_d64_fp16");
  EXPECT_TRUE(timeline.tracks.empty());
  ASSERT_EQ(timeline.faults.size(), 1u);
  EXPECT_NE(timeline.faults.front().find("the quick gate does not pass the candidate (incorrect: "), std::string::npos)
      << timeline.faults.front();
}

TEST(TimelineRecord, AFullTrackCountsWhatItDrops) {
  const Timeline timeline = recorded(kSm90, "b1_h1_sq64_sk1600_d64_fp16", {.buffer_bytes = 12 * 1024});
  EXPECT_TRUE(timeline.faults.empty()) << timeline.faults.front();
  EXPECT_GT(timeline.dropped, 0u);
  for (const Track& track : timeline.tracks) EXPECT_LE(track.segments.size(), (1024u - 64) / 8);
}

TEST(TimelineRecord, FewerCtasAreEvenlySpaced) {
  const Timeline timeline = recorded("sm80_fwd:persistent=0", "b1_h8_s64_d64_fp16", {.ctas = 3});
  std::set<std::uint32_t> ctas;
  for (const Track& track : timeline.tracks) ctas.insert(track.cta);
  EXPECT_EQ(timeline.launched_ctas, 8u);
  EXPECT_EQ(ctas, (std::set<std::uint32_t>{0, 3, 6}));
}

std::string refusal_of(const std::string& candidate, const char* problem, TimelineOptions options = {}) {
  try {
    recorded(candidate, problem, options);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kBadInput) << e.what();
    return e.what();
  }
  return "";
}

// The micro-test judges itself: it needs no recording to fail.
TEST(TimelineRecord, TimeStampsAreWhatTheirMicroTestExpects) {
  for (const ConformanceTest& test : conformance_tests()) {
    if (test.name != "time_stamps") continue;
    const std::vector<std::uint32_t> words = run_conformance_test(*open_emulator(), test);
    ASSERT_EQ(words.size(), 512u);
    for (std::size_t i = 0; i < words.size(); ++i) ASSERT_EQ(words[i], i < 128 ? 1u : 0u) << i;
    return;
  }
  FAIL() << "there is no such micro-test";
}

TEST(TimelineRecord, RefusesInOneSentence) {
  EXPECT_NE(refusal_of("ref_fwd", "b1_h1_s32_d64_fp16").find("the kernel of ref_fwd has no marks"), std::string::npos);
  EXPECT_NE(refusal_of(kSm90, "b1_h1_s128_d64_fp16", {.buffer_bytes = 4096}).find("record fewer CTAs"),
            std::string::npos);
  EXPECT_NE(refusal_of("sm80_fwd", "b1_h1_sq0_sk32_d64_fp16").find("no query rows"), std::string::npos);
}

}  // namespace
}  // namespace flashcore
