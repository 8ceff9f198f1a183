#include "cli/user_tensors.h"

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/expression_builtin.h"
#include "core/foreign_text.h"
#include "core/operands.h"
#include "core/problem_expressions.h"
#include "core/slope_bound.h"

namespace flashcore::cli {

namespace {

struct Named {
  const char* role;  // "q"
  std::string file;
  FileTensor tensor;
  std::int64_t batch = 1, heads = 0, rows = 0, columns = 0;
};

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }
std::string describe(const Named& t) {
  return fmt::format("{} ({}) has shape {}", t.role, t.file, shape_text(t.tensor.shape));
}

Named read_named(const char* role, const std::string& file, Layout layout) {
  Named t{role, file, read_tensor(file)};
  const auto& shape = t.tensor.shape;
  const char* axes = layout == Layout::kBhsd ? "[batch, heads, seqlen, head_dim]" : "[batch, seqlen, heads, head_dim]";
  if (shape.size() != 3 && shape.size() != 4) {
    throw_bad_input("{}, {} dimensions; it must be {} for --layout {}, or the same without batch", describe(t),
                    shape.size(), axes, to_string(layout));
  }
  const std::size_t first = shape.size() - 3;
  t.batch = first == 1 ? shape[0] : 1;
  t.heads = shape[first + (layout == Layout::kBhsd ? 0 : 1)];
  t.rows = shape[first + (layout == Layout::kBhsd ? 1 : 0)];
  t.columns = shape[first + 2];
  return t;
}

void require_equal(const Named& a, const Named& b, std::int64_t Named::*size, const char* what) {
  if (a.*size == b.*size) return;
  throw_bad_input("{} and {}: {} must be equal, but it is {} and {}; check the files and --layout", describe(a),
                  describe(b), what, a.*size, b.*size);
}

void require_same_kind(const Named& a, const Named& b) {
  if (a.tensor.dtype != b.tensor.dtype) {
    throw_bad_input("{} ({}) is {} and {} ({}) is {}: q, k and v must have one dtype; convert one of them", a.role,
                    a.file, to_string(a.tensor.dtype), b.role, b.file, to_string(b.tensor.dtype));
  }
  if (a.tensor.shape.size() != b.tensor.shape.size())
    throw_bad_input("{} and {}: both must have a batch axis, or none", describe(a), describe(b));
}

HostTensor to_host(const Named& t, Layout layout) {
  HostTensor host(t.tensor.dtype, make_layout(layout, t.batch, t.heads, t.rows, t.columns));
  FC_CHECK(host.data.size() == t.tensor.data.size());  // dense in the file, dense in bhsd and bshd
  host.data = HostBytes::copy_of(t.tensor.data);
  return host;
}

std::vector<std::int64_t> axes(const Problem& p, Layout layout, bool with_batch, std::int64_t columns) {
  std::vector<std::int64_t> shape;
  if (with_batch) shape.push_back(p.batch);
  const bool heads_first = layout == Layout::kBhsd;
  shape.push_back(heads_first ? p.heads_q : p.seqlen_q);
  shape.push_back(heads_first ? p.seqlen_q : p.heads_q);
  if (columns > 0) shape.push_back(columns);
  return shape;
}

}  // namespace

UserTensors read_user_tensors(const std::string& q_file, const std::string& k_file, const std::string& v_file,
                              Layout layout) {
  const Named q = read_named("q", q_file, layout), k = read_named("k", k_file, layout),
              v = read_named("v", v_file, layout);
  require_same_kind(q, k);
  require_same_kind(q, v);
  require_equal(q, k, &Named::batch, "batch");
  require_equal(k, v, &Named::batch, "batch");
  require_equal(k, v, &Named::heads, "heads");
  require_equal(k, v, &Named::rows, "seqlen");
  require_equal(q, k, &Named::columns, "head_dim");
  if (k.heads == 0 || q.heads % k.heads != 0) {
    throw_bad_input(
        "{} and {}: {} query heads cannot share {} key heads; the number of key heads must divide the number of query "
        "heads (check --layout)",
        describe(q), describe(k), q.heads, k.heads);
  }
  UserTensors out;
  PlacedProblem& p = out.problem;
  p.dtype = q.tensor.dtype;
  if (p.is_8bit()) p.scaling = Scaling::kNone;  // a file has no factors: its numbers are the values
  p.batch = q.batch, p.heads_q = q.heads, p.heads_kv = k.heads;
  p.seqlen_q = q.rows, p.seqlen_kv = k.rows, p.head_dim = q.columns, p.head_dim_v = v.columns;
  p.layout = layout;
  p.validate();
  out.had_batch = q.tensor.shape.size() == 4;
  out.inputs = {to_host(q, layout), to_host(k, layout), to_host(v, layout)};
  return out;
}

void read_score_operands(const std::string& alibi, const std::string& sink, UserTensors& user) {
  Problem& p = user.problem;
  const auto read = [](const char* role, const std::string& file) {
    const FileTensor tensor = read_tensor(file);
    if (tensor.dtype != DType::kF32)
      throw_bad_input("{} ({}) is {}; it must be fp32", role, file, to_string(tensor.dtype));
    return tensor;
  };
  const auto values = [](const FileTensor& tensor) {
    std::vector<float> floats(tensor.data.size() / sizeof(float));
    if (!floats.empty()) std::memcpy(floats.data(), tensor.data.data(), tensor.data.size());
    return floats;
  };
  if (!alibi.empty()) {
    const FileTensor slopes = read("alibi", alibi);
    if (slopes.shape == std::vector{p.heads_q}) p.alibi = Alibi::kHead;
    else if (slopes.shape == std::vector{p.batch, p.heads_q}) p.alibi = Alibi::kBatch;
    else
      throw_bad_input("alibi ({}) has shape {}; give slopes of shape [heads] = [{}], or [batch, heads] = [{}, {}]",
                      alibi, shape_text(slopes.shape), p.heads_q, p.batch, p.heads_q);
    user.inputs.alibi = values(slopes);
  }
  if (!sink.empty()) {
    const FileTensor logits = read("sink", sink);
    if (logits.shape != std::vector{p.heads_q})
      throw_bad_input("sink ({}) has shape {}; give a logit for each query head, [heads] = [{}]", sink,
                      shape_text(logits.shape), p.heads_q);
    p.sink = true;
    user.inputs.sink = values(logits);
  }
}

void check_score_operands(const std::string& alibi, const std::string& sink, const UserTensors& user) {
  const double largest = max_slope(user.problem);
  for (std::size_t i = 0; i < user.inputs.alibi.size(); ++i)
    if (!(std::abs(user.inputs.alibi[i]) <= largest))  // NaN too
      throw_bad_input(
          "alibi ({}): element {} is {}; slopes are finite, and of this problem from {:.3g} to {:.3g}, beyond which "
          "fp32 "
          "overflows",
          alibi, i, user.inputs.alibi[i], -largest, largest);
  for (std::size_t i = 0; i < user.inputs.sink.size(); ++i)
    if (!(user.inputs.sink[i] < INFINITY))
      throw_bad_input("sink ({}): element {} is {}; sinks are finite, or -infinity for none", sink, i,
                      user.inputs.sink[i]);
}

namespace {

struct GivenTensor {
  std::string name, file;
};

GivenTensor split_tensor(const std::string& given) {
  const std::size_t equals = given.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == given.size())
    throw_bad_input("--tensors {}: use NAME=FILE, the name in the function and the file with its values",
                    excerpt(given));
  return {given.substr(0, equals), given.substr(equals + 1)};
}

// The first elements along each axis, row-major.
ElementTensor cut_to(const FileElements& file, const ExpressionShape& shape) {
  ElementTensor out{file.element, shape, {}};
  const std::size_t size = bytes_of(file.element);
  out.data.resize(static_cast<std::size_t>(out.count()) * size);
  const auto rank = static_cast<std::size_t>(shape.count);
  for (std::int64_t at = 0; at < out.count(); ++at) {
    std::int64_t rest = at, from = 0, stride = 1;
    for (std::size_t x = rank; x-- > 0;) {
      from += rest % shape.sizes[x] * stride;
      rest /= shape.sizes[x], stride *= file.shape[x];
    }
    std::memcpy(out.data.data() + static_cast<std::size_t>(at) * size,
                file.data.data() + static_cast<std::size_t>(from) * size, size);
  }
  return out;
}

}  // namespace

std::vector<std::string> function_files(const std::vector<std::string>& tensors) {
  std::vector<std::string> files;
  for (const std::string& given : tensors) files.push_back(split_tensor(given).file);
  return files;
}

void read_functions(const std::string& score, const std::string& mask, const std::vector<std::string>& tensors,
                    UserTensors& user) {
  std::vector<ExpressionTensor> named;
  std::vector<FileElements> read;
  std::vector<std::string> files;
  for (const std::string& given : tensors) {
    const GivenTensor tensor = split_tensor(given);
    for (const ExpressionTensor& other : named)
      if (other.name == tensor.name) throw_bad_input("--tensors gives '{}' twice; give it once", excerpt(tensor.name));
    read.push_back(read_elements(tensor.file));
    const auto rank = read.back().shape.size();
    if (rank < 1 || rank > static_cast<std::size_t>(kMaxExpressionRank))
      throw_bad_input("the tensor '{}' ({}) has shape {}; give one of one to {} axes", excerpt(tensor.name),
                      tensor.file, shape_text(read.back().shape), kMaxExpressionRank);
    named.push_back({tensor.name, read.back().element, static_cast<int>(rank)});
    files.push_back(tensor.file);
  }
  if (score.empty() && mask.empty() && !named.empty())
    throw_bad_input("--tensors is given without --score and --mask, which alone read tensors; give one of them");
  set_expressions(user.problem, score, mask, named);
  name_softcap(user.problem);
  user.problem.validate();
  const std::vector<ExpressionShape> shapes = tensor_shapes(user.problem);
  for (std::size_t t = 0; t < user.problem.tensors.size(); ++t) {
    std::size_t at = 0;
    while (named[at].name != user.problem.tensors[t].name) ++at;
    for (std::size_t x = 0; x < read[at].shape.size(); ++x)
      if (read[at].shape[x] < shapes[t].sizes[x])
        throw_bad_input(
            "the tensor '{}' ({}) has shape {}, and the functions need one of {} at the least; give a larger one",
            named[at].name, files[at], shape_text(read[at].shape),
            shape_text({shapes[t].sizes.begin(), shapes[t].sizes.begin() + shapes[t].count}));
    user.inputs.tensors.push_back(cut_to(read[at], shapes[t]));
  }
}

FileTensor output_tensor(const HostTensor& o, Layout layout, bool with_batch) {
  Problem p;
  p.batch = o.layout.batch, p.heads_q = o.layout.heads, p.seqlen_q = o.layout.rows;
  return {o.dtype, axes(p, layout, with_batch, o.layout.columns), {o.data.begin(), o.data.end()}};
}

FileTensor lse_tensor(const std::vector<float>& lse, const Problem& problem, bool with_batch) {
  FileTensor out{DType::kF32, axes(problem, Layout::kBhsd, with_batch, 0), {}};
  out.data.resize(lse.size() * sizeof(float));
  if (!lse.empty()) std::memcpy(out.data.data(), lse.data(), out.data.size());
  return out;
}

}  // namespace flashcore::cli
