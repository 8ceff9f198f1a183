#pragma once
// --stop-loss, --worth and --price of a search.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "cli/console.h"
#include "lab/tune/result.h"

namespace flashcore::cli {

struct StopLossFlags {
  bool on = false;
  std::string worth, price;
};
void add_stop_loss(CLI::App& app, StopLossFlags& flags);
// None without --stop-loss. Error kBadInput for a worth that is none, and for a flag without those that it needs.
std::optional<StopLoss> stop_loss_of(const StopLossFlags& flags);
// That a search ended for it, and why.
void say_stop_loss(Console& console, const TuneResult::Entry& entry, const std::optional<StopLoss>& rule);
// Null where no stop-loss was asked for.
nlohmann::json stop_loss_json(const TuneResult::Entry& entry, const std::optional<StopLoss>& rule);

}  // namespace flashcore::cli
