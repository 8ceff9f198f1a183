#pragma once
// A CPU family's launches on the addresses of each call, from any number of threads side by side.

#include <array>
#include <atomic>
#include <memory>

#include "kernels/family.h"

namespace flashcore {

// As Family::cpu_launch, of ragged batches too (kernels/cpu_ragged.h), within worthwhile_threads() unless the config
// names a number of its own.
Launch bind_on_cpu(const Family& family, const ConfigValues& config, const Problem& problem, const AttentionArgs& args);

// Keeps the launches that it made, each with its working memory, for calls on the same addresses: a call on one of the
// last few sets of addresses allocates nothing, others bind anew. Calls may overlap: each takes a launch that no other
// holds. There is no lock, so a child forked amid a call inherits none; the launches in use at that moment are lost to
// it.
class CpuCall {
 public:
  CpuCall(const Family& family, ConfigValues config, const Problem& problem, const ProblemLayouts& layouts);
  ~CpuCall();
  CpuCall(const CpuCall&) = delete;
  CpuCall& operator=(const CpuCall&) = delete;

  void operator()(const AttentionArgs& args);

 private:
  struct Binding {
    AttentionArgs args;
    int threads = 0;
    std::size_t bytes = 0;
    Launch launch;
  };
  // `key` is that of the binding: a hint, so that looking for an address takes nobody's binding away.
  struct Slot {
    std::atomic<std::uint64_t> key{0};
    std::atomic<Binding*> idle{nullptr};
  };
  static constexpr std::size_t kSlots = 8;
  // Of kept launches; one is kept whatever it needs.
  static constexpr std::size_t kMostBytes = std::size_t{16} << 20;

  std::unique_ptr<Binding> take(const AttentionArgs& args, std::uint64_t key, int threads);
  bool put(Slot& slot, std::unique_ptr<Binding>& binding, std::uint64_t key);
  void keep(std::unique_ptr<Binding> binding, std::uint64_t key);

  const Family& family_;
  const ConfigValues config_;
  const Problem problem_;
  const ProblemLayouts layouts_;
  std::array<Slot, kSlots> slots_;
  std::atomic<std::size_t> kept_bytes_{0};
  std::atomic<std::uint32_t> oldest_{0};
};

}  // namespace flashcore
