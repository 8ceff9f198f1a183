#include "kernels/cpu_fwd/forward.h"

#include <atomic>

#include "core/error.h"
#include "device/cpu/thread_pool.h"
#include "kernels/gpu_family.h"

namespace flashcore::cpu_fwd {
namespace {

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

}  // namespace

std::int64_t partial_floats(const Config& config, const Problem& problem) {
  if (config.kv_split == 1) return 0;
  Plan plan;
  plan.scratch = scratch_layout(config, traits_of(problem));
  return problem.batch * problem.heads_q * problem.seqlen_q * config.kv_split * plan.partial_stride();
}

Forward::Forward(const Config& config, const Problem& problem, const AttentionArgs& args,
                 AttendFunction attend_function)
    : attend_(attend_function) {
  plan_.params = make_forward_params(problem, args.layouts);
  plan_.params.q = args.q, plan_.params.k = args.k, plan_.params.v = args.v;
  plan_.params.o = args.o, plan_.params.lse = args.lse;
  plan_.amax = args.amax;
  plan_.traits = traits_of(problem);
  const Traits& traits = plan_.traits;
  plan_.band = {plan_.params.seqlen_kv, traits.bounded_left, traits.bounded_right, plan_.params.left_offset,
                plan_.params.right_offset};
  plan_.softmax_scale = static_cast<float>(problem.softcap.value_or(problem.softmax_scale()));
  plan_.score = make_score_params(problem);
  plan_.score.alibi = args.alibi, plan_.score.sink = args.sink;
  if (problem.has_expression()) {
    functions_.emplace(problem, args, config.block_m, config.block_n);
    plan_.functions = &*functions_;
  }
  if (problem.has_score_expression()) {
    constexpr float kLog2E = 1.44269504f;
    plan_.unit = plan_.softmax_scale;
    plan_.score.slope_scale = 1 / plan_.unit;
    plan_.softmax_scale = 1;
    plan_.params.scale_log2 = kLog2E;
  }
  plan_.config = config;
  plan_.scratch = scratch_layout(config, plan_.traits);
  plan_.group = static_cast<int>(problem.group_size());
  plan_.rows = problem.seqlen_q * plan_.group;
  const int cores = cpu_thread_pool().size();
  const std::int64_t tasks = row_blocks() * plan_.params.batch * plan_.params.heads_kv * config.kv_split;
  threads_ = static_cast<int>(
      std::clamp<std::int64_t>(tasks, 1, config.threads == 0 ? cores : std::min(config.threads, cores)));
  scratch_floats_ = static_cast<std::size_t>(plan_.scratch.floats) + (functions_ ? functions_->scratch_floats() : 0);
  scratch_ = AlignedMemory(static_cast<std::size_t>(threads_) * scratch_floats_ * sizeof(float));
  // Lanes that stand for no key are computed too: they must not be read uninitialised.
  std::ranges::fill(scratch_.bytes(), std::byte{0});
  partials_ = AlignedMemory(static_cast<std::size_t>(partial_floats(config, problem)) * sizeof(float));
  plan_.partials = reinterpret_cast<float*>(partials_.data());
}

std::int64_t Forward::row_blocks() const { return divide_up(plan_.rows, plan_.config.block_m); }

// Row blocks vary slowest and the last comes first: under a causal mask it is the longest, and a long task at the end
// would leave the other threads idle.
Task Forward::make_task(std::int64_t index) const {
  const auto next = [&index](std::int64_t count) {
    const std::int64_t digit = index % count;
    index /= count;
    return digit;
  };
  Task task;
  task.split = static_cast<int>(next(plan_.config.kv_split));
  task.head_kv = static_cast<int>(next(plan_.params.heads_kv));
  task.batch = static_cast<int>(next(plan_.params.batch));
  task.row_begin = (row_blocks() - 1 - index) * plan_.config.block_m;
  task.row_count = static_cast<int>(std::min<std::int64_t>(plan_.config.block_m, plan_.rows - task.row_begin));
  // Splits are made of whole key blocks, so that only the last block of all is short, and of keys that some row sees.
  const KeyRange<int> read = plan_.rows == 0 ? KeyRange<int>{0, 0} : plan_.visible_keys(0, plan_.rows - 1);
  const std::int64_t key_blocks = divide_up(read.size(), plan_.config.block_n);
  const auto first_key = [&](std::int64_t split) {
    return static_cast<int>(std::min<std::int64_t>(
        read.begin + key_blocks * split / plan_.config.kv_split * plan_.config.block_n, read.end));
  };
  task.key_begin = first_key(task.split);
  task.key_end = first_key(task.split + 1);
  return task;
}

// Threads take the next task as they become free. Which thread does a task changes nothing in its result.
void Forward::for_each_task(std::int64_t count, const std::function<void(std::int64_t, float*)>& body) {
  std::atomic<std::int64_t> next{0};
  cpu_thread_pool().run(threads_, [&](int worker) {
    float* scratch = reinterpret_cast<float*>(scratch_.data()) + static_cast<std::size_t>(worker) * scratch_floats_;
    for (std::int64_t index = next.fetch_add(1); index < count; index = next.fetch_add(1)) body(index, scratch);
  });
}

void Forward::operator()() {
  const std::int64_t heads = std::int64_t{plan_.params.batch} * plan_.params.heads_kv;
  for_each_task(row_blocks() * heads * plan_.config.kv_split,
                [this](std::int64_t index, float* scratch) { attend_(plan_, make_task(index), scratch); });
  if (plan_.config.kv_split == 1) return;
  for_each_task(row_blocks() * heads, [this](std::int64_t index, float* scratch) {
    combine(plan_, make_task(index * plan_.config.kv_split), scratch);
  });
}

}  // namespace flashcore::cpu_fwd
