// The functions of flashcore.h: each finds its handle, does one thing, and turns what was thrown into a status.

#include "flashcore/flashcore.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "api/allocations.h"
#include "api/append.h"
#include "api/block_mask.h"
#include "api/context.h"
#include "api/csr.h"
#include "api/foreign_timer.h"
#include "api/handles.h"
#include "api/plan.h"
#include "api/quantise.h"
#include "api/status.h"
#include "device/cpu/cpu_threads.h"
#include "device/cuda/context.h"

namespace {

using namespace flashcore;
using namespace flashcore::api;

using Contexts = HandleTable<Context, fc_context>;
using Plans = HandleTable<Plan, fc_plan>;
using Timers = HandleTable<ForeignTimer, fc_timer>;
using Appends = HandleTable<Append, fc_append>;
using Quantises = HandleTable<Quantise, fc_quantize>;
using Csrs = HandleTable<Csr, fc_csr>;
using BlockMasks = HandleTable<BlockMask, fc_block_mask>;

// Never destroyed: at exit, threads of the caller may still be at work, and the driver may be gone already.
Contexts& contexts() {
  static auto* table = new Contexts("context", 0x10000000);
  return *table;
}
Plans& plans() {
  static auto* table = new Plans("plan", 0x20000000);
  return *table;
}
Timers& timers() {
  static auto* table = new Timers("timer", 0x30000000);
  return *table;
}
Appends& appends() {
  static auto* table = new Appends("append", 0x40000000);
  return *table;
}
Quantises& quantises() {
  static auto* table = new Quantises("quantize", 0x50000000);
  return *table;
}
Csrs& csrs() {
  static auto* table = new Csrs("csr", 0x60000000);
  return *table;
}
BlockMasks& block_masks() {
  static auto* table = new BlockMasks("block_mask", 0x70000000);
  return *table;
}

[[maybe_unused]] const bool g_renewed = (renew_in_child([] {
                                           contexts().renew_lock();
                                           plans().renew_lock();
                                           timers().renew_lock();
                                           appends().renew_lock();
                                           quantises().renew_lock();
                                           csrs().renew_lock();
                                           block_masks().renew_lock();
                                           allocations().renew_lock();
                                         }),
                                         true);

// Whatever GPU context was current on the caller's thread is current again when the call returns.
using Keep = cuda::KeepCurrentContext;
const cuda::DriverApi* driver_of(const Context& context) { return context.on_gpu() ? cuda::driver_api() : nullptr; }

void check_copy(const Context& context, const char* what, const void* at, std::size_t bytes) {
  if (bytes > PTRDIFF_MAX) throw_bad_input("{} of {} bytes is larger than any memory", what, bytes);
  const bool known = allocations().check(what, at, 0, static_cast<std::int64_t>(bytes));
  if (!known && context.info().limits.emulated)
    throw_bad_input("{} at {}: an emulated GPU has the memory of fc_memory_allocate alone, and this is none of it",
                    what, at);
}

template <class T>
T* needed(T* out, const char* name) {
  if (!out) throw_bad_input("{} is null; give the address of where the result goes", name);
  return out;
}

// What the launch of a plan is given.
struct GivenOperands {
  AttentionArgs args;
  const void* const* tensors = nullptr;
  fc_block_mask block_mask = nullptr;
};
GivenOperands read_operands(const fc_operands* operands) {
  // Callers built with a header of ABI version 5 have a struct that ends before the boundaries, those with one of
  // version 6 before the tensors, those with one of version 7 before the block table, those with one of versions 8 to
  // 12 before the largest magnitudes, those with one of versions 13 and 14 before the block mask.
  constexpr std::uint32_t kFirstSize = offsetof(fc_operands, cu_seqlens_q);
  constexpr std::uint32_t kSecondSize = offsetof(fc_operands, tensors);
  constexpr std::uint32_t kThirdSize = offsetof(fc_operands, block_table);
  constexpr std::uint32_t kFourthSize = offsetof(fc_operands, amax);
  constexpr std::uint32_t kFifthSize = offsetof(fc_operands, block_mask);
  fc_operands given = FC_OPERANDS_INIT;
  std::memcpy(&given.struct_size, &needed(operands, "operands")->struct_size, sizeof(given.struct_size));
  if (given.struct_size != sizeof(fc_operands) && given.struct_size != kFirstSize && given.struct_size != kSecondSize &&
      given.struct_size != kThirdSize && given.struct_size != kFourthSize && given.struct_size != kFifthSize)
    throw_bad_input(
        "fc_operands.struct_size is {}, and this library (ABI version {}) knows {}: start from FC_OPERANDS_INIT, or "
        "use the library that belongs to the header",
        given.struct_size, FC_ABI_VERSION, sizeof(fc_operands));
  std::memcpy(&given, operands, given.struct_size);
  AttentionArgs args;
  args.q = given.q, args.k = given.k, args.v = given.v, args.o = given.o, args.lse = given.lse;
  args.descale_q = given.descale_q, args.descale_k = given.descale_k, args.descale_v = given.descale_v;
  args.alibi = given.alibi, args.sink = given.sink;
  args.cu_seqlens_q = given.cu_seqlens_q, args.cu_seqlens_kv = given.cu_seqlens_kv;
  args.seqused_kv = given.seqused_kv, args.seqused_q = given.seqused_q;
  args.block_table = given.block_table;
  args.amax = given.amax;
  return {args, given.tensors, given.block_mask};
}

}  // namespace

extern "C" {

uint32_t fc_abi_version(void) { return FC_ABI_VERSION; }
const char* fc_version(void) { return FLASHCORE_VERSION; }
const char* fc_last_error(void) { return last_error(); }

fc_status fc_set_cpu_threads(int32_t threads) {
  return guarded([&] { set_cpu_threads(threads); });
}

int32_t fc_cpu_threads(void) {
  int32_t threads = 0;
  guarded([&] { threads = cpu_threads(); });
  return threads;
}

fc_status fc_context_create(const char* device, fc_context* context) {
  return guarded([&] {
    *needed(context, "context") = nullptr;
    const std::string_view name = device ? device : "";
    const Keep keep(name.empty() || name.starts_with("cuda") ? cuda::driver_api() : nullptr);
    *context = contexts().add(std::make_shared<Context>(open_device(name)));
  });
}

fc_status fc_context_destroy(fc_context context) {
  return guarded([&] {
    std::shared_ptr<Context> last = contexts().find(context);
    const Keep keep(driver_of(*last));
    contexts().remove(context);
    last.reset();
  });
}

fc_status fc_context_describe(fc_context context, char* buffer, size_t size, size_t* length) {
  return guarded([&] { copy_text(contexts().find(context)->describe(), buffer, size, length); });
}

fc_status fc_context_synchronize(fc_context context, void* stream) {
  return guarded_launch([&] { contexts().find(context)->device().synchronize_stream(stream); });
}

fc_status fc_memory_allocate(fc_context context, size_t bytes, void** address) {
  return guarded([&] {
    *needed(address, "address") = nullptr;
    const auto found = contexts().find(context);
    const Keep keep(driver_of(*found));
    *address = found->allocate(bytes);
  });
}

fc_status fc_memory_free(fc_context context, void* address) {
  return guarded([&] {
    const auto found = contexts().find(context);
    const Keep keep(driver_of(*found));
    found->free(address);
  });
}

fc_status fc_memory_upload(fc_context context, void* destination, const void* host, size_t bytes) {
  return guarded([&] {
    const auto found = contexts().find(context);
    const Keep keep(driver_of(*found));
    if (bytes == 0) return;
    check_copy(*found, "the upload", needed(destination, "destination"), bytes);
    found->device().upload(destination, needed(host, "host"), bytes);
  });
}

fc_status fc_memory_download(fc_context context, void* host, const void* source, size_t bytes) {
  return guarded([&] {
    const auto found = contexts().find(context);
    const Keep keep(driver_of(*found));
    if (bytes == 0) return;
    check_copy(*found, "the download", needed(source, "source"), bytes);
    found->device().download(needed(host, "host"), source, bytes);
  });
}

fc_status fc_plan_create(fc_context context, const fc_attention* problem, fc_plan* plan) {
  return guarded([&] {
    *needed(plan, "plan") = nullptr;
    const auto found = contexts().find(context);
    const Keep keep(driver_of(*found));
    *plan = plans().add(std::make_shared<Plan>(found, read_request(problem)));
  });
}

fc_status fc_plan_destroy(fc_plan plan) {
  return guarded([&] {
    std::shared_ptr<Plan> last = plans().find(plan);
    const Keep keep(driver_of(last->context()));
    plans().remove(plan);
    last.reset();
  });
}

fc_status fc_plan_describe(fc_plan plan, char* buffer, size_t size, size_t* length) {
  return guarded([&] { copy_text(plans().find(plan)->describe(), buffer, size, length); });
}

fc_status fc_plan_launch(fc_plan plan, const void* q, const void* k, const void* v, void* o, float* lse, void* stream) {
  return guarded_launch([&] { plans().find(plan)->launch({q, k, v, o, lse, nullptr}, stream); });
}

fc_status fc_plan_launch_scaled(fc_plan plan, const void* q, const void* k, const void* v, void* o, float* lse,
                                const float* descale_q, const float* descale_k, const float* descale_v, void* stream) {
  return guarded_launch([&] {
    plans().find(plan)->launch({q, k, v, o, lse, descale_q, descale_k, descale_v}, stream);
  });
}

fc_status fc_plan_launch_operands(fc_plan plan, const fc_operands* operands, void* stream) {
  return guarded_launch([&] {
    GivenOperands given = read_operands(operands);
    const auto found = plans().find(plan);
    found->place_tensors(given.tensors, given.args);
    const auto block_mask = given.block_mask ? block_masks().find(given.block_mask) : nullptr;
    found->launch(given.args.addresses(), stream, block_mask.get());
  });
}

fc_status fc_plan_status(fc_plan plan, const fc_operands* operands, void* stream, char* buffer, size_t size,
                         size_t* length) {
  return guarded_launch([&] {
    const auto found = plans().find(plan);
    const Keep keep(driver_of(found->context()));
    copy_text(found->status(read_operands(operands).args.addresses(), stream), buffer, size, length);
  });
}

fc_status fc_block_mask_create(fc_plan plan, const fc_operands* operands, void* stream, fc_block_mask* block_mask) {
  return guarded([&] {
    *needed(block_mask, "block_mask") = nullptr;
    GivenOperands given = read_operands(operands);
    const auto found = plans().find(plan);
    const Keep keep(driver_of(found->context()));
    found->place_tensors(given.tensors, given.args);
    *block_mask = block_masks().add(std::make_shared<BlockMask>(found, given.args.addresses(), stream));
  });
}

fc_status fc_block_mask_update(fc_block_mask block_mask, const fc_operands* operands, void* stream) {
  return guarded_launch([&] {
    GivenOperands given = read_operands(operands);
    const auto found = block_masks().find(block_mask);
    found->plan().place_tensors(given.tensors, given.args);
    found->update(given.args.addresses(), stream);
  });
}

fc_status fc_block_mask_destroy(fc_block_mask block_mask) {
  return guarded([&] {
    std::shared_ptr<BlockMask> last = block_masks().find(block_mask);
    const Keep keep(driver_of(last->context()));
    block_masks().remove(block_mask);
    last.reset();
  });
}

fc_status fc_append_create(fc_context context, const fc_append_kind* kind, fc_append* append) {
  return guarded([&] {
    *needed(append, "append") = nullptr;
    const auto found = contexts().find(context);
    const Keep keep(driver_of(*found));
    *append = appends().add(std::make_shared<Append>(found, kind));
  });
}

fc_status fc_append_destroy(fc_append append) {
  return guarded([&] {
    std::shared_ptr<Append> last = appends().find(append);
    const Keep keep(driver_of(last->context()));
    appends().remove(append);
    last.reset();
  });
}

fc_status fc_append_launch(fc_append append, const fc_append_operands* operands, void* stream) {
  return guarded_launch([&] { appends().find(append)->launch(operands, stream); });
}

fc_status fc_quantize_create(fc_context context, const fc_quantize_kind* kind, fc_quantize* quantize) {
  return guarded([&] {
    *needed(quantize, "quantize") = nullptr;
    const auto found = contexts().find(context);
    const Keep keep(driver_of(*found));
    *quantize = quantises().add(std::make_shared<Quantise>(found, kind));
  });
}

fc_status fc_quantize_destroy(fc_quantize quantize) {
  return guarded([&] {
    std::shared_ptr<Quantise> last = quantises().find(quantize);
    const Keep keep(driver_of(last->context()));
    quantises().remove(quantize);
    last.reset();
  });
}

fc_status fc_quantize_launch(fc_quantize quantize, const fc_quantize_operands* operands, void* stream) {
  return guarded_launch([&] { quantises().find(quantize)->launch(operands, stream); });
}

fc_status fc_csr_create(fc_context context, fc_csr* csr) {
  return guarded([&] {
    *needed(csr, "csr") = nullptr;
    const auto found = contexts().find(context);
    const Keep keep(driver_of(*found));
    *csr = csrs().add(std::make_shared<Csr>(found));
  });
}

fc_status fc_csr_destroy(fc_csr csr) {
  return guarded([&] {
    std::shared_ptr<Csr> last = csrs().find(csr);
    const Keep keep(driver_of(last->context()));
    csrs().remove(csr);
    last.reset();
  });
}

fc_status fc_csr_launch(fc_csr csr, const fc_csr_operands* operands, void* stream) {
  return guarded_launch([&] { csrs().find(csr)->launch(operands, stream); });
}

fc_status fc_timer_create(fc_context context, const fc_timed_work* work, fc_timer* timer) {
  return guarded([&] {
    *needed(timer, "timer") = nullptr;
    const auto found = contexts().find(context);
    const Keep keep(driver_of(*found));
    *timer = timers().add(std::make_shared<ForeignTimer>(found, work));
  });
}

fc_status fc_timer_destroy(fc_timer timer) {
  return guarded([&] {
    std::shared_ptr<ForeignTimer> last = timers().find(timer);
    const Keep keep(driver_of(last->context()));
    timers().remove(timer);
    last.reset();
  });
}

fc_status fc_timer_sample(fc_timer timer, double warm_up_ms, double measure_ms, double* time_us, double* clock_mhz) {
  return guarded_launch([&] {
    const auto found = timers().find(timer);
    const Keep keep(driver_of(found->context()));
    double* time = needed(time_us, "time_us");
    const Sample sample = found->sample(warm_up_ms, measure_ms);
    *time = sample.time_us;
    if (clock_mhz) *clock_mhz = sample.clock_mhz;
  });
}

fc_status fc_timer_launches(fc_timer timer, double sample_us, int32_t* launches) {
  return guarded_launch([&] {
    const auto found = timers().find(timer);
    const Keep keep(driver_of(found->context()));
    *needed(launches, "launches") = found->launches_for(sample_us);
  });
}

fc_status fc_explain(fc_context context, const fc_attention* problem, char* buffer, size_t size, size_t* length) {
  return guarded([&] { copy_text(explain(*contexts().find(context), read_request(problem)), buffer, size, length); });
}

fc_status fc_problem_parse(const char* id, fc_attention* problem) {
  return guarded([&] { fill_from_id(id, problem); });
}

}  // extern "C"
