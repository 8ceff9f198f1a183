#include "lab/compare/peer_files.h"

#include <cstring>
#include <fstream>

#include "core/boundaries.h"
#include "core/error.h"
#include "core/files.h"
#include "core/parallel.h"

namespace flashcore {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxFile = std::uint64_t{1} << 36;

// Of a tensor however it lies, in C order.
HostBytes dense_bytes(const HostTensor& tensor) {
  const TensorLayout& l = tensor.layout;
  const std::size_t row_bytes = tensor.row_bytes(), head_bytes = static_cast<std::size_t>(l.rows) * row_bytes;
  HostBytes bytes(static_cast<std::size_t>(bytes_of(tensor.dtype, l.elements())));
  parallel_for(l.batch * l.heads, 0, [&](std::int64_t head) {
    std::byte* to = bytes.data() + static_cast<std::size_t>(head) * head_bytes;
    for (std::int64_t row = 0; row < l.rows && row_bytes > 0; ++row, to += row_bytes)
      std::memcpy(to, tensor.address(l.offset(head / l.heads, head % l.heads, row)), row_bytes);
  });
  return bytes;
}

// Not write_file_atomically: a gigabyte that nobody keeps need not reach the disk.
json write_bytes(const std::filesystem::path& file, std::string_view bytes, std::string_view dtype,
                 const std::vector<std::int64_t>& shape) {
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out)
    throw_environment("cannot write {} bytes of inputs to {}; make room there, or set TMPDIR", bytes.size(),
                      file.string());
  return {{"file", file.string()}, {"dtype", dtype}, {"shape", shape}};
}

json write_tensor(const std::filesystem::path& file, const HostTensor& tensor) {
  const TensorLayout& l = tensor.layout;
  const HostBytes bytes = dense_bytes(tensor);
  return write_bytes(file, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, to_string(tensor.dtype),
                     {l.batch, l.heads, l.rows, l.columns});
}

json write_ints(const std::filesystem::path& file, const std::vector<std::int32_t>& values,
                const std::vector<std::int64_t>& shape) {
  return write_bytes(file, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(std::int32_t)},
                     "int32", shape);
}

json write_floats(const std::filesystem::path& file, const std::vector<float>& values,
                  const std::vector<std::int64_t>& shape) {
  return write_bytes(file, {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}, "fp32",
                     shape);
}

std::string read_exactly(const json& name, std::size_t bytes, const char* what) {
  const std::string file = name.get<std::string>();
  std::string data = read_file(file, kMaxFile);
  if (data.size() != bytes) throw_bad_input("the file of {} has {} bytes, and its tensor {}", what, data.size(), bytes);
  return data;
}

OutputJudgement judge_one(const PlacedProblem& problem, const Oracle& oracle, const json& output,
                          Strictness strictness) {
  HostTensor o(problem.output_dtype(), make_layouts(problem.problem(), Layout::kBhsd).o);
  const std::string bytes = read_exactly(output.at("o"), o.data.size(), "o");
  std::memcpy(o.data.data(), bytes.data(), bytes.size());
  // Who writes no log-sum-exp is not judged by it.
  std::vector<float> lse(oracle.reference.lse.begin(), oracle.reference.lse.end());
  if (output.contains("lse") && output["lse"].is_string()) {
    std::vector<float> all(static_cast<std::size_t>(make_layouts(problem.problem(), Layout::kBhsd).lse_elements));
    const std::string raw = read_exactly(output["lse"], all.size() * sizeof(float), "lse");
    std::memcpy(all.data(), raw.data(), raw.size());
    lse = gather_lse(problem, all, oracle.rows);
  }
  const OutputError error = compare(problem, oracle.reference, gather_rows(o, oracle.rows), lse);
  OutputJudgement judgement{error.rel, ""};
  const ErrorBound& bound = oracle.bound;
  const bool good = strictness == Strictness::kOurs ? within(error, bound)
                                                    : error.nonfinite == 0 && error.rel <= kPeerFactor * bound.rel;
  if (!good)
    judgement.wrong = fmt::format(
        "relative error {:.3g}, worst row {:.3g}, log-sum-exp off by {:.3g}, {} non-finite; flashcore's bounds are "
        "{:.3g}, "
        "{:.3g}, {:.3g}, 0{}",
        error.rel, error.worst_row_rel, error.lse_max_abs, error.nonfinite, bound.rel, bound.worst_row_rel,
        bound.lse_max_abs,
        strictness == Strictness::kPeer ? ", and a peer's relative error may be 4 times its bound" : "");
  return judgement;
}

}  // namespace

json write_inputs(const std::filesystem::path& folder, const Problem& problem, const AttentionInputs& inputs) {
  json files = {{"q", write_tensor(folder / "q.bin", inputs.q)},
                {"k", write_tensor(folder / "k.bin", inputs.k)},
                {"v", write_tensor(folder / "v.bin", inputs.v)}};
  const std::int64_t batch = problem.batch, heads = problem.heads_q;
  const auto slopes = static_cast<std::int64_t>(inputs.alibi.size());
  using Shape = std::vector<std::int64_t>;
  if (slopes > 0)
    files["alibi"] =
        write_floats(folder / "alibi.bin", inputs.alibi, slopes == heads ? Shape{heads} : Shape{batch, heads});
  if (problem.ragged()) {
    const Boundaries boundaries = boundaries_of(problem);
    const auto add_boundaries = [&](const char* name, const std::vector<std::int64_t>& rows) {
      files[name] = write_ints(folder / fmt::format("{}.bin", name), {rows.begin(), rows.end()}, Shape{batch + 1});
    };
    add_boundaries("cu_seqlens_q", boundaries.q);
    if (!problem.paged()) add_boundaries("cu_seqlens_kv", boundaries.kv);
  }
  if (problem.paged()) {
    const auto columns = static_cast<std::int64_t>(inputs.block_table.size()) / batch;
    files["block_table"] = write_ints(folder / "block_table.bin", inputs.block_table, Shape{batch, columns});
    files["seqused_kv"] = write_ints(folder / "seqused_kv.bin", inputs.seqused_kv, Shape{batch});
  }
  const std::int64_t heads_kv = problem.heads_kv;
  const auto add_descale = [&](const char* name, const std::vector<float>& values, Scaling scaling,
                               const TensorLayout& rows) {
    if (values.empty()) return;
    const Shape shape = scaling == Scaling::kToken ? Shape{rows.batch, rows.heads, rows.rows}
                        : values.size() == 1       ? Shape{1}
                                                   : Shape{batch, heads_kv};
    files[name] = write_floats(folder / fmt::format("{}.bin", name), values, shape);
  };
  add_descale("descale_q", inputs.descale_q, problem.q_scaling(), inputs.q.layout);
  add_descale("descale_k", inputs.descale_k, problem.k_scaling(), inputs.k.layout);
  add_descale("descale_v", inputs.descale_v, problem.v_scaling(), inputs.k.layout);
  if (!inputs.sink.empty()) files["sink"] = write_floats(folder / "sink.bin", inputs.sink, Shape{heads});
  for (std::size_t n = 0; n < inputs.tensors.size(); ++n) {
    const ElementTensor& tensor = inputs.tensors[n];
    const auto* bytes = reinterpret_cast<const char*>(tensor.data.data());
    const char* dtype = tensor.element == ExpressionType::kFloat ? "fp32"
                        : tensor.element == ExpressionType::kInt ? "int32"
                                                                 : "bool";
    // Numbered: names that differ in case alone may be one file.
    files["tensors"][problem.tensors[n].name] =
        write_bytes(folder / fmt::format("tensor{}.bin", n), {bytes, tensor.data.size()}, dtype,
                    Shape(tensor.shape.sizes.begin(), tensor.shape.sizes.begin() + tensor.shape.count));
  }
  return files;
}

OutputJudgement judge_outputs(const PlacedProblem& problem, const Oracle& oracle, const json& answer,
                              Strictness strictness) {
  OutputJudgement worst;
  try {
    const json& outputs = answer.at("outputs");
    if (!outputs.is_array() || outputs.empty()) throw_bad_input("it named no output");
    for (const json& output : outputs) {
      OutputJudgement one = judge_one(problem, oracle, output, strictness);
      if (worst.wrong.empty() && (!one.wrong.empty() || one.rel_error > worst.rel_error)) worst = std::move(one);
    }
  } catch (const json::exception& e) {
    return {0, fmt::format("its answer to output is not of the form that docs/peers.md has ({})", e.what())};
  } catch (const Error& e) {
    return {0, e.what()};
  }
  return worst;
}

OutputJudgement read_laboratory_judgement(const json& answer) {
  return {answer.at("rel_error").get<double>(), answer.at("wrong").get<std::string>()};
}

}  // namespace flashcore
