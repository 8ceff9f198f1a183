#include "lab/measure/spec.h"

#include <nlohmann/json.hpp>

namespace flashcore {

void to_json(nlohmann::json& j, const MeasurementSpec& s) {
  j = {{"regime", to_string(s.regime)},
       {"condition", to_string(s.condition)},
       {"seed", s.seed},
       {"margin", s.margin},
       {"max_seconds", s.max_seconds}};
}

void from_json(const nlohmann::json& j, MeasurementSpec& s) {
  s.regime = parse_regime(j.at("regime").get<std::string>());
  s.condition = parse_condition(j.at("condition").get<std::string>());
  j.at("seed").get_to(s.seed);
  j.at("margin").get_to(s.margin);
  j.at("max_seconds").get_to(s.max_seconds);
}

}  // namespace flashcore
