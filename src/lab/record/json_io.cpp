#include "lab/record/json_io.h"

#include <cmath>
#include <limits>

namespace flashcore {

nlohmann::json encode_nonfinite(nlohmann::json json) {
  if (json.is_number_float()) {
    const double value = json.get<double>();
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  } else if (json.is_structured()) {
    for (auto& element : json) element = encode_nonfinite(std::move(element));
  }
  return json;
}

nlohmann::json decode_nonfinite(nlohmann::json json) {
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
  } else if (json.is_structured()) {
    for (auto& element : json) element = decode_nonfinite(std::move(element));
  }
  return json;
}

std::string dump_line(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace flashcore
