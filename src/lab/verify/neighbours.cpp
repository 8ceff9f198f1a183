#include "lab/verify/neighbours.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>

#include "core/boundaries.h"
#include "core/data.h"
#include "core/draws.h"
#include "core/error.h"
#include "core/problem_fields.h"
#include "kernels/batch_invariant.h"
#include "kernels/registry.h"
#include "lab/gates/calls.h"
#include "lab/harness/kernel_failure.h"

namespace flashcore {
namespace {

constexpr std::int64_t kMostKeys = 300, kMostLongKeys = 40000, kMostRows = 100;
constexpr int kTries = 200;
constexpr std::array<std::int64_t, 8> kPageSizes = {1, 2, 3, 8, 16, 64, 100, 256};
constexpr std::array kNeighbourLayouts = {Layout::kBhsd, Layout::kBshd, Layout::kStrided};

// An emulated GPU takes a second for what hardware does in microseconds.
struct Most {
  std::int64_t heads = 8, batch = 9;
  double flops = 1e9;
};
Most most_on(const DeviceInfo& device) { return device.limits.emulated ? Most{4, 5, 2e7} : Most{}; }

bool is_promised(const Problem& problem, const DeviceInfo& device, const std::string& pinned) {
  try {
    problem.validate();
    (void)neighbour_candidate(problem, device, pinned);
    return true;
  } catch (const Error&) {
    return false;
  }
}

double flops_of(const Problem& problem, const std::vector<SequenceLengths>& sequences) {
  double flops = 0;
  for (const SequenceLengths& each : sequences) flops += problem.of_sequence(each).flops();
  return flops;
}

// A ragged or dense problem that a family promises equal bits for, of one sequence.
std::optional<PlacedProblem> draw_problem(Draws& random, const DeviceInfo& device, const std::string& pinned) {
  PlacedProblem problem{random_problem(random).without_expressions(), random.pick(kNeighbourLayouts)};
  problem.batch = 1;
  const Most most = most_on(device);
  while (problem.heads_q > most.heads && problem.heads_kv > 1) {
    const std::int64_t group = problem.group_size();
    problem.heads_kv = (problem.heads_kv + 1) / 2, problem.heads_q = problem.heads_kv * group;
  }
  if (!random.one_in(4) && !problem.ragged()) problem.lengths = Lengths::kFull;
  if (problem.ragged()) problem.lengths = Lengths::kFull;
  if (problem.ragged() && problem.is_8bit()) problem.scaling.reset();  // rows of dense ones alone have factors
  problem.v_layout = VLayout::kNd;                                     // keys of V are placed row by row below
  if (problem.ragged() && problem.page_size == 0 && random.one_in(2)) problem.page_size = random.pick(kPageSizes);
  const bool few = random.one_in(2), many_keys = few && random.one_in(3);
  problem.seqlen_q = random.between(1, many_keys ? 2 : few ? kFewInvariantRows : kMostRows);
  problem.seqlen_kv = random.between(1, many_keys ? kMostLongKeys : kMostKeys);
  while (problem.flops() > most.flops / 2 && problem.seqlen_kv > 1) problem.seqlen_kv /= 2;
  return is_promised(problem, device, pinned) ? std::optional(problem) : std::nullopt;
}

// Another batch for the sequence of `alone`, whose lengths are its bounds, on the same side of kFewInvariantRows.
Neighbourhood draw_neighbourhood(Draws& random, const PlacedProblem& alone, bool few, const Most& most) {
  Neighbourhood n;
  n.problem = alone;
  n.problem.batch = random.between(2, most.batch);
  n.place = random.below(n.problem.batch);
  n.problem.layout = random.pick(kNeighbourLayouts);
  if (alone.ragged()) {
    const std::int64_t rows = alone.seqlen_q, longest = few ? kFewInvariantRows : 2 * kMostRows;
    n.problem.seqlen_q = random.between(few ? rows : std::max(rows, kFewInvariantRows + 1), longest);
    n.problem.seqlen_kv = random.between(alone.seqlen_kv, 2 * alone.seqlen_kv);
    if (alone.paged()) n.problem.page_size = random.pick(kPageSizes);
    n.is_padded = random.one_in(2);
  }
  for (std::int64_t s = 0; s < n.problem.batch; ++s) {
    SequenceLengths lengths{alone.seqlen_q, alone.seqlen_kv};
    if (s != n.place && alone.ragged())
      lengths = {random.between(0, n.problem.seqlen_q), random.between(0, n.problem.seqlen_kv)};
    n.sequences.push_back(lengths);
  }
  const double own = alone.flops();
  while (alone.ragged() && flops_of(n.problem, n.sequences) > std::max(most.flops, 1.01 * own))
    for (std::int64_t s = 0; s < n.problem.batch; ++s)
      if (SequenceLengths& each = n.sequences[static_cast<std::size_t>(s)]; s != n.place) each.q /= 2, each.kv /= 2;
  return n;
}

void copy_row(HostTensor& to, std::int64_t batch, std::int64_t head, std::int64_t row, const HostTensor& from,
              std::int64_t from_row) {
  copy_row(to, to.layout.offset(batch, head, row), from, from.layout.offset(0, head, from_row));
}

// Where rows of q and keys of sequence `s` begin in packed tensors.
SequenceLengths first_of(const Neighbourhood& n) {
  const Boundaries at = n.is_padded ? boundaries_of(n.problem) : boundaries_of(n.sequences);
  const auto s = static_cast<std::size_t>(n.place);
  return {at.q[s], at.kv[s]};
}

// Pages of its own for the sequence, so that no place of a page is two of its keys. Others may share them.
void place_keys(const Neighbourhood& n, const SequenceLengths& lengths, const AttentionInputs& own, Draws& random,
                AttentionInputs& inputs) {
  const std::int64_t size = n.problem.page_size, needed = (lengths.kv + size - 1) / size;
  std::vector<std::int32_t> pages(static_cast<std::size_t>(inputs.k.layout.batch));
  std::iota(pages.begin(), pages.end(), 0);
  FC_CHECK(needed <= static_cast<std::int64_t>(pages.size()));
  const std::int64_t stride = static_cast<std::int64_t>(inputs.block_table.size()) / n.problem.batch;
  for (std::int64_t p = 0; p < needed; ++p) {
    std::swap(pages[static_cast<std::size_t>(p)],
              pages[static_cast<std::size_t>(random.between(p, static_cast<std::int64_t>(pages.size()) - 1))]);
    inputs.block_table[static_cast<std::size_t>(n.place * stride + p)] = pages[static_cast<std::size_t>(p)];
  }
  for (std::int64_t head = 0; head < n.problem.heads_kv; ++head)
    for (std::int64_t key = 0; key < lengths.kv; ++key) {
      const std::int64_t page = pages[static_cast<std::size_t>(key / size)];
      copy_row(inputs.k, page, head, key % size, own.k, key);
      copy_row(inputs.v, page, head, key % size, own.v, key);
      if (n.problem.input_scaling() != Scaling::kToken) continue;
      const auto to = static_cast<std::size_t>((page * n.problem.heads_kv + head) * size + key % size);
      const auto from = static_cast<std::size_t>(head * lengths.kv + key);
      inputs.descale_k[to] = own.descale_k[from], inputs.descale_v[to] = own.descale_v[from];
    }
}

// Values of which the batch has one for each sequence, or one for all.
void place_values(std::vector<float>& values, const std::vector<float>& own, std::int64_t place) {
  FC_CHECK(own.empty() == values.empty());
  if (values.size() == own.size()) values = own;
  else std::copy(own.begin(), own.end(), values.begin() + place * static_cast<std::int64_t>(own.size()));
}

AttentionInputs inputs_of(const NeighbourCase& given, const Neighbourhood& n, const AttentionInputs& own,
                          Draws& random) {
  // Neighbours whose scores are no numbers, or beyond what a row of the sequence has, are nobody else's.
  const Pattern pattern = random.pick(std::array{Pattern::kNormal, Pattern::kNonFinite, Pattern::kExtreme});
  AttentionInputs inputs = make_inputs(n.problem, pattern, random.next() % 1'000'000'000U);
  const SequenceLengths first = n.problem.ragged() ? first_of(n) : SequenceLengths{};
  const std::int64_t batch = n.problem.ragged() ? 0 : n.place;
  for (std::int64_t head = 0; head < n.problem.heads_q; ++head)
    for (std::int64_t row = 0; row < given.lengths.q; ++row) copy_row(inputs.q, batch, head, first.q + row, own.q, row);
  if (n.problem.paged()) place_keys(n, given.lengths, own, random, inputs);
  for (std::int64_t head = 0; head < n.problem.heads_kv && !n.problem.paged(); ++head)
    for (std::int64_t key = 0; key < given.lengths.kv; ++key) {
      copy_row(inputs.k, batch, head, first.kv + key, own.k, key);
      copy_row(inputs.v, batch, head, first.kv + key, own.v, key);
    }
  place_values(inputs.descale_q, own.descale_q, n.place);
  if (!n.problem.paged() || n.problem.input_scaling() != Scaling::kToken) {  // else their keys' pages have them
    place_values(inputs.descale_k, own.descale_k, n.place);
    place_values(inputs.descale_v, own.descale_v, n.place);
  }
  place_values(inputs.alibi, own.alibi, n.place);
  inputs.sink = own.sink;
  return inputs;
}

// The sequence's own part, whatever lies around it.
PlacedProblem own_problem(const NeighbourCase& given) {
  PlacedProblem dense = given.neighbourhoods.front().problem;
  dense.layout = Layout::kBhsd, dense.page_size = 0, dense.lengths = Lengths::kFixed;
  dense.seqlen_q = given.lengths.q, dense.seqlen_kv = given.lengths.kv;
  return dense;
}

NeighbourBits bits_of(const NeighbourCase& given, const Neighbourhood& n, const AttentionOutputs& outputs) {
  const std::int64_t batch = n.problem.ragged() ? 0 : n.place, first = n.problem.ragged() ? first_of(n).q : 0,
                     rows = outputs.o.layout.rows;
  NeighbourBits bits;
  for (std::int64_t head = 0; head < n.problem.heads_q; ++head)
    for (std::int64_t row = first; row < first + given.lengths.q; ++row) {
      for (std::int64_t c = 0; c < outputs.o.layout.columns; ++c) bits.o.push_back(outputs.o.at(batch, head, row, c));
      bits.lse.push_back(outputs.lse[static_cast<std::size_t>((batch * n.problem.heads_q + head) * rows + row)]);
    }
  return bits;
}

std::string first_difference(const NeighbourCase& given, const NeighbourBits& expected, const NeighbourBits& found) {
  const auto columns = expected.o.size() / std::max<std::size_t>(1, expected.lse.size());
  for (std::size_t i = 0; i < expected.o.size(); ++i)
    if (std::memcmp(&expected.o[i], &found.o[i], sizeof(float)) != 0) {
      const auto row = static_cast<std::int64_t>(i / columns);
      return fmt::format("o of head {}, row {}, column {} is {:.9g} and {:.9g} alone", row / given.lengths.q,
                         row % given.lengths.q, i % columns, found.o[i], expected.o[i]);
    }
  for (std::size_t i = 0; i < expected.lse.size(); ++i)
    if (std::memcmp(&expected.lse[i], &found.lse[i], sizeof(float)) != 0)
      return fmt::format("the log-sum-exp of head {}, row {} is {:.9g} and {:.9g} alone",
                         static_cast<std::int64_t>(i) / given.lengths.q, static_cast<std::int64_t>(i) % given.lengths.q,
                         found.lse[i], expected.lse[i]);
  return "no difference";
}

// Equal bits of what is wrong, or was never written, would be nothing.
std::string why_wrong(const PlacedProblem& problem, const AttentionInputs& inputs, const NeighbourBits& bits) {
  const Reference reference = reference_forward(problem, inputs, RowSample{});
  const ErrorBound bound = error_bound(problem, reference);
  const OutputError error = compare(problem, reference, bits.o, bits.lse);
  return is_right(error, bound) ? "" : "it is wrong alone: " + describe_error(error, bound);
}

std::unique_ptr<Buffer> lengths_on_device(Device& device, const Neighbourhood& n,
                                          std::int64_t SequenceLengths::*which) {
  std::vector<std::int32_t> values;
  for (const SequenceLengths& each : n.sequences) values.push_back(static_cast<std::int32_t>(each.*which));
  auto buffer = device.allocate(values.size() * sizeof(std::int32_t));
  device.upload(buffer->data(), values.data(), values.size() * sizeof(std::int32_t));
  return buffer;
}

// Of a neighbourhood's own, so that its data are the same whichever were judged before.
Draws draws_of(const NeighbourCase& given, std::size_t which) {
  Draws random((given.seed * 1'000'003 + which) * 0xd1342543de82ef95ULL + 1);
  random.next();
  return random;
}

}  // namespace

bool NeighbourBits::operator==(const NeighbourBits& other) const {
  return std::memcmp(o.data(), other.o.data(), o.size() * sizeof(float)) == 0 &&
         std::memcmp(lse.data(), other.lse.data(), lse.size() * sizeof(float)) == 0;
}

std::string Neighbourhood::words() const {
  return fmt::format("{} of {} in {}{}", place + 1, sequences.size(), problem.id(), is_padded ? ", padded" : "");
}

Candidate neighbour_candidate(const Problem& problem, const DeviceInfo& device, const std::string& pinned) {
  if (pinned.empty()) return batch_invariant_choice(problem, device).candidate;
  // A config that is named is held to it as it is; of a family alone, the one that it promises equal bits for, if any.
  if (pinned.find(':') == std::string::npos) {
    const Family& family = family_by_name(pinned);
    if (const auto reason = family.why_unsupported(problem, device.limits))
      throw_bad_input("{} does not run {}: {}", family.name(), problem.id(), *reason);
    if (auto config = family.batch_invariant_config(problem, device.limits)) return {&family, *std::move(config)};
  }
  return parse_candidate(pinned, problem, device.limits);
}

std::optional<NeighbourCase> random_neighbours(std::uint64_t seed, std::uint64_t index, int neighbourhoods,
                                               const DeviceInfo& device, const std::string& candidate) {
  Draws random((seed * 1'000'003 + index) * 0xd1342543de82ef95ULL + 1);
  random.next();
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const auto alone = draw_problem(random, device, candidate);
    if (!alone) continue;
    NeighbourCase drawn{random.next() % 1'000'000'000U, {alone->seqlen_q, alone->seqlen_kv}, {}};
    // Of a short sequence on either side: the longest of its batch decides which.
    const bool few = alone->seqlen_q <= kFewInvariantRows && (!alone->ragged() || random.one_in(2));
    Neighbourhood first{*alone, {drawn.lengths}, 0, false};
    if (!few && alone->ragged()) first.problem.seqlen_q = std::max(first.problem.seqlen_q, kFewInvariantRows + 1);
    drawn.neighbourhoods.push_back(first);
    for (int i = 0; i < neighbourhoods; ++i)
      drawn.neighbourhoods.push_back(draw_neighbourhood(random, *alone, few, most_on(device)));
    const auto runs = [&](const Neighbourhood& n) { return is_promised(n.problem, device, candidate); };
    if (std::all_of(drawn.neighbourhoods.begin(), drawn.neighbourhoods.end(), runs)) return drawn;
  }
  return std::nullopt;
}

struct NeighbourJudge::Impl {
  Device& device;
  NeighbourCase given;
  std::string pinned;
  PlacedProblem problem;  // the sequence's own
  AttentionInputs own;
  std::optional<NeighbourBits> alone;

  NeighbourBits run(std::size_t which, const Stage& stage) {
    const Neighbourhood& n = given.neighbourhoods[which];
    Draws random = draws_of(given, which);
    const AttentionInputs inputs = inputs_of(given, n, own, random);
    if (stage) stage(Gate::kCompile);
    const Candidate candidate = neighbour_candidate(n.problem, device.info(), pinned);
    const Artifact artifact = compile_candidate(candidate, n.problem, device.info().limits);
    if (stage) stage(Gate::kCorrectness);
    const LoadedCandidate loaded(device, candidate, n.problem, artifact);
    Operands operands(device, n.problem);
    operands.upload(inputs);
    AttentionArgs args = operands.args();
    std::unique_ptr<Buffer> rows, keys;
    if (n.problem.ragged() && !n.is_padded) operands.upload_lengths(n.sequences);
    if (n.is_padded) {
      rows = lengths_on_device(device, n, &SequenceLengths::q),
      keys = lengths_on_device(device, n, &SequenceLengths::kv);
      args.seqused_q = static_cast<const std::int32_t*>(rows->data());
      args.seqused_kv = static_cast<const std::int32_t*>(keys->data());
    }
    return bits_of(given, n, launch_once(device, operands, loaded.bind(args)));
  }
};

NeighbourJudge::NeighbourJudge(Device& device, NeighbourCase given, std::string pinned) {
  const PlacedProblem problem = own_problem(given);
  AttentionInputs own = make_inputs(problem, Pattern::kNormal, given.seed);
  impl_.reset(new Impl{device, std::move(given), std::move(pinned), problem, std::move(own), {}});
}

NeighbourJudge::~NeighbourJudge() = default;

NeighbourAnswer NeighbourJudge::judge(std::size_t which, const Stage& stage) {
  NeighbourBits bits;
  const auto failure = failure_of([&] {
    if (!impl_->alone) impl_->alone = impl_->run(0, stage);
    bits = which == 0 ? *impl_->alone : impl_->run(which, stage);
  });
  if (failure && failure->lacking) return {"", failure->what, false};
  if (failure) return {failure->what, "", failure->faulted};
  if (which == 0) return {why_wrong(impl_->problem, impl_->own, bits), "", false};
  return {bits == *impl_->alone ? "" : first_difference(impl_->given, *impl_->alone, bits), "", false};
}

NeighbourVerdict judge_neighbours(const NeighbourCase& given, const AskNeighbour& ask) {
  NeighbourVerdict verdict;
  const std::size_t all = given.neighbourhoods.size();
  for (std::size_t which = 0; which < all; ++which) {
    const NeighbourAnswer answer = ask(which);
    verdict.lacking = answer.lacking;
    if (!verdict.lacking.empty()) return verdict;
    if (which == 0 && !answer.different.empty()) {
      verdict.compared = static_cast<int>(all) - 1;
      for (std::size_t each = 1; each < all; ++each) verdict.different[each] = answer.different;
      return verdict;
    }
    if (which == 0) continue;
    ++verdict.compared;
    if (!answer.different.empty()) verdict.different[which] = answer.different;
  }
  return verdict;
}

AskNeighbour ask_worker(Worker& worker, const NeighbourName& name, const NeighbourCase& given, double timeout_seconds) {
  return [&worker, name, given, timeout_seconds](std::size_t which) -> NeighbourAnswer {
    const nlohmann::json request = {{"seed", name.seed},
                                    {"index", name.index},
                                    {"neighbourhoods", name.neighbourhoods},
                                    {"pinned", name.pinned},
                                    {"which", which}};
    const double limit = timeout_seconds > 0
                             ? timeout_seconds
                             : launch_timeout_seconds(given.neighbourhoods.at(which).problem, worker.device().limits);
    const TaskOutcome outcome = worker.run_task(kNeighbourTask, request, limit);
    if (outcome.answer.is_null()) return {outcome.failure, "", false};
    return {outcome.answer.at("different").get<std::string>(), outcome.answer.at("lacking").get<std::string>(),
            outcome.answer.at("faulted").get<bool>()};
  };
}

// Keeps the latest case, whose neighbourhoods are asked for one after the other.
WorkerTask neighbour_task() {
  struct Latest {
    nlohmann::json name;
    std::unique_ptr<NeighbourJudge> judge;
  };
  return [latest = std::make_shared<Latest>()](Device& device, const nlohmann::json& request,
                                               const NeighbourJudge::Stage& stage) -> nlohmann::json {
    nlohmann::json name = request;
    name.erase("which");
    if (!latest->judge || latest->name != name) {
      const auto pinned = request.at("pinned").get<std::string>();
      auto drawn = random_neighbours(request.at("seed").get<std::uint64_t>(), request.at("index").get<std::uint64_t>(),
                                     request.at("neighbourhoods").get<int>(), device.info(), pinned);
      if (!drawn) throw_internal("no neighbours are drawn of {}", name.dump());
      latest->judge = std::make_unique<NeighbourJudge>(device, std::move(*drawn), pinned);
      latest->name = std::move(name);
    }
    const NeighbourAnswer answer = latest->judge->judge(request.at("which").get<std::size_t>(), stage);
    return {{"different", answer.different}, {"lacking", answer.lacking}, {"faulted", answer.faulted}};
  };
}

}  // namespace flashcore
