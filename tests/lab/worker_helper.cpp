// A worker child for tests: the real loop on a fake device, with families that misbehave; or, told by its device's
// name, no worker at all.

#include <unistd.h>

#include <iostream>
#include <string>

#include "core/error.h"
#include "lab/fake.h"
#include "lab/process/worker.h"
#include "lab/verify/worker_tasks.h"

int main(int argc, char** argv) {
  const std::string device = argc > 3 ? argv[3] : "";
  if (device == "absent") {
    std::cout << R"({"error":{"kind":"environment","message":"no such device here; plug one in"}})" << std::endl;
    return 4;
  }
  if (device == "dies_at_once") return 7;
  const auto fake = flashcore::test::make_fake_device();
  if (device == "garbage") {
    std::cout << R"({"device":)" << nlohmann::json(fake->info()).dump() << "}" << std::endl;
    for (std::string line; std::getline(std::cin, line);) std::cout << "Hello, I am not JSON" << std::endl;
    return 0;
  }
  if (device == "forges") {
    // A trial that somebody else than the worker wrote knows no number.
    std::cout << R"({"device":)" << nlohmann::json(fake->info()).dump() << "}" << std::endl;
    for (std::string line; std::getline(std::cin, line);)
      std::cout << R"({"trial":{"ended":"passed"},"nonce":"0123"})" << std::endl;
    return 0;
  }
  // Children that answer a request by misbehaving on their streams.
  if (device.starts_with("then_")) {
    std::cout << R"({"device":)" << nlohmann::json(fake->info()).dump() << "}" << std::endl;
    std::string line;
    std::getline(std::cin, line);
    if (device == "then_floods") {
      const std::string chunk(1 << 16, 'x');
      while (write(STDOUT_FILENO, chunk.data(), chunk.size()) > 0) {
      }
    }
    if (device == "then_tells_stages_forever" || device == "then_tells_no_gate") {
      const char* name = device == "then_tells_no_gate" ? "victory" : "valid";
      const std::string stage =
          nlohmann::json{{"stage", name}, {"nonce", nlohmann::json::parse(line).at("nonce")}}.dump() + "\n";
      while (std::cout << stage) {
      }
    }
    if (device == "then_floods_stderr") {
      const std::string chunk(1 << 16, 'x');
      while (write(STDERR_FILENO, chunk.data(), chunk.size()) > 0) {
      }
    }
    if (device == "then_closes_stdout") {
      close(STDOUT_FILENO);
      for (;;) pause();
    }
    return 0;
  }
  const flashcore::test::AllFakeFamilies families;
  // The CPU beside families that misbehave: what needs a right kernel as well has cpu_fwd.
  if (device == "cpu") return flashcore::worker_main(device, flashcore::verify_tasks());
  return flashcore::serve(*fake, flashcore::verify_tasks());
}
