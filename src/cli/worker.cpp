// The hidden verb behind lab/worker.h.

#include "lab/worker.h"

#include <csignal>

#include "cli/common.h"
#include "cli/verbs.h"

namespace flashcore::cli {

Run add_worker(CLI::App& app) {
  auto device = std::make_shared<std::string>();
  app.add_option("--device", *device, "as the parent's");
  return [device] {
    // Ctrl-C reaches the whole foreground group, and so does timeout(1)'s signal; the parent decides when the trial in
    // flight ends.
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGTERM, SIG_IGN);
    return worker_main(*device);
  };
}

}  // namespace flashcore::cli
