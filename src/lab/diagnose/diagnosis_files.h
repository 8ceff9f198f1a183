#pragma once
// Judges of the files that `flashcore profile --planted` and `flashcore timeline` write (lab/verify/judged_file.h).

#include "lab/verify/judged_file.h"

namespace flashcore {

FileJudges diagnosis_file_judges();

Verification verify_profile_planted_file(const nlohmann::json& document);
Verification verify_timeline_file(const nlohmann::json& document);

}  // namespace flashcore
