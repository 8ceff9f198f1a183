#include "cli/stop_loss_flags.h"

#include <nlohmann/json.hpp>

#include "cli/arguments.h"
#include "core/error.h"
#include "core/foreign_text.h"

namespace flashcore::cli {

void add_stop_loss(CLI::App& app, StopLossFlags& flags) {
  app.add_flag("--stop-loss", flags.on,
               "end a problem's search when another trial is expected to gain less than it costs (docs/economics.md)");
  app.add_option("--worth", flags.worth,
                 "what a percent of speed is worth: time of the machine (30s, 10m), or with --price an amount of money")
      ->type_name("TIME|X");
  app.add_option("--price", flags.price, "of an hour of the machine, in the currency of --worth")
      ->type_name("X")
      ->check(number_between(1e-9, 1e9));
}

std::optional<StopLoss> stop_loss_of(const StopLossFlags& flags) {
  if (!flags.on) {
    if (!flags.worth.empty() || !flags.price.empty())
      throw_bad_input("{} was given without --stop-loss, which alone uses it: add --stop-loss, or leave it out",
                      flags.worth.empty() ? "--price" : "--worth");
    return std::nullopt;
  }
  if (flags.worth.empty())
    throw_bad_input(
        "--stop-loss needs --worth, what a percent of speed is worth: time of the machine (--worth 10m), or money "
        "beside the price of an hour (--worth 20 --price 4)");
  if (const auto seconds = parse_duration(flags.worth)) {
    if (!flags.price.empty())
      throw_bad_input("--worth '{}' is a time already, and --price would change nothing: leave it out", flags.worth);
    return StopLoss{*seconds};
  }
  const auto money = parse_finite(flags.worth);
  if (!money || *money <= 0 || *money > 1e9)
    throw_bad_input(
        "--worth '{}' is neither a time nor an amount: give seconds, minutes or hours of the machine (30s, 10m, 1h), "
        "or a number above 0 with --price",
        excerpt(flags.worth));
  if (flags.price.empty())
    throw_bad_input("--worth {} is an amount of money, which needs the price of an hour: add --price, or give a time",
                    flags.worth);
  return stop_loss_of_money(*money, *parse_finite(flags.price));
}

void say_stop_loss(Console& console, const TuneResult::Entry& entry, const std::optional<StopLoss>& rule) {
  if (!rule) return;
  if (entry.stopped_at_loss)
    console.line("{}: the search was ended by --stop-loss after {}", entry.problem.name, entry.gain->sentence(*rule));
  else if (entry.gain)
    console.line("{}: --stop-loss did not end the search; after {}", entry.problem.name, entry.gain->sentence(*rule));
}

nlohmann::json stop_loss_json(const TuneResult::Entry& entry, const std::optional<StopLoss>& rule) {
  if (!rule) return nullptr;
  nlohmann::json json = {
      {"stopped", entry.stopped_at_loss}, {"seconds_per_percent", rule->seconds_per_percent}, {"expected", nullptr}};
  if (entry.gain)
    json["expected"] = {{"trials", entry.gain->trials},
                        {"window", entry.gain->window},
                        {"records", entry.gain->records},
                        {"probability", entry.gain->probability},
                        {"size_percent", entry.gain->size_percent},
                        {"gain_percent", entry.gain->percent()},
                        {"worth_seconds", entry.gain->worth_seconds(*rule)},
                        {"trial_seconds", entry.gain->trial_seconds}};
  return json;
}

}  // namespace flashcore::cli
