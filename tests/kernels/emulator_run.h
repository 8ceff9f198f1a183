#pragma once
// Runs a kernel from given sources on the emulated GPU and says how it ended.

#include <fmt/format.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/data.h"
#include "core/operands.h"
#include "core/problem.h"
#include "core/ragged.h"
#include "core/reference.h"
#include "device/device.h"
#include "device/emulator/emulator_compiler.h"
#include "device/emulator/emulator_device.h"
#include "kernels/embedded.h"
#include "kernels/family.h"

namespace flashcore::testing {

struct EmulatorRun {
  std::string fault;   // the emulator's report; empty if it found nothing
  std::string result;  // what is wrong with the outputs; empty if they are right
  std::string verdict() const {
    return !fault.empty() ? fault : !result.empty() ? "wrong result: " + result : "passed";
  }
};

inline std::string judge(const PlacedProblem& problem, const Reference& reference, const RowSample& rows,
                         const HostTensor& o, const std::vector<float>& lse) {
  const OutputError error = compare(problem, reference, gather_rows(o, rows), gather_lse(problem, lse, rows));
  const ErrorBound bound = error_bound(problem, reference);
  if (within(error, bound)) return "";
  return fmt::format(
      "relative error {:.3g} (bound {:.3g}), worst row {:.3g} (bound {:.3g}), LSE {:.3g} (bound {:.3g}), "
      "{} values not finite",
      error.rel, bound.rel, error.worst_row_rel, bound.worst_row_rel, error.lse_max_abs, bound.lse_max_abs,
      error.nonfinite);
}

// Rows of K and V that exist: outside of them every access is a fault. Of one batch and one key head.
struct RowsInMemory {
  std::int64_t begin, end;
};

// Several launches: the first with everything asynchronous as late as possible, the others at random.
// `meaning`: the problem that it must have the results of, if not its own.
inline EmulatorRun run_on_emulator(const SourceMap& sources, const std::string& candidate_text,
                                   const PlacedProblem& problem, int launches = 3,
                                   std::optional<RowsInMemory> keys = std::nullopt,
                                   std::optional<PlacedProblem> meaning = std::nullopt) {
  static const std::unique_ptr<Compiler> compiler = open_emulator_compiler();
  const std::unique_ptr<Device> device = open_emulator();
  const DeviceLimits& limits = device->info().limits;
  const Candidate candidate = parse_candidate(candidate_text, problem, limits);
  const AttentionInputs inputs = make_inputs(problem, Pattern::kNormal, 1);
  const RowSample rows = choose_rows(problem, 1e12, 1);
  const PlacedProblem& judged = meaning ? *meaning : problem;
  const Reference reference = reference_forward(judged, inputs, rows);
  const ProblemLayouts layouts = make_layouts(problem);

  const auto buffer_of = [&](const char* name, const HostTensor& tensor) {
    auto buffer = device->allocate(tensor.data.size(), 4096);
    device->label(*buffer, {name, tensor.dtype, tensor.layout});
    device->upload(buffer->data(), tensor.data.data(), tensor.data.size());
    return buffer;
  };
  const auto keys_of = [&](const char* name, const HostTensor& tensor) {
    if (!keys) return buffer_of(name, tensor);
    const std::size_t row_bytes = static_cast<std::size_t>(tensor.layout.stride_row) * size_of(tensor.dtype);
    auto buffer = device->allocate(static_cast<std::size_t>(keys->end - keys->begin) * row_bytes, 4096);
    device->upload(buffer->data(), tensor.data.data() + static_cast<std::size_t>(keys->begin) * row_bytes,
                   static_cast<std::size_t>(keys->end - keys->begin) * row_bytes);
    return buffer;
  };
  // Where row 0 would lie.
  const auto address_of = [&](const Buffer& buffer, const HostTensor& tensor) -> void* {
    if (!keys) return buffer.data();
    return static_cast<std::byte*>(buffer.data()) -
           static_cast<std::size_t>(keys->begin * tensor.layout.stride_row) * size_of(tensor.dtype);
  };
  const auto q = buffer_of("q", inputs.q), k = keys_of("k", inputs.k), v = keys_of("v", inputs.v);
  HostTensor o(problem.output_dtype(), layouts.o);
  const auto o_buffer = buffer_of("o", o);
  std::vector<float> lse(static_cast<std::size_t>(layouts.lse_elements));
  const auto lse_buffer = device->allocate(lse.size() * sizeof(float), 4096);
  device->label(*lse_buffer, {"lse", DType::kF32, std::nullopt});
  const auto factors_of = [&](const char* name, const std::vector<float>& factors) -> std::unique_ptr<Buffer> {
    if (factors.empty()) return nullptr;
    auto buffer = device->allocate(factors.size() * sizeof(float), 4096);
    device->label(*buffer, {name, DType::kF32, std::nullopt});
    device->upload(buffer->data(), factors.data(), factors.size() * sizeof(float));
    return buffer;
  };
  const auto descale_q = factors_of("descale_q", inputs.descale_q),
             descale_k = factors_of("descale_k", inputs.descale_k),
             descale_v = factors_of("descale_v", inputs.descale_v), sink = factors_of("sink", inputs.sink),
             alibi = factors_of("alibi", inputs.alibi);
  const auto address = [](const std::unique_ptr<Buffer>& buffer) {
    return buffer ? static_cast<const float*>(buffer->data()) : nullptr;
  };

  const auto int32s_buffer = [&](const char* name, const auto& values) -> std::unique_ptr<Buffer> {
    if (values.empty()) return nullptr;
    const std::vector<std::int32_t> int32s(values.begin(), values.end());
    auto buffer = device->allocate(int32s.size() * sizeof(std::int32_t), 4096);
    device->label(*buffer, {name, DType::kF32, std::nullopt});
    device->upload(buffer->data(), int32s.data(), int32s.size() * sizeof(std::int32_t));
    return buffer;
  };
  Boundaries boundaries;
  if (problem.ragged()) boundaries = boundaries_of(problem);
  if (problem.paged()) boundaries.kv.clear();
  const auto cu_seqlens_q = int32s_buffer("cu_seqlens_q", boundaries.q),
             cu_seqlens_kv = int32s_buffer("cu_seqlens_kv", boundaries.kv),
             block_table = int32s_buffer("block_table", inputs.block_table),
             seqused_kv = int32s_buffer("seqused_kv", inputs.seqused_kv);
  const auto int32s_at = [](const std::unique_ptr<Buffer>& buffer) {
    return buffer ? static_cast<const std::int32_t*>(buffer->data()) : nullptr;
  };

  std::array<std::unique_ptr<Buffer>, kMaxExpressionTensors> tensors;
  std::array<const void*, kMaxExpressionTensors> tensor_addresses = {};
  for (std::size_t t = 0; t < inputs.tensors.size(); ++t) {
    const std::vector<std::byte>& data = inputs.tensors[t].data;
    tensors[t] = device->allocate(data.size(), 4096);
    device->upload(tensors[t]->data(), data.data(), data.size());
    tensor_addresses[t] = tensors[t]->data();
  }

  EmulatorRun run;
  try {
    const Artifact artifact = compiler->compile(candidate.family->source(candidate.config, problem, limits), sources,
                                                candidate.family->compile_arch(limits));
    const LoadedCandidate loaded(*device, candidate, problem, artifact);
    const Launch launch = loaded.bind({.q = q->data(),
                                       .k = address_of(*k, inputs.k),
                                       .v = address_of(*v, inputs.v),
                                       .o = o_buffer->data(),
                                       .lse = static_cast<float*>(lse_buffer->data()),
                                       .layouts = layouts,
                                       .descale_q = address(descale_q),
                                       .descale_k = address(descale_k),
                                       .descale_v = address(descale_v),
                                       .sink = address(sink),
                                       .alibi = address(alibi),
                                       .cu_seqlens_q = int32s_at(cu_seqlens_q),
                                       .cu_seqlens_kv = int32s_at(cu_seqlens_kv),
                                       .seqused_kv = int32s_at(seqused_kv),
                                       .block_table = int32s_at(block_table),
                                       .tensors = tensor_addresses});
    for (int i = 0; i < launches && run.result.empty(); ++i) {
      device->fill(o_buffer->data(), 0xff, o.data.size());
      device->fill(lse_buffer->data(), 0xff, lse.size() * sizeof(float));
      launch();
      device->download(o.data.data(), o_buffer->data(), o.data.size());
      device->download(lse.data(), lse_buffer->data(), lse.size() * sizeof(float));
      run.result = judge(judged, reference, rows, o, lse);
    }
  } catch (const DeviceFault& fault) {
    run.fault = fault.what();
  }
  return run;
}

}  // namespace flashcore::testing
