// Instructions that a whole warp executes together. The last lane to come does the work for all.

#include <bit>
#include <cmath>

#include "device/emulator/instructions.h"
#include "device/emulator/numbers.h"

namespace flashcore::emulator {
namespace {

bool need_whole_warp(Cluster& cluster, const char* what, const void* site) {
  const Warp& warp = *cluster.thread().warp;
  if (warp.full == 0xffffffffu) return true;
  cluster.fail(fmt::format("{} needs all 32 lanes, and warp {} has {}: launch a multiple of 32 threads", what,
                           warp.index, std::popcount(warp.full)),
               site);
}

struct LdmatrixOperands {
  unsigned* tiles;
  int count;
  unsigned row;
  bool transposed;
  const void* site;
};

// Lanes beyond those that give the address of a row.
std::uint32_t lanes_of_rows(int tiles) { return tiles == 4 ? 0xffffffffu : (1u << 8 * tiles) - 1; }

void execute_ldmatrix(Cluster& cluster, Warp& warp, Operands& all) {
  const auto& first = operands_of<LdmatrixOperands>(all, 0);
  const void* site = first.site;
  SharedMemory& shared = warp.cta->shared;
  std::uint16_t rows[4][8][8];
  SiteCounters& counter = cluster.counters_of(cluster.site_of(site));
  counter.kind = SiteCounters::kSharedLoad;
  counter.bytes = 16;
  std::array<std::uint64_t, 32> addresses;
  for (int lane = 0; lane < 8 * first.count; ++lane) {
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
  count_request(lanes_of_rows(first.count), lanes_of_rows(first.count), addresses, counter);
  for (int lane = 0; lane < 32; ++lane) {
    const int row = lane / 4, column = 2 * (lane % 4);
    for (int tile = 0; tile < first.count; ++tile) {
      const unsigned low = first.transposed ? rows[tile][column][row] : rows[tile][row][column];
      const unsigned high = first.transposed ? rows[tile][column + 1][row] : rows[tile][row][column + 1];
      operands_of<LdmatrixOperands>(all, lane).tiles[tile] = low | high << 16;
    }
  }
}

// d += a·b: the 16 products of an element are exact in fp32 and added to it one after the other, in the order of k. The
// hardware adds them in another order, and with truncation. Of 8-bit floats: add_products_of_8_bits.
template <MatrixElement kElement>
void execute_mma(Cluster& cluster, Warp& warp, Operands& all) {
  using Packed = Packing<element_of_a(kElement)>;
  constexpr int kK = Packed::kK, kHalf = kK / 2;
  float a[16][Packed::kK], b[kK][8], d[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const MmaOperands& mine = operands_of<MmaOperands>(all, lane);
    const int row = lane / 4, k = static_cast<int>(Packed::kInWord) * (lane % 4), pair = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) Packed::unpack(mine.a[i], &a[row + 8 * (i % 2)][k + kHalf * (i / 2)]);
    for (int i = 0; i < 2; ++i) {
      float column[4];
      Packing<element_of_b(kElement)>::unpack(i == 0 ? mine.b0 : mine.b1, column);
      for (int e = 0; e < static_cast<int>(Packed::kInWord); ++e) b[k + kHalf * i + e][row] = column[e];
    }
    for (int c = 0; c < 4; ++c) d[row + 8 * (c / 2)][pair + c % 2] = mine.d[c];
  }
  for (int m = 0; m < 16; ++m) {
    if constexpr (has_8_bits(kElement)) {
      add_products_of_8_bits(a[m], &b[0][0], 8, d[m], 8);
      continue;
    }
    for (int k = 0; k < kK; ++k) {
      for (int n = 0; n < 8; ++n) d[m][n] += a[m][k] * b[k][n];
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const int row = lane / 4, pair = 2 * (lane % 4);
    for (int c = 0; c < 4; ++c) operands_of<MmaOperands>(all, lane).d[c] = d[row + 8 * (c / 2)][pair + c % 2];
  }
  ++cluster.counters.mma_instructions;
  cluster.counters.mma_flops += 2 * 16 * 8 * kK;
  cluster.counters.mma_with_copies += warp.cta->copies_under_way > 0;
  cluster.counters.copies_at_mma += warp.cta->copies_under_way;
}

struct StmatrixOperands {
  const unsigned* tiles;
  int count;
  unsigned row;
  bool transposed;
  const void* site;
};

void execute_stmatrix(Cluster& cluster, Warp& warp, Operands& all) {
  const auto& first = operands_of<StmatrixOperands>(all, 0);
  const void* site = first.site;
  SharedMemory& shared = warp.cta->shared;
  std::uint16_t rows[4][8][8];
  for (int lane = 0; lane < 32; ++lane) {
    const int row = lane / 4, column = 2 * (lane % 4);
    for (int tile = 0; tile < first.count; ++tile) {
      const unsigned packed = operands_of<StmatrixOperands>(all, lane).tiles[tile];
      (first.transposed ? rows[tile][column][row] : rows[tile][row][column]) = static_cast<std::uint16_t>(packed);
      (first.transposed ? rows[tile][column + 1][row] : rows[tile][row][column + 1]) =
          static_cast<std::uint16_t>(packed >> 16);
    }
  }
  SiteCounters& counter = cluster.counters_of(cluster.site_of(site));
  counter.kind = SiteCounters::kSharedStore;
  counter.bytes = 16;
  std::array<std::uint64_t, 32> addresses;
  for (int lane = 0; lane < 8 * first.count; ++lane) {
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
  count_request(lanes_of_rows(first.count), lanes_of_rows(first.count), addresses, counter);
}

struct ShuffleOperands {
  unsigned value;
  int mask;
  unsigned result;
};
struct VoteOperands {
  bool condition;
  std::uint32_t result;
};

void execute_shuffle_index(Cluster&, Warp&, Operands& all) {
  for (int lane = 0; lane < 32; ++lane) {
    auto& mine = operands_of<ShuffleOperands>(all, lane);
    mine.result = operands_of<ShuffleOperands>(all, mine.mask & 31).value;
  }
}

void execute_vote(Cluster&, Warp&, Operands& all) {
  std::uint32_t ballot = 0;
  for (int lane = 0; lane < 32; ++lane) ballot |= std::uint32_t{operands_of<VoteOperands>(all, lane).condition} << lane;
  for (int lane = 0; lane < 32; ++lane) operands_of<VoteOperands>(all, lane).result = ballot;
}

void execute_elect(Cluster& cluster, Warp& warp, Operands& all) {
  // The hardware takes the first lane and does not promise it. Another for each warp and launch; one for all its calls.
  const LaunchState& launch = cluster.launch;
  const auto lane =
      launch.plain() ? 0u : static_cast<unsigned>(launch.seed + 5u * launch.number + 11u * warp.index) % 32;
  for (unsigned i = 0; i < 32; ++i) operands_of<VoteOperands>(all, static_cast<int>(i)).result = i == lane;
}

void execute_shuffle_by(Cluster&, Warp&, Operands& all) {
  for (int lane = 0; lane < 32; ++lane) {
    auto& mine = operands_of<ShuffleOperands>(all, lane);
    const int from = lane + mine.mask;
    mine.result = operands_of<ShuffleOperands>(all, from < 0 || from > 31 ? lane : from).value;
  }
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
    if (lane) lane->knowledge.take(known);
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

void ldmatrix(unsigned* tiles, int count, unsigned row, bool transposed) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  need_whole_warp(cluster, "ldmatrix", site);
  LdmatrixOperands mine{tiles, count, row, transposed, site};
  cluster.gather(execute_ldmatrix, &mine, site);
}

void mma_sync(const MmaOperands& operands, MatrixElement element) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  need_whole_warp(cluster, "mma.sync", site);
  MmaOperands mine = operands;
  cluster.gather(with_element(element, []<MatrixElement kElement>() { return &execute_mma<kElement>; }), &mine, site);
}

unsigned shuffle_xor(unsigned value, int mask) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  need_whole_warp(cluster, "shfl.sync", site);
  ShuffleOperands mine{value, mask, 0};
  cluster.gather(execute_shuffle, &mine, site);
  return mine.result;
}

void stmatrix(unsigned row, const unsigned* tiles, int count, bool transposed) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  need_whole_warp(cluster, "stmatrix", site);
  StmatrixOperands mine{tiles, count, row, transposed, site};
  cluster.gather(execute_stmatrix, &mine, site);
}

unsigned shuffle_index(unsigned value, int source) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  need_whole_warp(cluster, "shfl.sync", site);
  ShuffleOperands mine{value, source, 0};
  cluster.gather(execute_shuffle_index, &mine, site);
  return mine.result;
}

unsigned shuffle_by(unsigned value, int delta) {
  Cluster& cluster = Cluster::step();
  const void* site = FC_EMULATOR_SITE;
  need_whole_warp(cluster, "shfl.sync", site);
  ShuffleOperands mine{value, delta, 0};
  cluster.gather(execute_shuffle_by, &mine, site);
  return mine.result;
}

namespace {

std::uint32_t vote(Cluster::Execute execute, const char* what, bool condition, const void* site) {
  Cluster& cluster = Cluster::step();
  need_whole_warp(cluster, what, site);
  VoteOperands mine{condition, 0};
  cluster.gather(execute, &mine, site);
  return mine.result;
}

}  // namespace

bool vote_any(bool condition) { return vote(execute_vote, "vote.sync", condition, FC_EMULATOR_SITE) != 0; }
unsigned vote_ballot(bool condition) { return vote(execute_vote, "vote.sync", condition, FC_EMULATOR_SITE); }
bool elect() { return vote(execute_elect, "elect.sync", false, FC_EMULATOR_SITE) != 0; }

void bar_warp_sync() {
  Cluster& cluster = Cluster::step();
  cluster.gather(execute_warp_sync, nullptr, FC_EMULATOR_SITE);
}

unsigned long long steps() { return Cluster::current().thread().knowledge.steps; }
int warps() { return static_cast<int>(Cluster::current().thread().cta->warps.size()); }

// Time passes as it is read: whoever waits for it goes on.
unsigned long long globaltimer() {
  LaunchState& launch = Cluster::current().launch;
  return 1'000'000ull * (launch.number + 1) + 32 * launch.timer_reads.fetch_add(1, std::memory_order_relaxed);
}

// ex2.approx.ftz and lg2.approx.ftz: subnormals count as zero on both sides.
float ex2(float x) {
  ++Cluster::step().counters.ex2;
  const float y = std::exp2f(x);
  return y < 0x1p-126f ? 0.0f : y;
}
float lg2(float x) {
  Cluster::step();
  return std::log2f(std::fabs(x) < 0x1p-126f ? 0.0f : x);
}

}  // namespace flashcore::emulator
