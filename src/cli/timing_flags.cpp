#include "cli/timing_flags.h"

#include <charconv>

#include "cli/arguments.h"
#include "core/error.h"

namespace flashcore::cli {

void add_timing_flags(CLI::App& app, TimingFlags& flags, const std::string& margin, const std::string& when) {
  app.add_option("--margin", flags.margin, margin)->type_name("PERCENT")->capture_default_str();
  app.add_option("--processes", flags.processes, "fresh processes per problem; at least 3 for what is published")
      ->type_name("N")
      ->check(whole_between(1, 100))
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "of timing per problem, at most, all processes together")
      ->check(number_between(0.1, 3600.0))
      ->capture_default_str();
  app.add_option("--regime", flags.regime, when + "graph | cold | warm")->capture_default_str();
  app.add_option("--condition", flags.condition, when + "burst | sustained")->capture_default_str();
  app.add_option("--seed", flags.seed, "of data and order")->check(seed_number())->capture_default_str();
}

MeasurementSpec spec_of(const TimingFlags& flags) {
  return {.regime = parse_regime(flags.regime),
          .condition = parse_condition(flags.condition),
          .seed = flags.seed,
          .margin = parse_margin(flags.margin),
          .max_seconds = flags.seconds};
}

double parse_margin(const std::string& text) {
  double number = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  const bool is_percent = end + 1 == last && *end == '%';
  const double margin = is_percent ? number / 100 : number;
  if (error != std::errc() || (end != last && !is_percent) || !(margin >= 0.001) || margin > 1)
    throw_bad_input("--margin '{}' is not a margin: give a percentage such as 3%, from 0.1% to 100%", text);
  return margin;
}

}  // namespace flashcore::cli
