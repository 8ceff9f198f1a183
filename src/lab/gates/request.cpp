#include "lab/gates/request.h"

#include "core/problem_row.h"

namespace flashcore {

using nlohmann::json;

void to_json(json& j, const EvaluateRequest& r) {
  j = {{"problem_name", r.problem_name},
       {"suite", r.suite},
       {"candidate", r.candidate},
       {"patches", r.patches},
       {"incumbent", r.incumbent ? json(*r.incumbent) : json()},
       {"timed", r.timed},
       {"phase", to_string(r.phase)},
       {"patterns", r.patterns},
       {"level", r.level},
       {"time", r.time},
       {"spec", r.spec()},
       {"min_samples", r.min_samples},
       {"max_reference_flops", r.max_reference_flops},
       {"use_cache", r.use_cache},
       {"past_resources", r.past_resources}};
  put_problem(j, r.problem);
}

void from_json(const json& j, EvaluateRequest& r) {
  r.problem = problem_of(j);
  j.at("problem_name").get_to(r.problem_name);
  j.at("suite").get_to(r.suite);
  j.at("candidate").get_to(r.candidate);
  r.patches = j.at("patches").get<std::vector<Patch>>();
  r.incumbent.reset();
  if (!j.at("incumbent").is_null()) r.incumbent = j.at("incumbent").get<std::string>();
  r.timed = j.at("timed").get<std::map<std::string, std::string>>();
  r.phase = parse_word<Phase>(j.at("phase").get<std::string>());
  j.at("patterns").get_to(r.patterns);
  r.level = parse_word<GateLevel>(j.at("level").get<std::string>());
  j.at("time").get_to(r.time);
  j.at("spec").get_to(r.spec());
  j.at("min_samples").get_to(r.min_samples);
  j.at("max_reference_flops").get_to(r.max_reference_flops);
  j.at("use_cache").get_to(r.use_cache);
  j.at("past_resources").get_to(r.past_resources);
}

}  // namespace flashcore
