#pragma once
// A call of fc_quantize with drawn tensors, and what it comes to by a plain formula.

#include <cstring>
#include <span>

#include "c_api.h"

namespace api_test {

using flashcore::Quantize;

// --- numbers ---

inline float half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float magnitude = exponent == 31  ? mantissa ? NAN : INFINITY
                          : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                          : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}
inline float bf16_value(std::uint16_t bits) {
  const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16;
  float value = 0;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

// A code's magnitude by its seven lower bits; infinity and NaN behind the finite ones.
inline float magnitude_of(fc_dtype type, int code) {
  const int mantissa = type == FC_E4M3 ? 3 : 2, bias = type == FC_E4M3 ? 7 : 15;
  const int exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
  return std::ldexp(static_cast<float>(fraction + (exponent ? 1 << mantissa : 0)),
                    std::max(exponent, 1) - bias - mantissa);
}
inline int largest_code(fc_dtype type) { return type == FC_E4M3 ? 0x7e : 0x7b; }

// The nearest, ties to the even code; saturates.
inline int code_of(fc_dtype type, float value) {
  if (std::isnan(value)) return 0x7f;
  const int sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::fabs(value);
  int low = 0;
  while (low < largest_code(type) && magnitude_of(type, low + 1) <= magnitude) ++low;
  if (low == largest_code(type)) return sign | low;
  const double below = double{magnitude} - magnitude_of(type, low),
               above = double{magnitude_of(type, low + 1)} - magnitude;
  return sign | (above < below || (above == below && low % 2 == 1) ? low + 1 : low);
}

// --- a call ---

struct QuantiseCase {
  const char* name;
  fc_dtype dtype = FC_FP16, code = FC_E4M3;
  std::int64_t batch = 2, heads_q = 4, heads_kv = 2, seqlen_q = 9, seqlen_kv = 17, dim = 32, dim_v = 32;
  bool by_head = false, smooths = false, rotates = false, transposes = false;
  bool by_row = false;      // factors of q and k; those of v are by head then
  bool rows_first = false;  // [batch, seqlen, heads, dim]
  std::int64_t gap = 0;     // elements between rows, of inputs and of codes
  std::int64_t shift = 0;   // elements before the first one
  std::uint64_t seed = 7;
};

// [batch, heads, rows, columns] in memory.
struct QuantiseLayout {
  std::int64_t batch, heads, rows, columns;
  fc_strides strides;
  std::int64_t span;
  QuantiseLayout(const QuantiseCase& c, std::int64_t h, std::int64_t r, std::int64_t d)
      : batch(c.batch), heads(h), rows(r), columns(d) {
    const std::int64_t row = d + c.gap;
    strides = c.rows_first ? fc_strides{h * r * row, row, h * row} : fc_strides{h * r * row, r * row, row};
    span = batch * heads * rows * row + c.shift;
  }
  std::int64_t at(std::int64_t b, std::int64_t h, std::int64_t r) const {
    return b * strides.batch + h * strides.head + r * strides.row;
  }
};

struct QuantiseTensor {
  QuantiseLayout layout;
  std::vector<std::uint8_t> bytes;
  std::vector<float> values;  // [batch, heads, rows, columns]
};

class QuantiseCall {
 public:
  explicit QuantiseCall(const QuantiseCase& given)
      : c(given),
        q(draw(1, c.heads_q, c.seqlen_q, c.dim)),
        k(draw(2, c.heads_kv, c.seqlen_kv, c.dim)),
        v(draw(3, c.heads_kv, c.seqlen_kv, c.dim_v)) {}

  const QuantiseCase c;
  QuantiseTensor q, k, v;

  // Element [b, h, r, column] becomes that of these bits, in a type of 32 or 16 bits.
  void set(QuantiseTensor& t, std::int64_t number, std::uint32_t bits) {
    const QuantiseLayout& l = t.layout;
    const std::int64_t column = number % l.columns, row = number / l.columns;
    const std::int64_t r = row % l.rows, h = row / l.rows % l.heads, b = row / l.rows / l.heads;
    const std::int64_t item = c.dtype == FC_FP32 ? 4 : 2;
    std::memcpy(t.bytes.data() + (c.shift + l.at(b, h, r) + column) * item, &bits, static_cast<std::size_t>(item));
    float value = 0;
    if (c.dtype == FC_FP32) std::memcpy(&value, &bits, sizeof value);
    else
      value = c.dtype == FC_FP16 ? half_value(static_cast<std::uint16_t>(bits))
                                 : bf16_value(static_cast<std::uint16_t>(bits));
    t.values[static_cast<std::size_t>(number)] = value;
  }

  // Runs it, and compares all that was written with the formula.
  void expect_right(const Context& device, const char* where) {
    SCOPED_TRACE(std::string(c.name) + " on " + where);
    const std::int64_t of_heads = c.by_head || c.by_row ? c.batch * c.heads_kv : 1;
    const auto groups = [&](std::int64_t rows) { return c.by_row ? c.batch * rows : of_heads; };
    const auto upload = [&](const std::vector<std::uint8_t>& bytes) {
      return Memory<std::uint8_t>(device, std::span<const std::uint8_t>(bytes));
    };
    const Memory<std::uint8_t> q_in = upload(q.bytes), k_in = upload(k.bytes), v_in = upload(v.bytes);
    const QuantiseLayout v_layout = layout_of_codes_of_v();
    const auto codes = [&](const QuantiseLayout& l) {
      return upload(std::vector<std::uint8_t>(static_cast<std::size_t>(l.span), kUntouched));
    };
    const Memory<std::uint8_t> q_out = codes(q.layout), k_out = codes(k.layout), v_out = codes(v_layout);
    const auto floats = [&](std::int64_t count) { return Memory<float>(device, static_cast<std::size_t>(count)); };
    const Memory<float> by_q = floats(groups(c.heads_q * c.seqlen_q)), by_k = floats(groups(c.heads_kv * c.seqlen_kv)),
                        by_v = floats(of_heads);
    const Memory<float> mean = floats(std::max<std::int64_t>(1, c.batch * c.heads_kv * c.dim));
    fc_quantize_operands o = FC_QUANTIZE_OPERANDS_INIT;
    o.scaling = c.by_row ? FC_SCALING_TOKEN : c.by_head ? FC_SCALING_HEAD : FC_SCALING_TENSOR;
    o.batch = c.batch, o.heads_q = c.heads_q, o.heads_kv = c.heads_kv;
    o.seqlen_q = c.seqlen_q, o.seqlen_kv = c.seqlen_kv, o.head_dim = c.dim, o.head_dim_v = c.dim_v;
    const std::int64_t item = c.dtype == FC_FP32 ? 4 : 2;
    o.q = q_in.data() + c.shift * item, o.k = k_in.data() + c.shift * item, o.v = v_in.data() + c.shift * item;
    o.q_strides = q.layout.strides, o.k_strides = k.layout.strides, o.v_strides = v.layout.strides;
    o.q_codes = q_out.data() + c.shift, o.k_codes = k_out.data() + c.shift;
    o.v_codes = v_out.data() + (c.transposes ? 0 : c.shift);
    o.q_codes_strides = q.layout.strides, o.k_codes_strides = k.layout.strides, o.v_codes_strides = v_layout.strides;
    o.descale_q = by_q.data(), o.descale_k = by_k.data(), o.descale_v = by_v.data();
    o.k_mean = c.smooths ? mean.data() : nullptr;
    o.hadamard = c.rotates, o.v_layout = c.transposes ? FC_V_DN : FC_V_ND, o.seed = c.seed;
    const Quantize quantize(device, c.dtype, c.code);
    std::vector<float> means(mean.size(), 0);
    for (int launch = 0; launch < 2; ++launch) {  // the second finds the counters as the first left them
      quantize.launch(o);
      device.synchronize();
      if (c.smooths && c.seqlen_kv > 0) {
        mean.download(means);
        expect_means(means);
      }
      expect_tensor(q, q.layout, q_out, by_q, nullptr, c.rotates, c.heads_q / c.heads_kv, "q");
      expect_tensor(k, k.layout, k_out, by_k, c.smooths && c.seqlen_kv > 0 ? &means : nullptr, c.rotates, 1, "k");
      expect_tensor(v, v_layout, v_out, by_v, nullptr, false, 1, "v");
    }
  }

 private:
  static constexpr std::uint8_t kUntouched = 0xcc;

  QuantiseTensor draw(unsigned seed, std::int64_t heads, std::int64_t rows, std::int64_t columns) {
    const QuantiseLayout layout(c, heads, rows, columns);
    const std::int64_t item = c.dtype == FC_FP32 ? 4 : 2, count = c.batch * heads * rows * columns;
    QuantiseTensor made{layout, std::vector<std::uint8_t>(static_cast<std::size_t>(layout.span * item), 0x7f),
                        std::vector<float>(static_cast<std::size_t>(count))};
    std::mt19937 random(seed);
    for (std::int64_t i = 0; i < count; ++i) {
      // A sign, an exponent from -6 to 1, a mantissa.
      const std::uint32_t sign = random() % 2, exponent = random() % 8, mantissa = random();
      set(made, i,
          c.dtype == FC_FP32   ? sign << 31 | (121 + exponent) << 23 | (mantissa & 0x7fffff)
          : c.dtype == FC_FP16 ? sign << 15 | (9 + exponent) << 10 | (mantissa & 0x3ff)
                               : sign << 15 | (121 + exponent) << 7 | (mantissa & 0x7f));
    }
    return made;
  }

  QuantiseLayout layout_of_codes_of_v() const {
    if (!c.transposes) return v.layout;
    QuantiseLayout l = v.layout;
    const std::int64_t row = (c.seqlen_kv + 15) / 16 * 16 + 16;
    l.strides = {c.heads_kv * c.dim_v * row, c.dim_v * row, row}, l.span = c.batch * c.heads_kv * c.dim_v * row;
    return l;
  }

  void expect_means(const std::vector<float>& means) const {
    for (std::int64_t slab = 0; slab < c.batch * c.heads_kv; ++slab)
      for (std::int64_t d = 0; d < c.dim; ++d) {
        double sum = 0;
        for (std::int64_t key = 0; key < c.seqlen_kv; ++key)
          sum += k.values[static_cast<std::size_t>((slab * c.seqlen_kv + key) * c.dim + d)];
        const auto wanted = static_cast<float>(sum / static_cast<double>(c.seqlen_kv));
        const float got = means[static_cast<std::size_t>(slab * c.dim + d)];
        if (std::isfinite(wanted)) ASSERT_LE(std::fabs(got - wanted), std::fabs(wanted) * 0x1p-23f) << slab << " " << d;
        else ASSERT_EQ(std::isnan(got), std::isnan(wanted));
      }
  }

  std::vector<float> signs() const {
    std::vector<float> all;
    std::uint64_t state = c.seed;
    for (std::int64_t d = 0; d < c.dim; ++d) {
      state += 0x9E3779B97F4A7C15u;
      std::uint64_t z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
      all.push_back((z ^ (z >> 31)) & 1 ? 1.0f : -1.0f);
    }
    return all;
  }

  // In fp32, size by size.
  void rotate(float* row, const std::vector<float>& by) const {
    for (std::int64_t d = 0; d < c.dim; ++d) row[d] *= by[static_cast<std::size_t>(d)];
    for (std::int64_t size = 1; size < c.dim; size *= 2)
      for (std::int64_t d = 0; d < c.dim; ++d)
        if (!(d & size)) {
          const float a = row[d], b = row[d + size];
          row[d] = a + b, row[d + size] = a - b;
        }
    for (std::int64_t d = 0; d < c.dim; ++d) row[d] *= static_cast<float>(1 / std::sqrt(static_cast<double>(c.dim)));
  }

  void expect_tensor(const QuantiseTensor& t, const QuantiseLayout& to, const Memory<std::uint8_t>& out,
                     const Memory<float>& by, const std::vector<float>* means, bool rotated, std::int64_t group_heads,
                     const char* name) const {
    SCOPED_TRACE(name);
    const QuantiseLayout& l = t.layout;
    std::vector<float> values = t.values, factors(by.size());
    std::vector<std::uint8_t> codes(out.size());
    by.download(factors);
    out.download(codes);
    const std::vector<float> random_signs = rotated ? signs() : std::vector<float>();
    std::vector<float> largest(factors.size(), 0);
    const auto group_of = [&](std::int64_t row) {
      const std::int64_t slab = row / std::max<std::int64_t>(l.rows, 1);
      if (c.by_row && name[0] != 'v') return static_cast<std::size_t>(row);
      return static_cast<std::size_t>(c.by_head || c.by_row ? slab / group_heads : 0);
    };
    const std::int64_t rows = l.batch * l.heads * l.rows;
    for (std::int64_t row = 0; row < rows; ++row) {
      float* x = values.data() + row * l.columns;
      for (std::int64_t d = 0; means && d < l.columns; ++d)
        x[d] -= (*means)[static_cast<std::size_t>(row / l.rows * l.columns + d)];
      if (rotated) rotate(x, random_signs);
      for (std::int64_t d = 0; d < l.columns; ++d)
        if (std::isfinite(x[d])) largest[group_of(row)] = std::max(largest[group_of(row)], std::fabs(x[d]));
    }
    for (std::size_t i = 0; i < factors.size(); ++i)
      ASSERT_EQ(factors[i],
                largest[i] > 0 ? std::max(largest[i] / magnitude_of(c.code, largest_code(c.code)), 0x1p-126f) : 1)
          << i;
    const bool columns_first = c.transposes && name[0] == 'v';
    const std::int64_t first = columns_first ? 0 : c.shift;
    std::vector<std::uint8_t> wanted(codes.size(), kUntouched);
    for (std::int64_t b = 0; b < l.batch; ++b)
      for (std::int64_t h = 0; h < l.heads; ++h)
        for (std::int64_t d = 0; d < l.columns; ++d) {
          for (std::int64_t r = 0; r < l.rows; ++r) {
            const std::int64_t row = (b * l.heads + h) * l.rows + r;
            const float value = values[static_cast<std::size_t>(row * l.columns + d)] / factors[group_of(row)];
            const std::int64_t at = columns_first ? to.at(b, h, d) + r : to.at(b, h, r) + d;
            wanted[static_cast<std::size_t>(first + at)] = static_cast<std::uint8_t>(code_of(c.code, value));
          }
          for (std::int64_t r = l.rows; columns_first && r < (l.rows + 15) / 16 * 16; ++r)
            wanted[static_cast<std::size_t>(to.at(b, h, d) + r)] = 0;
        }
    for (std::size_t i = 0; i < codes.size(); ++i) ASSERT_EQ(int{codes[i]}, int{wanted[i]}) << "byte " << i;
  }
};

}  // namespace api_test
