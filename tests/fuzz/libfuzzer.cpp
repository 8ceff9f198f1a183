// libFuzzer's entry: FLASHCORE_FUZZ_TARGET names the parser.
#include <cstdint>
#include <cstdlib>

#include "target.h"

namespace {

const flashcore::fuzz::Parser& chosen() {
  static const flashcore::fuzz::Parser parser = [] {
    const char* name = std::getenv("FLASHCORE_FUZZ_TARGET");
    const auto found = flashcore::fuzz::targets().find(name ? name : "");
    if (found == flashcore::fuzz::targets().end()) flashcore::fuzz::found("set FLASHCORE_FUZZ_TARGET to a parser");
    return found->second;
  }();
  return parser;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  flashcore::fuzz::run(chosen(), {reinterpret_cast<const char*>(data), size});
  return 0;
}
