#include "kernels/append/append.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "core/dtype.h"
#include "core/error.h"
#include "device/cpu/cpu_threads.h"
#include "device/cpu/thread_pool.h"
#include "kernels/tile/saturation.h"

namespace flashcore::append {
namespace {

// A thread more is worth it from about so many bytes on: what one core copies in the time of a fork-join.
constexpr std::int64_t kBytesPerThread = 1 << 17;
constexpr std::int64_t kVectorBytes = 16;

DType dtype_of(Element element) { return static_cast<DType>(element); }
std::int64_t size_of_element(Element element) { return static_cast<std::int64_t>(size_of(dtype_of(element))); }
// Of an int4, 16 bytes are 32 elements.
std::int64_t vector_elements(Element element) { return kVectorBytes * 8 / bits_of(dtype_of(element)); }

std::string text_of(const Kind& kind) {
  std::string text = fmt::format(
      "flashcore::append::Kind{{flashcore::Element({}), flashcore::append::Rotary({}), flashcore::Element({})",
      static_cast<int>(kind.element), static_cast<int>(kind.rotary), static_cast<int>(kind.table));
  if (kind.cache != CacheElement::kAsQ)
    text += fmt::format(", flashcore::CacheElement({}){}", static_cast<int>(kind.cache), kind.counts ? ", true" : "");
  return text + "}";
}

// Of elements of one type before and of another after.
bool is_aligned(const Operand& operand, Element from, Element to) {
  const auto strides = [&](const Strides& s, Element element) {
    const std::int64_t of_vector = vector_elements(element);
    return s.batch % of_vector == 0 && s.head % of_vector == 0 && s.row % of_vector == 0;
  };
  return reinterpret_cast<std::uintptr_t>(operand.from) % kVectorBytes == 0 &&
         reinterpret_cast<std::uintptr_t>(operand.to) % kVectorBytes == 0 && operand.dim % vector_elements(from) == 0 &&
         strides(operand.from_stride, from) && strides(operand.to_stride, to);
}

struct HostInts {
  int operator()(const int* address) const { return *address; }
};

// Pages that the launch writes to in two places, as is_written_elsewhere() finds them.
class AliasedPages {
 public:
  explicit AliasedPages(const AppendParams& params) {
    if (!params.block_table) return;
    std::unordered_map<int, Written> writers;
    const auto note = [&](int sequence, long long position) {
      const int page = page_of(params, sequence, position, HostInts{});
      if (page < 0) return;
      const auto [first, is_new] = writers.try_emplace(page, Written{sequence, position / params.page_size});
      if (is_new || (first->second.sequence == sequence && first->second.column == position / params.page_size)) return;
      pages_.insert(page);
    };
    if (params.rows.sequences) {
      for (int index = 0; index < params.rows.count; ++index) {
        const Owner owner = owner_of(params.rows, params.batch, index, HostInts{});
        const long long position = position_of(params, params.rows, owner, index, true, HostInts{});
        if (position >= 0) note(owner.sequence, position);
      }
      return;
    }
    for (int sequence = 0; sequence < params.batch; ++sequence) {
      const NewKeys keys = new_keys_of(params, sequence, HostInts{});
      if (keys.first > keys.last) continue;
      for (long long column = keys.first / params.page_size; column <= keys.last / params.page_size; ++column)
        note(sequence, column * params.page_size);
    }
  }
  bool contains(int page) const { return !pages_.empty() && pages_.contains(page); }

 private:
  std::unordered_set<int> pages_;
};

class CpuRows {
 public:
  CpuRows(const Kind& kind, const AppendParams& params)
      : params_(params),
        aliased_(params),
        type_(dtype_of(kind.element)),
        cache_(dtype_of(element_of_cache(kind))),
        table_(dtype_of(kind.table)),
        rotary_(kind.rotary),
        counts_(kind.counts) {}

  void append_row(int index) const {
    Place place = place_of(params_, turns(), index, HostInts{});
    if (place.state == State::kGood && aliased_.contains(place.page)) place.state = State::kRefused;
    if (place.state == State::kRefused && params_.refused) __atomic_fetch_add(params_.refused, 1u, __ATOMIC_RELAXED);
    if (place.state != State::kGood) return;
    const auto write = [&](const Operand& x, bool turned, const Descale& descale, float* new_factors) {
      const std::int64_t from = offset_in(params_.rows, x.from_stride, place.owner, index);
      const float* factors =
          descale.values ? descale.values + std::int64_t{place.owner.sequence} * descale.batch_stride : nullptr;
      int head_stride = descale.head_stride;
      if (new_factors) {
        float* of_row = new_factors + factor_index(x.heads, params_.page_size, place.page, 0, place.row);
        for (int head = 0; head < x.heads; ++head) {
          const float largest = largest_of_row(x, from + head * x.from_stride.head, place.position, turned);
          of_row[std::int64_t{head} * params_.page_size] =
              factor_of(largest, largest >= 0, largest_of(static_cast<Element>(cache_)));
        }
        factors = of_row, head_stride = params_.page_size;
      }
      write_row(x, from, place.page * x.to_stride.batch + place.row * x.to_stride.row, place.position, turned,
                {cache_, factors, head_stride, counter_of(x)});
    };
    write(params_.k, turns(), params_.descale_k, params_.new_descale_k);
    write(params_.v, false, params_.descale_v, params_.new_descale_v);
  }

  void turn_row(int index) const {
    const Operand& q = params_.q;
    const Owner owner = owner_of(params_.rows_q, params_.batch, index, HostInts{});
    if (owner.state == State::kNobodys) return;
    const std::int64_t position = position_of(params_, params_.rows_q, owner, index, params_.q_moves != 0, HostInts{});
    const std::int64_t to = offset_in(params_.rows_q, q.to_stride, owner, index);
    if (position >= 0 && position < params_.angle_rows)
      return write_row(q, offset_in(params_.rows_q, q.from_stride, owner, index), to, position, true, {type_});
    for (int head = 0; head < q.heads; ++head)
      for (int column = 0; column < q.dim; ++column)
        store_element(type_, q.to, to + head * q.to_stride.head + column, std::numeric_limits<float>::quiet_NaN());
  }

 private:
  bool turns() const { return rotary_ != Rotary::kNone; }

  // What rows become on their way: a type, and of each head what they are divided by.
  struct Stored {
    DType dtype;
    const float* factors = nullptr;
    int head_stride = 0;
    std::uint64_t* saturated = nullptr;
    float factor(int head) const { return factors ? factors[std::int64_t{head} * head_stride] : 1; }
  };

  // Of what saturates; null where nobody counts.
  std::uint64_t* counter_of(const Operand& x) const {
    if (!counts_) return nullptr;
    return reinterpret_cast<std::uint64_t*>(params_.saturated) + (&x == &params_.k ? 0 : 1);
  }

  static void store(const Operand& x, std::int64_t at, const Stored& as, float value) {
    store_element(as.dtype, x.to, at, value);
    if (as.saturated && saturates(static_cast<Element>(as.dtype), std::bit_cast<std::uint32_t>(value)))
      __atomic_fetch_add(as.saturated, std::uint64_t{1}, __ATOMIC_RELAXED);
  }

  void write_row(const Operand& x, std::int64_t from, std::int64_t to, std::int64_t position, bool turned,
                 const Stored& as) const {
    const auto item = static_cast<std::int64_t>(size_of(type_));
    const int kept_from = turned ? params_.rotary_dim : 0;
    for (int head = 0; head < x.heads; ++head) {
      const std::int64_t source = from + head * x.from_stride.head, target = to + head * x.to_stride.head;
      for (int pair = 0; pair < kept_from / 2; ++pair) turn(x, source, target, position, pair, as, head);
      if (as.dtype != type_) {
        for (int column = kept_from; column < x.dim; ++column)
          store(x, target + column, as, load_element(type_, x.from, source + column) / as.factor(head));
        continue;
      }
      // A q that is turned where it lies keeps the rest.
      std::memmove(static_cast<char*>(x.to) + (target + kept_from) * item,
                   static_cast<const char*>(x.from) + (source + kept_from) * item,
                   static_cast<std::size_t>((x.dim - kept_from) * item));
    }
  }

  // The largest finite magnitude of what a row of one head becomes; -1 where there is none.
  float largest_of_row(const Operand& x, std::int64_t source, std::int64_t position, bool turned) const {
    float largest = -1;
    const auto note = [&](float value) {
      if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    };
    const int kept_from = turned ? params_.rotary_dim : 0;
    for (int pair = 0; pair < kept_from / 2; ++pair) {
      const Turned both = turned_pair(x, source, position, pair);
      note(both.a), note(both.b);
    }
    for (int column = kept_from; column < x.dim; ++column) note(load_element(type_, x.from, source + column));
    return largest;
  }

  struct Turned {
    int first, second;  // columns
    float a, b;
  };
  Turned turned_pair(const Operand& x, std::int64_t source, std::int64_t position, int pair) const {
    const bool is_half = rotary_ == Rotary::kHalf;
    const int first = is_half ? pair : 2 * pair, second = is_half ? pair + params_.rotary_dim / 2 : 2 * pair + 1;
    const std::int64_t angle = position * params_.angle_stride + pair;
    // Products of floats are exact in double.
    const double cos = load_element(table_, params_.cos, angle), sin = load_element(table_, params_.sin, angle);
    const double a = load_element(type_, x.from, source + first), b = load_element(type_, x.from, source + second);
    return {first, second, static_cast<float>(a * cos - b * sin), static_cast<float>(a * sin + b * cos)};
  }

  void turn(const Operand& x, std::int64_t source, std::int64_t target, std::int64_t position, int pair,
            const Stored& as, int head) const {
    const Turned both = turned_pair(x, source, position, pair);
    const float by = as.factor(head);
    store(x, target + both.first, as, both.a / by);
    store(x, target + both.second, as, both.b / by);
  }

  const AppendParams& params_;
  AliasedPages aliased_;
  DType type_, cache_, table_;
  Rotary rotary_;
  bool counts_;
};

}  // namespace

KernelSource source_of(const Kind& kind) {
  const std::string text = text_of(kind);
  KernelSource source;
  source.file = "append/kernel.cuh";
  source.name_expression = fmt::format("flashcore::append::append<{}, true>", text);
  source.threads_per_block = kThreads;
  source.more_kernels = {{fmt::format("flashcore::append::append<{}, false>", text), 0, kThreads},
                         {fmt::format("flashcore::append::update_lengths<{}>", text), 0, kThreads}};
  return source;
}

bool fits_vectors(const Kind& kind, const AppendParams& params) {
  const std::int64_t item = size_of_element(kind.element);
  const std::int64_t rotary = params.rotary_dim * item;
  if (kind.rotary == Rotary::kHalf && rotary / 2 % kVectorBytes != 0) return false;
  if (kind.rotary == Rotary::kInterleaved && rotary % kVectorBytes != 0) return false;
  const Element own = kind.element, cache = element_of_cache(kind);
  return is_aligned(params.k, own, cache) && is_aligned(params.v, own, cache) &&
         (params.q.heads == 0 || is_aligned(params.q, own, own));
}

Launches launches_of(const Kind& kind, const AppendParams& params) {
  const bool in_place = params.new_lengths && params.new_lengths == params.lengths;
  const std::int64_t of_lengths = params.new_lengths ? (params.batch + kThreads - 1) / kThreads : 0;
  Launches launches;
  const auto add = [&](Entry entry, std::int64_t blocks) {
    if (blocks == 0) return;
    LaunchSpec& launch = launches.all[launches.count++];
    launch.grid.x = static_cast<unsigned>(blocks);
    launch.block.x = kThreads;
    launch.kernel = static_cast<unsigned>(entry);
  };
  add(fits_vectors(kind, params) ? Entry::kVector : Entry::kScalar,
      std::int64_t{params.rows.count} + params.rows_q.count + (in_place ? 0 : of_lengths));
  if (in_place) add(Entry::kUpdateLengths, of_lengths);
  return launches;
}

void run_on_cpu(const Kind& kind, const AppendParams& params) {
  const CpuRows rows(kind, params);
  const int total = params.rows.count + params.rows_q.count;
  const std::int64_t row_bytes =
      (std::int64_t{params.k.heads} * params.k.dim + std::int64_t{params.v.heads} * params.v.dim) *
      size_of_element(kind.element);
  const std::int64_t wanted = std::clamp<std::int64_t>(total * row_bytes / kBytesPerThread, 1, cpu_threads());
  std::atomic<int> next{0};
  const auto work = [&](int) {
    constexpr int kStep = 8;
    for (int first = next.fetch_add(kStep); first < total; first = next.fetch_add(kStep)) {
      for (int i = first; i < std::min(first + kStep, total); ++i) {
        if (i < params.rows.count) rows.append_row(i);
        else rows.turn_row(i - params.rows.count);
      }
    }
  };
  if (wanted == 1) work(0);
  else cpu_thread_pool().run(static_cast<int>(wanted), work);
  if (!params.new_lengths) return;
  for (int s = 0; s < params.batch; ++s) params.new_lengths[s] = new_length_of(params, s, HostInts{});
}

}  // namespace flashcore::append
