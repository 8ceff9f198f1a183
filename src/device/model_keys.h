#pragma once
// The GPU models whose memory and clocks are known without one being here.

#include <string>
#include <vector>

namespace flashcore {

// DeviceInfo::key of each, as find_gpu_model takes it.
std::vector<std::string> known_model_keys();

}  // namespace flashcore
