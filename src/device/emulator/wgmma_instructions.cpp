// Warpgroup matrix multiply. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". A multiply is done when its
// group is waited for, as late as that; until then the kernel's accumulators hold a poison, so that a kernel that reads
// them early computes NaN, and one that writes them is found.

#include <bit>
#include <cstring>

#include "device/emulator/instructions.h"
#include "device/emulator/numbers.h"

namespace flashcore::emulator {
namespace {

// A NaN that no arithmetic makes.
constexpr std::uint32_t kPoisonBits = 0x7fa5a5a5u;

struct GroupOperands {
  WgmmaOperands operands;
  const void* site;
  int pending;
};

// A matrix in shared memory as its 64-bit descriptor tells. PTX ISA, "Matrix Descriptor Format" and the canonical
// layouts of "Shared Memory Matrix Layout". Positions along k and along rows in bytes where those are contiguous.
struct Descriptor {
  unsigned start, leading, stride, swizzle;  // bytes; swizzle 0 none, 1 128, 2 64, 3 32 bytes

  explicit Descriptor(std::uint64_t bits)
      : start(static_cast<unsigned>(bits & 0x3fff) << 4),
        leading(static_cast<unsigned>(bits >> 16 & 0x3fff) << 4),
        stride(static_cast<unsigned>(bits >> 32 & 0x3fff) << 4),
        swizzle(static_cast<unsigned>(bits >> 62)) {}

  unsigned width() const { return swizzle == 0 ? 16 : 256u >> swizzle; }
  unsigned swizzled(unsigned address) const {
    if (swizzle == 0) return address;
    return address ^ ((address >> 7 & (width() / 16 - 1)) << 4);
  }
  // Byte `byte` of k of a row, k contiguous: 8 lines of `width` bytes make a group of rows.
  unsigned k_major(unsigned row, unsigned byte) const {
    const unsigned within = swizzle == 0 ? byte / 16 * leading + byte % 16 : byte;
    return swizzled(start + row / 8 * stride + row % 8 * width() + within);
  }
  // Element (row, k) of 16 bits, rows contiguous. The two offsets change places without a swizzle.
  unsigned row_major(unsigned row, unsigned k) const {
    const unsigned per_line = width() / 2;
    const unsigned along_rows = swizzle == 0 ? stride : leading, along_k = swizzle == 0 ? leading : stride;
    return swizzled(start + row / per_line * along_rows + k / 8 * along_k + k % 8 * width() + row % per_line * 2);
  }
};

// Checks and remembers the reads of one operand: `rows` × 32 bytes of k.
void read_operand(Cluster& cluster, Cta& cta, int warpgroup, const Descriptor& matrix, unsigned rows, bool transposed,
                  const Access& access, const char* name, const void* site) {
  const auto check = [&](const std::optional<Conflict>& conflict) {
    if (conflict) cluster.fail(*conflict, cta, fmt::format("executes wgmma, whose operand {} reads", name), site);
  };
  const Thread* readers[4];
  for (int w = 0; w < 4; ++w) readers[w] = &cta.threads[static_cast<std::size_t>(warpgroup * 128 + w * 32)];
  const unsigned lines = transposed ? 16 : rows, chunks = transposed ? rows / 8 : 2;
  for (unsigned line = 0; line < lines; ++line) {
    for (unsigned chunk = 0; chunk < chunks; ++chunk) {
      const unsigned address = transposed ? matrix.row_major(8 * chunk, line) : matrix.k_major(line, 16 * chunk);
      check(cta.shared.check_place(address, 16, 16));
      check(cta.shared.read(address, 16, readers[0]->knowledge, access));
      for (int w = 1; w < 4; ++w) {
        if (readers[w]->knowledge.base == readers[0]->knowledge.base) continue;
        check(cta.shared.check_ordered(address, 16, readers[w]->knowledge));
      }
      check(cta.shared.check_fence(address, 16, readers[0]->knowledge));
    }
  }
}

template <MatrixElement kElement>
void multiply(Cta& cta, const PendingWgmma& op, Accumulator& accumulator) {
  using Packed = Packing<element_of_a(kElement)>;
  constexpr unsigned kK = Packed::kK, kBytes = Packed::kBytes;
  const int n = op.operands.n;
  float a[64][kK];
  std::vector<float> b(kK * static_cast<std::size_t>(n));
  const Descriptor matrix_b(op.operands.descriptor_b);
  const auto load = [&](unsigned address) {
    unsigned bits = 0;
    std::memcpy(&bits, cta.shared.at(address), kBytes);
    return bits;
  };
  for (unsigned k = 0; k < kK; ++k) {
    for (unsigned row = 0; row < static_cast<unsigned>(n); ++row)
      b[k * static_cast<unsigned>(n) + row] = element_value<element_of_b(kElement)>(
          load(op.operands.transpose_b ? matrix_b.row_major(row, k) : matrix_b.k_major(row, k * kBytes)));
  }
  if (op.operands.a) {
    for (unsigned thread = 0; thread < 128; ++thread) {
      const unsigned row = thread / 32 * 16 + thread % 32 / 4, k = Packed::kInWord * (thread % 4);
      for (unsigned i = 0; i < 4; ++i)
        Packed::unpack(op.a_values[thread][i], &a[row + 8 * (i % 2)][k + kK / 2 * (i / 2)]);
    }
  } else {
    const Descriptor matrix_a(op.operands.descriptor_a);
    for (unsigned row = 0; row < 64; ++row) {
      for (unsigned k = 0; k < kK; ++k)
        a[row][k] = element_value<element_of_a(kElement)>(load(matrix_a.k_major(row, k * kBytes)));
    }
  }
  for (int row = 0; row < 64; ++row) {
    float* d = accumulator.value.data() + row * n;
    if (!op.operands.accumulate) std::fill_n(d, n, 0.0f);
    if constexpr (has_8_bits(kElement)) {
      add_products_of_8_bits(a[row], b.data(), static_cast<unsigned>(n), d, n);
      continue;
    }
    for (unsigned k = 0; k < kK; ++k) {
      const float* line = b.data() + k * static_cast<unsigned>(n);
      const float factor = a[row][k];
      for (int column = 0; column < n; ++column) d[column] += factor * line[column];
    }
  }
}

// Thread t's register i is element (row, column) of the 64 × n accumulator.
int element_of_register(int thread, int i, int n) {
  const int row = thread / 32 * 16 + thread % 32 / 4 + 8 * (i / 2 % 2);
  return row * n + i / 4 * 8 + 2 * (thread % 4) + i % 2;
}

bool poisoned(const Accumulator& accumulator) {
  for (const float* registers : accumulator.registers) {
    for (int i = 0; i < accumulator.n / 2; ++i) {
      if (std::bit_cast<std::uint32_t>(registers[i]) != kPoisonBits) return false;
    }
  }
  return true;
}

void fail_used_before_wait(Cluster& cluster, int warpgroup, const char* what, const void* issued, const void* site) {
  cluster.fail(fmt::format("wgmma registers touched before the wait: {} of warpgroup {} were written after the wgmma "
                           "at\n    {}\n  and before its group was waited for",
                           what, warpgroup, cluster.launch.module.line_of(issued)),
               site);
}

void execute_wgmma(Cluster& cluster, Cta& cta, int number, Operands& all) {
  Warpgroup& group = cta.warpgroups[static_cast<std::size_t>(number)];
  const auto& first = operands_of<GroupOperands>(all, 0);
  const void* site = first.site;
  PendingWgmma op;
  op.operands = first.operands;
  op.group = group.open_group;
  op.site = site;
  if (op.operands.n % 8 != 0 || op.operands.n < 8 || op.operands.n > 256)
    cluster.fail(fmt::format("wgmma m64n{}: n must be a multiple of 8 up to 256", op.operands.n), site);
  if ((op.operands.descriptor_a | op.operands.descriptor_b) >> 49 & 7)
    cluster.fail("wgmma descriptor with a base offset: the emulator knows tiles that start where their swizzle repeats",
                 site);
  for (int t = 0; t < 128; ++t) {
    const WgmmaOperands& mine = operands_of<GroupOperands>(all, t).operands;
    if (mine.descriptor_a != op.operands.descriptor_a || mine.descriptor_b != op.operands.descriptor_b ||
        mine.accumulate != op.operands.accumulate)
      cluster.fail(fmt::format("divergent wgmma: thread {} of the warpgroup gives another descriptor than thread 0", t),
                   site);
    op.a[static_cast<std::size_t>(t)] = mine.a;
    if (mine.a) std::copy_n(mine.a, 4, op.a_values[static_cast<std::size_t>(t)].begin());
  }
  if (group.agent == kNobody) {
    group.agent = cluster.new_agent(fmt::format("wgmma of warpgroup {}", number));
    for (int t = 0; t < 128; ++t)
      cta.threads[static_cast<std::size_t>(number * 128 + t)].knowledge.own[kWgmmaAgent].agent = group.agent;
  }
  auto [found, fresh] = group.accumulators.try_emplace(op.operands.d);
  Accumulator& accumulator = found->second;
  if ((fresh || op.operands.a) && !group.fenced)
    cluster.fail(
        fmt::format("missing wgmma.fence: warpgroup {} issues wgmma on registers that it may have touched since "
                    "the last wait",
                    number),
        site);
  if (fresh) {
    accumulator.n = op.operands.n;
    accumulator.value.resize(static_cast<std::size_t>(64 * accumulator.n));
    for (int t = 0; t < 128; ++t) {
      float* registers = operands_of<GroupOperands>(all, t).operands.d;
      accumulator.registers[static_cast<std::size_t>(t)] = registers;
      for (int i = 0; i < accumulator.n / 2; ++i) {
        accumulator.value[static_cast<std::size_t>(element_of_register(t, i, accumulator.n))] = registers[i];
        registers[i] = std::bit_cast<float>(kPoisonBits);
      }
    }
  } else if (!poisoned(accumulator)) {
    fail_used_before_wait(cluster, number, "accumulators", group.pending.back().site, site);
  }
  accumulator.last_group = group.open_group;
  const Access access{group.open_group, group.agent, static_cast<std::uint16_t>(cluster.site_of(site) & 0xfff), 0};
  if (!op.operands.a)
    read_operand(cluster, cta, number, Descriptor(op.operands.descriptor_a), 64, false, access, "A", site);
  read_operand(cluster, cta, number, Descriptor(op.operands.descriptor_b), static_cast<unsigned>(op.operands.n),
               op.operands.transpose_b, access, "B", site);
  // 64 rows of A and n of B, of as much of k as 32 bytes hold.
  const auto rows = static_cast<std::uint64_t>(op.operands.n) + (op.operands.a ? 0 : 64);
  cluster.count_moved(SiteCounters::kOperands, 32 * rows, site);
  group.pending.push_back(std::move(op));
  ++cluster.counters.mma_instructions;
  cluster.counters.mma_flops +=
      2ull * 64 * (has_8_bits(first.operands.element) ? 32 : 16) * static_cast<unsigned>(accumulator.n);
  cluster.counters.mma_with_copies += cta.copies_under_way > 0;
  cluster.counters.copies_at_mma += cta.copies_under_way;
}

void execute_wait(Cluster& cluster, Cta& cta, int number, Operands& all) {
  Warpgroup& group = cta.warpgroups[static_cast<std::size_t>(number)];
  const auto& first = operands_of<GroupOperands>(all, 0);
  const std::uint32_t committed = group.open_group - 1;
  const auto left = static_cast<std::uint32_t>(first.pending);
  group.fenced = false;
  if (committed <= left) return;
  const std::uint32_t upto = std::max(group.completed, committed - left);
  group.completed = upto;
  std::size_t done = 0;
  for (; done < group.pending.size() && group.pending[done].group <= upto; ++done) {
    const PendingWgmma& op = group.pending[done];
    for (std::size_t t = 0; t < 128 && op.operands.a; ++t) {
      if (std::memcmp(op.a[t], op.a_values[t].data(), 16) != 0)
        fail_used_before_wait(cluster, number, "registers of operand A", op.site, first.site);
    }
    Accumulator& accumulator = group.accumulators.at(op.operands.d);
    with_element(op.operands.element, [&]<MatrixElement kElement>() { multiply<kElement>(cta, op, accumulator); });
  }
  for (auto it = group.accumulators.begin(); it != group.accumulators.end();) {
    Accumulator& accumulator = it->second;
    if (accumulator.last_group > upto) {
      ++it;
      continue;
    }
    if (!poisoned(accumulator))
      fail_used_before_wait(cluster, number, "accumulators", group.pending[done - 1].site, first.site);
    for (int t = 0; t < 128; ++t) {
      for (int i = 0; i < accumulator.n / 2; ++i)
        accumulator.registers[static_cast<std::size_t>(t)][i] =
            accumulator.value[static_cast<std::size_t>(element_of_register(t, i, accumulator.n))];
    }
    it = group.accumulators.erase(it);
  }
  group.pending.erase(group.pending.begin(), group.pending.begin() + static_cast<std::ptrdiff_t>(done));
  for (int t = 0; t < 128; ++t)
    cta.threads[static_cast<std::size_t>(number * 128 + t)].knowledge.own[kWgmmaAgent].seen = upto;
}

void execute_fence(Cluster&, Cta& cta, int number, Operands&) {
  cta.warpgroups[static_cast<std::size_t>(number)].fenced = true;
}
void execute_commit(Cluster&, Cta& cta, int number, Operands&) {
  ++cta.warpgroups[static_cast<std::size_t>(number)].open_group;
}

}  // namespace

void wgmma(const WgmmaOperands& operands) {
  const void* site = FC_EMULATOR_SITE;
  GroupOperands mine{operands, site, 0};
  Cluster::step().gather(execute_wgmma, &mine, site);
}
void wgmma_fence() { Cluster::step().gather(execute_fence, nullptr, FC_EMULATOR_SITE); }
void wgmma_commit() { Cluster::step().gather(execute_commit, nullptr, FC_EMULATOR_SITE); }
void wgmma_wait(int pending) {
  const void* site = FC_EMULATOR_SITE;
  GroupOperands mine{{}, site, pending};
  Cluster::step().gather(execute_wait, &mine, site);
}

}  // namespace flashcore::emulator
