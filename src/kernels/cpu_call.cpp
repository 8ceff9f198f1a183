#include "kernels/cpu_call.h"

#include <algorithm>

#include "core/error.h"
#include "device/cpu/aligned_memory.h"
#include "device/cpu/cpu_threads.h"
#include "kernels/cpu_dense.h"
#include "kernels/cpu_ragged.h"

namespace flashcore {
namespace {

std::uint64_t key_of(const AttentionArgs& args) {
  std::uint64_t key = 0;
  for (const void* address : {args.q, args.k, args.v, static_cast<const void*>(args.o),
                              static_cast<const void*>(args.lse), static_cast<const void*>(args.descale_q),
                              static_cast<const void*>(args.descale_k), static_cast<const void*>(args.descale_v),
                              static_cast<const void*>(args.sink), static_cast<const void*>(args.alibi),
                              static_cast<const void*>(args.cu_seqlens_q), static_cast<const void*>(args.cu_seqlens_kv),
                              static_cast<const void*>(args.seqused_kv), static_cast<const void*>(args.seqused_q),
                              static_cast<const void*>(args.block_table), static_cast<const void*>(args.amax)})
    key = (key ^ reinterpret_cast<std::uintptr_t>(address)) * 0x9e3779b97f4a7c15u;
  for (const void* address : args.tensors)
    key = (key ^ reinterpret_cast<std::uintptr_t>(address)) * 0x9e3779b97f4a7c15u;
  return key | 1;  // never that of an empty slot
}

bool same_addresses(const AttentionArgs& a, const AttentionArgs& b) {
  return a.q == b.q && a.k == b.k && a.v == b.v && a.o == b.o && a.lse == b.lse && a.descale_q == b.descale_q &&
         a.descale_k == b.descale_k && a.descale_v == b.descale_v && a.sink == b.sink && a.alibi == b.alibi &&
         a.cu_seqlens_q == b.cu_seqlens_q && a.cu_seqlens_kv == b.cu_seqlens_kv && a.seqused_kv == b.seqused_kv &&
         a.seqused_q == b.seqused_q && a.block_table == b.block_table && a.tensors == b.tensors && a.amax == b.amax;
}

}  // namespace

Launch bind_on_cpu(const Family& family, const ConfigValues& config, const Problem& problem,
                   const AttentionArgs& args) {
  const auto bind = problem.ragged() ? bind_ragged_on_cpu : bind_dense_on_cpu;
  Launch launch = bind(family, config, problem, args);
  if (!problem.amax) return launch;
  // Sequences and tasks each raise what is there.
  return [launch = std::move(launch), amax = args.amax, count = problem.amax_count()] {
    std::fill_n(amax, count, 0.0f);
    launch();
  };
}

CpuCall::CpuCall(const Family& family, ConfigValues config, const Problem& problem, const ProblemLayouts& layouts)
    : family_(family), config_(std::move(config)), problem_(problem), layouts_(layouts) {}

CpuCall::~CpuCall() {
  for (Slot& slot : slots_) delete slot.idle.load();
}

std::unique_ptr<CpuCall::Binding> CpuCall::take(const AttentionArgs& args, std::uint64_t key, int threads) {
  for (Slot& slot : slots_) {
    if (slot.key.load(std::memory_order_relaxed) != key) continue;
    std::unique_ptr<Binding> found(slot.idle.exchange(nullptr, std::memory_order_acquire));
    if (!found) continue;
    kept_bytes_.fetch_sub(found->bytes, std::memory_order_relaxed);
    // Another address by now, or bound when another number of threads was allowed: it makes room.
    if (same_addresses(found->args, args) && found->threads == threads) return found;
  }
  return nullptr;
}

bool CpuCall::put(Slot& slot, std::unique_ptr<Binding>& binding, std::uint64_t key) {
  const std::size_t bytes = binding->bytes;
  Binding* empty = nullptr;
  if (!slot.idle.compare_exchange_strong(empty, binding.get(), std::memory_order_release, std::memory_order_relaxed))
    return false;
  binding.release();  // anybody's from here on
  slot.key.store(key, std::memory_order_relaxed);
  kept_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return true;
}

void CpuCall::keep(std::unique_ptr<Binding> binding, std::uint64_t key) {
  const auto fits = [&] { return kept_bytes_.load(std::memory_order_relaxed) + binding->bytes <= kMostBytes; };
  if (fits()) {
    for (Slot& slot : slots_)
      if (put(slot, binding, key)) return;
  }
  // In turn the others make room, all of them for one that is large.
  for (std::size_t n = 1; n <= kSlots; ++n) {
    Slot& slot = slots_[oldest_.fetch_add(1, std::memory_order_relaxed) % kSlots];
    const std::unique_ptr<Binding> old(slot.idle.exchange(nullptr, std::memory_order_acquire));
    if (old) kept_bytes_.fetch_sub(old->bytes, std::memory_order_relaxed);
    if ((fits() || n == kSlots) && put(slot, binding, key)) return;
  }
}

void CpuCall::operator()(const AttentionArgs& args) {
  const int threads = cpu_threads();
  const std::uint64_t key = key_of(args);
  std::unique_ptr<Binding> binding = take(args, key, threads);
  if (!binding) {
    binding = std::make_unique<Binding>();
    binding->args = args;
    binding->args.layouts = layouts_;
    binding->threads = threads;
    const std::size_t before = AlignedMemory::made_by_this_thread();
    binding->launch = bind_on_cpu(family_, config_, problem_, binding->args);
    binding->bytes = AlignedMemory::made_by_this_thread() - before;
  }
  binding->launch();
  keep(std::move(binding), key);
}

}  // namespace flashcore
