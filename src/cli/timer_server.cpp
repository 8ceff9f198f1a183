// The hidden verb behind lab/process/timer_server.h.

#include "lab/process/timer_server.h"

#include <sys/prctl.h>

#include <csignal>
#include <iostream>

#include "cli/common.h"
#include "cli/verbs.h"

namespace flashcore::cli {

Run add_timer_server(CLI::App& app) {
  auto device = std::make_shared<std::string>();
  app.add_option("--device", *device, "cpu, cuda or cuda:N");
  return [device] {
    // A kernel that hangs would keep it alive, and the GPU busy, after whoever asked is gone.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    return timer_server_main(*device, std::cin, std::cout);
  };
}

}  // namespace flashcore::cli
