#include "core/problem.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore {
namespace {

constexpr std::int64_t kMaxRows = (std::int64_t{1} << 31) - 1;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;
constexpr std::int64_t kMaxHeadDim = 1024;
constexpr double kMinScale = 1e-6, kMaxScale = 1e6;
constexpr std::string_view kIdForm =
    "b<batch>_h<heads>[_hk<kv heads>]_(s<len> | sq<q len>_sk<kv len>)_d<head dim>[_dv<v head dim>]_<fp32|fp16|bf16>"
    "[_causal|_causaltl][_wl<keys to the left>][_wr<keys to the right>][_tl][_bshd|_strided][_scale<number>], for "
    "example "
    "b1_h32_hk8_s4096_d128_bf16_causal";

// Reads an id token by token, in the one order that id() writes.
class IdReader {
 public:
  explicit IdReader(std::string_view id) : id_(id), rest_(id) { next(); }

  // The token `prefix` + digits, if it is next.
  std::optional<std::int64_t> number(std::string_view prefix) {
    if (!token_.starts_with(prefix)) return std::nullopt;
    const std::string_view digits = token_.substr(prefix.size());
    if (digits.empty() || !std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; })) {
      return std::nullopt;
    }
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc()) fail(fmt::format("the number in '{}' is too large", excerpt(token_)));
    next();
    return value;
  }
  std::int64_t need_number(std::string_view prefix) {
    if (const auto value = number(prefix)) return *value;
    fail(token_.empty() ? fmt::format("'{}<number>' is missing at the end", prefix)
                        : fmt::format("'{}<number>' was expected where '{}' stands", prefix, excerpt(token_)));
  }
  bool word(std::string_view expected) {
    if (token_ != expected) return false;
    next();
    return true;
  }
  std::string_view take() {
    const std::string_view taken = token_;
    next();
    return taken;
  }
  std::string_view token() const { return token_; }
  bool at_end() const { return ended_; }
  [[noreturn]] void fail(const std::string& reason) const {
    throw_bad_input("problem id '{}' cannot be read: {}; the form is {}", excerpt(id_), reason, kIdForm);
  }

 private:
  void next() {
    ended_ = rest_.data() == nullptr;
    const std::size_t end = rest_.find('_');
    token_ = rest_.substr(0, end);
    rest_ = end == std::string_view::npos ? std::string_view() : rest_.substr(end + 1);
  }
  std::string_view id_, rest_, token_;
  bool ended_ = false;  // an empty token alone may also be one of two '_' in a row
};

void check_range(std::string_view field, std::int64_t value, std::int64_t lowest, std::int64_t highest) {
  if (value < lowest || value > highest) {
    throw_bad_input("{} is {}, which is not allowed; use a value from {} to {}", field, value, lowest, highest);
  }
}

// Factors are each at most 2^31-1, but three of them can pass 2^63: stop at the limit instead of overflowing.
void check_tensor(std::string_view tensor, std::int64_t batch, std::int64_t heads, std::int64_t seqlen,
                  std::int64_t columns) {
  const auto exceeds = [](std::int64_t a, std::int64_t b, std::int64_t limit) { return b != 0 && a > limit / b; };
  if (exceeds(batch, heads, kMaxRows) || exceeds(batch * heads, seqlen, kMaxRows)) {
    throw_bad_input(
        "{} has batch {} x heads {} x length {} rows; at most {} are allowed: use a smaller batch or length", tensor,
        batch, heads, seqlen, kMaxRows);
  }
  if (exceeds(batch * heads * seqlen, columns, kMaxElements)) {
    throw_bad_input("{} has batch {} x heads {} x length {} x head dim {} elements; at most 2^40 are allowed", tensor,
                    batch, heads, seqlen, columns);
  }
}

}  // namespace

std::string_view to_string(Alignment alignment) {
  switch (alignment) {
    case Alignment::kBottomRight: return "bottom_right";
    case Alignment::kTopLeft: return "top_left";
  }
  throw_internal("unknown alignment {}", static_cast<int>(alignment));
}

std::string_view to_string(Layout layout) {
  switch (layout) {
    case Layout::kBhsd: return "bhsd";
    case Layout::kBshd: return "bshd";
    case Layout::kStrided: return "strided";
  }
  throw_internal("unknown layout {}", static_cast<int>(layout));
}

Layout parse_layout(std::string_view name) {
  for (const Layout layout : {Layout::kBhsd, Layout::kBshd, Layout::kStrided}) {
    if (name == to_string(layout)) return layout;
  }
  throw_bad_input("layout '{}' is not known; use bhsd, bshd or strided", excerpt(name));
}

double Problem::softmax_scale() const { return scale ? *scale : 1.0 / std::sqrt(static_cast<double>(head_dim)); }

Band<std::int64_t> Problem::band() const {
  const std::int64_t diagonal = mask.alignment == Alignment::kBottomRight ? seqlen_kv - seqlen_q : 0;
  Band<std::int64_t> band{seqlen_kv, false, false, 0, 0};
  // The last row's window begins last, the first row's ends first.
  if (mask.left && seqlen_q - 1 + diagonal - *mask.left > 0) {
    band.bounded_left = true;
    band.left_offset = diagonal - *mask.left;
  }
  if (mask.right && (mask.is_causal() || diagonal + *mask.right + 1 < seqlen_kv)) {
    band.bounded_right = true;
    band.right_offset = diagonal + *mask.right;
  }
  return band;
}

KeyRange<std::int64_t> Problem::keys_read() const {
  if (seqlen_q == 0) return {0, 0};
  return band().keys_of_any(0, seqlen_q - 1);
}

std::int64_t Problem::unmasked_pairs() const {
  // Each row sees clamp(row + right + 1) - clamp(row + left) keys, with clamp to 0..seqlen_kv: two sums of the same
  // form. Both lengths are below 2^31, so their product fits.
  const auto sum_of_ends = [this](std::int64_t offset) {
    const std::int64_t first = std::clamp<std::int64_t>(-offset, 0, seqlen_q);                // the first row above 0
    const std::int64_t full = std::clamp<std::int64_t>(seqlen_kv - offset, first, seqlen_q);  // from here on seqlen_kv
    const std::int64_t rising = full - first;
    return rising * (first + offset) + rising * (rising - 1) / 2 + (seqlen_q - full) * seqlen_kv;
  };
  const Band<std::int64_t> visible = band();
  const std::int64_t ends = visible.bounded_right ? sum_of_ends(visible.right_offset + 1) : seqlen_q * seqlen_kv;
  return ends - (visible.bounded_left ? sum_of_ends(visible.left_offset) : 0);
}

double Problem::flops() const {
  return 2.0 * static_cast<double>(head_dim + head_dim_v) * static_cast<double>(unmasked_pairs()) *
         static_cast<double>(batch) * static_cast<double>(heads_q);
}

double Problem::bytes() const {
  const Band<std::int64_t> visible = band();
  const std::int64_t keys = keys_read().size();
  // A row that sees none needs no q: those before the band reaches the first key and those after it left the last.
  const std::int64_t before = visible.bounded_right ? std::max<std::int64_t>(0, -visible.right_offset) : 0;
  const std::int64_t after =
      visible.bounded_left ? std::max<std::int64_t>(0, seqlen_q - (seqlen_kv - visible.left_offset)) : 0;
  const std::int64_t masked_rows = keys == 0 ? seqlen_q : before + after;
  const double q_rows = static_cast<double>(batch * heads_q) * static_cast<double>(seqlen_q - masked_rows);
  const double o_rows = static_cast<double>(batch * heads_q) * static_cast<double>(seqlen_q);
  const double kv_rows = static_cast<double>(batch * heads_kv) * static_cast<double>(keys);
  const double element = static_cast<double>(size_of(dtype));
  const double elements = q_rows * static_cast<double>(head_dim) +
                          kv_rows * static_cast<double>(head_dim + head_dim_v) +
                          o_rows * static_cast<double>(head_dim_v);
  return elements * element + o_rows * 4.0;
}

bool Problem::is_decode() const {
  return seqlen_q > 0 && seqlen_q * group_size() <= 64 && keys_read().size() >= 8 * seqlen_q;
}

std::string Problem::id() const {
  std::string id = fmt::format("b{}_h{}", batch, heads_q);
  if (heads_kv != heads_q) id += fmt::format("_hk{}", heads_kv);
  id += seqlen_q == seqlen_kv ? fmt::format("_s{}", seqlen_q) : fmt::format("_sq{}_sk{}", seqlen_q, seqlen_kv);
  id += fmt::format("_d{}", head_dim);
  if (head_dim_v != head_dim) id += fmt::format("_dv{}", head_dim_v);
  id += fmt::format("_{}", to_string(dtype));
  const bool top_left = mask.alignment == Alignment::kTopLeft;
  if (mask.is_causal()) id += top_left ? "_causaltl" : "_causal";
  if (mask.left) id += fmt::format("_wl{}", *mask.left);
  if (mask.right && !mask.is_causal()) id += fmt::format("_wr{}", *mask.right);
  if (top_left && !mask.is_causal()) id += "_tl";
  if (layout != Layout::kBhsd) id += fmt::format("_{}", to_string(layout));
  if (scale) id += fmt::format("_scale{}", *scale);
  return id;
}

Problem Problem::parse(std::string_view id) {
  IdReader reader(id);
  Problem p;
  p.batch = reader.need_number("b");
  p.heads_q = reader.need_number("h");
  p.heads_kv = reader.number("hk").value_or(p.heads_q);
  if (const auto both = reader.number("s")) {
    p.seqlen_q = p.seqlen_kv = *both;
  } else {
    p.seqlen_q = reader.need_number("sq");
    p.seqlen_kv = reader.need_number("sk");
  }
  p.head_dim = reader.need_number("d");
  p.head_dim_v = reader.number("dv").value_or(p.head_dim);
  const std::string_view dtype = reader.take();
  if (dtype != "fp32" && dtype != "fp16" && dtype != "bf16") {
    reader.fail(fmt::format("the dtype is '{}', which is not fp32, fp16 or bf16", excerpt(dtype)));
  }
  p.dtype = parse_dtype(dtype);
  if (reader.word("causal")) p.mask = Mask::causal();
  else if (reader.word("causaltl")) p.mask = Mask::causal(Alignment::kTopLeft);
  p.mask.left = reader.number("wl");
  if (!p.mask.right) {
    p.mask.right = reader.number("wr");
    if (reader.word("tl")) p.mask.alignment = Alignment::kTopLeft;
  }
  if (reader.word("bshd")) p.layout = Layout::kBshd;
  else if (reader.word("strided")) p.layout = Layout::kStrided;
  if (reader.token().starts_with("scale")) {
    const std::string_view number = reader.take().substr(5);
    double value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    if (error != std::errc() || end != number.data() + number.size()) {
      reader.fail(fmt::format("the scale '{}' is not a number", excerpt(number)));
    }
    p.scale = value;
  }
  if (!reader.at_end()) reader.fail(fmt::format("'{}' is left over", excerpt(reader.token())));
  p.validate();
  return p;
}

void Problem::validate() const {
  check_range("batch", batch, 1, kMaxRows);
  check_range("heads_q", heads_q, 1, kMaxRows);
  check_range("heads_kv", heads_kv, 1, kMaxRows);
  check_range("seqlen_q", seqlen_q, 0, kMaxRows);
  check_range("seqlen_kv", seqlen_kv, 0, kMaxRows);
  check_range("head_dim", head_dim, 1, kMaxHeadDim);
  check_range("head_dim_v", head_dim_v, 1, kMaxHeadDim);
  if (heads_q % heads_kv != 0) {
    throw_bad_input("heads_kv is {}, which does not divide heads_q = {}; use a divisor of {} (grouped-query attention)",
                    heads_kv, heads_q, heads_q);
  }
  if (scale && !(*scale >= kMinScale && *scale <= kMaxScale)) {
    throw_bad_input(
        "scale is {}, which is not allowed; use a number from {} to {}, or leave it out for 1/sqrt(head_dim)", *scale,
        kMinScale, kMaxScale);
  }
  if (mask.left) check_range("the window's left side", *mask.left, 0, kMaxRows);
  if (mask.right) check_range("the window's right side", *mask.right, 0, kMaxRows);
  if (mask.none() && mask.alignment != Alignment::kBottomRight)
    throw_bad_input("the mask is aligned top-left and bounds nothing; give a window or causal, or leave it out");
  // kStrided rows carry 8 unused elements.
  const std::int64_t gap = layout == Layout::kStrided ? 8 : 0;
  check_tensor("q", batch, heads_q, seqlen_q, head_dim + gap);
  check_tensor("k", batch, heads_kv, seqlen_kv, head_dim + gap);
  check_tensor("v", batch, heads_kv, seqlen_kv, head_dim_v + gap);
  check_tensor("o", batch, heads_q, seqlen_q, head_dim_v + gap);
}

}  // namespace flashcore
