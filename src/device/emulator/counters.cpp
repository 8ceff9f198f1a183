#include "device/emulator/counters.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>

namespace flashcore::emulator {
namespace {

constexpr std::uint64_t kSectorBytes = 32;
constexpr int kBanks = 32;

std::uint64_t sectors(const std::uint64_t* first, int count, int bytes) {
  std::uint64_t touched[64];
  int n = 0;
  for (int i = 0; i < count; ++i) {
    for (std::uint64_t s = first[i] / kSectorBytes;
         s <= (first[i] + static_cast<std::uint64_t>(bytes) - 1) / kSectorBytes; ++s)
      touched[n++] = s;
  }
  std::sort(touched, touched + n);
  return static_cast<std::uint64_t>(std::unique(touched, touched + n) - touched);
}

// Passes over the banks for lanes served together: the most different words that one bank has to give.
std::uint64_t passes(const std::uint64_t* first, int count, int bytes) {
  std::uint64_t words[128];
  int n = 0;
  for (int i = 0; i < count; ++i) {
    for (std::uint64_t word = first[i] / 4; word <= (first[i] + static_cast<std::uint64_t>(bytes) - 1) / 4; ++word)
      words[n++] = word;
  }
  std::sort(words, words + n);
  n = static_cast<int>(std::unique(words, words + n) - words);
  int at_bank[kBanks] = {};
  int most = 0;
  for (int i = 0; i < n; ++i) most = std::max(most, ++at_bank[words[i] % kBanks]);
  return static_cast<std::uint64_t>(most);
}

double ratio(std::uint64_t a, std::uint64_t b) {
  return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b);
}

}  // namespace

void SiteCounters::add(const SiteCounters& other) {
  if (other.kind == kNone) return;
  kind = other.kind;
  bytes = other.bytes;
  requests += other.requests;
  lanes += other.lanes;
  possible += other.possible;
  units += other.units;
  least += other.least;
}

void Counters::add(const Counters& other) {
  ctas += other.ctas;
  mma_flops += other.mma_flops;
  mma_instructions += other.mma_instructions;
  mma_with_copies += other.mma_with_copies;
  copies_at_mma += other.copies_at_mma;
  async_copies += other.async_copies;
  tma_bytes += other.tma_bytes;
  tma_stored_bytes += other.tma_stored_bytes;
  cluster_bytes += other.cluster_bytes;
  ex2 += other.ex2;
  barrier_waits += other.barrier_waits;
  copy_waits += other.copy_waits;
  steps = std::max(steps, other.steps);
  for (const auto& [address, site] : other.sites) sites[address].add(site);
}

void count_request(std::uint32_t mask, std::uint32_t full, const std::array<std::uint64_t, 32>& address,
                   SiteCounters& site) {
  const int lanes = std::popcount(mask);
  ++site.requests;
  site.lanes += static_cast<std::uint64_t>(lanes);
  site.possible += static_cast<std::uint64_t>(std::popcount(full));
  const auto total = static_cast<std::uint64_t>(lanes) * static_cast<std::uint64_t>(site.bytes);
  std::uint64_t active[32];
  if (site.kind == SiteCounters::kGlobalLoad || site.kind == SiteCounters::kGlobalStore) {
    int n = 0;
    for (int lane = 0; lane < 32; ++lane) {
      if (mask >> lane & 1) active[n++] = address[static_cast<std::size_t>(lane)];
    }
    site.units += sectors(active, n, site.bytes);
    site.least += (total + kSectorBytes - 1) / kSectorBytes;
    return;
  }
  // Wide accesses are served in groups of lanes that together ask for at most 128 bytes.
  const int group = std::min(32, 128 / site.bytes);
  for (int begin = 0; begin < 32; begin += group) {
    int n = 0;
    for (int lane = begin; lane < begin + group; ++lane) {
      if (mask >> lane & 1) active[n++] = address[static_cast<std::size_t>(lane)];
    }
    if (n == 0) continue;
    site.units += passes(active, n, site.bytes);
    ++site.least;
  }
}

void count_tile(SiteCounters::Kind kind, std::uint64_t bytes, SiteCounters& site) {
  constexpr std::uint64_t kRowBytes = 4 * kBanks;
  const std::uint64_t unit = kind == SiteCounters::kOperands ? kRowBytes : kSectorBytes;
  site.kind = kind;
  site.bytes = static_cast<int>(unit);
  ++site.requests;
  site.units += (bytes + unit - 1) / unit;
  site.least += (bytes + unit - 1) / unit;
}

void RequestLog::add(int lane, std::uint64_t address, std::uint32_t full, SiteCounters& site) {
  std::uint32_t& number = next_[static_cast<std::size_t>(lane)];
  // This lane stayed away until the request it would have joined had been counted.
  if (number < first_) number = first_;
  const std::size_t at = number++ - first_;
  while (open_.size() <= at) open_.emplace_back();
  Request& request = open_[at];
  request.mask |= 1u << lane;
  request.address[static_cast<std::size_t>(lane)] = address;
  while (!open_.empty() && (open_.front().mask == full || open_.size() > kMaxOpen)) {
    count_request(open_.front().mask, full, open_.front().address, site);
    open_.pop_front();
    ++first_;
  }
}

void RequestLog::flush(std::uint32_t full, SiteCounters& site) {
  for (const Request& request : open_) {
    if (request.mask != 0) count_request(request.mask, full, request.address, site);
  }
  first_ += static_cast<std::uint32_t>(open_.size());
  open_.clear();
}

nlohmann::json counters_json(const Counters& c, const std::function<CallLines(const void*)>& lines_of) {
  using nlohmann::json;
  static constexpr const char* kKinds[] = {
      "",          "global load", "global store", "shared load",   "shared store", "barrier wait", "mbarrier wait",
      "copy wait", "TMA load",    "TMA store",    "wgmma operands"};
  json sites = json::array(), waits = json::array();
  std::uint64_t bytes[5] = {}, units[5] = {}, requests[5] = {}, least[5] = {}, lanes[5] = {}, possible[5] = {};
  for (const auto& [address, site] : c.sites) {
    if (site.waits()) {
      const CallLines lines = lines_of(address);
      waits.push_back({{"where", lines.front()},
                       {"caller", caller_of(lines)},
                       {"kind", kKinds[site.kind]},
                       {"threads", site.requests}});
      continue;
    }
    const std::uint64_t moved = (site.moves_tile() ? site.units : site.lanes) * static_cast<std::uint64_t>(site.bytes);
    const CallLines called = lines_of(address);
    json entry = {{"where", called.front()},
                  {"caller", caller_of(called)},
                  {"kind", kKinds[site.kind]},
                  {"requests", site.requests},
                  {"bytes", moved}};
    // What moves tiles has sums of its own: tma_bytes, mma_flops.
    if (!site.moves_tile()) {
      bytes[site.kind] += moved;
      units[site.kind] += site.units;
      requests[site.kind] += site.requests;
      least[site.kind] += site.least;
      lanes[site.kind] += site.lanes;
      possible[site.kind] += site.possible;
      entry["lanes"] = site.lanes;
      entry["possible_lanes"] = site.possible;
    }
    const bool global = site.in_sectors();
    entry[global ? "sectors_per_request" : "passes_per_request"] = ratio(site.units, site.requests);
    entry[global ? "least_sectors_per_request" : "least_passes_per_request"] = ratio(site.least, site.requests);
    sites.push_back(std::move(entry));
  }
  const auto of = [&](int kind, const char* unit) {
    return json{{"bytes", bytes[kind]},
                {"requests", requests[kind]},
                {"lanes", lanes[kind]},
                {"possible_lanes", possible[kind]},
                {unit, units[kind]},
                {std::string("least_") + unit, least[kind]},
                {std::string(unit) + "_per_request", ratio(units[kind], requests[kind])},
                {"excess", ratio(units[kind], least[kind])}};
  };
  return {{"ctas", c.ctas},
          {"mma_flops", c.mma_flops},
          {"mma_instructions", c.mma_instructions},
          {"mma_with_copies_in_flight", ratio(c.mma_with_copies, c.mma_instructions)},
          {"copies_in_flight_per_mma", ratio(c.copies_at_mma, c.mma_instructions)},
          {"ex2", c.ex2},
          {"async_copies", c.async_copies},
          {"tma_bytes", c.tma_bytes},
          {"tma_stored_bytes", c.tma_stored_bytes},
          {"cluster_bytes", c.cluster_bytes},
          {"barrier_waits", c.barrier_waits},
          {"copy_waits", c.copy_waits},
          {"steps", c.steps},
          {"global_load", of(SiteCounters::kGlobalLoad, "sectors")},
          {"global_store", of(SiteCounters::kGlobalStore, "sectors")},
          {"shared_load", of(SiteCounters::kSharedLoad, "passes")},
          {"shared_store", of(SiteCounters::kSharedStore, "passes")},
          {"bank_conflicts", units[SiteCounters::kSharedLoad] + units[SiteCounters::kSharedStore] -
                                 least[SiteCounters::kSharedLoad] - least[SiteCounters::kSharedStore]},
          {"waits", std::move(waits)},
          {"sites", std::move(sites)}};
}

}  // namespace flashcore::emulator
