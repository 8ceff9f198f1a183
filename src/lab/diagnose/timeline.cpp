#include "lab/diagnose/timeline.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "core/error.h"
#include "lab/record/number_text.h"
#include "lab/statistics/quantiles.h"

namespace flashcore {
namespace {

using tile::Activity;
using tile::Role;

struct ActivityWords {
  Activity activity;
  std::string_view word, title;
};
constexpr std::array kActivities = {
    ActivityWords{Activity::kSetUp, "set_up", "set up"},
    ActivityWords{Activity::kWaitTile, "wait_tile", "wait for a tile"},
    ActivityWords{Activity::kWaitSlot, "wait_slot", "wait for a free stage"},
    ActivityWords{Activity::kWaitQ, "wait_q", "wait for Q"},
    ActivityWords{Activity::kWaitK, "wait_k", "wait for K"},
    ActivityWords{Activity::kWaitV, "wait_v", "wait for V"},
    ActivityWords{Activity::kWaitTurn, "wait_turn", "wait for the turn"},
    ActivityWords{Activity::kWaitStore, "wait_store", "wait for O's store"},
    ActivityWords{Activity::kWaitPartner, "wait_partner", "wait for other warps"},
    ActivityWords{Activity::kLoadQ, "load_q", "load Q"},
    ActivityWords{Activity::kLoadK, "load_k", "load K"},
    ActivityWords{Activity::kLoadV, "load_v", "load V"},
    ActivityWords{Activity::kQk, "qk", "Q·K"},
    ActivityWords{Activity::kMask, "mask", "mask"},
    ActivityWords{Activity::kSoftmax, "softmax", "softmax"},
    ActivityWords{Activity::kPv, "pv", "P·V"},
    ActivityWords{Activity::kTranspose, "transpose", "transpose V"},
    ActivityWords{Activity::kMerge, "merge", "merge parts"},
    ActivityWords{Activity::kEpilogue, "epilogue", "epilogue"},
};
static_assert(kActivities.size() + 1 == static_cast<std::size_t>(Activity::kEnd), "an activity without words");

constexpr std::array<std::string_view, static_cast<std::size_t>(Role::kCount)> kRoles = {"producer", "consumer",
                                                                                         "transposer", "warp"};

const ActivityWords& words_of_activity(Activity activity) {
  const auto at = static_cast<std::size_t>(activity) - 1;
  FC_CHECK(at < kActivities.size() && kActivities[at].activity == activity);
  return kActivities[at];
}

std::string name_of_track(const tile::TrackHeader& header) {
  return fmt::format("warp {} of CTA {}", header.warp, header.cta);
}

// The records of one track, until its end or the first that cannot be.
void read_records(std::span<const std::byte> bytes, RawTrack& raw, std::vector<std::string>& faults) {
  const tile::TrackHeader& header = raw.header;
  std::vector<Segment>& segments = raw.track.segments;
  std::uint64_t now = header.first_clock;
  bool ended = false;
  for (std::size_t at = sizeof header; at + sizeof(tile::TrackRecord) <= bytes.size();
       at += sizeof(tile::TrackRecord)) {
    tile::TrackRecord record;
    std::memcpy(&record, bytes.data() + at, sizeof record);
    if (record.tag == 0) break;
    if (ended) {
      faults.push_back(name_of_track(header) + " has marks behind its end");
      return;
    }
    const auto activity = static_cast<Activity>(record.tag >> tile::kItemBits);
    if (activity < Activity::kSetUp || activity >= Activity::kCount) {
      faults.push_back(fmt::format("{} has a record that no mark writes ({:#x})", name_of_track(header), record.tag));
      return;
    }
    // The lower halves tell how far the clock has moved, as long as that is less than 2^31 cycles.
    const std::uint32_t moved = record.low - static_cast<std::uint32_t>(now);
    if (moved >= 0x80000000u) {
      faults.push_back(fmt::format("the clock of {} goes back, or 2^31 cycles or more lie between two of its marks",
                                   name_of_track(header)));
      return;
    }
    now += moved;
    if (!segments.empty()) segments.back().end = now;
    ended = activity == Activity::kEnd;
    raw.ended = ended;
    if (!ended) segments.push_back({activity, record.tag & ((1u << tile::kItemBits) - 1), now, now});
  }
  if (!ended && header.dropped == 0)
    faults.push_back(fmt::format("{} ({}) has no end: end_role is missing, or it never came there",
                                 name_of_track(header), word_of(raw.track.role)));
}

// A role whose blocks have only some of their marks. Of whole tracks.
void check_blocks(const RawTrack& raw, std::vector<std::string>& faults) {
  if (raw.header.dropped > 0) return;
  const auto has = [&](Activity activity) {
    return std::any_of(raw.track.segments.begin(), raw.track.segments.end(),
                       [&](const Segment& segment) { return segment.activity == activity; });
  };
  const auto together = [&](std::initializer_list<Activity> activities) {
    const bool any = std::any_of(activities.begin(), activities.end(), has);
    for (const Activity activity : activities) {
      if (any && !has(activity))
        faults.push_back(fmt::format("{} ({}) has no mark of '{}' and has others of a block", name_of_track(raw.header),
                                     word_of(raw.track.role), title_of(activity)));
    }
  };
  switch (raw.track.role) {
    case Role::kProducer: return together({Activity::kLoadK, Activity::kLoadV, Activity::kWaitSlot});
    case Role::kTransposer: return together({Activity::kWaitV, Activity::kTranspose});
    default: return together({Activity::kQk, Activity::kSoftmax, Activity::kPv});
  }
}

}  // namespace

std::string_view word_of(Role role) { return kRoles.at(static_cast<std::size_t>(role)); }
std::string_view word_of(Activity activity) { return words_of_activity(activity).word; }
std::string_view title_of(Activity activity) { return words_of_activity(activity).title; }
bool is_wait(Activity activity) { return activity >= Activity::kWaitTile && activity <= Activity::kWaitPartner; }
bool is_multiply(Activity activity) { return activity == Activity::kQk || activity == Activity::kPv; }

std::string Distortion::sentence() const {
  if (comparison) {
    // Of a ratio of speeds; slower is positive.
    const auto slower = [](double speedup) { return 1 / speedup - 1; };
    const double change = slower(comparison->speedup);
    return fmt::format("the marks make it {:.1f}% {} (95% {:.1f}% to {:.1f}%): {} against {}", std::abs(100 * change),
                       change < 0 ? "faster" : "slower", 100 * slower(comparison->ci95_high),
                       100 * slower(comparison->ci95_low), text::time(instrumented_us), text::time(plain_us));
  }
  if (plain_steps > 0)
    return fmt::format("{} steps with marks, {} without", text::count(static_cast<std::int64_t>(instrumented_steps)),
                       text::count(static_cast<std::int64_t>(plain_steps)));
  return "what the marks cost was not measured";
}

std::uint64_t Timeline::end() const {
  std::uint64_t last = 0;
  for (const Track& track : tracks) last = std::max(last, track.end());
  return last;
}

std::uint64_t Timeline::marked() const {
  std::uint64_t first = end();
  for (const Track& track : tracks)
    if (!track.segments.empty()) first = std::min(first, track.begin());
  return end() - first;
}

std::vector<RawTrack> decode_tracks(std::span<const std::byte> buffer, std::size_t track_bytes,
                                    std::vector<std::string>& faults) {
  std::vector<RawTrack> tracks;
  for (std::size_t at = 0; at + track_bytes <= buffer.size(); at += track_bytes) {
    RawTrack raw;
    std::memcpy(&raw.header, buffer.data() + at, sizeof raw.header);
    if (raw.header.role == 0) continue;  // a warp without a role
    const unsigned role = raw.header.role - tile::kTrackMark;
    if (role >= static_cast<unsigned>(Role::kCount)) {
      faults.push_back(fmt::format("the track at byte {} begins with no role ({:#x})", at, raw.header.role));
      continue;
    }
    raw.track.role = static_cast<Role>(role);
    raw.track.cta = raw.header.cta, raw.track.warp = raw.header.warp;
    if (raw.header.sm != ~0u) raw.track.sm = raw.header.sm;
    raw.track.dropped = raw.header.dropped;
    read_records(buffer.subspan(at, track_bytes), raw, faults);
    if (raw.track.segments.empty())
      faults.push_back(
          fmt::format("{} ({}) has a beginning and no marks", name_of_track(raw.header), word_of(raw.track.role)));
    check_blocks(raw, faults);
    tracks.push_back(std::move(raw));
  }
  return tracks;
}

double clock_of_tracks(const std::vector<RawTrack>& tracks) {
  double cycles = 0, ns = 0;
  for (const RawTrack& raw : tracks) {
    if (!raw.has_end_time() || raw.track.segments.empty()) continue;
    cycles += static_cast<double>(raw.track.end() - raw.header.first_clock);
    ns += static_cast<double>(raw.header.last_time_ns - raw.header.first_time_ns);
  }
  return ns > 0 ? 1e3 * cycles / ns : 0;
}

void align_clocks(std::vector<RawTrack>& tracks, double clock_mhz) {
  std::uint64_t first_ns = ~std::uint64_t{0};
  std::map<std::uint32_t, std::uint64_t> first_clock;
  const auto sm_of = [](const RawTrack& raw) { return raw.track.sm.value_or(0); };
  for (const RawTrack& raw : tracks) {
    first_ns = std::min<std::uint64_t>(first_ns, raw.header.first_time_ns);
    const auto [place, is_new] = first_clock.try_emplace(sm_of(raw), raw.header.first_clock);
    if (!is_new) place->second = std::min<std::uint64_t>(place->second, raw.header.first_clock);
  }
  // The common time moves in steps, and is read late, never early: of an SM's readings the latest start is nearest.
  std::map<std::uint32_t, double> start;
  for (const RawTrack& raw : tracks) {
    const std::uint32_t sm = sm_of(raw);
    double& latest = start.try_emplace(sm, 0.0).first->second;
    const auto offer = [&](std::uint64_t time_ns, std::uint64_t clock) {
      const double cycles = static_cast<double>(time_ns - first_ns) * 1e-3 * clock_mhz;
      latest = std::max(latest, cycles - static_cast<double>(clock - first_clock[sm]));
    };
    offer(raw.header.first_time_ns, raw.header.first_clock);
    if (raw.has_end_time() && !raw.track.segments.empty()) offer(raw.header.last_time_ns, raw.track.end());
  }
  for (RawTrack& raw : tracks) {
    const std::uint32_t sm = sm_of(raw);
    const auto shift = static_cast<std::uint64_t>(start[sm]);
    for (Segment& segment : raw.track.segments) {
      segment.begin = segment.begin - first_clock[sm] + shift;
      segment.end = segment.end - first_clock[sm] + shift;
    }
  }
}

std::vector<ActivitySum> activity_sums(const Timeline& timeline) {
  std::map<std::pair<Role, Activity>, std::vector<double>> lengths;
  std::map<Role, std::uint64_t> whole;
  for (const Track& track : timeline.tracks) {
    whole[track.role] += track.end() - track.begin();
    for (const Segment& segment : track.segments)
      lengths[{track.role, segment.activity}].push_back(static_cast<double>(segment.end - segment.begin));
  }
  std::vector<ActivitySum> sums;
  for (auto& [key, values] : lengths) {
    double total = 0;
    for (const double value : values) total += value;
    const double time = static_cast<double>(whole[key.first]);
    sums.push_back({key.first, key.second, static_cast<std::uint64_t>(total), time > 0 ? total / time : 0,
                    values.size(), median(values)});
  }
  std::stable_sort(sums.begin(), sums.end(), [](const ActivitySum& a, const ActivitySum& b) {
    return a.role != b.role ? a.role < b.role : a.total > b.total;
  });
  return sums;
}

double multiplying_share(const Timeline& timeline) {
  struct Cta {
    std::uint64_t begin = ~std::uint64_t{0}, end = 0;
    std::vector<std::pair<std::uint64_t, int>> edges;
  };
  std::map<std::uint32_t, Cta> ctas;
  for (const Track& track : timeline.tracks) {
    if (track.segments.empty()) continue;
    Cta& cta = ctas[track.cta];
    cta.begin = std::min(cta.begin, track.begin()), cta.end = std::max(cta.end, track.end());
    for (const Segment& segment : track.segments) {
      if (!is_multiply(segment.activity) || segment.begin == segment.end) continue;
      cta.edges.emplace_back(segment.begin, 1);
      cta.edges.emplace_back(segment.end, -1);
    }
  }
  double whole = 0, busy = 0;
  for (auto& [number, cta] : ctas) {
    whole += static_cast<double>(cta.end - cta.begin);
    std::sort(cta.edges.begin(), cta.edges.end());
    int depth = 0;
    std::uint64_t since = 0;
    for (const auto& [at, step] : cta.edges) {
      if (depth > 0) busy += static_cast<double>(at - since);
      depth += step, since = at;
    }
  }
  return whole > 0 ? busy / whole : 0;
}

}  // namespace flashcore
