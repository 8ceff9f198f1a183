#pragma once
// What profile, invert and timeline could have written, with markup in what came from elsewhere.

#include "lab/report/diagnoses.h"

namespace flashcore::example {

inline nlohmann::json profile_document() {
  return nlohmann::json::parse(R"({"schema": "flashcore.profile/1", "results": [{
    "problem": "b1_h8_s512_d64_fp16", "candidate": "sm80_fwd:block_m=64<script>alert(1)</script>", "failure": "",
    "device": {"name": "a GPU"}, "counted": {"problem": "b1_h1_s64_d64_fp16"},
    "bottlenecks": [
      {"rank": 1, "name": "bank conflicts", "kind": "fault", "share": 0.25, "share_of": "the time", "sentence": "Lanes ask one bank.",
       "evidence": ["900 passes where 300 would do", "<img src=x onerror=alert(2)>"]},
      {"rank": 2, "name": "tensor cores", "kind": "limit", "share": 0.61, "sentence": "They are the limit.",
       "evidence": []}],
    "indicators": [
      {"name": "SM busy", "value": 41.5, "unit": "%", "target": ">= 70", "met": false, "source": "hardware counters"},
      {"name": "warps per SM", "value": 16, "unit": "warps", "target": ">= 8", "met": true, "source": "compiler"},
      {"name": "L2 hits", "value": null, "unit": "%", "target": ">= 50", "met": null, "source": "needs counters"}],
    "lost": [{"source": "hardware counters", "why": "there is no ncu"}]}]})");
}

inline nlohmann::json inversion_document() {
  return nlohmann::json::parse(R"({"schema": "flashcore.invert/1", "results": [{
    "problem": "b1_h8_s512_d64_fp16", "candidate": "sm80_fwd:block_m=64", "unit": "time", "failed": "", "busy": "",
    "answer": "fewer multiplies would help most",
    "ranking": [
      {"variant": "quarter_multiplies", "kind": "leave_one_out", "wrong_on_purpose": true, "verdict": "FASTER",
       "time_ratio": 0.5, "ci95": [0.48, 0.52], "sentence": "it takes half of the time"},
      {"variant": "divergence", "kind": "pathology", "wrong_on_purpose": false, "verdict": "SLOWER",
       "time_ratio": 2.0, "ci95": [1.9, "inf"], "sentence": "it takes twice the time"}],
    "not_judged": [{"variant": "serial_grid", "why_not": "no CTA takes several tiles"}]}]})");
}

inline nlohmann::json timeline_document() {
  return nlohmann::json::parse(R"({"schema": "flashcore.timeline/1", "results": [{
    "problem": "b1_h8_s512_d64_fp16", "candidate": "sm90_fwd:block_n=64", "unit": "cycles", "multiplying_share": 0.71,
    "dropped": 0, "faults": [], "distortion": {"sentence": "the marks make it 1.0% slower"},
    "sums": [{"role": "consumer", "activity": "wait_k", "share": 0.25, "count": 32, "median": 512, "is_wait": true}],
    "tracks": []}]})");
}

inline Diagnoses diagnoses() {
  Diagnoses all;
  for (const nlohmann::json& document : {profile_document(), inversion_document(), timeline_document()})
    add_diagnosis(all, document, "example.json");
  return all;
}

}  // namespace flashcore::example
