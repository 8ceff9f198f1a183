// The C++ interface over flashcore.h: handles that close themselves, exceptions instead of status codes, spans instead
// of pointer and length. C++20, header only; link flashcore::flashcore.
//
//   flashcore::Context cpu("cpu");
//   flashcore::Plan plan(cpu, {.dtype = FC_FP32, .heads_q = 8, .heads_kv = 8, .seqlen_q = 64, .seqlen_kv = 64});
//   plan.run<float>(q, k, v, o);               // spans of host memory, on the CPU
//   plan.launch(q, k, v, o, lse, stream);      // addresses on the device
#ifndef FLASHCORE_FLASHCORE_HPP
#define FLASHCORE_FLASHCORE_HPP

// The #else holds all of the file: an older compiler is to say this one sentence, not a hundred errors.
#if (defined(_MSVC_LANG) ? _MSVC_LANG : __cplusplus) <= 201703L
#error "flashcore.hpp needs C++20: compile with -std=c++20 (CMake: cxx_std_20), or include the C header flashcore.h"
#else

#include <flashcore/flashcore.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace flashcore {

/// What every function throws: the sentence of fc_last_error(), and who has to act.
class Error : public std::runtime_error {
 public:
  Error(fc_status status, const char* message) : std::runtime_error(message), status_(status) {}
  fc_status status() const noexcept { return status_; }

 private:
  fc_status status_;
};

namespace detail {

inline void check(fc_status status) {
  if (status != FC_OK) throw Error(status, fc_last_error());
}

// As much text as the library has; `ask` is called once for the length and once for the text.
template <class Ask>
std::string text_of(Ask&& ask) {
  std::string text;
  for (std::size_t needed = 1; needed > text.size();) {  // what is said may grow meanwhile
    text.resize(needed);
    check(ask(text.data(), text.size(), &needed));
    if (needed <= text.size()) text.resize(needed - 1), needed = 0;
  }
  return text;
}

// Why spans of T cannot be tensors of such a dtype; none if they can. 16-bit elements are any type of two bytes that
// does not say it is another: std::uint16_t (the bits), _Float16, __half, a class of the caller's.
template <class T>
constexpr const char* why_not_element(fc_dtype dtype) {
  using Limits = std::numeric_limits<T>;
  if (dtype == FC_E4M3 || dtype == FC_E5M2)
    return "the plan's dtype has 8 bits, with o of another type and factors: use launch_scaled() with addresses";
  if (dtype == FC_FP32)
    return std::is_same_v<T, float> ? nullptr : "the plan's dtype is fp32, so that spans are of float: run<float>";
  if (sizeof(T) != 2 || !std::is_trivially_copyable_v<T>)
    return "the plan's dtype has 16 bits, so that spans are of a type of two bytes: std::uint16_t (the bits), "
           "_Float16, ...";
  if (std::is_integral_v<T> && !std::is_same_v<T, std::uint16_t>)
    return "of integers, only std::uint16_t holds the bits of 16-bit elements";
  constexpr int kDigits[] = {24, 11, 8};
  if (Limits::is_specialized && !Limits::is_integer && Limits::digits != kDigits[dtype])
    return dtype == FC_FP16 ? "the plan's dtype is fp16, and the spans' element type is another one of 16 bits"
                            : "the plan's dtype is bf16, and the spans' element type is another one of 16 bits";
  return nullptr;
}

template <class Handle, fc_status (*Close)(Handle)>
class Owner {
 public:
  Owner() = default;
  explicit Owner(Handle handle) : handle_(handle) {}
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owner() {
    if (handle_) Close(handle_);
  }
  Handle get() const noexcept { return handle_; }

 private:
  Handle handle_ = nullptr;
};

}  // namespace detail

/// "0.1.0": of the library that is loaded, which may be newer than this header.
inline std::string version() { return fc_version(); }

/// A tensor that a score or mask function names; see fc_tensor. Of its sizes there are as many as it takes indices.
struct Tensor {
  std::string name;
  fc_element element = FC_ELEMENT_FLOAT;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides = {};  ///< elements; 0 repeats an element; empty: contiguous
};

/// What to compute; see fc_attention for shapes. Strides are in elements; a tensor without any is contiguous, and
/// strides of 0 repeat the same elements (inputs only).
struct Attention {
  fc_dtype dtype = FC_FP16;
  std::int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim = 64;
  std::optional<std::int64_t> head_dim_v = {};  ///< head_dim if not given
  fc_causal causal = FC_CAUSAL_NONE;
  std::optional<double> scale = {};  ///< 1/sqrt(head_dim) if not given
  std::optional<fc_strides> q_strides = {}, k_strides = {}, v_strides = {}, o_strides = {};
  int alignment = 16;          ///< bytes that every address will be a multiple of
  std::string candidate = {};  ///< empty: flashcore chooses
  /// Keys that a row sees to the left and right of its own one; none: no bound on that side.
  std::optional<std::int64_t> window_left = {}, window_right = {};
  fc_alignment window_alignment = FC_ALIGN_BOTTOM_RIGHT;
  std::optional<fc_dtype> kv_dtype = {};  ///< of a quantised cache, beside q of 16 or 32 bits
  std::optional<fc_dtype> o_dtype = {};   ///< of 8-bit q, k and v: FC_BF16 if not given
  fc_scaling scaling = FC_SCALING_USUAL;
  fc_v_layout v_layout = FC_V_ND;      ///< of 8-bit v; see fc_attention for the strides of FC_V_DN
  std::optional<double> softcap = {};  ///< none if not given
  fc_alibi alibi = FC_ALIBI_NONE;      ///< slopes are given to launch(const fc_operands&)
  fc_sink sink = FC_SINK_NONE;         ///< and so are sinks
  fc_amax amax = FC_AMAX_NONE;         ///< of 8-bit q: launch(const fc_operands&) is given where to write
  /// FC_LENGTHS_FULL: a ragged batch of `batch` sequences, whose tensors have these many rows; see fc_attention.
  fc_lengths lengths = FC_LENGTHS_FIXED;
  std::int64_t total_q = 0, total_kv = 0;
  bool deterministic_batch = false;  ///< a row's bits are the same in every batch; see fc_attention
  /// Of a ragged batch with a paged cache: keys in a page, pages of the pool, columns of the block table and the
  /// distance of its rows (0: max_pages). The table is given to launch(const fc_operands&); see fc_attention.
  std::int64_t page_size = 0, pages = 0, max_pages = 0, table_stride = 0;
  /// Functions of your own, "s + bias[h, i, j]" and "j <= i"; empty: none. Their tensors' addresses are given to
  /// launch(const fc_operands&), in this order.
  std::string score = {}, mask = {};
  std::vector<Tensor> tensors = {};

  std::int64_t columns_v() const { return head_dim_v.value_or(head_dim); }

  /// Error for a tensor with more than four sizes, or whose strides are not as many.
  std::vector<fc_tensor> c_tensors() const {
    std::vector<fc_tensor> all;
    for (const Tensor& tensor : tensors) {
      fc_tensor c = {tensor.name.c_str(), tensor.element, static_cast<std::int32_t>(tensor.sizes.size()), {}, {}};
      if (tensor.sizes.size() > 4 || (!tensor.strides.empty() && tensor.strides.size() != tensor.sizes.size()))
        throw Error(FC_ERROR_BAD_INPUT,
                    ("the tensor '" + tensor.name + "' has " + std::to_string(tensor.sizes.size()) + " sizes and " +
                     std::to_string(tensor.strides.size()) + " strides; give at most four, and as many strides or none")
                        .c_str());
      std::int64_t contiguous = 1;
      for (std::size_t x = tensor.sizes.size(); x-- > 0; contiguous *= tensor.sizes[x]) {
        c.sizes[x] = tensor.sizes[x];
        c.strides[x] = tensor.strides.empty() ? contiguous : tensor.strides[x];
      }
      all.push_back(c);
    }
    return all;
  }

  /// `made` are this problem's c_tensors(), which must outlive what is returned.
  fc_attention c(const std::vector<fc_tensor>& made) const {
    fc_attention a = c();
    a.tensors = made.empty() ? nullptr : made.data();
    a.tensor_count = static_cast<std::int32_t>(made.size());
    return a;
  }

  fc_attention c() const {
    fc_attention a = FC_ATTENTION_INIT;
    a.dtype = dtype;
    a.batch = batch;
    a.heads_q = heads_q;
    a.heads_kv = heads_kv;
    a.seqlen_q = seqlen_q;
    a.seqlen_kv = seqlen_kv;
    a.head_dim = head_dim;
    a.head_dim_v = columns_v();
    a.causal = causal;
    a.alignment = alignment;
    const auto take = [&](auto& field, const auto& value, fc_given bit) {
      if (!value) return;
      field = *value;
      a.given |= static_cast<std::uint32_t>(bit);
    };
    take(a.scale, scale, FC_GIVEN_SCALE);
    take(a.q, q_strides, FC_GIVEN_Q_STRIDES);
    take(a.k, k_strides, FC_GIVEN_K_STRIDES);
    take(a.v, v_strides, FC_GIVEN_V_STRIDES);
    take(a.o, o_strides, FC_GIVEN_O_STRIDES);
    if (window_left || window_right) {
      a.window_left = window_left.value_or(-1);
      a.window_right = window_right.value_or(-1);
      a.given |= static_cast<std::uint32_t>(FC_GIVEN_WINDOW);
    }
    a.window_alignment = window_alignment;
    take(a.kv_dtype, kv_dtype, FC_GIVEN_KV_DTYPE);
    take(a.o_dtype, o_dtype, FC_GIVEN_O_DTYPE);
    a.scaling = scaling;
    a.v_layout = v_layout;
    take(a.softcap, softcap, FC_GIVEN_SOFTCAP);
    a.alibi = alibi;
    a.sink = sink;
    a.amax = amax;
    a.lengths = lengths;
    a.deterministic_batch = deterministic_batch ? 1 : 0;
    a.total_q = total_q;
    a.total_kv = total_kv;
    a.page_size = page_size;
    a.pages = pages;
    a.max_pages = max_pages;
    a.table_stride = table_stride;
    a.score = score.empty() ? nullptr : score.c_str();
    a.mask = mask.empty() ? nullptr : mask.c_str();
    if (!tensors.empty()) a.given |= static_cast<std::uint32_t>(FC_GIVEN_TENSOR_STRIDES);
    a.candidate = candidate.empty() ? nullptr : candidate.c_str();
    return a;
  }
};

/// One device: "cpu", "cuda", "cuda:1", "emulator", or "" for the best there is.
class Context {
 public:
  explicit Context(const std::string& device = "") {
    fc_context handle = nullptr;
    detail::check(fc_context_create(device.empty() ? nullptr : device.c_str(), &handle));
    owner_ = Handle(handle);
  }

  /// JSON; see fc_context_describe.
  std::string describe() const {
    return detail::text_of([&](char* buffer, std::size_t size, std::size_t* needed) {
      return fc_context_describe(get(), buffer, size, needed);
    });
  }
  /// Which kernel a plan would take and why, as JSON; see fc_explain.
  std::string explain(const Attention& problem) const {
    const std::vector<fc_tensor> tensors = problem.c_tensors();
    const fc_attention c = problem.c(tensors);
    return detail::text_of([&](char* buffer, std::size_t size, std::size_t* needed) {
      return fc_explain(get(), &c, buffer, size, needed);
    });
  }
  void synchronize(void* stream = nullptr) const { detail::check(fc_context_synchronize(get(), stream)); }
  fc_context get() const noexcept { return owner_.get(); }

 private:
  using Handle = detail::Owner<fc_context, fc_context_destroy>;
  Handle owner_;
};

/// Device memory of `size()` elements, for programs without a framework. Freed when dropped.
template <class T>
class Memory {
 public:
  Memory(const Context& context, std::size_t size) : context_(context.get()), size_(size) {
    void* address = nullptr;
    detail::check(fc_memory_allocate(context_, size * sizeof(T), &address));
    data_ = static_cast<T*>(address);
  }
  Memory(const Context& context, std::span<const T> host) : Memory(context, host.size()) { upload(host); }
  Memory(Memory&& other) noexcept
      : context_(other.context_), data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  Memory& operator=(Memory&&) = delete;
  ~Memory() {
    if (data_) fc_memory_free(context_, data_);
  }

  T* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  /// `host` is at most as long as this memory.
  void upload(std::span<const T> host) {
    require(host.size());
    detail::check(fc_memory_upload(context_, data_, host.data(), host.size_bytes()));
  }
  void download(std::span<T> host) const {
    require(host.size());
    detail::check(fc_memory_download(context_, host.data(), data_, host.size_bytes()));
  }

 private:
  void require(std::size_t elements) const {
    if (elements > size_) throw Error(FC_ERROR_BAD_INPUT, "the host span is longer than the device memory");
  }
  fc_context context_;
  T* data_ = nullptr;
  std::size_t size_;
};

/// A problem made ready on a device. Immutable; launch from any thread.
class Plan {
 public:
  Plan(const Context& context, const Attention& problem) : problem_(problem) {
    fc_plan handle = nullptr;
    const std::vector<fc_tensor> tensors = problem_.c_tensors();
    const fc_attention c = problem_.c(tensors);
    detail::check(fc_plan_create(context.get(), &c, &handle));
    owner_ = Handle(handle);
    on_cpu_ = context.describe().find("\"kind\":\"cpu\"") != std::string::npos;
  }

  /// Addresses on the device, in order on `stream` (a CUstream). lse may be null.
  void launch(const void* q, const void* k, const void* v, void* o, float* lse = nullptr,
              void* stream = nullptr) const {
    detail::check(fc_plan_launch(get(), q, k, v, o, lse, stream));
  }

  /// The same of 8-bit q, k and v with their factors; see fc_plan_launch_scaled.
  void launch_scaled(const void* q, const void* k, const void* v, void* o, const float* descale_q,
                     const float* descale_k, const float* descale_v, float* lse = nullptr,
                     void* stream = nullptr) const {
    detail::check(fc_plan_launch_scaled(get(), q, k, v, o, lse, descale_q, descale_k, descale_v, stream));
  }

  /// Every operand by its name; start from FC_OPERANDS_INIT. See fc_plan_launch_operands.
  void launch(const fc_operands& operands, void* stream = nullptr) const {
    detail::check(fc_plan_launch_operands(get(), &operands, stream));
  }

  /// On a CPU context: host tensors of T, float for FC_FP32 and a type of two bytes for the others. A contiguous
  /// tensor's length must be its number of elements; one with strides reaches at least to its last. `lse` may be empty.
  template <class T>
  void run(std::span<const T> q, std::span<const T> k, std::span<const T> v, std::span<T> o,
           std::span<float> lse = {}) const {
    const Attention& p = problem_;
    if (p.lengths != FC_LENGTHS_FIXED)
      throw Error(FC_ERROR_BAD_INPUT, "run() is for batches that are not ragged: use launch(const fc_operands&)");
    if (p.kv_dtype && *p.kv_dtype != p.dtype)
      throw Error(FC_ERROR_BAD_INPUT,
                  "run() takes k and v of q's type, and this plan's cache is quantised: use launch()");
    if (const char* why = detail::why_not_element<T>(p.dtype)) throw Error(FC_ERROR_BAD_INPUT, why);
    if (!on_cpu_)
      throw Error(FC_ERROR_BAD_INPUT, "run() takes host memory, and this plan is not of a CPU context: use launch()");
    require("q", q.size(), p.q_strides, p.heads_q, p.seqlen_q, p.head_dim);
    require("k", k.size(), p.k_strides, p.heads_kv, p.seqlen_kv, p.head_dim);
    require("v", v.size(), p.v_strides, p.heads_kv, p.seqlen_kv, p.columns_v());
    require("o", o.size(), p.o_strides, p.heads_q, p.seqlen_q, p.columns_v());
    if (!lse.empty()) require("lse", lse.size(), {}, p.heads_q, p.seqlen_q, 1);
    launch(q.data(), k.data(), v.data(), o.data(), lse.empty() ? nullptr : lse.data());
  }

  /// JSON; see fc_plan_describe.
  std::string describe() const {
    return detail::text_of([&](char* buffer, std::size_t size, std::size_t* needed) {
      return fc_plan_describe(get(), buffer, size, needed);
    });
  }
  /// JSON: which sequences of a ragged batch get NaN, and why; see fc_plan_status.
  std::string status(const fc_operands& operands, void* stream = nullptr) const {
    return detail::text_of([&](char* buffer, std::size_t size, std::size_t* needed) {
      return fc_plan_status(get(), &operands, stream, buffer, size, needed);
    });
  }
  const Attention& problem() const noexcept { return problem_; }
  fc_plan get() const noexcept { return owner_.get(); }

 private:
  // The plan was made, so the numbers are in range.
  void require(const char* name, std::size_t given, const std::optional<fc_strides>& strides, std::int64_t heads,
               std::int64_t rows, std::int64_t columns) const {
    const std::int64_t batch = problem_.batch;
    std::int64_t expected = batch * heads * rows * columns;
    if (strides && expected > 0) {
      const std::int64_t last[] = {(batch - 1) * strides->batch, (heads - 1) * strides->head,
                                   (rows - 1) * strides->row};
      if (last[0] < 0 || last[1] < 0 || last[2] < 0)
        throw Error(FC_ERROR_BAD_INPUT, (std::string(name) + " has a negative stride, which reaches before the span: "
                                                             "use launch() with the address of its first element")
                                            .c_str());
      expected = last[0] + last[1] + last[2] + columns;
    }
    if (strides ? given >= static_cast<std::size_t>(expected) : given == static_cast<std::size_t>(expected)) return;
    throw Error(FC_ERROR_BAD_INPUT,
                (std::string(name) + " has " + std::to_string(given) + " elements, and the plan's problem needs " +
                 (strides ? "at least " : "") + std::to_string(expected))
                    .c_str());
  }
  using Handle = detail::Owner<fc_plan, fc_plan_destroy>;
  Attention problem_;
  Handle owner_;
  bool on_cpu_ = false;
};

/// Lists of the blocks that a mask shows, made once and read by many launches: those with it in fc_operands.block_mask.
/// See fc_block_mask_create for what the caller promises, and which plans may share it.
class BlockMask {
 public:
  /// Makes the lists of `plan`, in order on `stream` (a CUstream); what `operands` must have is what the mask reads.
  BlockMask(const Plan& plan, const fc_operands& operands, void* stream = nullptr) {
    fc_block_mask handle = nullptr;
    detail::check(fc_block_mask_create(plan.get(), &operands, stream, &handle));
    owner_ = Handle(handle);
  }

  /// Makes them anew, in the same memory; may be captured into a graph.
  void update(const fc_operands& operands, void* stream = nullptr) const {
    detail::check(fc_block_mask_update(get(), &operands, stream));
  }

  fc_block_mask get() const noexcept { return owner_.get(); }

 private:
  using Handle = detail::Owner<fc_block_mask, fc_block_mask_destroy>;
  Handle owner_;
};

/// Writes new keys and values to a cache, and turns K and Q by rotary position embedding; see fc_append_operands for
/// shapes. One serves launches of any sizes, from any number of threads.
class Append {
 public:
  /// `rotary_dtype`: of cos and sin, FC_FP32, FC_FP16 or FC_BF16. `cache_dtype`: of a quantised cache, of which
  /// `counts_saturated` counts what saturates.
  Append(const Context& context, fc_dtype dtype, fc_rotary rotary = FC_ROTARY_NONE, fc_dtype rotary_dtype = FC_FP32,
         std::optional<fc_dtype> cache_dtype = {}, bool counts_saturated = false) {
    fc_append_kind kind = FC_APPEND_KIND_INIT;
    kind.dtype = dtype;
    kind.rotary = rotary;
    kind.rotary_dtype = rotary_dtype;
    if (cache_dtype) kind.cache_dtype = *cache_dtype;
    kind.counts_saturated = counts_saturated ? 1 : 0;
    fc_append handle = nullptr;
    detail::check(fc_append_create(context.get(), &kind, &handle));
    owner_ = Handle(handle);
  }

  /// In order on `stream` (a CUstream). Error before anything is written for what fc_append_launch refuses.
  void launch(const fc_append_operands& operands, void* stream = nullptr) const {
    detail::check(fc_append_launch(get(), &operands, stream));
  }

  fc_append get() const noexcept { return owner_.get(); }

 private:
  using Handle = detail::Owner<fc_append, fc_append_destroy>;
  Handle owner_;
};

/// Makes a block table and lengths of lists of pages, as FlashInfer has them; see fc_csr_operands. One serves launches
/// of any sizes, from any number of threads.
class Csr {
 public:
  explicit Csr(const Context& context) {
    fc_csr handle = nullptr;
    detail::check(fc_csr_create(context.get(), &handle));
    owner_ = Handle(handle);
  }

  /// In order on `stream` (a CUstream). Error before anything is written for what fc_csr_launch refuses.
  void launch(const fc_csr_operands& operands, void* stream = nullptr) const {
    detail::check(fc_csr_launch(get(), &operands, stream));
  }

  fc_csr get() const noexcept { return owner_.get(); }

 private:
  using Handle = detail::Owner<fc_csr, fc_csr_destroy>;
  Handle owner_;
};

/// Makes 8-bit floats of q, k and v, with their factors; see fc_quantize_operands for shapes. One serves launches of
/// any sizes, from any number of threads.
class Quantize {
 public:
  /// `dtype`: of q, k and v, FC_FP32, FC_FP16 or FC_BF16. `code_dtype`: FC_E4M3 or FC_E5M2.
  /// `counts_saturated`: what saturates is counted.
  Quantize(const Context& context, fc_dtype dtype, fc_dtype code_dtype = FC_E4M3, bool counts_saturated = false) {
    fc_quantize_kind kind = FC_QUANTIZE_KIND_INIT;
    kind.dtype = dtype;
    kind.code_dtype = code_dtype;
    kind.counts_saturated = counts_saturated ? 1 : 0;
    fc_quantize handle = nullptr;
    detail::check(fc_quantize_create(context.get(), &kind, &handle));
    owner_ = Handle(handle);
  }

  /// In order on `stream` (a CUstream). Error before anything is written for what fc_quantize_launch refuses.
  void launch(const fc_quantize_operands& operands, void* stream = nullptr) const {
    detail::check(fc_quantize_launch(get(), &operands, stream));
  }

  fc_quantize get() const noexcept { return owner_.get(); }

 private:
  using Handle = detail::Owner<fc_quantize, fc_quantize_destroy>;
  Handle owner_;
};

}  // namespace flashcore

#endif  // C++20
#endif
