// The hidden verb behind lab/process/confined.h.

#include "cli/verbs.h"
#include "lab/process/confined.h"

namespace flashcore::cli {

Run add_confine(CLI::App& app) {
  auto work = std::make_shared<std::string>();
  auto command = std::make_shared<std::vector<std::string>>();
  app.add_option("work", *work, "the folder that it may write")->required();
  app.add_option("command", *command, "what to become, behind --")->required();
  return [=]() -> int { become_confined(*work, *command); };
}

}  // namespace flashcore::cli
