// The hidden verbs behind lab/process/worker.h and device/emulator/executor.h.

#include "lab/process/worker.h"

#include <csignal>

#include "cli/common.h"
#include "cli/verbs.h"
#include "device/emulator/executor.h"
#include "lab/verify/worker_tasks.h"

namespace flashcore::cli {

Run add_worker(CLI::App& app) {
  auto device = std::make_shared<std::string>();
  app.add_option("--device", *device, "as the parent's");
  return [device] {
    // Ctrl-C reaches the whole foreground group, and so does timeout(1)'s signal; the parent decides when the trial in
    // flight ends.
    std::signal(SIGINT, SIG_IGN);
    std::signal(SIGTERM, SIG_IGN);
    std::signal(SIGHUP, SIG_DFL);
    return worker_main(*device, verify_tasks());
  };
}

Run add_execute_kernel(CLI::App& app) {
  auto means = std::make_shared<std::string>();
  app.add_option("means", *means, "namespaces | landlock")->required();
  return [means] { return emulator::executor_main(means->c_str()); };
}

}  // namespace flashcore::cli
