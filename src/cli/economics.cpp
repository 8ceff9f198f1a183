// flashcore economics: what the trials of a store cost, and what they gained for it.

#include <fmt/ranges.h>

#include <algorithm>

#include "cli/arguments.h"
#include "cli/common.h"
#include "cli/stored.h"
#include "cli/verbs.h"
#include "core/error.h"
#include "core/foreign_text.h"
#include "lab/economics/account.h"

namespace flashcore::cli {

namespace {

// Of the runs that an error names.
constexpr std::size_t kShownRuns = 10;

struct EconomicsArguments {
  Common common;
  std::string run, device_key, price;
};

std::string money_text(std::optional<double> money) { return money ? fmt::format("{:.4g}", *money) : "-"; }

void add_cost(Table& table, std::string_view kind, std::string_view what, const Cost& cost,
              std::optional<double> price) {
  table.add({std::string(kind), std::string(what), std::to_string(cost.trials),
             fmt::format("{:.2f}", cost.device_minutes()), fmt::format("{:.2f}", cost.host_minutes()),
             money_text(price ? std::optional(cost.money(*price)) : std::nullopt)});
}

void show_account(Console& console, const Account& account, std::optional<double> price) {
  console.line("{} ({})", account.device_name, account.device_key);
  Table table({"", "of", "trials", "device min", "host min", "money"});
  for (const auto& [phase, cost] : account.by_phase) add_cost(table, "phase", to_string(phase), cost, price);
  for (const auto& [ended, cost] : account.by_end)
    add_cost(table, "verdict", ended == Ended::kNotYet ? "none" : to_string(ended), cost, price);
  add_cost(table, "total", "all", account.total, price);
  console.table(table);
  Table gains({"problem", "gained", "candidate", "against"});
  for (const Gain& gain : account.gains)
    gains.add({gain.problem_name.empty() ? gain.problem_id : gain.problem_name, fmt::format("{:.1f}%", gain.percent),
               gain.candidate, gain.against});
  console.table(gains);
  console.line("{}", cost_sentence(account, price));
}

// Of all runs if none is named.
std::vector<Trial> trials_of_run(const std::string& store, const std::string& run) {
  std::vector<Trial> trials = stored_trials(store, {});
  if (run.empty()) return trials;
  std::vector<std::string> latest_first;
  for (auto t = trials.rbegin(); t != trials.rend(); ++t)
    if (std::find(latest_first.begin(), latest_first.end(), t->run) == latest_first.end())
      latest_first.push_back(t->run);
  if (std::find(latest_first.begin(), latest_first.end(), run) == latest_first.end()) {
    const std::size_t shown = std::min(latest_first.size(), kShownRuns);
    const std::string more =
        latest_first.size() > shown ? fmt::format(" and {} earlier ones", latest_first.size() - shown) : "";
    latest_first.resize(shown);
    if (shown == 0) throw_bad_input("--run {}: the store {} holds no trial", excerpt(run), store);
    throw_bad_input("--run {}: the store {} has no such run; it has {}{} (latest first)", excerpt(run), store,
                    fmt::join(latest_first, ", "), more);
  }
  std::erase_if(trials, [&](const Trial& t) { return t.run != run; });
  return trials;
}

int show_economics(const EconomicsArguments& options) {
  const Common& common = options.common;
  check_json_target(common);
  require_distinct({{"--json", common.json}}, {{"--store", common.store}});
  std::optional<double> price;
  if (!options.price.empty()) price = parse_finite(options.price);
  std::vector<Account> accounts = accounts_of(trials_of_run(common.store, options.run));
  std::vector<std::string> keys;
  for (const Account& account : accounts) keys.push_back(account.device_key);
  std::erase_if(accounts, [&](const Account& a) { return !a.device_key.starts_with(options.device_key); });
  Console console(common.quiet, json_on_stdout(common));
  nlohmann::json results = nlohmann::json::array();
  Cost all;
  for (const Account& account : accounts) {
    show_account(console, account, price);
    results.push_back(account_json(account, price));
    all.trials += account.total.trials;
    all.unknown += account.total.unknown;
    all.seconds += account.total.seconds;
  }
  write_json(common, {{"schema", "flashcore.economics/1"},
                      {"store", common.store},
                      {"price_per_hour", price ? nlohmann::json(*price) : nlohmann::json()},
                      {"results", results}});
  if (accounts.empty() && !keys.empty())
    print_error(fmt::format("--device {}: no device of {} has a key that begins so; it holds trials of {}",
                            excerpt(options.device_key), common.store, fmt::join(keys, ", ")));
  console.summary("{}: {:.2f} device minutes, {:.2f} host minutes{}",
                  plural(static_cast<std::int64_t>(all.trials), "trial"), all.device_minutes(), all.host_minutes(),
                  price ? fmt::format(", money {:.4g}", all.money(*price)) : "");
  return all.trials > all.unknown ? kDone : kNotJudged;
}

}  // namespace

Run add_economics(CLI::App& app) {
  auto options = std::make_shared<EconomicsArguments>();
  add_common(app, options->common, kStore | kJson);
  app.add_option("--price", options->price, "of an hour of the machine with the device, in any currency")
      ->type_name("X")
      ->check(number_between(0, 1e9));
  app.add_option("--run", options->run, "only the trials of this run")->type_name("ID");
  app.add_option("--device", options->device_key, "only devices whose key begins so, as h200 or cpu (not opened)")
      ->type_name("KEY");
  add_examples(app, {"economics --store .flashcore/trials.db", "economics --price 3.5 --json economics.json"});
  return [options] { return show_economics(*options); };
}

}  // namespace flashcore::cli
