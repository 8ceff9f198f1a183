// A small serving engine on flashcore: continuous batching of random requests over a paged cache, with a toy model.
//
//   engine --device cpu --check          each request's result again, alone and dense
//   engine --device cuda:0 --requests 200 --longest-prompt 2000 --pages 4096 --max-requests 32 --rows 512
//
// Exit codes: 0 done, 1 --check found a difference, 3 bad input, 4 the machine lacks something.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>

#include "engine.h"

namespace {

constexpr int kDone = 0, kFailed = 1, kBadUsage = 3, kNoEnvironment = 4;

struct Arguments {
  std::string device = "cpu", dtype, json;
  engine::Sizes sizes;
  engine::CacheSizes cache;
  engine::Traffic traffic;
  std::uint64_t seed = 1;
  bool check = false, quiet = false, share_a_page = false;
};

void declare(CLI::App& app, Arguments& a) {
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  const auto whole = [&](const char* name, int& value, const char* text, int most) {
    app.add_option(name, value, text)->check(CLI::Range(1, most))->capture_default_str();
  };
  app.add_option("--device", a.device, "cpu, emulator, cuda or cuda:N")->capture_default_str();
  app.add_option("--dtype", a.dtype, "of q, k, v and the caches; default fp32 on the CPU, bf16 elsewhere")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  whole("--requests", a.traffic.requests, "how many arrive", 1000000);
  app.add_option("--arrivals", a.traffic.per_step, "of requests to a step, on average")
      ->check(CLI::Range(1e-3, 1e6))
      ->capture_default_str();
  whole("--longest-prompt", a.traffic.longest_prompt, "prompts have 1 to so many tokens", 1000000);
  whole("--longest-output", a.traffic.longest_output, "requests ask for 1 to so many tokens", 1000000);
  whole("--page-size", a.cache.page_size, "keys in a page", 65536);
  whole("--pages", a.cache.pages, "of the pool", 1 << 24);
  whole("--max-requests", a.cache.max_requests, "that run at once", 65536);
  whole("--rows", a.cache.max_rows, "of a step, all requests together: prompts are computed in chunks", 65536);
  whole("--layers", a.sizes.layers, "of the model", 1000);
  whole("--heads", a.sizes.heads, "query heads", 1024);
  whole("--kv-heads", a.sizes.heads_kv, "key heads, which divide the query heads", 1024);
  whole("--head-dim", a.sizes.head_dim, "a multiple of 8", 256);
  app.add_option("--seed", a.seed, "of weights and requests")->capture_default_str();
  app.add_flag("--check", a.check, "each request again, alone and dense; exit 1 if a row differs");
  app.add_flag("--share-a-page", a.share_a_page, "a planted fault, which --check must find: requests share a page");
  app.add_option("--json", a.json, "write what was done to a file, - for stdout");
  app.add_flag("--quiet", a.quiet, "no progress and no summary");
}

// Of flags together; empty if they fit.
std::string why_not(Arguments& a) {
  const auto text = [](auto... parts) { return (std::string() + ... + parts); };
  const auto number = [](int n) { return std::to_string(n); };
  if (a.sizes.heads % a.sizes.heads_kv)
    return text("--heads is ", number(a.sizes.heads), " and --kv-heads ", number(a.sizes.heads_kv),
                "; the second must divide the first");
  if (a.sizes.head_dim % 8) return text("--head-dim is ", number(a.sizes.head_dim), "; give a multiple of 8");
  if (!std::isfinite(a.traffic.per_step))
    return text("--arrivals is ", std::to_string(a.traffic.per_step), "; give a number");
  if (static_cast<std::int64_t>(a.cache.page_size) * a.sizes.width_kv() > std::numeric_limits<int>::max())
    return text("--page-size is ", number(a.cache.page_size), " and keys have ", number(a.sizes.width_kv()),
                " elements; a page may have 2147483647");
  if (a.cache.max_rows < a.cache.max_requests)
    return text("--rows is ", number(a.cache.max_rows), " and --max-requests ", number(a.cache.max_requests),
                "; a step must have a row for each request that decodes");
  const int longest = a.traffic.longest_prompt + a.traffic.longest_output - 1;
  a.cache.max_pages = (longest + a.cache.page_size - 1) / a.cache.page_size;
  if (a.cache.max_pages > a.cache.pages)
    return text("a request may need ", number(a.cache.max_pages), " pages and --pages is ", number(a.cache.pages),
                "; give more pages, or shorter prompts and outputs");
  return "";
}

// On a terminal one line that changes; elsewhere a line a second.
class Progress {
 public:
  explicit Progress(const Arguments& a) : quiet_(a.quiet), requests_(a.traffic.requests) {}
  void show(const engine::Engine& engine, bool last) {
    const double now = seconds();
    if (quiet_ || (!last && now - shown_ < (terminal_ ? 0.1 : 1.0))) return;
    shown_ = now;
    const auto& [steps, prompt, generated, finished, attention] = engine.counts();
    std::string bar(20, '.');
    const auto full =
        20 * static_cast<std::size_t>(engine.pool().used()) / static_cast<std::size_t>(engine.pool().pages());
    bar.replace(0, full, full, '#');
    std::fprintf(stderr, "%sstep %d  done %d/%d  running %d  waiting %d  pages [%s] %d/%d  %.0f tokens/s%s",
                 terminal_ ? "\r\033[K" : "", steps, finished, requests_, engine.running(), engine.queued(),
                 bar.c_str(), engine.pool().used(), engine.pool().pages(), (prompt + generated) / now,
                 terminal_ && !last ? "" : "\n");
  }
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  bool quiet_, terminal_ = isatty(2) == 1;
  int requests_;
  double shown_ = 0;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

nlohmann::json summary_of(const engine::Engine& engine, const Arguments& a, double seconds) {
  const auto& [steps, prompt, generated, finished, attention] = engine.counts();
  return {{"schema", "flashcore.engine/1"},
          {"device", a.device},
          {"dtype", a.dtype},
          {"plan", nlohmann::json::parse(engine.attention().describe())},
          {"steps", steps},
          {"requests", finished},
          {"tokens", {{"prompt", prompt}, {"generated", generated}}},
          {"seconds", seconds},
          {"attention_seconds", attention},
          {"tokens_per_second", (prompt + generated) / seconds},
          {"pages", {{"pool", engine.pool().pages()}, {"peak", engine.pool().peak()}, {"left", engine.pool().used()}}}};
}

void require_writable(const std::string& json) {
  if (json.empty() || json == "-" || std::ofstream(json, std::ios::app)) return;
  throw flashcore::Error(FC_ERROR_BAD_INPUT, ("--json is " + json + ", which cannot be written").c_str());
}

int run(Arguments& a) {
  require_writable(a.json);  // before the work
  const flashcore::Context context(a.device);
  if (a.dtype.empty()) a.dtype = context.describe().find("\"kind\":\"cpu\"") != std::string::npos ? "fp32" : "bf16";
  const engine::ToyModel model(a.sizes, a.seed);
  engine::Engine engine(context, model, a.cache, a.dtype == "fp32" ? FC_FP32 : FC_BF16,
                        engine::random_requests(a.traffic, a.sizes.vocabulary, a.seed + 1), a.share_a_page);
  Progress progress(a);
  while (!engine.is_done()) {
    engine.step();
    progress.show(engine, engine.is_done());
  }
  nlohmann::json summary = summary_of(engine, a, progress.seconds());
  bool passed = true;
  if (a.check) {
    const double apart = engine.check(), bound = engine.attention().bound();
    passed = apart <= bound;
    summary["check"] = {{"relative_error", apart}, {"bound", bound}, {"passed", passed}};
    if (!a.quiet)
      std::fprintf(stderr, "%s: a row is up to %.2g from its request's alone, %.2g is allowed\n",
                   passed ? "checked" : "WRONG", apart, bound);
  }
  if (!a.quiet)
    std::fprintf(
        stderr, "%d requests in %d steps: %d prompt tokens, %d generated, %.0f tokens/s; at most %d of %d pages\n",
        engine.counts().finished, engine.counts().steps, engine.counts().prompt_tokens, engine.counts().generated,
        summary["tokens_per_second"].get<double>(), engine.pool().peak(), engine.pool().pages());
  if (a.json == "-") std::cout << summary.dump(2) << "\n";
  else if (!a.json.empty() && !(std::ofstream(a.json) << summary.dump(2) << "\n"))
    throw flashcore::Error(FC_ERROR_BAD_INPUT, ("--json is " + a.json + ", which cannot be written").c_str());
  return passed ? kDone : kFailed;
}

}  // namespace

int main(int count, char** words) {
  CLI::App app("continuous batching over a paged cache, on flashcore");
  Arguments arguments;
  declare(app, arguments);
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kBadUsage;
  }
  if (const std::string why = why_not(arguments); !why.empty()) {
    std::fprintf(stderr, "engine: %s\n", why.c_str());
    return kBadUsage;
  }
  try {
    return run(arguments);
  } catch (const flashcore::Error& error) {
    std::fprintf(stderr, "engine: %s\n", error.what());
    return error.status() == FC_ERROR_BAD_INPUT ? kBadUsage : kNoEnvironment;
  } catch (const std::bad_alloc&) {
    std::fprintf(
        stderr,
        "engine: the model and its caches do not fit this machine's memory; give fewer --pages, --heads or --layers\n");
    return kNoEnvironment;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "engine: %s\n", error.what());
    return kNoEnvironment;
  }
}
