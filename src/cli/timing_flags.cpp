#include "cli/timing_flags.h"

#include "cli/arguments.h"

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

}  // namespace flashcore::cli
