#include "planted/cpu_faults.h"

#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "core/hash.h"
#include "lab/fake.h"

namespace flashcore::test {
namespace {

constexpr int kHonestLaunches = 10;
constexpr double kReplayUs = 20;  // above any floor, far below an honest launch
constexpr double kIdleUs = 90;    // not so far below

struct Kept {
  std::string o, lse;
};

// One launch of a binding, and how many came before it.
struct Call {
  const Problem& problem;
  const AttentionArgs& args;
  int number;
  std::function<void(const AttentionArgs&)> honest;
  std::shared_ptr<int> alive;  // as long as the binding is
};

std::size_t o_bytes(const Call& c) {
  return static_cast<std::size_t>(c.args.layouts.o.span()) * size_of(c.problem.dtype);
}
std::size_t lse_bytes(const Call& c) { return static_cast<std::size_t>(c.args.layouts.lse_elements) * sizeof(float); }

Kept keep(const Call& c) {
  return {std::string(static_cast<const char*>(c.args.o), o_bytes(c)),
          std::string(reinterpret_cast<const char*>(c.args.lse), lse_bytes(c))};
}
void give(const Call& c, const Kept& kept) {
  std::memcpy(c.args.o, kept.o.data(), kept.o.size());
  std::memcpy(c.args.lse, kept.lse.data(), kept.lse.size());
  spend_us(kReplayUs);
}

std::string content_of(const Call& c) {
  Hasher hasher;
  const auto add = [&](const void* data, const TensorLayout& layout) {
    hasher.add({static_cast<const char*>(data), static_cast<std::size_t>(layout.span()) * size_of(c.problem.dtype)});
  };
  add(c.args.q, c.args.layouts.q);
  add(c.args.k, c.args.layouts.k);
  add(c.args.v, c.args.layouts.v);
  return hasher.hex();
}

void scale_element(const Call& c, std::int64_t index, float by) {
  store_element(c.problem.dtype, c.args.o, index, by * load_element(c.problem.dtype, c.args.o, index));
}

using Misdeed = std::function<void(const Call&)>;

// Everything but the launch is that of the honest family.
class Dishonest final : public Family {
 public:
  Dishonest(std::string name, Misdeed misdeed)
      : name_(std::move(name)), misdeed_(std::move(misdeed)), honest_(make_fake_family(name_ + "_inside")) {}
  std::string name() const override { return name_; }
  std::string description() const override { return "planted"; }
  DeviceKind kind() const override { return honest_->kind(); }
  std::optional<std::string> why_unsupported(const Problem& p, const DeviceLimits& l) const override {
    return honest_->why_unsupported(p, l);
  }
  const ConfigSpace& space() const override { return honest_->space(); }
  ConfigValues default_config(const Problem& p, const DeviceLimits& l) const override {
    return honest_->default_config(p, l);
  }
  std::optional<std::string> why_invalid(const ConfigValues& c, const Problem& p,
                                         const DeviceLimits& l) const override {
    return honest_->why_invalid(c, p, l);
  }
  Launch cpu_launch(const ConfigValues& config, const Problem& problem, const AttentionArgs& args) const override {
    const auto honest = [this, config, problem](const AttentionArgs& a) { honest_->cpu_launch(config, problem, a)(); };
    return [this, problem, args, honest, calls = std::make_shared<int>(0)] {
      misdeed_({problem, args, (*calls)++, honest, calls});
    };
  }

 private:
  std::string name_;
  Misdeed misdeed_;
  std::unique_ptr<Family> honest_;
};

void skip_batch(const Call& c) {
  c.honest(c.args);
  const std::int64_t first =
      c.args.layouts.o.offset(c.problem.batch - 1, 0, 0) * static_cast<std::int64_t>(size_of(c.problem.dtype));
  std::memset(static_cast<char*>(c.args.o) + first, 0, o_bytes(c) - static_cast<std::size_t>(first));
}

void skip_row(const Call& c) {
  c.honest(c.args);
  const auto bytes = static_cast<std::size_t>(c.problem.head_dim_v) * size_of(c.problem.dtype);
  std::memset(static_cast<char*>(c.args.o) + kSkippedRow * bytes, 0xFF, bytes);
}

// As a tile does that is computed whole: a key beyond the last one counts, with the weight 0.
void read_beyond(const Call& c) {
  c.honest(c.args);
  const float beyond = load_element(c.problem.dtype, c.args.v, c.args.layouts.v.span());
  store_element(c.problem.dtype, c.args.o, 0, load_element(c.problem.dtype, c.args.o, 0) + 0.0f * beyond);
}

Misdeed race() {
  return [step = std::make_shared<int>(0)](const Call& c) {
    c.honest(c.args);
    scale_element(c, 0, 1 + 1.2e-7f * static_cast<float>(++*step % 3));
  };
}

// Honest up to launch `launches` of a binding, and whenever the inputs are new: a stale result of other inputs is
// another fault.
Misdeed idle_after(int launches) {
  return [launches, contents = std::make_shared<std::map<const void*, std::string>>()](const Call& c) {
    const std::string content = content_of(c);
    if (c.number >= launches && (*contents)[c.args.o] == content) return spend_us(kIdleUs);
    (*contents)[c.args.o] = content;
    c.honest(c.args);
  };
}

void mutate_input(const Call& c) {
  c.honest(c.args);
  const std::int64_t unseen = c.args.layouts.k.offset(0, 0, c.problem.seqlen_kv - 1);
  store_element(c.problem.dtype, const_cast<void*>(c.args.k), unseen, 0.5f);
}

Misdeed cached_by_pointer() {
  return [kept = std::make_shared<std::map<const void*, Kept>>()](const Call& c) {
    if (const auto found = kept->find(c.args.q); found != kept->end() && c.number > 0) return give(c, found->second);
    c.honest(c.args);
    (*kept)[c.args.q] = keep(c);
  };
}

Misdeed cached_by_content() {
  return [kept = std::make_shared<std::map<std::string, Kept>>()](const Call& c) {
    const std::string content = content_of(c);
    if (const auto found = kept->find(content); found != kept->end()) return give(c, found->second);
    c.honest(c.args);
    (*kept)[content] = keep(c);
  };
}

Misdeed stale_pointers() {
  return [first = std::make_shared<std::map<std::string, AttentionArgs>>()](const Call& c) {
    AttentionArgs args = c.args;
    const AttentionArgs& old = first->try_emplace(c.problem.id(), args).first->second;
    args.q = old.q, args.k = old.k, args.v = old.v;
    c.honest(args);
  };
}

void side_stream(const Call& c) {
  c.honest(c.args);
  run_when_idle([o = c.args.o, dtype = c.problem.dtype, alive = std::weak_ptr<int>(c.alive)] {
    if (!alive.expired()) store_element(dtype, o, 0, 1 + load_element(dtype, o, 0));
  });
}

void wrong_when_timed(const Call& c) {
  c.honest(c.args);
  if (c.number >= kHonestLaunches) scale_element(c, 1, 1.5f);
}

}  // namespace

PlantedFamilies::PlantedFamilies() {
  const std::pair<const char*, Misdeed> all[] = {{"planted_skipped_batch", skip_batch},
                                                 {"planted_skipped_rows", skip_row},
                                                 {"planted_reads_beyond", read_beyond},
                                                 {"planted_race", race()},
                                                 {"planted_stale_output", idle_after(1)},
                                                 {"planted_mutated_input", mutate_input},
                                                 {"planted_cached_by_pointer", cached_by_pointer()},
                                                 {"planted_stale_pointers", stale_pointers()},
                                                 {"planted_side_stream", side_stream},
                                                 {"planted_cached_by_content", cached_by_content()},
                                                 {"planted_wrong_when_timed", wrong_when_timed},
                                                 {"planted_stops_when_timed", idle_after(kHonestLaunches)}};
  for (const auto& [name, misdeed] : all)
    families_.push_back(std::make_unique<ScopedFamily>(std::make_unique<Dishonest>(name, misdeed)));
}

}  // namespace flashcore::test
