#include "lab/harness/operands.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/error.h"
#include "core/parallel.h"
#include "core/problem_expressions.h"
#include "core/ragged.h"
#include "core/random.h"

namespace flashcore {
namespace {

constexpr unsigned char kPoison = 0xFF;

// Operands of fp32 that some problems have.
struct Floats {
  const char* name;
  std::vector<float> AttentionInputs::*values;
  const float* AttentionArgs::*address;
  std::int64_t (*count)(const Problem&, const ProblemLayouts&);
};
constexpr Floats kFloats[] = {
    {"descale_q", &AttentionInputs::descale_q, &AttentionArgs::descale_q,
     [](const Problem& p, const ProblemLayouts& l) { return descale_counts(p, l).q; }},
    {"descale_k", &AttentionInputs::descale_k, &AttentionArgs::descale_k,
     [](const Problem& p, const ProblemLayouts& l) { return descale_counts(p, l).k; }},
    {"descale_v", &AttentionInputs::descale_v, &AttentionArgs::descale_v,
     [](const Problem& p, const ProblemLayouts& l) { return descale_counts(p, l).v; }},
    {"sink", &AttentionInputs::sink, &AttentionArgs::sink,
     [](const Problem& p, const ProblemLayouts&) { return p.sink_count(); }},
    {"alibi", &AttentionInputs::alibi, &AttentionArgs::alibi,
     [](const Problem& p, const ProblemLayouts&) { return p.alibi_count(); }},
};

// Operands of int32, of ragged and of paged problems.
struct Int32s {
  const char* name;
  const std::int32_t* AttentionArgs::*address;
  std::size_t (*count)(const Problem&, const ProblemLayouts&);
  std::vector<std::int32_t> (*values)(const Problem&, const AttentionInputs&);
};
std::size_t batch_of(const Problem& problem) { return static_cast<std::size_t>(problem.batch); }
std::vector<std::int32_t> narrowed(const std::vector<std::int64_t>& values) { return {values.begin(), values.end()}; }
constexpr Int32s kInt32s[] = {
    {"cu_seqlens_q", &AttentionArgs::cu_seqlens_q,
     [](const Problem& p, const ProblemLayouts&) { return p.ragged() ? batch_of(p) + 1 : 0; },
     [](const Problem& p, const AttentionInputs&) { return narrowed(boundaries_of(p).q); }},
    {"cu_seqlens_kv", &AttentionArgs::cu_seqlens_kv,
     [](const Problem& p, const ProblemLayouts&) { return p.ragged() && !p.paged() ? batch_of(p) + 1 : 0; },
     [](const Problem& p, const AttentionInputs&) { return narrowed(boundaries_of(p).kv); }},
    {"block_table", &AttentionArgs::block_table,
     [](const Problem& p, const ProblemLayouts& l) { return batch_of(p) * static_cast<std::size_t>(l.table_stride); },
     [](const Problem&, const AttentionInputs& in) { return in.block_table; }},
    {"seqused_kv", &AttentionArgs::seqused_kv,
     [](const Problem& p, const ProblemLayouts&) { return p.paged() ? batch_of(p) : 0; },
     [](const Problem&, const AttentionInputs& in) { return in.seqused_kv; }},
};

std::size_t bytes_of(const TensorLayout& layout, DType dtype) {
  return static_cast<std::size_t>(bytes_of(dtype, layout.span()));
}

// Bits that may be anything in a finite number: the sign, and the mantissa but for its upper two, whose weight keeps
// NaN (strided layouts are filled with it between rows) and keeps values within a factor of two.
std::uint64_t free_bits(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 0x801F'FFFF'801F'FFFF;
    case DType::kF16: return 0x80FF'80FF'80FF'80FF;
    case DType::kBF16: return 0x801F'801F'801F'801F;
    case DType::kE4M3:
    case DType::kE5M2: return 0x8181'8181'8181'8181;
    case DType::kInt8: return 0x0101'0101'0101'0101;
    case DType::kInt4: return 0x1111'1111'1111'1111;
  }
  throw_internal("no such dtype");
}

// Of 8-bit elements in `word`: those with the largest exponent keep their mantissa, whose bits tell a number from NaN.
std::uint64_t kept_bits(DType dtype, std::uint64_t word) {
  if (is_integer(dtype) || size_of(dtype) > 1) return 0;
  const std::uint64_t exponent = dtype == DType::kE4M3 ? 0x7878'7878'7878'7878 : 0x7C7C'7C7C'7C7C'7C7C;
  // One more in the exponent's last place reaches the sign's exactly from the largest.
  const std::uint64_t one = dtype == DType::kE4M3 ? 0x0808'0808'0808'0808 : 0x0404'0404'0404'0404;
  return (((word & exponent) + one) >> 7) & 0x0101'0101'0101'0101;
}

std::uint64_t key_of(std::uint64_t variant, std::uint64_t tensor) {
  return variant == 0 ? 0 : SplitMix(variant + tensor).next() | 1;
}

// Copies `from`, of a tensor from its byte `at` on, a multiple of 8. A key of 0 changes nothing, in the same time.
void copy_varied(DType dtype, std::span<const std::byte> from, std::byte* to, std::size_t at, std::uint64_t key) {
  const std::uint64_t mask = key == 0 ? 0 : free_bits(dtype);
  const auto varied = [&](std::uint64_t word, std::size_t i) {
    return word ^ (SplitMix(key + at + i).next() & mask & ~kept_bits(dtype, word));
  };
  std::uint64_t word = 0;
  std::size_t i = 0;
  // Whole words apart: a copy of a length that is known is one instruction.
  for (; i + sizeof word <= from.size(); i += sizeof word) {
    std::memcpy(&word, from.data() + i, sizeof word);
    word = varied(word, i);
    std::memcpy(to + i, &word, sizeof word);
  }
  if (i == from.size()) return;
  word = 0;
  std::memcpy(&word, from.data() + i, from.size() - i);
  word = varied(word, i);
  std::memcpy(to + i, &word, from.size() - i);
}

// The same on all cores: the gates of a large problem upload its operands some fifty times.
void copy_varied_parallel(DType dtype, std::span<const std::byte> from, std::byte* to, std::size_t at,
                          std::uint64_t key) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  const std::size_t pieces = (from.size() + kPiece - 1) / kPiece;
  parallel_for(static_cast<std::int64_t>(pieces), pieces < 4 ? 1 : 0, [&](std::int64_t piece) {
    const std::size_t first = static_cast<std::size_t>(piece) * kPiece;
    copy_varied(dtype, from.subspan(first, std::min(kPiece, from.size() - first)), to + first, at + first, key);
  });
}

bool all_poison(const std::byte* data, std::size_t bytes) {
  return std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{kPoison}; });
}

// Calls body(first byte of the row's columns, first byte after them) for each row of `tensor`, in parallel over heads.
template <class Body>
void for_each_row(const HostTensor& tensor, Body body) {
  const TensorLayout& l = tensor.layout;
  parallel_for(l.batch * l.heads, 0, [&](std::int64_t bh) {
    for (std::int64_t row = 0; row < l.rows; ++row) {
      const std::byte* begin = tensor.address(l.offset(bh / l.heads, bh % l.heads, row));
      body(begin, begin + tensor.row_bytes());
    }
  });
}

}  // namespace

bool bitwise_equal(const AttentionOutputs& a, const AttentionOutputs& b) {
  // Without lse there is no address to compare at.
  // memcmp: == of std::byte compares them one by one, and a gate compares hundreds of outputs.
  return a.o.data.size() == b.o.data.size() && a.lse.size() == b.lse.size() && a.amax.size() == b.amax.size() &&
         (a.amax.empty() || std::memcmp(a.amax.data(), b.amax.data(), a.amax.size() * sizeof(float)) == 0) &&
         (a.o.data.empty() || std::memcmp(a.o.data.data(), b.o.data.data(), a.o.data.size()) == 0) &&
         (a.lse.empty() || std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)) == 0);
}

AttentionInputs varied_inputs(const AttentionInputs& inputs, std::uint64_t variant) {
  AttentionInputs varied = inputs;
  std::uint64_t index = 0;
  for (HostTensor* tensor : {&varied.q, &varied.k, &varied.v})
    copy_varied_parallel(tensor->dtype, tensor->data, tensor->data.data(), 0, key_of(variant, index++));
  return varied;
}

std::string_view ReplacedValues::did() const {
  return columns_reversed ? "reversed" : factor == 2 ? "doubled" : "negated";
}

ReplacedValues replace_values(HostTensor& tensor) {
  ReplacedValues replaced;
  // Twice the largest of 8 bits is no number any more, and -128 of int8 and -8 of int4 have no negative.
  if (is_integer(tensor.dtype)) replaced.columns_reversed = true;
  else replaced.factor = size_of(tensor.dtype) == 1 ? -1 : 2;
  const TensorLayout& l = tensor.layout;
  parallel_for(l.batch * l.heads, 0, [&](std::int64_t bh) {
    for (std::int64_t row = 0; row < l.rows; ++row) {
      const std::int64_t first = l.offset(bh / l.heads, bh % l.heads, row);
      if (replaced.columns_reversed) {
        std::byte* begin = tensor.address(first);
        std::reverse(begin, begin + tensor.row_bytes());
        if (tensor.dtype == DType::kInt4)
          std::for_each(begin, begin + tensor.row_bytes(), [](std::byte& pair) { pair = pair << 4 | pair >> 4; });
      } else {
        for (std::int64_t c = 0; c < l.columns; ++c)
          store_element(
              tensor.dtype, tensor.data.data(), first + c,
              static_cast<float>(replaced.factor) * load_element(tensor.dtype, tensor.data.data(), first + c));
      }
    }
  });
  return replaced;
}

std::int64_t count_unwritten(const AttentionOutputs& outputs) {
  std::atomic<std::int64_t> count = 0;
  const std::size_t element = size_of(outputs.o.dtype);
  for_each_row(outputs.o, [&](const std::byte* begin, const std::byte* end) {
    std::int64_t here = 0;
    for (const std::byte* at = begin; at != end; at += element) here += all_poison(at, element);
    if (here) count += here;
  });
  for (const std::vector<float>* floats : {&outputs.lse, &outputs.amax})
    for (const float& value : *floats) count += all_poison(reinterpret_cast<const std::byte*>(&value), sizeof value);
  return count;
}

namespace {

// Of packed outputs: whether is_found(o still holds nothing but the poison, and so does lse) of a row.
template <class IsFound>
bool any_row(const AttentionOutputs& outputs, std::int64_t first, std::int64_t end, const IsFound& is_found) {
  const TensorLayout& l = outputs.o.layout;
  const std::size_t element = size_of(outputs.o.dtype);
  for (std::int64_t h = 0; h < l.heads; ++h)
    for (std::int64_t row = first; row < end; ++row) {
      const auto begin = static_cast<std::size_t>(l.offset(0, h, row)) * element;
      const float& lse = outputs.lse[static_cast<std::size_t>(h * l.rows + row)];
      if (is_found(all_poison(outputs.o.data.data() + begin, static_cast<std::size_t>(l.columns) * element),
                   all_poison(reinterpret_cast<const std::byte*>(&lse), sizeof lse)))
        return true;
    }
  return false;
}

}  // namespace

bool rows_written(const AttentionOutputs& outputs, std::int64_t first, std::int64_t end) {
  return any_row(outputs, first, end, [](bool o_left, bool lse_left) { return !o_left || !lse_left; });
}

bool rows_left(const AttentionOutputs& outputs, std::int64_t first, std::int64_t end) {
  // In 8 bits the poison is a NaN that a kernel may write.
  const bool is_o_telling = size_of(outputs.o.dtype) > 1;
  return any_row(outputs, first, end, [&](bool o_left, bool lse_left) { return (is_o_telling && o_left) || lse_left; });
}

bool gaps_written(const AttentionOutputs& outputs) {
  const TensorLayout& l = outputs.o.layout;
  if (l.elements() == l.span()) return false;
  std::vector<bool> used(outputs.o.data.size(), false);
  const std::size_t element = size_of(outputs.o.dtype);
  for (std::int64_t b = 0; b < l.batch; ++b)
    for (std::int64_t h = 0; h < l.heads; ++h)
      for (std::int64_t row = 0; row < l.rows; ++row) {
        const auto first = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(l.offset(b, h, row)) * element);
        std::fill_n(used.begin() + first, static_cast<std::size_t>(l.columns) * element, true);
      }
  for (std::size_t i = 0; i < used.size(); ++i)
    if (!used[i] && outputs.o.data[i] != std::byte{kPoison}) return true;
  return false;
}

Operands::Operands(Device& device, const PlacedProblem& problem, Offsets offsets)
    : device_(&device), problem_(problem), layouts_(make_layouts(problem)), offsets_(offsets) {
  // A tensor without elements still gets an address: kernels may compute pointers they never follow.
  const auto allocate = [&](std::size_t bytes, std::size_t offset) {
    auto buffer = device.allocate(offset + std::max<std::size_t>(bytes, 16), kRedZoneBytes);
    if (offset > 0) device.fill(buffer->data(), kPoison, offset);
    return buffer;
  };
  q_ = allocate(bytes_of(layouts_.q, problem.dtype), offsets.tensors);
  k_ = allocate(bytes_of(layouts_.k, problem.cache_dtype()), offsets.tensors);
  v_ = allocate(bytes_of(layouts_.v, problem.cache_dtype()), offsets.tensors);
  o_ = allocate(bytes_of(layouts_.o, problem.output_dtype()), offsets.tensors);
  lse_ = allocate(static_cast<std::size_t>(layouts_.lse_elements) * sizeof(float), offsets.lse);
  if (problem.amax) amax_ = allocate(static_cast<std::size_t>(problem.amax_count()) * sizeof(float), offsets.lse);
  for (std::size_t i = 0; i < floats_.size(); ++i) {
    const auto count = static_cast<std::size_t>(kFloats[i].count(problem, layouts_));
    if (count > 0) floats_[i] = allocate(count * sizeof(float), offsets.lse);
  }
  for (std::size_t i = 0; i < int32s_.size(); ++i) {
    const std::size_t count = kInt32s[i].count(problem, layouts_);
    if (count > 0) int32s_[i] = allocate(count * sizeof(std::int32_t), offsets.lse);
  }
  const std::vector<ExpressionShape> shapes = tensor_shapes(problem);
  for (std::size_t t = 0; t < shapes.size(); ++t) {
    const ElementTensor tensor{problem.tensors[t].element, shapes[t], {}};
    tensors_[t] = allocate(static_cast<std::size_t>(tensor.count()) * bytes_of(tensor.element), offsets.lse);
  }
  if (offsets.tensors + offsets.lse > 0) return;  // the emulator's labels are of whole buffers
  device.label(*q_, {"q", problem.dtype, layouts_.q});
  device.label(*k_, {"k", problem.cache_dtype(), layouts_.k});
  device.label(*v_, {"v", problem.cache_dtype(), layouts_.v});
  device.label(*o_, {"o", problem.output_dtype(), layouts_.o});
  device.label(*lse_,
               {"lse", DType::kF32, make_layout(Layout::kBhsd, layouts_.o.batch, problem.heads_q, layouts_.o.rows, 1)});
  if (amax_) device.label(*amax_, {"amax", DType::kF32, make_layout(Layout::kBhsd, 1, 2, problem.heads_q, 1)});
  for (std::size_t i = 0; i < floats_.size(); ++i) {
    if (floats_[i])
      device.label(*floats_[i], {kFloats[i].name, DType::kF32,
                                 make_layout(Layout::kBhsd, 1, kFloats[i].count(problem, layouts_), 1, 1)});
  }
}

std::size_t Operands::offset_of(const Buffer& buffer) const {
  const auto is_it = [&](const auto& other) { return &buffer == other.get(); };
  const bool four_bytes = is_it(lse_) || is_it(amax_) || std::any_of(floats_.begin(), floats_.end(), is_it) ||
                          std::any_of(int32s_.begin(), int32s_.end(), is_it) ||
                          std::any_of(tensors_.begin(), tensors_.end(), is_it);
  return four_bytes ? offsets_.lse : offsets_.tensors;
}

std::byte* Operands::at(const Buffer& buffer) const {
  return static_cast<std::byte*>(buffer.data()) + offset_of(buffer);
}

std::size_t Operands::input_bytes(const PlacedProblem& problem) {
  const ProblemLayouts l = make_layouts(problem);
  return bytes_of(l.q, problem.dtype) + bytes_of(l.k, problem.cache_dtype()) + bytes_of(l.v, problem.cache_dtype());
}

std::size_t Operands::total_bytes(const PlacedProblem& problem) {
  const ProblemLayouts l = make_layouts(problem);
  return input_bytes(problem) + bytes_of(l.o, problem.output_dtype()) +
         static_cast<std::size_t>(l.lse_elements) * sizeof(float);
}

void Operands::upload(const AttentionInputs& inputs, std::uint64_t variant) {
  // In pieces, so that other content needs no second copy of the inputs; the same way for either.
  constexpr std::size_t kPiece = std::size_t{32} << 20;
  const auto copy = [&](Buffer& to, const HostTensor& from, std::uint64_t key) {
    FC_CHECK(from.data.size() + offset_of(to) <= to.size());
    staging_.resize(std::max(staging_.size(), std::min(kPiece, from.data.size())));
    for (std::size_t at = 0; at < from.data.size(); at += kPiece) {
      const std::size_t bytes = std::min(kPiece, from.data.size() - at);
      copy_varied_parallel(from.dtype, std::span(from.data).subspan(at, bytes), staging_.data(), at, key);
      device_->upload(this->at(to) + at, staging_.data(), bytes);
    }
  };
  copy(*q_, inputs.q, key_of(variant, 0));
  copy(*k_, inputs.k, key_of(variant, 1));
  copy(*v_, inputs.v, key_of(variant, 2));
  for (std::size_t i = 0; i < floats_.size(); ++i) {
    const std::vector<float>& values = inputs.*kFloats[i].values;
    FC_CHECK(static_cast<std::int64_t>(values.size()) == kFloats[i].count(problem_, layouts_));
    if (!values.empty()) device_->upload(at(*floats_[i]), values.data(), values.size() * sizeof(float));
  }
  for (std::size_t i = 0; i < int32s_.size(); ++i)
    if (int32s_[i]) {
      const std::vector<std::int32_t> values = kInt32s[i].values(problem_, inputs);
      FC_CHECK(values.size() == kInt32s[i].count(problem_, layouts_));
      device_->upload(at(*int32s_[i]), values.data(), values.size() * sizeof(std::int32_t));
    }
  FC_CHECK(inputs.tensors.size() == problem_.tensors.size());
  for (std::size_t t = 0; t < inputs.tensors.size(); ++t)
    device_->upload(at(*tensors_[t]), inputs.tensors[t].data.data(), inputs.tensors[t].data.size());
}

void Operands::upload_lengths(const std::vector<SequenceLengths>& sequences) {
  const Boundaries boundaries = boundaries_of(sequences);
  std::vector<std::int32_t> keys;
  for (const SequenceLengths& each : sequences) keys.push_back(static_cast<std::int32_t>(each.kv));
  for (std::size_t i = 0; i < int32s_.size(); ++i) {
    if (!int32s_[i] || kInt32s[i].address == &AttentionArgs::block_table) continue;
    const std::vector<std::int32_t> values = kInt32s[i].address == &AttentionArgs::seqused_kv ? keys
                                             : kInt32s[i].address == &AttentionArgs::cu_seqlens_q
                                                 ? narrowed(boundaries.q)
                                                 : narrowed(boundaries.kv);
    FC_CHECK(values.size() == kInt32s[i].count(problem_, layouts_));
    device_->upload(at(*int32s_[i]), values.data(), values.size() * sizeof(std::int32_t));
  }
}

void Operands::poison_outputs() {
  device_->fill(o_->data(), kPoison, o_->size());
  device_->fill(lse_->data(), kPoison, lse_->size());
  if (amax_) device_->fill(amax_->data(), kPoison, amax_->size());
}

AttentionArgs Operands::args() const {
  AttentionArgs args{at(*q_), at(*k_), at(*v_), at(*o_), reinterpret_cast<float*>(at(*lse_)), layouts_};
  args.amax = amax_ ? reinterpret_cast<float*>(at(*amax_)) : nullptr;
  for (std::size_t i = 0; i < floats_.size(); ++i)
    args.*kFloats[i].address = floats_[i] ? reinterpret_cast<const float*>(at(*floats_[i])) : nullptr;
  for (std::size_t i = 0; i < int32s_.size(); ++i)
    args.*kInt32s[i].address = int32s_[i] ? reinterpret_cast<const std::int32_t*>(at(*int32s_[i])) : nullptr;
  for (std::size_t t = 0; t < tensors_.size(); ++t) args.tensors[t] = tensors_[t] ? at(*tensors_[t]) : nullptr;
  return args;
}

AttentionOutputs Operands::download_outputs() const {
  AttentionOutputs outputs{HostTensor(problem_.output_dtype(), layouts_.o),
                           std::vector<float>(static_cast<std::size_t>(layouts_.lse_elements)),
                           std::vector<float>(static_cast<std::size_t>(problem_.amax_count()))};
  download_outputs(outputs);
  return outputs;
}

void Operands::download_outputs(AttentionOutputs& outputs) const {
  if (!outputs.o.data.empty()) device_->download(outputs.o.data.data(), at(*o_), outputs.o.data.size());
  if (!outputs.lse.empty()) device_->download(outputs.lse.data(), at(*lse_), outputs.lse.size() * sizeof(float));
  if (!outputs.amax.empty()) device_->download(outputs.amax.data(), at(*amax_), outputs.amax.size() * sizeof(float));
}

namespace {

bool offset_intact(Device& device, const Buffer& buffer, std::size_t offset) {
  std::vector<std::byte> bytes(offset);
  if (offset > 0) device.download(bytes.data(), buffer.data(), offset);
  return all_poison(bytes.data(), offset);
}

}  // namespace

std::optional<std::string> Operands::broken_red_zone() const {
  std::vector<std::pair<std::string, const Buffer*>> buffers = {
      {"q", q_.get()}, {"k", k_.get()}, {"v", v_.get()}, {"o", o_.get()}, {"lse", lse_.get()}, {"amax", amax_.get()}};
  for (std::size_t i = 0; i < floats_.size(); ++i) buffers.emplace_back(kFloats[i].name, floats_[i].get());
  for (std::size_t i = 0; i < int32s_.size(); ++i) buffers.emplace_back(kInt32s[i].name, int32s_[i].get());
  for (std::size_t t = 0; t < problem_.tensors.size(); ++t)
    buffers.emplace_back(problem_.tensors[t].name, tensors_[t].get());
  for (const auto& [name, buffer] : buffers)
    if (buffer && (!buffer->red_zones_intact() || !offset_intact(*device_, *buffer, offset_of(*buffer)))) return name;
  return std::nullopt;
}

std::optional<std::string> Operands::changed_input(const AttentionInputs& uploaded) const {
  if (input_bytes(problem_) > kInputCheckLimit) return std::nullopt;
  const auto changed = [&](const Buffer& buffer, const HostTensor& expected) {
    HostBytes now(expected.data.size());
    if (!now.empty()) device_->download(now.data(), at(buffer), now.size());
    return !(now == expected.data);
  };
  if (changed(*q_, uploaded.q)) return "q";
  if (changed(*k_, uploaded.k)) return "k";
  if (changed(*v_, uploaded.v)) return "v";
  for (std::size_t i = 0; i < floats_.size(); ++i) {
    const std::vector<float>& expected = uploaded.*kFloats[i].values;
    std::vector<float> now(expected.size());
    if (!now.empty()) device_->download(now.data(), at(*floats_[i]), now.size() * sizeof(float));
    if (std::memcmp(now.data(), expected.data(), now.size() * sizeof(float)) != 0) return kFloats[i].name;
  }
  for (std::size_t i = 0; i < int32s_.size(); ++i) {
    if (!int32s_[i]) continue;
    const std::vector<std::int32_t> expected = kInt32s[i].values(problem_, uploaded);
    std::vector<std::int32_t> now(expected.size());
    device_->download(now.data(), at(*int32s_[i]), now.size() * sizeof(std::int32_t));
    if (now != expected) return kInt32s[i].name;
  }
  for (std::size_t t = 0; t < uploaded.tensors.size(); ++t) {
    std::vector<std::byte> now(uploaded.tensors[t].data.size());
    device_->download(now.data(), at(*tensors_[t]), now.size());
    if (now != uploaded.tensors[t].data) return problem_.tensors[t].name;
  }
  return std::nullopt;
}

}  // namespace flashcore
