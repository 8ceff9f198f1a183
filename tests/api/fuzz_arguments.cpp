// Fuzzes the arguments of the C API on the CPU: whatever is handed in, the answer is a status and a message, never a
// crash, and memory of a launch stays within the tensors.
//
// Under libFuzzer (-DFLASHCORE_FUZZ=ON, clang) coverage guides it; elsewhere main() makes seeded random inputs:
//   api_fuzz [--seed S] [--runs N | --seconds T]
#include <flashcore/flashcore.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace {

// Reads values from the input; zeros when it has ended.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  template <class T>
  T raw() {
    T value{};
    const std::size_t take = sizeof(T) < left_ ? sizeof(T) : left_;
    std::memcpy(&value, data_, take);
    data_ += take;
    left_ -= take;
    return value;
  }
  bool one_in(unsigned n) { return raw<std::uint8_t>() % n == 0; }
  // Mostly a size that fits, now and then anything at all.
  std::int64_t size(std::int64_t most) { return one_in(24) ? raw<std::int64_t>() : raw<std::uint8_t>() % (most + 1); }
  std::string text(std::size_t most) {
    std::string text;
    for (std::size_t n = raw<std::uint8_t>() % (most + 1); text.size() < n;)
      text += static_cast<char>(raw<std::uint8_t>());
    return text;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

std::int64_t g_planned = 0, g_launched = 0, g_in_one_block = 0;  // inputs that got so far

[[noreturn]] void broken(const char* what) {
  std::fprintf(stderr, "api_fuzz: %s; last error: %s\n", what, fc_last_error());
  std::abort();
}

// A status of the list, and a message whenever it is not FC_OK.
fc_status expect(fc_status status) {
  if (status < FC_OK || status > FC_ERROR_INTERNAL) broken("a status that is not in the list");
  if (status != FC_OK && fc_last_error()[0] == '\0') broken("an error without a message");
  if (status == FC_ERROR_INTERNAL) broken("an internal error");
  return status;
}

fc_context shared_context() {
  static const fc_context context = [] {
    fc_context made = nullptr;
    if (fc_context_create("cpu", &made) != FC_OK) broken("no CPU");
    return made;
  }();
  return context;
}

fc_attention problem_of(Input& in) {
  fc_attention p = FC_ATTENTION_INIT;
  if (in.one_in(32)) p.struct_size = in.raw<std::uint32_t>();
  p.dtype = in.one_in(16) ? in.raw<std::int32_t>() : in.raw<std::uint8_t>() % 3;
  // Mostly what fits together, so that launches are reached.
  p.batch = in.one_in(8) ? in.size(2) : 1 + in.raw<std::uint8_t>() % 2;
  p.heads_kv = in.one_in(8) ? in.size(3) : 1 + in.raw<std::uint8_t>() % 3;
  p.heads_q = in.one_in(8) ? in.size(6) : p.heads_kv * (1 + in.raw<std::uint8_t>() % 3);
  p.seqlen_q = in.size(70);
  p.seqlen_kv = in.size(70);
  p.head_dim = in.size(80);
  p.head_dim_v = in.one_in(2) ? p.head_dim : in.size(80);
  p.causal = in.one_in(16) ? in.raw<std::int32_t>() : in.raw<std::uint8_t>() % 3;
  if (in.one_in(3)) p.window_left = in.one_in(8) ? in.raw<std::int64_t>() : in.size(40) - 1;
  if (in.one_in(3)) p.window_right = in.one_in(8) ? in.raw<std::int64_t>() : in.size(40) - 1;
  if (in.one_in(3)) p.window_alignment = in.one_in(8) ? in.raw<std::int32_t>() : in.raw<std::uint8_t>() % 2;
  p.alignment = in.one_in(4) ? in.raw<std::int32_t>() : 0;
  p.scale = in.one_in(4) ? in.raw<double>() : 0;
  for (fc_strides* strides : {&p.q, &p.k, &p.v, &p.o}) {
    if (!in.one_in(3)) continue;
    strides->batch = in.size(200);
    strides->head = in.size(200);
    strides->row = in.size(200);
    if (in.one_in(4)) strides->row = ~strides->row;
    if (in.one_in(4)) strides->head = ~strides->head;
  }
  p.given = in.one_in(24) ? in.raw<std::uint32_t>() : in.raw<std::uint8_t>() % (FC_GIVEN_STRIDES + 1);
  if (p.scale != 0 && in.one_in(2)) p.given |= FC_GIVEN_SCALE;
  if (in.one_in(2)) p.given |= FC_GIVEN_WINDOW;
  return p;
}

// A tensor's extents and strides, in elements.
struct Shape {
  std::int64_t batch, heads, rows, columns;
  fc_strides strides;

  Shape(std::int64_t b, std::int64_t h, std::int64_t r, std::int64_t c, const fc_strides& s, bool given)
      : batch(b), heads(h), rows(r), columns(c), strides(s) {
    if (!given && s.batch == 0 && s.head == 0 && s.row == 0)
      strides = {heads * rows * columns, rows * columns, columns};
  }
  bool empty() const { return batch * heads * rows * columns == 0; }
  // From the address of the first element: elements before it, and up to one past the last. In floating point, for what
  // is drawn may be anything.
  double reach(bool back) const {
    if (empty()) return 0;
    double sum = back ? 0 : static_cast<double>(columns);
    const std::int64_t axes[3][2] = {{batch, strides.batch}, {heads, strides.head}, {rows, strides.row}};
    for (const auto& [extent, stride] : axes) {
      const double last = static_cast<double>(extent - 1) * static_cast<double>(stride);
      if ((last < 0) == back) sum += last < 0 ? -last : last;
    }
    return sum;
  }
  template <class Each>
  void each_row(Each&& each) const {
    for (std::int64_t b = 0; b < batch; ++b)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t r = 0; r < rows; ++r) each(b * strides.batch + h * strides.head + r * strides.row);
  }
};

// Memory exactly as long as the tensors are, so that the address sanitizer sees the first byte beyond; now and then one
// block for all four, where what overlaps must be refused and what does not must leave the inputs as they were.
void launch(fc_plan plan, const fc_attention& p, Input& in) {
  const std::size_t element = p.dtype == FC_FP32 ? 4 : 2;
  const Shape shapes[4] = {Shape(p.batch, p.heads_q, p.seqlen_q, p.head_dim, p.q, p.given & FC_GIVEN_Q_STRIDES),
                           Shape(p.batch, p.heads_kv, p.seqlen_kv, p.head_dim, p.k, p.given & FC_GIVEN_K_STRIDES),
                           Shape(p.batch, p.heads_kv, p.seqlen_kv, p.head_dim_v, p.v, p.given & FC_GIVEN_V_STRIDES),
                           Shape(p.batch, p.heads_q, p.seqlen_q, p.head_dim_v, p.o, p.given & FC_GIVEN_O_STRIDES)};
  for (const Shape& shape : shapes)
    if (shape.reach(true) + shape.reach(false) > 1e6) return;
  const bool one_block = in.one_in(4);
  std::vector<std::vector<unsigned char>> memory;
  unsigned char* pointers[4];
  std::size_t all = 0;
  for (const Shape& shape : shapes) {
    const auto elements = static_cast<std::size_t>(shape.reach(true) + shape.reach(false));
    all += elements;
    memory.emplace_back(elements * element);
  }
  if (one_block) memory.emplace_back(all * element);
  for (std::vector<unsigned char>& block : memory)
    for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<unsigned char>(0x30 + i % 8);
  for (std::size_t i = 0; i < 4; ++i) {
    const auto back = static_cast<std::size_t>(shapes[i].reach(true)) * element;
    if (!one_block) pointers[i] = memory[i].data() + back;
    else {
      const std::size_t room = memory[4].size() - memory[i].size();
      pointers[i] = memory[4].data() + (room ? in.raw<std::uint32_t>() % (room / element + 1) : 0) * element + back;
    }
  }
  if (in.one_in(16)) pointers[in.raw<std::uint8_t>() % 4] = nullptr;
  const std::vector<std::vector<unsigned char>> before = memory;
  std::vector<float> lse(static_cast<std::size_t>(p.batch * p.heads_q * p.seqlen_q));
  void* stream = in.one_in(16) ? reinterpret_cast<void*>(in.raw<std::uintptr_t>()) : nullptr;
  float* lse_or_none = in.one_in(3) ? nullptr : lse.data();
  if (expect(fc_plan_launch(plan, pointers[0], pointers[1], pointers[2], pointers[3], lse_or_none, stream)) != FC_OK)
    return;
  ++g_launched;
  g_in_one_block += one_block;
  for (std::size_t i = 0; i < 3; ++i) {
    if (shapes[i].empty() || !pointers[i]) continue;
    const std::size_t block = one_block ? 4 : i;
    const std::ptrdiff_t start = pointers[i] - memory[block].data();
    shapes[i].each_row([&](std::int64_t offset) {
      const auto at = static_cast<std::size_t>(start + offset * static_cast<std::int64_t>(element));
      const std::size_t bytes = static_cast<std::size_t>(shapes[i].columns) * element;
      if (std::memcmp(&memory[block][at], &before[block][at], bytes) != 0) broken("a launch changed an input");
    });
  }
}

void plan_and_launch(Input& in) {
  fc_attention p = problem_of(in);
  const std::string candidate =
      in.one_in(4) ? (in.one_in(2) ? "cpu_fwd:block_m=24," : "") + in.text(30) : std::string();
  p.candidate = candidate.empty() ? nullptr : candidate.c_str();
  char text[512];
  std::size_t needed = 0;
  expect(fc_explain(shared_context(), &p, text, in.raw<std::uint8_t>() % sizeof text, &needed));
  fc_plan plan = nullptr;
  if (expect(fc_plan_create(shared_context(), in.one_in(64) ? nullptr : &p, &plan)) != FC_OK) {
    if (plan) broken("a plan beside an error");
    return;
  }
  ++g_planned;
  launch(plan, p, in);
  expect(fc_plan_describe(plan, in.one_in(8) ? nullptr : text, in.raw<std::uint8_t>() % sizeof text, &needed));
  if (expect(fc_plan_destroy(plan)) != FC_OK) broken("an open plan cannot be closed");
  if (expect(fc_plan_destroy(plan)) != FC_ERROR_BAD_INPUT) broken("a closed plan was closed again");
}

void handles(Input& in) {
  void* address = nullptr;
  const auto context = reinterpret_cast<fc_context>(in.raw<std::uintptr_t>());
  if (context == shared_context()) return;
  expect(fc_context_describe(context, nullptr, 0, nullptr));
  expect(fc_context_synchronize(context, nullptr));
  expect(fc_context_destroy(context));
  expect(fc_plan_launch(reinterpret_cast<fc_plan>(in.raw<std::uintptr_t>()), &in, &in, &in, &in, nullptr, nullptr));
  expect(fc_plan_destroy(reinterpret_cast<fc_plan>(in.raw<std::uintptr_t>())));
  expect(fc_memory_free(shared_context(), reinterpret_cast<void*>(in.raw<std::uintptr_t>())));
  if (expect(fc_memory_allocate(shared_context(), in.raw<std::uint16_t>(), &address)) == FC_OK)
    expect(fc_memory_free(shared_context(), address));
}

void texts(Input& in) {
  fc_attention p = FC_ATTENTION_INIT;
  static const char* const kPieces[] = {
      "b",       "1",         "_h",    "8",      "_hk",   "_s",    "_sq",
      "_sk",     "64",        "_d",    "_dv",    "_fp16", "_bf16", "_fp32",
      "_causal", "_causaltl", "_bshd", "_scale", "0.5",   "-",     "999999999999999999999",
      "_"};
  std::string id;
  if (in.one_in(4)) id = in.text(60);
  else
    for (int n = in.raw<std::uint8_t>() % 16; n > 0; --n) id += kPieces[in.raw<std::uint8_t>() % std::size(kPieces)];
  if (expect(fc_problem_parse(id.c_str(), &p)) == FC_OK) {
    std::size_t needed = 0;
    expect(fc_explain(shared_context(), &p, nullptr, 0, &needed));
  }
  // Neither a GPU nor the emulator: they are looked for in ways of their own.
  std::string device = in.text(12);
  if (device.find("cuda") == std::string::npos && device.find("emulator") == std::string::npos && !device.empty()) {
    fc_context made = nullptr;
    if (expect(fc_context_create(device.c_str(), &made)) == FC_OK) expect(fc_context_destroy(made));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  switch (in.raw<std::uint8_t>() % 8) {
    case 0: handles(in); break;
    case 1: texts(in); break;
    default: plan_and_launch(in);
  }
  return 0;
}

#ifndef FLASHCORE_LIBFUZZER
int main(int argc, char** argv) {
  std::uint64_t seed = 1;
  std::int64_t runs = 20000;
  double seconds = 1e9;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
    else if (flag == "--runs") runs = std::strtoll(argv[i + 1], nullptr, 10);
    else if (flag == "--seconds") seconds = std::strtod(argv[i + 1], nullptr), runs = INT64_MAX;
    else return std::fprintf(stderr, "usage: api_fuzz [--seed S] [--runs N | --seconds T]\n"), 3;
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::uint8_t> bytes(400);
  std::int64_t done = 0;
  for (; done < runs && std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds;
       ++done) {
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(done));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random());
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%lld inputs from seed %llu on, no crash; %lld planned, %lld launched, %lld of them in one block\n",
              static_cast<long long>(done), static_cast<unsigned long long>(seed), static_cast<long long>(g_planned),
              static_cast<long long>(g_launched), static_cast<long long>(g_in_one_block));
  // A fuzzer whose every input is turned away at the door tests nothing behind it.
  return done >= 1000 && (g_launched < done / 50 || g_in_one_block == 0) ? 1 : 0;
}
#endif
