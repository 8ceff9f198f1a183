#include "planted/cpu_faults.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "core/hash.h"
#include "core/random.h"
#include "core/reference.h"
#include "core/tile_kernel.h"
#include "lab/fake.h"

namespace flashcore::test {
namespace {

// Of those that behave while a gate looks: their launches take so long that it repeats them no more than a few times.
constexpr int kHonestLaunches = 10;
constexpr double kLongUs = 1e6;
constexpr double kUsual =
    100;  // of an honest launch of cpu_fwd, which the device with a clock of its own does not time
constexpr double kReplayUs = 20;      // above any floor, far below an honest launch
constexpr double kIdleUs = 150;       // too close to an honest launch for content_timing
constexpr double kHonestShare = 0.8;  // of an honest launch's time, by a memo that does not want to stand out
constexpr int kPatience = 20;         // launches on one content before a memo answers
constexpr std::int64_t kBlockRows = 16;

struct Kept {
  std::string o, lse;
};

// One launch of a binding, and how many came before it.
struct Call {
  const Problem& problem;
  const AttentionArgs& args;
  int number;
  double cost_us;  // of an honest launch
  std::function<void(const AttentionArgs&)> honest;
  std::function<void(const Problem&, const AttentionArgs&)> honest_of;  // of another problem
  std::shared_ptr<int> alive;                                           // as long as the binding is
};

std::size_t o_bytes(const Call& c) {
  return static_cast<std::size_t>(c.args.layouts.o.span()) * size_of(c.problem.dtype);
}
std::size_t lse_bytes(const Call& c) {
  return c.args.lse == nullptr ? 0 : static_cast<std::size_t>(c.args.layouts.lse_elements) * sizeof(float);
}

Kept keep(const Call& c) {
  return {std::string(static_cast<const char*>(c.args.o), o_bytes(c)),
          c.args.lse == nullptr ? "" : std::string(reinterpret_cast<const char*>(c.args.lse), lse_bytes(c))};
}
void give(const Call& c, const Kept& kept) {
  std::memcpy(c.args.o, kept.o.data(), kept.o.size());
  if (c.args.lse != nullptr) std::memcpy(c.args.lse, kept.lse.data(), std::min(lse_bytes(c), kept.lse.size()));
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

HostTensor tensor_at(DType dtype, const void* data, const TensorLayout& layout) {
  HostTensor tensor(dtype, layout);
  std::memcpy(tensor.data.data(), data, tensor.data.size());
  return tensor;
}

// Computes all by the fault's own arithmetic.
Misdeed computed_with(planted::Fault fault, double cost_us = 100) {
  return [fault, cost_us](const Call& c) {
    spend_us(cost_us);
    const ProblemLayouts& l = c.args.layouts;
    const PlacedProblem problem(c.problem, Layout::kBhsd);
    const AttentionInputs inputs{tensor_at(problem.dtype, c.args.q, l.q), tensor_at(problem.dtype, c.args.k, l.k),
                                 tensor_at(problem.dtype, c.args.v, l.v)};
    const planted::KernelOutput out = planted::run_tile_kernel(problem, inputs, fault);
    for (std::size_t i = 0; i < out.o.size(); ++i)  // bhsd: as they lie
      store_element(problem.dtype, c.args.o, static_cast<std::int64_t>(i), out.o[i]);
    if (c.args.lse != nullptr) std::copy(out.lse.begin(), out.lse.end(), c.args.lse);
  };
}

// The last head by a fault's own arithmetic, the others honestly.
Misdeed last_head_computed_with(planted::Fault fault, double cost_us) {
  return [fault, cost_us](const Call& c) {
    const auto values_of = [&c](std::vector<char>& o, std::vector<float>& lse, planted::Fault each) {
      AttentionArgs args = c.args;
      o.resize(o_bytes(c)), lse.resize(static_cast<std::size_t>(args.layouts.lse_elements));
      args.o = o.data(), args.lse = lse.data();
      computed_with(each, 0)({c.problem, args, c.number, c.cost_us, c.honest, c.honest_of, c.alive});
    };
    spend_us(cost_us);
    std::vector<char> o, o_of_last;
    std::vector<float> lse, lse_of_last;
    values_of(o, lse, planted::Fault::kNone);
    values_of(o_of_last, lse_of_last, fault);
    const std::size_t heads = static_cast<std::size_t>(c.problem.batch * c.problem.heads_q);
    const auto replace_last = [heads](auto& all, const auto& other) {  // bhsd: heads one after the other
      const auto first = static_cast<std::ptrdiff_t>(all.size() / heads * (heads - 1));
      std::copy(other.begin() + first, other.end(), all.begin() + first);
    };
    replace_last(o, o_of_last), replace_last(lse, lse_of_last);
    std::copy(o.begin(), o.end(), static_cast<char*>(c.args.o));
    if (c.args.lse != nullptr) std::copy(lse.begin(), lse.end(), c.args.lse);
  };
}

// Everything but the launch is that of the honest family.
class Dishonest final : public Family {
 public:
  Dishonest(std::string name, Misdeed misdeed)
      : name_(std::move(name)),
        misdeed_(std::move(misdeed)),
        own_(make_fake_family(name_ + "_inside")),
        honest_(*own_) {}
  Dishonest(std::string name, Misdeed misdeed, const Family& honest)
      : name_(std::move(name)), misdeed_(std::move(misdeed)), honest_(honest) {}
  std::string name() const override { return name_; }
  std::string description() const override { return "planted"; }
  DeviceKind kind() const override { return honest_.kind(); }
  std::optional<std::string> why_unsupported(const Problem& p, const DeviceLimits& l) const override {
    return honest_.why_unsupported(p, l);
  }
  const ConfigSpace& space() const override { return honest_.space(); }
  ConfigValues default_config(const Problem& p, const DeviceLimits& l) const override {
    return honest_.default_config(p, l);
  }
  std::optional<std::string> why_invalid(const ConfigValues& c, const Problem& p,
                                         const DeviceLimits& l) const override {
    return honest_.why_invalid(c, p, l);
  }
  Launch cpu_launch(const ConfigValues& config, const Problem& problem, const AttentionArgs& args) const override {
    const auto honest_of = [this, config](const Problem& p, const AttentionArgs& a) {
      honest_.cpu_launch(config, p, a)();
    };
    const auto honest = [honest_of, problem](const AttentionArgs& a) { honest_of(problem, a); };
    const double cost_us = own_ ? fake_cost_us(config) : kUsual;
    return [this, problem, args, honest, honest_of, cost_us, calls = std::make_shared<int>(0)] {
      misdeed_({problem, args, (*calls)++, cost_us, honest, honest_of, calls});
    };
  }

 private:
  std::string name_;
  Misdeed misdeed_;
  std::unique_ptr<Family> own_;
  const Family& honest_;
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

void wrong_row(const Call& c) {
  c.honest(c.args);
  for (std::int64_t d = 0; d < c.problem.head_dim_v; ++d)
    scale_element(c, c.args.layouts.o.offset(0, 0, kSkippedRow) + d, 1.5f);
}

void triples_without_lse(const Call& c) {
  c.honest(c.args);
  if (c.args.lse != nullptr) return;
  for (std::int64_t i = 0; i < c.args.layouts.o.span(); ++i) scale_element(c, i, 3);
}

Misdeed wrong_off(std::uintptr_t alignment) {
  return [alignment](const Call& c) {
    c.honest(c.args);
    if (reinterpret_cast<std::uintptr_t>(c.args.q) % alignment != 0) scale_element(c, 0, 1.5f);
  };
}

void every_hundredth(const Call& c) {
  c.honest(c.args);
  if (c.number % 100 == 99) scale_element(c, 0, 1.5f);
}

void one_in_a_hundred(const Call& c) {
  c.honest(c.args);
  constexpr std::uint64_t kSeed = 3;  // whose first launches are right
  if (SplitMix(kSeed + static_cast<std::uint64_t>(c.number)).next() % 100 == 0) scale_element(c, 0, 1.5f);
}

// As a tile does that is computed whole: a key beyond the last one counts, with the weight 0.
void read_beyond(const Call& c) {
  c.honest(c.args);
  const float beyond = load_element(c.problem.dtype, c.args.v, c.args.layouts.v.span());
  store_element(c.problem.dtype, c.args.o, 0, load_element(c.problem.dtype, c.args.o, 0) + 0.0f * beyond);
}

// Takes sequences of a ragged batch, which come one by one, for as long as most are.
void wrong_when_short(const Call& c) {
  c.honest(c.args);
  constexpr std::int64_t kShort = 24;
  if (c.problem.seqlen_q > 0 && c.problem.seqlen_kv > 0 && c.problem.seqlen_kv < kShort) scale_element(c, 0, 1.5f);
}

// As data has it whose scores are in the hundreds and more.
bool has_large_q(const Call& c) {
  constexpr float kLarge = 8;
  for (std::int64_t i = 0; i < c.problem.head_dim; ++i)
    if (std::abs(load_element(c.problem.dtype, c.args.q, i)) > kLarge) return true;
  return false;
}

void wrong_when_short_and_large(const Call& c) {
  if (c.problem.seqlen_q > 0 && c.problem.seqlen_kv > 0 && has_large_q(c)) return wrong_when_short(c);
  c.honest(c.args);
}

void wrong_off_64_of_large(const Call& c) {
  c.honest(c.args);
  if (reinterpret_cast<std::uintptr_t>(c.args.q) % 64 != 0 && has_large_q(c)) scale_element(c, 0, 1.5f);
}

void saturates_output(const Call& c) {
  c.honest(c.args);
  constexpr float kMost = 6000;
  for (std::int64_t i = 0; i < c.args.layouts.o.span(); ++i)
    store_element(c.problem.dtype, c.args.o, i, std::clamp(load_element(c.problem.dtype, c.args.o, i), -kMost, kMost));
}

// As cpu_fwd is called: for each sequence of a ragged batch by itself.
void last_key_of_short_sequences(const Call& c) {
  constexpr std::int64_t kBound = 37;
  Problem problem = c.problem;
  if (problem.seqlen_kv > 0 && problem.seqlen_kv < kBound) --problem.seqlen_kv;
  c.honest_of(problem, c.args);
}

void sink_counted_twice(const Call& c) {
  std::vector<float> sinks(c.args.sink, c.args.sink + c.problem.sink_count());
  for (float& sink : sinks) sink += std::log(2.0f);
  AttentionArgs args = c.args;
  args.sink = sinks.data();
  c.honest(args);
}

void window_ends_late(const Call& c) {
  Problem problem = c.problem;
  ++*problem.mask.right;
  c.honest_of(problem, c.args);
}

// Of two tensors the second is of keys.
void document_border_crossed(const Call& c) {
  const auto* documents = static_cast<const std::int32_t*>(c.args.tensors[1]);
  const std::int64_t step = c.args.layouts.tensor_strides[1][0];
  std::vector<std::int32_t> late(static_cast<std::size_t>(step * (c.problem.seqlen_kv - 1) + 1));
  for (std::int64_t key = 0; key < c.problem.seqlen_kv; ++key)
    late[static_cast<std::size_t>(step * key)] = documents[step * std::max<std::int64_t>(key - 1, 0)];
  AttentionArgs args = c.args;
  args.tensors[1] = late.data();
  c.honest(args);
}

void nan_of_hidden_k(const Call& c) {
  c.honest(c.args);
  const Problem& p = c.problem;
  const ProblemLayouts& l = c.args.layouts;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads_q; ++h)
      for (std::int64_t row = 0; row < p.seqlen_q; ++row) {
        float hidden = 0;
        for (std::int64_t key = p.visible_keys(row); key < p.seqlen_kv; ++key)
          for (std::int64_t d = 0; d < p.head_dim; ++d)
            hidden += 0 * load_element(p.dtype, c.args.k, l.k.offset(b, h / p.group_size(), key) + d);
        for (std::int64_t d = 0; std::isnan(hidden) && d < p.head_dim_v; ++d)
          store_element(p.dtype, c.args.o, l.o.offset(b, h, row) + d, hidden);
      }
}

template <class Body>
void for_each_element(const TensorLayout& l, const Body& body) {
  for (std::int64_t batch = 0; batch < l.batch; ++batch)
    for (std::int64_t head = 0; head < l.heads; ++head)
      for (std::int64_t row = 0; row < l.rows; ++row)
        for (std::int64_t column = 0; column < l.columns; ++column) body(l.offset(batch, head, row) + column);
}

// Of a sequence by itself, or of the whole batch.
void drops_nan_of_v(const Call& c) {
  c.honest(c.args);
  bool finite = true;
  for (const auto& [data, layout] : {std::pair(c.args.q, &c.args.layouts.q), std::pair(c.args.k, &c.args.layouts.k)})
    for_each_element(*layout, [&, data = data](std::int64_t i) {
      finite = finite && std::isfinite(load_element(c.problem.dtype, data, i));
    });
  if (!finite) return;
  for_each_element(c.args.layouts.o, [&](std::int64_t i) {
    if (std::isnan(load_element(c.problem.dtype, c.args.o, i))) store_element(c.problem.dtype, c.args.o, i, 0);
  });
}

Misdeed race() {
  return [step = std::make_shared<int>(0)](const Call& c) {
    c.honest(c.args);
    scale_element(c, 0, 1 + 1.2e-7f * static_cast<float>(++*step % 3));
  };
}

// Honest up to launch `launches` of a binding, and whenever the inputs are new: a stale result of other inputs is
// another fault.
Misdeed idle_after(int launches, double longer_us = 0) {
  return [launches, longer_us, contents = std::make_shared<std::map<const void*, std::string>>()](const Call& c) {
    const std::string content = content_of(c);
    spend_us(longer_us);
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

bool holds_number(const Call& c) { return !std::isnan(load_element(c.problem.dtype, c.args.o, 0)); }

void returns_where_written(const Call& c) {
  if (holds_number(c)) return spend_us(kReplayUs);
  c.honest(c.args);
}

// The same, once it has been launched so often that it must be a measurement.
void returns_when_timed(const Call& c) {
  if (c.number >= kHonestLaunches && holds_number(c)) return spend_us(kIdleUs);
  spend_us(kLongUs);
  c.honest(c.args);
}

// Keeps its result where the caller put it, as long as the inputs are the same.
Misdeed kept_in_place() {
  return [contents = std::make_shared<std::map<const void*, std::string>>()](const Call& c) {
    const std::string content = content_of(c);
    if ((*contents)[c.args.o] == content && holds_number(c)) return spend_us(kReplayUs);
    (*contents)[c.args.o] = content;
    c.honest(c.args);
  };
}

Misdeed cached_by_pointer() {
  return [kept = std::make_shared<std::map<const void*, Kept>>()](const Call& c) {
    if (const auto found = kept->find(c.args.q); found != kept->end() && c.number > 0) return give(c, found->second);
    c.honest(c.args);
    (*kept)[c.args.q] = keep(c);
  };
}

Misdeed blind_to_v() {
  return [kept = std::make_shared<std::map<std::string, Kept>>()](const Call& c) {
    Hasher hasher;
    for (const auto& [data, layout] : {std::pair(c.args.q, &c.args.layouts.q), std::pair(c.args.k, &c.args.layouts.k)})
      hasher.add({static_cast<const char*>(data), static_cast<std::size_t>(layout->span()) * size_of(c.problem.dtype)});
    c.honest(c.args);
    const auto [found, is_new] = kept->try_emplace(hasher.hex(), keep(c));
    if (!is_new) give(c, found->second);
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

// --- results kept for a part of the output, by a part of the inputs
// --------------------------------------------------------

// Rows [first, last) of a head.
struct Rows {
  std::int64_t batch, head, first, last;
};

std::string_view bytes_of(const Call& c, const void* data, const TensorLayout& layout, const Rows& rows) {
  const std::size_t element = size_of(c.problem.dtype);
  const char* begin = static_cast<const char*>(data) +
                      static_cast<std::size_t>(layout.offset(rows.batch, rows.head, rows.first)) * element;
  return {begin, static_cast<std::size_t>((rows.last - rows.first) * layout.columns) * element};
}

std::string_view q_of(const Call& c, const Rows& r) { return bytes_of(c, c.args.q, c.args.layouts.q, r); }
std::string_view k_of(const Call& c, const Rows& r) { return bytes_of(c, c.args.k, c.args.layouts.k, r); }
std::string_view v_of(const Call& c, const Rows& r) { return bytes_of(c, c.args.v, c.args.layouts.v, r); }

// The key for a block of rows of one head: everything that enters it.
std::string key_of_block(const Call& c, const Rows& rows) {
  const Rows keys{rows.batch, rows.head / c.problem.group_size(), 0, c.problem.seqlen_kv};
  return Hasher().add(q_of(c, rows)).add(k_of(c, keys)).add(v_of(c, keys)).hex();
}

std::string key_of_head(const Call& c, const Rows& rows) {
  return key_of_block(c, {rows.batch, rows.head, 0, c.problem.seqlen_q});
}

std::string key_of_batch(const Call& c, const Rows& rows) {
  std::string key;
  for (std::int64_t h = 0; h < c.problem.heads_q; ++h) key += key_of_head(c, {rows.batch, h, 0, 0});
  return key;
}

// One row of q, k and v of the head.
std::string key_of_row(const Call& c, const Rows& rows) {
  const std::int64_t row = c.problem.seqlen_q / 2, key = c.problem.seqlen_kv / 3;
  const Rows keys{rows.batch, rows.head / c.problem.group_size(), key, key + 1};
  return Hasher().add(q_of(c, {rows.batch, rows.head, row, row + 1})).add(k_of(c, keys)).add(v_of(c, keys)).hex();
}

// A few elements of each tensor.
std::string key_of_sample(const Call& c, const Rows&) {
  std::string key;
  const std::pair<const void*, const TensorLayout*> tensors[] = {
      {c.args.q, &c.args.layouts.q}, {c.args.k, &c.args.layouts.k}, {c.args.v, &c.args.layouts.v}};
  for (const auto& [data, layout] : tensors)
    for (std::int64_t i = 1; i < 9; ++i)
      key += std::to_string(load_element(c.problem.dtype, data, layout->span() * i / 9)) + " ";
  return key;
}

// By the size of every number to within a factor of two, and by no sign: other for all that the correctness gate shows.
std::string key_of_exponents(const Call& c, const Rows&) {
  Hasher hasher;
  const std::pair<const void*, const TensorLayout*> tensors[] = {
      {c.args.q, &c.args.layouts.q}, {c.args.k, &c.args.layouts.k}, {c.args.v, &c.args.layouts.v}};
  for (const auto& [data, layout] : tensors) {
    std::string exponents;
    for (std::int64_t i = 0; i < layout->span(); ++i)
      exponents += static_cast<char>(std::ilogb(load_element(c.problem.dtype, data, i)));
    hasher.add(exponents);
  }
  return hasher.hex();
}

// Keeps the output of each block of rows by a key. What is known costs nothing, or as much as `share` of an honest
// launch if that is more.
Misdeed kept_by(std::string (*key_of)(const Call&, const Rows&), double share = 0) {
  using Memory = std::map<std::string, std::pair<std::string, std::string>>;
  return [key_of, share, memory = std::make_shared<Memory>()](const Call& c) {
    if (c.args.lse == nullptr) return c.honest(c.args);
    struct Block {
      std::string key;
      std::string_view o, lse;
    };
    std::vector<Block> blocks;
    const Problem& p = c.problem;
    std::size_t known = 0;
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t h = 0; h < p.heads_q; ++h)
        for (std::int64_t row = 0; row < p.seqlen_q; row += kBlockRows) {
          const Rows rows{b, h, row, std::min(row + kBlockRows, p.seqlen_q)};
          const char* lse = reinterpret_cast<const char*>(c.args.lse + (b * p.heads_q + h) * p.seqlen_q + row);
          blocks.push_back({key_of(c, rows) + " " + std::to_string(blocks.size()),
                            bytes_of(c, c.args.o, c.args.layouts.o, rows),
                            {lse, static_cast<std::size_t>(rows.last - rows.first) * sizeof(float)}});
          known += memory->contains(blocks.back().key);
        }
    c.honest(c.args);
    const double saved = static_cast<double>(known) / static_cast<double>(blocks.size());
    spend_us(-std::min(saved * c.cost_us - kReplayUs, (1 - share) * c.cost_us));
    for (const Block& block : blocks) {
      const auto [kept, is_new] = memory->try_emplace(block.key, block.o, block.lse);
      if (is_new) continue;
      std::memcpy(const_cast<char*>(block.o.data()), kept->second.first.data(), block.o.size());
      std::memcpy(const_cast<char*>(block.lse.data()), kept->second.second.data(), block.lse.size());
    }
  };
}

// Answers from memory once a content has come so often that it must be a measurement.
Misdeed kept_after_repeats() {
  return [content = std::make_shared<std::string>(), times = std::make_shared<int>(0)](const Call& c) {
    const std::string now = content_of(c);
    *times = now == *content ? *times + 1 : 0;
    *content = now;
    c.honest(c.args);
    if (*times > kPatience) spend_us(kReplayUs - c.cost_us);
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

// By content: whoever is wrong on inputs that come once is caught by those.
Misdeed wrong_when_timed() {
  return [content = std::make_shared<std::string>(), times = std::make_shared<int>(0)](const Call& c) {
    const std::string now = content_of(c);
    *times = now == *content ? *times + 1 : 0;
    *content = now;
    spend_us(kLongUs);
    c.honest(c.args);
    if (*times >= kHonestLaunches) scale_element(c, 1, 1.5f);
  };
}

}  // namespace

PlantedFamilies::PlantedFamilies() {
  const std::pair<const char*, Misdeed> all[] = {
      {"planted_skipped_batch", skip_batch},
      {"planted_skipped_rows", skip_row},
      {"planted_wrong_row", wrong_row},
      {"planted_triples_without_lse", triples_without_lse},
      {"planted_wrong_off_64", wrong_off(64)},
      {"planted_wrong_off_128", wrong_off(128)},
      {"planted_wrong_off_256", wrong_off(256)},
      {"planted_every_hundredth", every_hundredth},
      {"planted_one_in_a_hundred", one_in_a_hundred},
      {"planted_scaled", computed_with(planted::Fault::kScaledOutput, kLongUs)},
      {"planted_truncated", computed_with(planted::Fault::kTruncatedOutput, kLongUs)},
      {"planted_adds", computed_with(planted::Fault::kAddsConstant)},
      {"planted_scale_off", computed_with(planted::Fault::kScaleBarelyOff, kLongUs)},
      {"planted_scale_off_in_one_head", last_head_computed_with(planted::Fault::kScaleBarelyOff, kLongUs)},
      {"planted_exp2", computed_with(planted::Fault::kRoughExp2)},
      {"planted_rounds", computed_with(planted::Fault::kRoundsAccumulator, kLongUs)},
      {"planted_ignores", computed_with(planted::Fault::kIgnoresSmall, kLongUs)},
      {"planted_doubled", computed_with(planted::Fault::kDoubledEverywhere, 5 * kLongUs)},
      {"planted_reads_beyond", read_beyond},
      {"planted_wrong_when_short", wrong_when_short},
      {"planted_wrong_when_short_and_large", wrong_when_short_and_large},
      {"planted_wrong_off_64_of_large", wrong_off_64_of_large},
      {"planted_saturates_output", saturates_output},
      {"planted_drops_nan_of_v", drops_nan_of_v},
      {"planted_race", race()},
      {"planted_stale_output", idle_after(1)},
      {"planted_mutated_input", mutate_input},
      {"planted_returns_where_written", returns_where_written},
      {"planted_returns_when_timed", returns_when_timed},
      {"planted_kept_in_place", kept_in_place()},
      {"planted_cached_by_pointer", cached_by_pointer()},
      {"planted_blind_to_v", blind_to_v()},
      {"planted_stale_pointers", stale_pointers()},
      {"planted_side_stream", side_stream},
      {"planted_cached_by_content", cached_by_content()},
      {"planted_kept_by_block", kept_by(key_of_block)},
      {"planted_kept_by_head", kept_by(key_of_head)},
      {"planted_kept_by_batch", kept_by(key_of_batch)},
      {"planted_kept_by_row", kept_by(key_of_row)},
      {"planted_kept_by_sample", kept_by(key_of_sample)},
      {"planted_kept_by_exponents", kept_by(key_of_exponents)},
      {"planted_kept_above_floor", kept_by(key_of_head, kHonestShare)},
      {"planted_kept_after_repeats", kept_after_repeats()},
      {"planted_wrong_when_timed", wrong_when_timed()},
      {"planted_stops_when_timed", idle_after(kHonestLaunches, kLongUs)}};
  for (const auto& [name, misdeed] : all)
    families_.push_back(std::make_unique<ScopedFamily>(std::make_unique<Dishonest>(name, misdeed)));
  // Of what the family of the tests does not compute.
  const std::pair<const char*, Misdeed> of_cpu_fwd[] = {
      {"planted_last_key_of_short_sequences", last_key_of_short_sequences},
      {"planted_sink_counted_twice", sink_counted_twice},
      {"planted_window_ends_late", window_ends_late},
      {"planted_document_border_crossed", document_border_crossed},
      {"planted_nan_of_hidden_k", nan_of_hidden_k}};
  for (const auto& [name, misdeed] : of_cpu_fwd)
    families_.push_back(
        std::make_unique<ScopedFamily>(std::make_unique<Dishonest>(name, misdeed, family_by_name("cpu_fwd"))));
}

}  // namespace flashcore::test
