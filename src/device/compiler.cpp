#include "device/compiler.h"

namespace flashcore {

std::string first_error(const std::string& log) {
  const std::size_t at = log.find("error");
  const std::size_t line_end = at == std::string::npos ? at : log.rfind('\n', at);
  const std::size_t begin = line_end == std::string::npos ? 0 : line_end + 1;
  return log.substr(begin, log.find('\n', begin) - begin);
}

}  // namespace flashcore
