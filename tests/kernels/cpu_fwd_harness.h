#pragma once
// Runs cpu_fwd as the laboratory would: poisoned outputs between red zones, judged against the fp64 reference.

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "core/data.h"
#include "core/operands.h"
#include "core/reference.h"
#include "device/cpu/cpu_device.h"
#include "kernels/config_binding.h"
#include "kernels/cpu_fwd/forward.h"
#include "kernels/family.h"

namespace flashcore::cpu_fwd {

inline Device& cpu() {
  static const std::unique_ptr<Device> device = open_cpu_device();
  return *device;
}

inline Config default_config(const PlacedProblem& problem) {
  return config_from<Config>(family_by_name("cpu_fwd").default_config(problem, cpu().info().limits));
}

// The output tensors after one call, or what went wrong around them.
struct Outcome {
  HostTensor o;
  std::vector<float> lse;
  bool red_zones_intact = false;
  bool gaps_untouched = false;  // what lies between rows of a strided tensor is somebody else's
};

inline std::unique_ptr<Buffer> on_device(const HostTensor& tensor) {
  auto buffer = cpu().allocate(tensor.data.size(), 4096);
  cpu().upload(buffer->data(), tensor.data.data(), tensor.data.size());
  return buffer;
}

// Poison is 0xFF in every byte: a NaN in all three element types.
inline bool gaps_are_poison(const HostTensor& tensor) {
  const std::size_t size = size_of(tensor.dtype);
  std::vector<bool> owned(tensor.data.size() / size, false);
  const TensorLayout& layout = tensor.layout;
  for (std::int64_t b = 0; b < layout.batch; ++b) {
    for (std::int64_t h = 0; h < layout.heads; ++h) {
      for (std::int64_t row = 0; row < layout.rows; ++row) {
        for (std::int64_t c = 0; c < layout.columns; ++c)
          owned[static_cast<std::size_t>(layout.offset(b, h, row) + c)] = true;
      }
    }
  }
  for (std::size_t i = 0; i < owned.size(); ++i) {
    for (std::size_t byte = 0; !owned[i] && byte < size; ++byte) {
      if (tensor.data[i * size + byte] != std::byte{0xFF}) return false;
    }
  }
  return true;
}

inline Outcome run(const PlacedProblem& problem, const Config& config, const AttentionInputs& inputs,
                   AttendFunction attend_function = attend) {
  Outcome result{HostTensor(problem.dtype, make_layouts(problem).o), {}};
  const auto q = on_device(inputs.q), k = on_device(inputs.k), v = on_device(inputs.v);
  const auto o = cpu().allocate(result.o.data.size(), 4096);
  result.lse.resize(static_cast<std::size_t>(make_layouts(problem).lse_elements));
  const auto lse = cpu().allocate(result.lse.size() * sizeof(float), 4096);
  cpu().fill(o->data(), 0xFF, o->size());
  cpu().fill(lse->data(), 0xFF, lse->size());
  AttentionArgs args{
      q->data(), k->data(), v->data(), o->data(), static_cast<float*>(lse->data()), make_layouts(problem)};
  args.sink = inputs.sink.data(), args.alibi = inputs.alibi.data();
  for (std::size_t t = 0; t < inputs.tensors.size(); ++t) args.tensors[t] = inputs.tensors[t].data.data();
  Forward(config, problem, args, attend_function)();
  cpu().download(result.o.data.data(), o->data(), o->size());
  cpu().download(result.lse.data(), lse->data(), lse->size());
  result.red_zones_intact = q->red_zones_intact() && k->red_zones_intact() && v->red_zones_intact() &&
                            o->red_zones_intact() && lse->red_zones_intact();
  result.gaps_untouched = gaps_are_poison(result.o);
  return result;
}

struct Judgement {
  OutputError error;
  ErrorBound bound;
  bool correct = false;
  std::string text;
};

inline Judgement judge(const PlacedProblem& problem, const Reference& reference, const Outcome& result) {
  RowSample all;
  Judgement judgement;
  judgement.error = compare(problem, reference, gather_rows(result.o, all), gather_lse(problem, result.lse, all));
  judgement.bound = error_bound(problem, reference);
  judgement.correct = within(judgement.error, judgement.bound) && result.red_zones_intact && result.gaps_untouched;
  judgement.text = fmt::format(
      "rel {:.3g} (bound {:.3g}), worst row {:.3g} ({:.3g}), lse {:.3g} ({:.3g}), non-finite {}, bad row {}, red zones "
      "{}, gaps {}",
      judgement.error.rel, judgement.bound.rel, judgement.error.worst_row_rel, judgement.bound.worst_row_rel,
      judgement.error.lse_max_abs, judgement.bound.lse_max_abs, judgement.error.nonfinite,
      judgement.error.first_bad_row, result.red_zones_intact, result.gaps_untouched);
  return judgement;
}

inline Judgement check(const PlacedProblem& problem, const Config& config, Pattern pattern = Pattern::kNormal,
                       std::uint64_t seed = 1, AttendFunction attend_function = attend) {
  const AttentionInputs inputs = make_inputs(problem, pattern, seed);
  return judge(problem, reference_forward(problem, inputs, RowSample()), run(problem, config, inputs, attend_function));
}

inline std::string describe(const PlacedProblem& problem, const Config& config) {
  return problem.id() + " " + space_of<Config>().print(values_of(config));
}

}  // namespace flashcore::cpu_fwd
