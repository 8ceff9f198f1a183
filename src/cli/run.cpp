// flashcore run: attention on the user's own tensors.

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/user_tensors.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "core/problem_fields.h"
#include "core/reference.h"
#include "lab/report/model.h"

namespace flashcore::cli {

namespace {

// --check compares with fp64 on every row up to this, on a sample of rows beyond.
constexpr double kReferenceFlops = 4e9;

struct RunArguments {
  Common common;
  std::string q, k, v, out, lse;
  std::string causal = "none", window, window_alignment;
  std::string layout = "bhsd";
  std::optional<double> scale, softcap;
  std::string alibi, sink;
  std::string score, mask;
  std::vector<std::string> tensors;
  bool check = false;
};

struct Result {
  HostTensor o;
  std::vector<float> lse;
  std::optional<double> time_us = std::nullopt;  // none on an emulated GPU, or if nobody asked
};

FieldValue parse_side(const std::string& window, std::string_view side) {
  const auto keys = parse_whole(side);
  if (!keys || *keys < -1)
    throw_bad_input(
        "--window {}: use LEFT,RIGHT, how many keys a row sees on either side of its own one, -1 for no bound: 1023,0",
        excerpt(window));
  return *keys == -1 ? FieldValue(std::monostate()) : FieldValue(*keys);
}

Mask parse_mask(const RunArguments& options) {
  if (options.causal != "none" && !options.causal.empty() && options.causal != "bottom_right" &&
      options.causal != "top_left")
    throw_bad_input(
        "--causal {}: use top_left (row i sees keys 0..i) or bottom_right (the last row sees every key; the default)",
        excerpt(options.causal));
  Problem problem;
  const auto set = [&](std::string_view name, const FieldValue& value) {
    find_problem_field(name)->set(problem, value);
  };
  set("causal", options.causal.empty() ? std::string("bottom_right") : options.causal);
  if (!options.window.empty()) {
    const std::size_t comma = std::min(options.window.find(','), options.window.size());
    const std::string_view text = options.window;
    set("window_left", parse_side(options.window, text.substr(0, comma)));
    set("window_right", parse_side(options.window, text.substr(std::min(comma + 1, text.size()))));
  }
  if (!options.window_alignment.empty()) {
    set("window_alignment", options.window_alignment);
    require_one_alignment(options.causal.empty() ? "bottom_right" : options.causal, options.window_alignment);
  }
  return problem.mask;
}

// Before computing: a name that cannot be written must not cost the computation.
void check_output(const char* flag, const std::string& file, DType dtype) {
  if (file.empty()) return;
  const std::filesystem::path path(file);
  const std::string extension = path.extension().string();
  if (extension != ".npy" && extension != ".safetensors")
    throw_bad_input("{} {}: the extension '{}' names no format; use .safetensors or .npy", flag, file, extension);
  if (extension == ".npy" && dtype != DType::kF32 && dtype != DType::kF16)
    throw_bad_input("{} {}: .npy has no {}; use .safetensors", flag, file, to_string(dtype));
  check_output_file(flag, file);
}

Result compute(Device& device, const Candidate& candidate, const UserTensors& user, bool time) {
  const PlacedProblem& problem = user.problem;
  const ProblemLayouts layouts = make_layouts(problem);
  std::vector<std::unique_ptr<Buffer>> buffers;
  const auto put = [&](const HostTensor& host) {
    buffers.push_back(device.allocate(host.data.size()));
    device.upload(buffers.back()->data(), host.data.data(), host.data.size());
    return buffers.back()->data();
  };
  Result result{HostTensor(problem.output_dtype(), layouts.o),
                std::vector<float>(static_cast<std::size_t>(layouts.lse_elements)), std::nullopt};
  AttentionArgs args{put(user.inputs.q), put(user.inputs.k), put(user.inputs.v), nullptr, nullptr, layouts};
  const std::size_t o_bytes = result.o.data.size(), lse_bytes = result.lse.size() * sizeof(float);
  const auto o = device.allocate(o_bytes), lse = device.allocate(lse_bytes);
  // All ones is NaN in every dtype: a row that no thread wrote shows.
  device.fill(o->data(), 0xFF, o_bytes);
  device.fill(lse->data(), 0xFF, lse_bytes);
  const auto put_floats = [&](const std::vector<float>& values) -> const float* {
    if (values.empty()) return nullptr;
    buffers.push_back(device.allocate(values.size() * sizeof(float)));
    device.upload(buffers.back()->data(), values.data(), values.size() * sizeof(float));
    return static_cast<const float*>(buffers.back()->data());
  };
  args.alibi = put_floats(user.inputs.alibi), args.sink = put_floats(user.inputs.sink);
  for (std::size_t t = 0; t < user.inputs.tensors.size(); ++t) {
    const std::vector<std::byte>& data = user.inputs.tensors[t].data;
    buffers.push_back(device.allocate(data.size()));
    device.upload(buffers.back()->data(), data.data(), data.size());
    args.tensors[t] = buffers.back()->data();
  }
  args.o = o->data();
  args.lse = static_cast<float*>(lse->data());
  const LoadedCandidate loaded(device, candidate, problem, compile_candidate(candidate, problem, device.info().limits));
  const Launch launch = loaded.bind(args);
  launch();
  device.synchronize();
  constexpr double kOneLaunch = 1;             // microseconds a sample must last: one launch is enough
  if (time && !device.info().limits.emulated)  // which has no time
    result.time_us = device.make_timer(std::span(&launch, 1), Regime::kWarm, kOneLaunch)->sample().time_us;
  device.download(result.o.data.data(), o->data(), o_bytes);
  device.download(result.lse.data(), lse->data(), lse_bytes);
  return result;
}

bool check_result(Console& console, const UserTensors& user, const Result& result, nlohmann::json& json) {
  const RowSample rows = choose_rows(user.problem, kReferenceFlops, 1);
  const Reference reference = reference_forward(user.problem, user.inputs, rows);
  const OutputError error =
      compare(user.problem, reference, gather_rows(result.o, rows), gather_lse(user.problem, result.lse, rows));
  const ErrorBound bound = error_bound(user.problem, reference);
  // Not the sums: their bounds are of random data, and a user's rows may all be the same.
  const bool ok = within_norms(error, bound);
  std::int64_t undefined = 0;  // rows that are NaN or infinite by the definition, of which nothing but that is judged
  for (std::int64_t row = 0; row < reference.rows; ++row) {
    const double* first = reference.o.data() + row * user.problem.head_dim_v;
    undefined += std::any_of(first, first + user.problem.head_dim_v, [](double x) { return !std::isfinite(x); });
  }
  console.summary(
      "{}: {} rows against fp64: relative error {:.2e} (bound {:.2e}), worst row {:.2e} ({:.2e}), lse {:.2e} ({:.2e}), "
      "{} values finite in only one of the two{}",
      console.paint(ok ? "correct" : "WRONG", ok ? Tone::kGood : Tone::kBad), reference.rows, error.rel, bound.rel,
      error.worst_row_rel, bound.worst_row_rel, error.lse_max_abs, bound.lse_max_abs, error.nonfinite,
      undefined > 0 ? fmt::format("; by the definition {} of the rows are not finite", undefined) : "");
  json["correct"] = {{"passed", ok},
                     {"rows", reference.rows},
                     {"rel_error", error.rel},
                     {"bound", bound.rel},
                     {"undefined_rows", undefined}};
  return ok;
}

int run(const RunArguments& options) {
  check_json_target(options.common);
  std::vector<NamedFile> inputs = {
      {"--q", options.q}, {"--k", options.k}, {"--v", options.v}, {"--alibi", options.alibi}, {"--sink", options.sink}};
  for (const std::string& file : function_files(options.tensors)) inputs.push_back({"--tensors", file});
  require_distinct({{"--out", options.out}, {"--lse", options.lse}, {"--json", options.common.json}}, inputs);
  const Layout layout = parse_layout(options.layout);
  if (layout == Layout::kStrided) throw_bad_input("--layout strided: tensors in files are dense; use bhsd or bshd");
  UserTensors user = read_user_tensors(options.q, options.k, options.v, layout);
  user.problem.mask = parse_mask(options);
  user.problem.scale = options.scale;
  user.problem.softcap = options.softcap;
  read_score_operands(options.alibi, options.sink, user);
  user.problem.validate();
  read_functions(options.score, options.mask, options.tensors, user);
  check_score_operands(options.alibi, options.sink, user);
  check_output("--out", options.out, user.problem.output_dtype());
  check_output("--lse", options.lse, DType::kF32);
  const std::string pinned = candidate_text(options.common);
  const auto device = open_named_device(options.common.device);
  const Choice choice = pinned.empty() ? dispatch(user.problem, device->info())
                                       : Choice{parse_candidate(pinned, user.problem, device->info().limits),
                                                "asked for", ChosenBy::kCaller};

  Console console(options.common.quiet, json_on_stdout(options.common));
  // A time is told only of a result that was compared.
  const Result result = compute(*device, choice.candidate, user, options.check);
  console.line("{} on {} ({}): {}, {}", user.problem.id(), device->info().name, device->info().id,
               choice.candidate.print(), choice.reason);
  nlohmann::json json = {{"problem", user.problem.id()},
                         {"device", device->info().id},
                         {"family", choice.candidate.family->name()},
                         {"config", choice.candidate.family->space().to_json(choice.candidate.config)},
                         {"reason", choice.reason},
                         {"time_us", nullptr}};
  const bool correct = !options.check || check_result(console, user, result, json);
  if (correct && result.time_us) {
    console.line("one launch took {} ({}); `flashcore bench` measures properly", human_time_us(*result.time_us),
                 report::throughput(user.problem, *result.time_us));
    json["time_us"] = *result.time_us;
  }
  if (correct) {
    if (!options.out.empty()) write_tensor(options.out, output_tensor(result.o, layout, user.had_batch), "o");
    if (!options.lse.empty()) write_tensor(options.lse, lse_tensor(result.lse, user.problem, user.had_batch), "lse");
  }
  write_json(options.common, {{"schema", "flashcore.run/1"}, {"results", {json}}});
  if (correct && options.out.empty() && options.lse.empty())
    console.summary("the output was not kept; --out FILE.npy or FILE.safetensors keeps it");
  for (const std::string& file : {options.out, options.lse})
    if (correct && !file.empty()) console.line("written: {}", file);
  if (!correct)
    console.summary("nothing was written: the result is outside the bound; please report it with the shapes above");
  return correct ? kDone : kFailed;
}

}  // namespace

Run add_run(CLI::App& app) {
  auto options = std::make_shared<RunArguments>();
  const char* forms = "FILE.npy|FILE.safetensors[:NAME]";
  app.add_option("--q", options->q,
                 "queries, [batch, heads, seqlen, head_dim] (batch may be missing); fp32, fp16 or bf16")
      ->required()
      ->type_name(forms);
  app.add_option("--k", options->k, "keys; heads divide the query heads")->required()->type_name(forms);
  app.add_option("--v", options->v, "values; as many rows and heads as k")->required()->type_name(forms);
  app.add_option("--out", options->out, "where to write the output")->type_name("FILE");
  app.add_option("--lse", options->lse, "where to write the log-sum-exp of each row, fp32 [batch, heads, seqlen]")
      ->type_name("FILE");
  app.add_option("--causal", options->causal,
                 "mask: top_left (row i sees keys 0..i) or bottom_right (default: the last row sees every key)")
      ->expected(0, 1)
      ->type_name("[KIND]");
  app.add_option("--window", options->window,
                 "keys that a row sees to the left and right of its own one; -1: no bound on that side")
      ->type_name("LEFT,RIGHT")
      ->check(not_empty());
  app.add_option("--window-alignment", options->window_alignment,
                 "of a window without --causal: bottom_right (default: the last row's own key is the last) or top_left")
      ->type_name("KIND");
  app.add_option("--scale", options->scale, "softmax scale (default: 1/sqrt(head_dim))")->check(decimal_number());
  app.add_option("--softcap", options->softcap, "s becomes softcap * tanh(s / softcap) before the mask")
      ->check(decimal_number());
  app.add_option("--alibi", options->alibi, "slopes of ALiBi, fp32 [heads] or [batch, heads]")->type_name(forms);
  app.add_option("--sink", options->sink, "a logit for each query head that joins its rows' sums, fp32 [heads]")
      ->type_name(forms);
  app.add_option("--score", options->score, "what becomes of a score s: 's + slope[h] * (j - i)' (docs/expressions.md)")
      ->type_name("TEXT")
      ->check(not_empty());
  app.add_option("--mask", options->mask, "which pairs of row i and key j are visible: 'doc[i] == doc[j]'")
      ->type_name("TEXT")
      ->check(not_empty());
  app.add_option("--tensors", options->tensors,
                 "what --score and --mask name, fp32, int32, int64 or bool: slope=slope.npy,doc=d.npy")
      ->type_name("NAME=FILE,...")
      ->delimiter(',');
  app.add_option("--layout", options->layout, "order of the axes in the files: bhsd | bshd")->capture_default_str();
  app.add_flag("--check", options->check,
               "compare with fp64; within the bound: a time, too; outside: exit 1, nothing written");
  add_common(app, options->common, kDevice | kFamily | kConfig | kJson);
  add_examples(
      app,
      {"run --device cpu --q q.safetensors --k k.safetensors --v v.safetensors --out o.safetensors --check",
       "run --device cpu --q q.npy --k k.npy --v v.npy --causal --lse lse.npy --out o.npy",
       "run --device cpu --q q.npy --k k.npy --v v.npy --causal --window 4,-1 --out o.npy",
       "run --device cpu --q q.npy --k k.npy --v v.npy --score \"30 * tanh(s / 30)\" --mask \"i - j < 16\" --check"});
  return [options] { return run(*options); };
}

}  // namespace flashcore::cli
