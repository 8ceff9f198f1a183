// Instructions that a whole warp executes together. The last lane to come does the work for all.

#include <bit>
#include <cmath>

#include "device/emulator/instructions.h"
#include "device/emulator/numbers.h"

namespace flashcore::emulator {
namespace {

template <class Mine>
Mine& operands_of(const Operands& all, int lane) {
  return *static_cast<Mine*>(all[static_cast<std::size_t>(lane)]);
}

bool need_whole_warp(Cluster& cluster, const char* what, const void* site) {
  const Warp& warp = *cluster.thread().warp;
  if (warp.full == 0xffffffffu) return true;
  cluster.fail(fmt::format("{} needs all 32 lanes, and warp {} has {}: launch a multiple of 32 threads", what,
                           warp.index, std::popcount(warp.full)),
               site);
}

// Two packed elements to floats.
template <bool kBf16>
void unpack(unsigned packed, float& low, float& high) {
  low = kBf16 ? bfloat16_value(packed & 0xffff) : half_value(packed & 0xffff);
  high = kBf16 ? bfloat16_value(packed >> 16) : half_value(packed >> 16);
}

struct LdmatrixOperands {
  unsigned* tiles;
  unsigned row;
  const void* site;
};

template <bool kTransposed>
void execute_ldmatrix(Cluster& cluster, Warp& warp, Operands& all) {
  const void* site = operands_of<LdmatrixOperands>(all, 0).site;
  SharedMemory& shared = warp.cta->shared;
  std::uint16_t rows[4][8][8];
  SiteCounters& counter = cluster.counters_of(cluster.site_of(site));
  counter.kind = SiteCounters::kSharedLoad;
  counter.bytes = 16;
  std::array<std::uint64_t, 32> addresses;
  for (int lane = 0; lane < 32; ++lane) {
    const unsigned address = operands_of<LdmatrixOperands>(all, lane).row;
    Thread& giver = *warp.lanes[static_cast<std::size_t>(lane)];
    const auto check = [&](const std::optional<Conflict>& conflict) {
      if (conflict)
        cluster.fail(
            *conflict, *warp.cta,
            fmt::format("executes ldmatrix, in which lane {} gives the address of row {} of tile {}: 16 bytes are read",
                        lane, lane % 8, lane / 8),
            site);
    };
    check(shared.check_place(address, 16, 16));
    check(shared.read(address, 16, giver.knowledge, cluster.access_of(giver, site)));
    std::memcpy(rows[lane / 8][lane % 8], shared.at(address), 16);
    addresses[static_cast<std::size_t>(lane)] = address;
  }
  count_request(0xffffffffu, addresses, counter);
  for (int lane = 0; lane < 32; ++lane) {
    const int row = lane / 4, column = 2 * (lane % 4);
    for (int tile = 0; tile < 4; ++tile) {
      const unsigned low = kTransposed ? rows[tile][column][row] : rows[tile][row][column];
      const unsigned high = kTransposed ? rows[tile][column + 1][row] : rows[tile][row][column + 1];
      operands_of<LdmatrixOperands>(all, lane).tiles[tile] = low | high << 16;
    }
  }
}

// d += a·b: the 16 products of an element are exact in fp32 and added to it one after the other, in the order of k. The
// hardware adds them in another order, and with truncation.
template <bool kBf16>
void execute_mma(Cluster& cluster, Warp& warp, Operands& all) {
  float a[16][16], b[16][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const MmaOperands& mine = operands_of<MmaOperands>(all, lane);
    const int row = lane / 4, pair = 2 * (lane % 4);
    unpack<kBf16>(mine.a[0], a[row][pair], a[row][pair + 1]);
    unpack<kBf16>(mine.a[1], a[row + 8][pair], a[row + 8][pair + 1]);
    unpack<kBf16>(mine.a[2], a[row][pair + 8], a[row][pair + 9]);
    unpack<kBf16>(mine.a[3], a[row + 8][pair + 8], a[row + 8][pair + 9]);
    unpack<kBf16>(mine.b0, b[pair][row], b[pair + 1][row]);
    unpack<kBf16>(mine.b1, b[pair + 8][row], b[pair + 9][row]);
    for (int c = 0; c < 4; ++c) d[row + 8 * (c / 2)][pair + c % 2] = mine.d[c];
  }
  for (int m = 0; m < 16; ++m) {
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8; ++n) d[m][n] += a[m][k] * b[k][n];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int row = lane / 4, pair = 2 * (lane % 4);
    for (int c = 0; c < 4; ++c) operands_of<MmaOperands>(all, lane).d[c] = d[row + 8 * (c / 2)][pair + c % 2];
  }
  ++cluster.counters.mma_instructions;
  cluster.counters.mma_flops += 2 * 16 * 8 * 16;
  cluster.counters.mma_with_copies += warp.cta->copies_under_way > 0;
  cluster.counters.copies_at_mma += warp.cta->copies_under_way;
}

struct StmatrixOperands {
  const unsigned* tiles;
  unsigned row;
  const void* site;
};

void execute_stmatrix(Cluster& cluster, Warp& warp, Operands& all) {
  const void* site = operands_of<StmatrixOperands>(all, 0).site;
  SharedMemory& shared = warp.cta->shared;
  std::uint32_t rows[4][8][4];
  for (int lane = 0; lane < 32; ++lane) {
    for (int tile = 0; tile < 4; ++tile)
      rows[tile][lane / 4][lane % 4] = operands_of<StmatrixOperands>(all, lane).tiles[tile];
  }
  SiteCounters& counter = cluster.counters_of(cluster.site_of(site));
  counter.kind = SiteCounters::kSharedStore;
  counter.bytes = 16;
  std::array<std::uint64_t, 32> addresses;
  for (int lane = 0; lane < 32; ++lane) {
    const unsigned address = operands_of<StmatrixOperands>(all, lane).row;
    Thread& giver = *warp.lanes[static_cast<std::size_t>(lane)];
    const auto check = [&](const std::optional<Conflict>& conflict) {
      if (conflict)
        cluster.fail(*conflict, *warp.cta,
                     fmt::format("executes stmatrix, in which lane {} gives the address of row {} of tile {}: 16 bytes "
                                 "are written",
                                 lane, lane % 8, lane / 8),
                     site);
    };
    check(shared.check_place(address, 16, 16));
    check(shared.write(address, 16, giver.knowledge, cluster.access_of(giver, site), Proxy::kGeneric));
    std::memcpy(shared.at(address), rows[lane / 8][lane % 8], 16);
    addresses[static_cast<std::size_t>(lane)] = address;
  }
  count_request(0xffffffffu, addresses, counter);
}

struct ShuffleOperands {
  unsigned value;
  int mask;
  unsigned result;
};
struct VoteOperands {
  bool condition;
  bool result;
};

void execute_shuffle_index(Cluster&, Warp&, Operands& all) {
  for (int lane = 0; lane < 32; ++lane) {
    auto& mine = operands_of<ShuffleOperands>(all, lane);
    mine.result = operands_of<ShuffleOperands>(all, mine.mask & 31).value;
  }
}

void execute_vote_any(Cluster&, Warp&, Operands& all) {
  bool any = false;
  for (int lane = 0; lane < 32; ++lane) any |= operands_of<VoteOperands>(all, lane).condition;
  for (int lane = 0; lane < 32; ++lane) operands_of<VoteOperands>(all, lane).result = any;
}

void execute_shuffle(Cluster&, Warp& warp, Operands& all) {
  for (int lane = 0; lane < 32; ++lane) {
    if (!(warp.full >> lane & 1)) continue;
    auto& mine = operands_of<ShuffleOperands>(all, lane);
    mine.result = operands_of<ShuffleOperands>(all, lane ^ (mine.mask & 31)).value;
  }
}

void execute_warp_sync(Cluster&, Warp& warp, Operands&) {
  HandOver all;
  for (Thread* lane : warp.lanes) {
    if (lane) all.release(lane->knowledge);
  }
  const SharedClocks known = all.take();
  for (Thread* lane : warp.lanes) {
    if (lane) lane->knowledge.base = known;
  }
}

}  // namespace

int tid(int dimension) {
  const Thread& self = Cluster::current().thread();
  const Dim3& block = Cluster::current().launch.spec.block;
  const auto index = static_cast<unsigned>(self.index);
  return static_cast<int>(dimension == 0   ? index % block.x
                          : dimension == 1 ? index / block.x % block.y
                                           : index / (block.x * block.y));
}
int ctaid(int dimension) {
  const Dim3& at = Cluster::current().thread().cta->index;
  return static_cast<int>(dimension == 0 ? at.x : dimension == 1 ? at.y : at.z);
}
int nctaid(int dimension) {
  const Dim3& grid = Cluster::current().launch.spec.grid;
  return static_cast<int>(dimension == 0 ? grid.x : dimension == 1 ? grid.y : grid.z);
}

void ldmatrix(unsigned (&tiles)[4], unsigned row, bool transposed) {
  Cluster& cluster = Cluster::current();
  const void* site = FC_EMULATOR_SITE;
  need_whole_warp(cluster, "ldmatrix", site);
  LdmatrixOperands mine{tiles, row, site};
  cluster.gather(transposed ? execute_ldmatrix<true> : execute_ldmatrix<false>, &mine, site);
}

void mma_m16n8k16(const MmaOperands& operands, bool bf16) {
  Cluster& cluster = Cluster::current();
  const void* site = FC_EMULATOR_SITE;
  need_whole_warp(cluster, "mma.sync", site);
  MmaOperands mine = operands;
  cluster.gather(bf16 ? execute_mma<true> : execute_mma<false>, &mine, site);
}

unsigned shuffle_xor(unsigned value, int mask) {
  Cluster& cluster = Cluster::current();
  const void* site = FC_EMULATOR_SITE;
  need_whole_warp(cluster, "shfl.sync", site);
  ShuffleOperands mine{value, mask, 0};
  cluster.gather(execute_shuffle, &mine, site);
  return mine.result;
}

void stmatrix(unsigned row, const unsigned (&tiles)[4]) {
  Cluster& cluster = Cluster::current();
  const void* site = FC_EMULATOR_SITE;
  need_whole_warp(cluster, "stmatrix", site);
  StmatrixOperands mine{tiles, row, site};
  cluster.gather(execute_stmatrix, &mine, site);
}

unsigned shuffle_index(unsigned value, int source) {
  Cluster& cluster = Cluster::current();
  const void* site = FC_EMULATOR_SITE;
  need_whole_warp(cluster, "shfl.sync", site);
  ShuffleOperands mine{value, source, 0};
  cluster.gather(execute_shuffle_index, &mine, site);
  return mine.result;
}

bool vote_any(bool condition) {
  Cluster& cluster = Cluster::current();
  const void* site = FC_EMULATOR_SITE;
  need_whole_warp(cluster, "vote.sync", site);
  VoteOperands mine{condition, false};
  cluster.gather(execute_vote_any, &mine, site);
  return mine.result;
}

void bar_warp_sync() {
  Cluster& cluster = Cluster::current();
  cluster.gather(execute_warp_sync, nullptr, FC_EMULATOR_SITE);
}

// ex2.approx.ftz and lg2.approx.ftz: subnormals count as zero on both sides.
float ex2(float x) {
  ++Cluster::current().counters.ex2;
  const float y = std::exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}
float lg2(float x) { return std::log2f(std::fabs(x) < 0x1p-126f ? 0.0f : x); }

}  // namespace flashcore::emulator
