#pragma once
#include <nlohmann/json.hpp>

#include "lab/report/model.h"

namespace flashcore::report {

// What src/lab/report/assets/report.js draws. Samples are thinned to kMaxSamples a series, evenly and in order.
inline constexpr int kMaxSamples = 400;
nlohmann::json chart_data(const Model& model);

}  // namespace flashcore::report
